"""Match a product in a trace: its form, and the arrays that go into it."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np

from eqfuse.ops.ir.form import Form, Index, Role
from eqfuse.ops.transforms.fuse import layouts
from eqfuse.ops.transforms.fuse.indices import Gathered
from eqfuse.ops.transforms.fuse.layouts import ONE, Draft, Slot, Unfit
from eqfuse.ops.transforms.fuse.polynomials import Polynomial, variable
from eqfuse.ops.transforms.fuse.rows import ArrayFactor, ProductFactor, RowPolynomials, SumFactor
from eqfuse.ops.transforms.fuse.trace import Trace

WEIGHTS = "weights"
"""The name of what is multiplied with a product, all in one operand."""
RIGHT = "right"
"""The name of the right operand of a product, where it is put together: a column of ones if one is
read, then some arrays of rows."""


@dataclasses.dataclass(frozen=True)
class Group:
    """Columns of the weights: those of some arrays, multiplied."""

    arrays: tuple[ArrayFactor, ...]
    columns: np.ndarray  # [columns, arrays]


@dataclasses.dataclass(frozen=True)
class Match:
    """A form to be evaluated, and where its operands come from.

    Attributes:
      names: of its inputs, in order: `ArrayFactor`s, `Gathered`s, `RIGHT` and `WEIGHTS`.
      groups: what the weights are made of.
      one: whether `RIGHT` has a column of ones.
      parts: the arrays that `RIGHT` is made of.
      right: the name of a right operand that has a row each; None if there is none.
    """

    form: Form
    names: tuple
    groups: tuple[Group, ...]
    one: bool
    parts: tuple[ArrayFactor, ...]
    right: object
    backend: str

    @property
    def values(self) -> tuple[int, ...]:
        """Return the values of the trace that are read."""
        names = [n for n in self.names if n not in (WEIGHTS, RIGHT)]
        names += [*self.parts, *(a for g in self.groups for a in g.arrays)]
        return tuple(dict.fromkeys(n.value for n in names))

    @property
    def gathered(self) -> list[Gathered]:
        return [n for n in self.names if isinstance(n, Gathered)]

    def operands(self, arrays: dict, num_rows: int) -> dict:
        """Return an array [rows, size], or [1, size], for each name, from those of the trace."""
        operands = {}
        for name in self.names:
            if name == WEIGHTS:
                parts = [_weights(g, arrays, num_rows) for g in self.groups]
                count = max(p.shape[0] for p in parts)
                parts = [jnp.broadcast_to(p, (count, p.shape[1])) for p in parts]
                operands[name] = parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)
            elif name == RIGHT:
                parts = [as_rows(a, arrays[a.value]) for a in self.parts]
                ones = [jnp.ones((num_rows, 1), parts[0].dtype)] if self.one else []
                operands[name] = jnp.concatenate([*ones, *parts], axis=1)
            else:
                operands[name] = as_rows(name, arrays[name.value])
        return operands


def as_rows(name, array):
    """Return the array of a name as [rows, size]."""
    if isinstance(name, Gathered):
        return array.reshape(array.shape[0], -1)
    if name.axis is None:
        return array.reshape(1, -1)
    return jnp.moveaxis(array, name.axis, 0).reshape(array.shape[name.axis], -1)


def _weights(group: Group, arrays: dict, num_rows: int):
    product = None
    for n, name in enumerate(group.arrays):
        array, columns = as_rows(name, arrays[name.value]), group.columns[:, n]
        if array.shape[1] > 1 and not np.array_equal(columns, np.arange(array.shape[1])):
            array = array[:, columns]
        product = array if product is None else product * array
    return jnp.broadcast_to(product, (product.shape[0], len(group.columns)))


def product_of(row: Polynomial) -> ProductFactor:
    """Return the one product that a row is made of.

    Raises:
      Unfit: none, or several.
    """
    products = {name for key in row.terms for name in key if isinstance(name, ProductFactor)}
    if len(products) != 1:
        many = "several products are added" if products else "no product is summed"
        raise Unfit(many)
    return products.pop()


def match_product(
    trace: Trace, rows: RowPolynomials, row: Polynomial, output: Index, dtype, on_graph: bool = True
) -> Match:
    """Return the form that gives a row from the arrays of a trace.

    Args:
      output: of the form's output.
      dtype: that all arrays must have.
      on_graph: whether rows of nodes are gathered by the form; else it gets them gathered.
    Raises:
      Unfit: a row of another kind.
    """
    product = product_of(row)
    node = trace.nodes[product.node]
    form, backend = node.params["form"], node.params["backend"]
    operands = [
        rows.of(v, 0)
        if o.index is Index.ROW
        else variable(ArrayFactor(v, None), tuple(trace.avals[v].shape))
        for v, o in zip(node.inputs, form.inputs, strict=True)
    ]
    drafts = layouts.drafts(row, product, form, operands)
    drafts = [_as_arrays(d, trace, on_graph) for d in drafts]
    roles = {}
    for operand, polynomial in zip(form.inputs, operands, strict=True):
        for key in polynomial.terms:
            main = [n for n in key if isinstance(n, Gathered)] or list(key[:1])
            roles.setdefault(_plain(main[0], trace, on_graph), operand.role)
    if any(dtype != trace.avals[n.value].dtype for n in _names(drafts) if n != ONE):
        raise Unfit("dtypes change between the arrays and the sum")
    extra = [n for n in _names(drafts) if n not in roles and n != ONE]
    if any(isinstance(n, Gathered) for n in extra):
        raise Unfit("weights are gathered from nodes")
    drafts, groups = _with_weights(drafts, set(extra))
    names = _names(drafts)
    right = [n for n in names if roles.get(n) is Role.RIGHT and _index(n) is Index.ROW]
    if ONE in names and not right:
        raise Unfit("the product has no operand of the rows themselves")
    sizes = {n: _size(n, trace) for n in roles}
    parts = tuple(right) if ONE in names or len(right) > 1 else ()
    if parts:
        starts = np.cumsum([int(ONE in names), *(sizes[n] for n in parts)])
        places = dict(zip((*parts, ONE), (*starts[:-1], 0), strict=True))
        drafts = [_joined(d, places) for d in drafts]
        roles = {n: role for n, role in roles.items() if n not in parts} | {RIGHT: Role.RIGHT}
        sizes[RIGHT] = int(starts[-1])
    used = _names(drafts)
    ordered = {}
    labels = iter([*"xyzabcdefgh"])
    for n, role in sorted(roles.items(), key=lambda item: item[1]):
        if n in used:
            ordered[n] = sizes[n], _index(n), role, next(labels)
    if groups:
        shared = all(a.axis is None for g in groups for a in g.arrays)
        size = sum(len(g.columns) for g in groups)
        ordered[WEIGHTS] = size, Index.SHARED if shared else Index.ROW, Role.OTHER, "w"
    new = layouts.form_of(drafts, ordered, (row.size, output))
    with_rows = RIGHT if parts else (right[0] if right else None)
    return Match(new, tuple(ordered), tuple(groups), ONE in names, parts, with_rows, backend)


def _plain(name, trace: Trace, on_graph: bool):
    """Return a name of an array: products and sums that are operands are arrays."""
    if isinstance(name, ProductFactor | SumFactor):
        return ArrayFactor(trace.nodes[name.node].outputs[0], 0)
    if isinstance(name, Gathered) and not on_graph:
        return ArrayFactor(name.rows, 0)
    return name


def _as_arrays(draft: Draft, trace: Trace, on_graph: bool) -> Draft:
    slots = tuple(dataclasses.replace(s, name=_plain(s.name, trace, on_graph)) for s in draft.slots)
    return dataclasses.replace(draft, slots=slots)


def _names(drafts) -> list:
    return list(dict.fromkeys(s.name for d in drafts for s in d.slots if s.name is not None))


def _size(name, trace: Trace) -> int:
    shape = list(trace.avals[name.value].shape)
    if isinstance(name, Gathered):
        del shape[0]
    elif name.axis is not None:
        del shape[name.axis]
    return int(np.prod(shape, dtype=int))


def _index(name) -> Index:
    if name == RIGHT:
        return Index.ROW
    if isinstance(name, Gathered):
        return Index.SENDER
    return Index.SHARED if name.axis is None else Index.ROW


def _joined(draft: Draft, places: dict) -> Draft:
    """Return a draft that reads `RIGHT` for the arrays that it is made of, from these places on."""
    slots = tuple(
        Slot(RIGHT, s.elements + places[s.name]) if s.name in places else s for s in draft.slots
    )
    return dataclasses.replace(draft, slots=slots)


def _with_weights(drafts, extra: set) -> tuple[list[Draft], list[Group]]:
    """Return the drafts with one factor in the place of all in `extra`, and what it is made of."""
    if not extra:
        return drafts, []
    columns: dict[tuple, list] = {}
    for draft in drafts:
        names, index = _columns(draft, extra)
        if names:
            columns.setdefault(names, []).append(index.reshape(-1, len(names)))
    groups, starts, start = [], {}, 0
    for names, parts in columns.items():
        unique = np.unique(np.concatenate(parts), axis=0)
        starts[names] = start, unique
        groups.append(Group(names, unique))
        start += len(unique)
    return [_with_columns(d, extra, starts) for d in drafts], groups


def _columns(draft: Draft, extra: set):
    """Return the arrays of the weights of a draft, and their elements [channels, dim, arrays]."""
    slots = [(n, s) for n, s in enumerate(draft.slots) if s.name in extra]
    slots.sort(key=lambda item: str(item[1].name))
    names = tuple(s.name for _, s in slots)
    if not names:
        return names, None
    dim = max(s.elements.shape[1] for _, s in slots)
    shape = (len(slots[0][1].elements), dim)
    return names, np.stack([np.broadcast_to(s.elements, shape) for _, s in slots], axis=-1)


def _with_columns(draft: Draft, extra: set, starts) -> Draft:
    names, index = _columns(draft, extra)
    if not names:
        return draft
    start, unique = starts[names]
    numbers = {tuple(line): n for n, line in enumerate(unique.tolist())}
    elements = np.array([[start + numbers[tuple(m)] for m in line] for line in index.tolist()])
    kept = [n for n, s in enumerate(draft.slots) if s.name not in extra]
    wide = [n for n, s in enumerate(draft.slots) if s.name in extra and s.elements.shape[1] > 1]
    column = draft.components[:, wide[0]] if wide else np.zeros(len(draft.components), int)
    if any((draft.components[:, n] != column).any() for n in wide):
        raise Unfit("weights of components do not fit together")
    slots = [draft.slots[n] for n in kept]
    components = [draft.components[:, n] for n in kept]
    slots.insert(-1, Slot(WEIGHTS, elements))
    components.insert(-1, column)
    return Draft(tuple(slots), np.column_stack(components), draft.values)
