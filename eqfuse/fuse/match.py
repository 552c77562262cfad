"""Match a product in a trace: its form, and the arrays that go into it.

What is matched are sums over edges of nequip-jax, mace-jax, tetris_point, nequix and SEGNN: node
features times spherical harmonics and weights of a radial network, with features beside the product
(Tetris), of both ends of an edge (SEGNN), or with channels on an axis of their own.
"""

from __future__ import annotations

import dataclasses
import math

import jax.numpy as jnp
import numpy as np

from eqfuse.fuse.drafts import ONE, Draft, Slot, drafts_of, form_of, names_beside
from eqfuse.fuse.moves import Gathered
from eqfuse.fuse.polynomials import Polynomial, Unfit, variable
from eqfuse.fuse.row_polynomials import ArrayFactor, RowPolynomials, row_shape
from eqfuse.ops.ir.form import Form, Index, Role
from eqfuse.ops.transforms.trace import FLOATS, Trace

CONVERT = "convert after the sum, or before the gather"


@dataclasses.dataclass(frozen=True)
class Columns:
    """Columns of an operand: those of some arrays, multiplied; of no arrays they are ones."""

    arrays: tuple[ArrayFactor | Gathered, ...]
    columns: np.ndarray  # [columns, arrays]

    def of(self, arrays: dict, dtype):
        """Return [rows, columns], or [1, columns], from the arrays of the trace."""
        product = jnp.ones((1, 1), dtype)
        for n, name in enumerate(self.arrays):
            array, columns = as_rows(name, arrays[name.value]), self.columns[:, n]
            if array.shape[1] > 1 and not np.array_equal(columns, np.arange(array.shape[1])):
                array = array[:, columns]
            product = array if n == 0 else product * array
        return jnp.broadcast_to(product, (len(product), len(self.columns))).astype(dtype)


def as_rows(name, array):
    if isinstance(name, Gathered):
        return array.reshape(array.shape[0], -1)
    if name.axes is None:
        return array.reshape(1, -1)
    count = math.prod(array.shape[a] for a in name.axes)
    return jnp.moveaxis(array, name.axes, range(len(name.axes))).reshape(count, -1)


@dataclasses.dataclass(frozen=True)
class Match:
    """A form to be evaluated, and where its operands come from."""

    form: Form
    parts: tuple[tuple[Columns, ...], ...]  # of each input, side by side
    dtype: object  # of all inputs
    backend: str

    @property
    def inputs(self) -> tuple[int, ...]:
        names = (name for parts in self.parts for part in parts for name in part.arrays)
        return tuple(dict.fromkeys(n.value for n in names))

    @property
    def gathered(self) -> dict[int, Gathered]:
        """Return the first gather, whose ends are those of all, of each input that is gathered."""
        first = {n: part.arrays[0] for n, [part, *_] in enumerate(self.parts) if part.arrays}
        return {n: name for n, name in first.items() if isinstance(name, Gathered)}

    def operands(self, arrays: dict, num_rows: int) -> list:
        """Return an array [rows, size], or [1, size], for each input, from those of the trace."""
        operands = []
        for parts, described in zip(self.parts, self.form.inputs, strict=True):
            columns = [part.of(arrays, self.dtype) for part in parts]
            count = num_rows if described.index is Index.ROW else max(map(len, columns))
            columns = [jnp.broadcast_to(c, (count, c.shape[1])) for c in columns]
            operands.append(columns[0] if len(columns) == 1 else jnp.concatenate(columns, axis=1))
        return operands


