"""What is multiplied with a product, all in one operand of the form: the weights."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np

from eqfuse.ops.transforms.fuse.indices import Gathered
from eqfuse.ops.transforms.fuse.layouts import Draft, Slot, Unfit
from eqfuse.ops.transforms.fuse.moves import ArrayFactor

WEIGHTS = "weights"
"""The name of what is multiplied with a product, all in one operand."""


@dataclasses.dataclass(frozen=True)
class Group:
    """Columns of the weights: those of some arrays, multiplied."""

    arrays: tuple[ArrayFactor, ...]
    columns: np.ndarray  # [columns, arrays]


def as_rows(name, array):
    """Return the array of a name as [rows, size]."""
    if isinstance(name, Gathered):
        return array.reshape(array.shape[0], -1)
    if name.axis is None:
        return array.reshape(1, -1)
    return jnp.moveaxis(array, name.axis, 0).reshape(array.shape[name.axis], -1)


def columns_of(group: Group, arrays: dict):
    """Return the weights of a group, [rows, columns]."""
    product = None
    for n, name in enumerate(group.arrays):
        array, columns = as_rows(name, arrays[name.value]), group.columns[:, n]
        if array.shape[1] > 1 and not np.array_equal(columns, np.arange(array.shape[1])):
            array = array[:, columns]
        product = array if product is None else product * array
    return jnp.broadcast_to(product, (product.shape[0], len(group.columns)))


def with_weights(drafts, extra: set) -> tuple[list[Draft], list[Group]]:
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
