"""Match a product in a trace: its form, and the arrays that go into it."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from eqfuse.fuse.drafts import ONE, Draft, Slot, drafts_of, form_of, names_beside
from eqfuse.fuse.moves import Gathered
from eqfuse.fuse.polynomials import Polynomial, Unfit, variable
from eqfuse.fuse.rows import ROWS, ArrayFactor, ProductFactor, RowPolynomials, row_shape
from eqfuse.ops.ir.form import Form, Index, Role
from eqfuse.ops.transforms.trace import FLOATS, Trace

WEIGHTS = "weights"
"""The name of what is multiplied with a product, all in one operand."""

CONVERT = "convert after the sum, or before the gather"


@dataclasses.dataclass(frozen=True)
class Group:
    """Columns of the weights: those of some arrays, multiplied."""

    arrays: tuple[ArrayFactor, ...]
    columns: np.ndarray  # [columns, arrays]


def as_rows(name, array):
    if isinstance(name, Gathered):
        return array.reshape(array.shape[0], -1)
    if name.axes is None:
        return array.reshape(1, -1)
    count = math.prod(array.shape[a] for a in name.axes)
    return jnp.moveaxis(array, name.axes, range(len(name.axes))).reshape(count, -1)


def add_rows(start, index, rows, mode: str = "PROMISE_IN_BOUNDS"):
    """Return an array with rows added to those that the index names."""
    mode = jax.lax.GatherScatterMode[mode]
    return start.at[index].add(rows, mode=mode, wrap_negative_indices=False)


def columns_of(group: Group, arrays: dict):
    product = None
    for n, name in enumerate(group.arrays):
        array, columns = as_rows(name, arrays[name.value]), group.columns[:, n]
        if array.shape[1] > 1 and not np.array_equal(columns, np.arange(array.shape[1])):
            array = array[:, columns]
        product = array if product is None else product * array
    return jnp.broadcast_to(product, (product.shape[0], len(group.columns)))


def with_weights(drafts, extra: set) -> tuple[list[Draft], list[Group]]:
    """Return the drafts with one factor in the place of all in `extra`, and what it is made of."""
    of_draft = [_weights_of(draft, extra) for draft in drafts]
    columns: dict[tuple, list] = {}
    for names, index in of_draft:
        if names:
            columns.setdefault(names, []).append(index.reshape(-1, len(names)))
    groups = [Group(n, np.unique(np.concatenate(parts), axis=0)) for n, parts in columns.items()]
    places: dict[tuple, int] = {}
    for group in groups:
        for line in group.columns.tolist():
            places[group.arrays, *line] = len(places)
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
            slots.insert(-1, Slot(WEIGHTS, np.array(elements), component))
            draft = Draft(tuple(slots), draft.values)
        replaced.append(draft)
    return replaced, groups


def _weights_of(draft: Draft, extra: set):
    """Return the arrays of the weights of a draft, and their elements [channels, dim, arrays]."""
    slots = sorted((s for s in draft.slots if s.name in extra), key=lambda s: str(s.name))
    if not slots:
        return (), None
    shape = len(slots[0].elements), max(s.elements.shape[1] for s in slots)
    index = np.stack([np.broadcast_to(s.elements, shape) for s in slots], axis=-1)
    return tuple(s.name for s in slots), index


@dataclasses.dataclass(frozen=True)
class Joined:
    """The name of an operand of arrays side by side: scalars of edges, or a one, beside others."""

    parts: tuple[ArrayFactor | Gathered, ...]  # gathered ones by one index array
    one: bool = False  # whether a column of ones is before them


@dataclasses.dataclass(frozen=True)
class Match:
    """A form to be evaluated, and where its operands come from."""

    form: Form
    names: tuple  # of its inputs, in order: `ArrayFactor`, `Gathered`, `Joined` or `WEIGHTS`
    groups: tuple[Group, ...]  # what the weights are made of
    dtype: object  # of all inputs
    backend: str

    @property
    def inputs(self) -> tuple[int, ...]:
        names = [part for n in self.names if n != WEIGHTS for part in parts_of(n)]
        names += [a for g in self.groups for a in g.arrays]
        return tuple(dict.fromkeys(n.value for n in names))

    @property
    def gathered(self) -> dict[object, Gathered]:
        """Return the first gather, whose ends are those of all, of each name that is gathered."""
        first = {n: parts_of(n)[0] for n in self.names if n != WEIGHTS and parts_of(n)}
        return {n: part for n, part in first.items() if isinstance(part, Gathered)}

    def operands(self, arrays: dict, num_rows: int) -> dict:
        """Return an array [rows, size], or [1, size], for each name, from those of the trace."""
        operands = {}
        for name in self.names:
            if name == WEIGHTS:
                parts = [columns_of(g, arrays) for g in self.groups]
                count = max(p.shape[0] for p in parts)
                parts = [jnp.broadcast_to(p, (count, p.shape[1])) for p in parts]
            else:
                parts = [as_rows(a, arrays[a.value]) for a in parts_of(name)]
                if isinstance(name, Joined) and name.one:
                    parts.insert(0, jnp.ones((num_rows, 1), self.dtype))
            parts = [p.astype(self.dtype) for p in parts]
            operands[name] = parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)
        return operands


def parts_of(name) -> tuple[ArrayFactor | Gathered, ...]:
    return name.parts if isinstance(name, Joined) else (name,)


def match_product(trace: Trace, rows: RowPolynomials, row: Polynomial, dtype) -> Match:
    """Return the form on a graph that gives a row from arrays of a dtype, or raise Unfit."""
    products = {name for key in row.terms for name in key if isinstance(name, ProductFactor)}
    if not products:
        raise Unfit("no product is summed")
    if len(products) > 1:
        raise Unfit("several products are added")
    [product] = products
    node = trace.nodes[product.node]
    form, backend = node.params["form"], node.params["backend"]
    operands = [
        rows.grouped(v, product.group)
        if o.index is Index.ROW
        else variable(ArrayFactor(v, None), tuple(trace.avals[v].shape))
        for v, o in zip(node.inputs, form.inputs, strict=True)
    ]
    if None in operands:
        raise Unfit("an operand of the product has channels on an axis in an unknown order")
    drafts = drafts_of(row, product, form, operands)
    drafts = [_as_arrays(d, trace) for d in drafts]
    roles = {}
    for operand, polynomial in zip(form.inputs, operands, strict=True):
        for key in polynomial.terms:
            main = [n for n in key if isinstance(n, Gathered)] or list(key[:1])
            for name in main[:1]:
                roles.setdefault(_plain(name, trace), operand.role)
    for name in names_beside(drafts):
        roles.setdefault(name, Role.LEFT)
    own = {trace.avals[n.value].dtype for n in _names(drafts) if n != ONE}
    if any(d.name not in FLOATS or jnp.promote_types(d, dtype) != dtype for d in own):
        raise Unfit(f"dtypes change between the arrays and the sum: {CONVERT}")
    extra = [n for n in _names(drafts) if n not in roles and n != ONE]
    if any(isinstance(n, Gathered) for n in extra):
        raise Unfit(
            "weights are gathered from nodes: multiply the features of nodes with them before the "
            "gather"
        )
    drafts, groups = with_weights(drafts, set(extra))
    drafts, ordered = _joined_operands(drafts, roles, trace)
    labels = iter("xyzabcdefgh")
    used = {
        name: (size, _index(name), role, next(labels)) for name, (size, role) in ordered.items()
    }
    if groups:
        shared = all(a.axes is None for g in groups for a in g.arrays)
        size = sum(len(g.columns) for g in groups)
        used[WEIGHTS] = size, Index.SHARED if shared else Index.ROW, Role.OTHER, "w"
    new = form_of(drafts, used, (row.size, Index.RECEIVER))
    return Match(new, tuple(used), tuple(groups), dtype, backend)


def _joined_operands(drafts: list[Draft], roles: dict, trace: Trace):
    """Return the drafts with arrays joined that are one operand, and size and role of each.

    The operands come in the order of their roles.
    """
    names = _names(drafts)
    alike: dict[tuple, list] = {}
    for name in sorted((n for n in names if n in roles), key=lambda n: roles[n]):
        ends = _index(name)
        if isinstance(name, Gathered):
            ends = name.index, name.mode, name.fill, trace.avals[name.value].shape[0]
        alike.setdefault((roles[name], ends), []).append(name)
    ordered, places = {}, {}
    for (role, ends), parts in alike.items():
        one = ONE in names and (role, ends) == (Role.RIGHT, Index.ROW)
        starts = np.cumsum([int(one), *(_size(n, trace) for n in parts)])
        name = parts[0]
        if one or len(parts) > 1:
            name = Joined(tuple(parts), one)
            places |= {n: (name, start) for n, start in zip(parts, starts, strict=False)}
            places |= {ONE: (name, 0)} if one else {}
        ordered[name] = int(starts[-1]), role
    if ONE in names and ONE not in places:
        if any(role is Role.RIGHT for _, role in ordered.values()):
            raise Unfit("the product has no operand of the rows themselves")
        name = Joined((), one=True)
        places[ONE], ordered[name] = (name, 0), (1, Role.RIGHT)
    return [_placed(d, places) for d in drafts], ordered


def _plain(name, trace: Trace):
    """Return a name of an array: products that are operands are arrays."""
    if isinstance(name, ProductFactor):
        return ArrayFactor(trace.nodes[name.node].outputs[0], ROWS)
    return name


def _as_arrays(draft: Draft, trace: Trace) -> Draft:
    slots = tuple(dataclasses.replace(s, name=_plain(s.name, trace)) for s in draft.slots)
    return dataclasses.replace(draft, slots=slots)


def _names(drafts) -> list:
    return list(dict.fromkeys(s.name for d in drafts for s in d.slots if s.name is not None))


def _size(name, trace: Trace) -> int:
    shape = list(trace.avals[name.value].shape)
    if isinstance(name, Gathered):
        del shape[0]
    elif name.axes is not None:
        shape = row_shape(shape, name.axes)
    return int(np.prod(shape, dtype=int))


def _index(name) -> Index:
    [*_, last] = parts_of(name) or (None,)
    if isinstance(last, Gathered):
        return Index.SENDER
    return Index.SHARED if last is not None and last.axes is None else Index.ROW


def _placed(draft: Draft, places: dict) -> Draft:
    """Return a draft that reads joined operands: by name of an array, which, and from where on."""
    slots = []
    for slot in draft.slots:
        name, start = places.get(slot.name, (slot.name, 0))
        slots.append(dataclasses.replace(slot, name=name, elements=slot.elements + start))
    return dataclasses.replace(draft, slots=tuple(slots))