def match_product(trace: Trace, rows: RowPolynomials, row: Polynomial, dtype) -> Match:
    """Return the form on a graph that gives a row from arrays of a dtype, or raise Unfit."""
    products = {name: rows.product(name) for key in row.terms for name in key}
    products = {name: made for name, made in products.items() if made is not None}
    if not products:
        raise Unfit("no product is summed")
    if len(products) > 1:
        raise Unfit("several products are added")
    [(product, (node, group))] = products.items()
    form, backend = node.params["form"], node.params["backend"]
    operands = [
        rows.grouped(v, group)
        if o.index is Index.ROW
        else variable(ArrayFactor(v, None), tuple(trace.avals[v].shape))
        for v, o in zip(node.inputs, form.inputs, strict=True)
    ]
    if None in operands:
        raise Unfit("an operand of the product has channels on an axis in an unknown order")
    drafts = drafts_of(row, product, group, form, operands)
    roles: dict = {}
    for operand, polynomial in zip(form.inputs, operands, strict=True):
        for key in polynomial.terms:
            main = [n for n in key if isinstance(n, Gathered)] or list(key[:1])
            for name in main[:1]:
                roles.setdefault(name, operand.role)
    for name in names_beside(drafts):
        roles.setdefault(name, Role.LEFT)
    names = list(dict.fromkeys(s.name for d in drafts for s in d.slots if s.name is not None))
    own = {trace.avals[n.value].dtype for n in names if n != ONE}
    if any(d.name not in FLOATS or jnp.promote_types(d, dtype) != dtype for d in own):
        raise Unfit(f"dtypes change between the arrays and the sum: {CONVERT}")
    extra = {n for n in names if n not in roles and n != ONE}
    if any(isinstance(n, Gathered) for n in extra):
        raise Unfit(
            "weights are gathered from nodes: multiply the features of nodes with them before the "
            "gather"
        )
    key = Role.OTHER, Index.SHARED if all(n.axes is None for n in extra) else Index.ROW, None
    drafts, weights = _with_weights(drafts, extra, key)
    places, parts = _side_by_side([n for n in names if n not in extra], roles, trace)
    drafts = [d.renamed(lambda name: places.get(name, (name, 0))) for d in drafts]
    parts |= {key: weights} if weights else {}
    described = {}
    for (role, index, ends), label in zip(parts, "xyzabcdefgh", strict=False):
        size = sum(len(part.columns) for part in parts[role, index, ends])
        label = "w" if role is Role.OTHER else label
        described[role, index, ends] = size, index, role, label
    new = form_of(drafts, described, (row.size, Index.RECEIVER))
    return Match(new, tuple(map(tuple, parts.values())), dtype, backend)


def _side_by_side(names: list, roles: dict, trace: Trace) -> tuple[dict, dict]:
    """Join arrays that are one operand, such as features of nodes by the same index.

    Returns by name which operand it is in, and from which column on; and the parts of each operand,
    in the order of their roles. An operand is a role, an index, and the ends of a gather.
    """
    places: dict = {}
    parts: dict[tuple, list[Columns]] = {}
    for name in sorted(names, key=lambda n: (roles.get(n, Role.RIGHT), n != ONE)):
        role, index, ends, size, arrays = roles.get(name, Role.RIGHT), Index.ROW, None, 1, ()
        if name != ONE:
            shape, arrays = trace.avals[name.value].shape, (name,)
            if isinstance(name, Gathered):
                index, ends = Index.SENDER, (name.index, name.mode, name.fill, shape[0])
                size = math.prod(shape[1:])
            else:
                index = Index.SHARED if name.axes is None else Index.ROW
                size = math.prod(row_shape(shape, name.axes))
        operand = parts.setdefault((role, index, ends), [])
        places[name] = (role, index, ends), sum(len(part.columns) for part in operand)
        operand.append(Columns(arrays, np.arange(size)[:, None][:, : len(arrays)]))
    if ONE in names and sum(role is Role.RIGHT for role, *_ in parts) > 1:
        raise Unfit("the product has no operand of the rows themselves")
    return places, parts


def _with_weights(drafts: list[Draft], extra: set, key: tuple) -> tuple[list[Draft], list[Columns]]:
    """Return the drafts with one factor in the place of all in `extra`, and what it is made of."""
    of_draft = [_weights_of(draft, extra) for draft in drafts]
    columns: dict[tuple, list] = {}
    for names, index in of_draft:
        if names:
            columns.setdefault(names, []).append(index.reshape(-1, len(names)))
    parts = [Columns(n, np.unique(np.concatenate(own), axis=0)) for n, own in columns.items()]
    lines = ((part.arrays, *line) for part in parts for line in part.columns.tolist())
    places = {line: number for number, line in enumerate(lines)}
    replaced = []
    for draft, (names, index) in zip(drafts, of_draft, strict=True):
        if names:
            of_all = [s for s in draft.slots if s.name in extra]
            wide = [s.component for s in of_all if s.elements.shape[1] > 1]
            component = wide[0] if wide else np.zeros_like(of_all[0].component)
            if any((other != component).any() for other in wide):
                raise Unfit("weights of components do not fit together")
            elements = [[places[names, *m] for m in line] for line in index.tolist()]
            slots = [s for s in draft.slots if s.name not in extra]
            slots.insert(-1, Slot(key, np.array(elements), component))
            draft = Draft(tuple(slots), draft.values)
        replaced.append(draft)
    return replaced, parts


def _weights_of(draft: Draft, extra: set):
    """Return the arrays of the weights of a draft, and their elements [channels, dim, arrays]."""
    slots = sorted((s for s in draft.slots if s.name in extra), key=lambda s: str(s.name))
    if not slots:
        return (), None
    shape = len(slots[0].elements), max(s.elements.shape[1] for s in slots)
    index = np.stack([np.broadcast_to(s.elements, shape) for s in slots], axis=-1)
    return tuple(s.name for s in slots), index
