"""From polynomials of rows to paths of a form: the elements of all factors, channel by channel.

A path of the form that a trace evaluates over rows becomes one or several paths.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.operands import Index, Operand, Path, Segment
from eqfuse.ops.transforms.fuse.indices import Gathered
from eqfuse.ops.transforms.fuse.polynomials import Polynomial, Terms


class Unfit(ValueError):
    """What is between a product and a sum is not of the kind that a form has; says why."""


ONE = "one"
"""The name of a factor that is 1 in every row."""


@dataclasses.dataclass(frozen=True)
class Slot:
    """Elements of an operand that a path reads or writes: [channels, components]."""

    name: object
    elements: np.ndarray


@dataclasses.dataclass(frozen=True)
class Draft:
    """A path before its channels are known.

    Attributes:
      slots: its factors, then its output, named None.
      components: [terms, slots], the component of each slot.
      values: [channels, terms].
    """

    slots: tuple[Slot, ...]
    components: np.ndarray
    values: np.ndarray


def drafts(row: Polynomial, product, form: Form, operands: list[Polynomial]) -> list[Draft]:
    """Return the paths of a row that is made of a product and, beside it, of its left operand.

    Args:
      row: the polynomial of the row that is wanted.
      product: the name of the product in it.
      form: of the product.
      operands: its inputs' rows.
    Raises:
      Unfit: a row of another kind.
    """
    inputs = [_monomials(o) for o in operands]
    paths, rest = [], []
    for key, terms in row.terms.items():
        if key.count(product) == 1:
            paths += _of_product(key, terms, product, form, inputs)
        elif product in key:
            raise Unfit("the product is multiplied with itself")
        elif not key:
            raise Unfit("a constant is added to the rows")
        else:
            rest.append((key, terms))
    if not paths:
        raise Unfit("no path of the product is read")
    of_product = list(paths)
    pairs = zip(form.inputs, operands, strict=True)
    wide = {n for o, polynomial in pairs if o.channels for key in polynomial.terms for n in key}
    for key, terms in rest:
        paths += _beside(key, terms, of_product, wide)
    return paths


def _monomials(operand: Polynomial) -> dict[tuple, list]:
    """Return (scale, elements) of each element of an operand, by factors; None without any.

    Raises:
      Unfit: an element that is a sum of several of the same factors.
    """
    monomials: dict[tuple, list] = {}
    for key, terms in operand.terms.items():
        of_key = monomials.setdefault(key, [None] * operand.size)
        for place, scale, index in zip(terms.place, terms.scale, terms.index, strict=True):
            if of_key[place] is not None:
                raise Unfit("an operand of the product is a sum of others")
            of_key[place] = float(scale), tuple(int(i) for i in index)
    return monomials


def _elements(operand: Operand, segment: Segment, mul: int, group: int) -> np.ndarray:
    """Return the elements of `group` rows of a segment as those of one, [mul * group, dim]."""
    channel = segment.channel_stride if operand.channels else 0
    apart = 0 if operand.index is Index.SHARED else operand.size
    rows = np.arange(mul)[:, None] * channel + np.arange(group) * apart
    return segment.offset + rows.reshape(-1, 1) + segment.component_stride * np.arange(segment.dim)


def _of_product(key, terms: Terms, product, form: Form, inputs) -> list[Draft]:
    """Return the drafts of those terms that have the product as one factor."""
    at = key.index(product)
    others = [n for n in range(len(key)) if n != at]
    order = np.argsort(terms.index[:, at], kind="stable")
    element = terms.index[order, at]
    [out] = form.outputs
    size = out.size * product.group
    first = np.searchsorted(element, np.arange(size))
    count = np.searchsorted(element, np.arange(size), side="right") - first
    drafts = []
    for path in form.paths:
        segment = out.segments[path.output.segment]
        elements = _elements(out, segment, segment.mul, product.group)  # [channels, components]
        if (count[elements] != count[elements][:, :1]).any():
            raise Unfit("components of one irrep are treated differently")
        factors = _factors(form, path, inputs, product.group)
        for copy in range(int(count[elements].max(initial=0))):
            read = count[elements][:, 0] > copy
            for channels, slots, components, values in factors:
                kept = read[channels]
                if not kept.any():
                    continue
                rows = order[first[elements[channels[kept]]] + copy]
                index = np.array([c[-1] for c, _ in path.terms])
                slots = [Slot(s.name, s.elements[kept]) for s in slots]
                slots += [Slot(key[n], terms.index[rows, n]) for n in others]
                slots.append(Slot(None, terms.place[rows]))
                components = [*components, *[index] * (len(others) + 1)]
                scaled = values[kept] * terms.scale[rows][:, index]
                drafts.append(_simplified(slots, components, scaled))
    return drafts


def _factors(form: Form, path: Path, inputs, group: int) -> list[tuple]:
    """Return (channels, slots, components, values) of a path's factors, in what they are made of.

    Where an operand is a sum, each of its parts is multiplied for itself.

    Raises:
      Unfit: a block that is zero, or of other arrays, in some of its components.
    """
    [out] = form.outputs
    mul = out.segments[path.output.segment].mul
    blocks = []  # of each factor, by what it is made of: [(key, {channel: [(scale, elements)]})]
    for ref in path.factors:
        operand = form.inputs[ref.operand]
        elements = _elements(operand, operand.segments[ref.segment], mul, group).tolist()
        parts = []
        for key, monomials in inputs[ref.operand].items():
            lines = [[monomials[e] for e in line] for line in elements]
            if any(None in line and any(line) for line in lines):
                raise Unfit("a block of an operand is made of several arrays, or of zeros")
            if not key and operand.channels and any(any(line) for line in lines):
                raise Unfit("an operand of the product is constant in part")
            parts.append((key, {n: line for n, line in enumerate(lines) if any(line)}))
        if any(not any(n in part for _, part in parts) for n in range(mul * group)):
            raise Unfit("a block of an operand is made of several arrays, or of zeros")
        blocks.append(parts)
    found = []
    for parts in itertools.product(*blocks):
        channels = sorted(set.intersection(*(set(part) for _, part in parts)))
        if channels:
            found.append((np.array(channels), *_slots(path, parts, channels)))
    return found


def _slots(path: Path, parts, channels):
    """Return slots, components and values of one part of each factor of a path."""
    slots, components = [], []
    values = np.tile([v for _, v in path.terms], (len(channels), 1))
    for number, (key, lines) in enumerate(parts):
        index = np.array([c[number] for c, _ in path.terms])
        values = values * np.array([[m[0] for m in lines[n]] for n in channels])[:, index]
        for n, name in enumerate(key):
            slots.append(Slot(name, np.array([[m[1][n] for m in lines[c]] for c in channels])))
            components.append(index)
        if not key:
            slots.append(Slot(ONE, np.zeros((len(channels), 1), int)))
            components.append(np.zeros_like(index))
    return slots, components, values


def _simplified(slots, components, values) -> Draft:
    """Return a draft; a slot that is the same for all components has one, others are in order."""
    kept, columns = [], []
    for slot, index in zip(slots, components, strict=True):
        if slot.name is not None and (slot.elements == slot.elements[:, :1]).all():
            slot, index = Slot(slot.name, slot.elements[:, :1]), np.zeros_like(index)
        order = np.argsort(slot.elements[0], kind="stable")
        slot, index = Slot(slot.name, slot.elements[:, order]), np.argsort(order)[index]
        kept.append(slot)
        columns.append(index)
    return Draft(tuple(kept), np.column_stack(columns), values)


def _beside(key, terms: Terms, known: list[Draft], wide: set) -> list[Draft]:
    """Return drafts of what is added beside a product: blocks of an operand of it, as they are."""
    nodes = [n for n, name in enumerate(key) if name in wide or isinstance(name, Gathered)]
    if len(nodes) != 1:
        raise Unfit("rows without the product are added to it")
    [at] = nodes
    blocks = {}
    for draft in known:
        for slot in draft.slots:
            if slot.name == key[at]:
                blocks[slot.elements.tobytes()] = slot.elements
    element = terms.index[:, at]
    if len(np.unique(element)) < len(element):
        raise Unfit("an operand of the product is added beside it more than once")
    blocks = [*blocks.values(), *_blocks_of_equal_weights(terms, at)]
    row_of = np.full(1 + max(b.max() for b in blocks), -1)
    row_of[element] = np.arange(len(element))
    drafts = []
    for elements in blocks:
        rows = row_of[elements]
        channels = np.flatnonzero((rows >= 0).all(axis=1))
        if not len(channels):
            continue
        rows = rows[channels]
        row_of[elements[channels]] = -1
        dim = np.arange(elements.shape[1])
        slots = [Slot(key[n], terms.index[rows, n]) for n in range(len(key))]
        slots += [Slot(ONE, np.zeros((len(channels), 1), int)), Slot(None, terms.place[rows])]
        components = [dim] * len(key) + [np.zeros_like(dim), dim]
        drafts.append(_simplified(slots, components, terms.scale[rows]))
    return drafts


def _blocks_of_equal_weights(terms: Terms, at: int) -> list[np.ndarray]:
    """Return the elements of a factor, [channels, components], of blocks that no path reads.

    What lies side by side and has the same weight is a channel. Where there are no weights, each
    element is one.
    """
    order = np.argsort(terms.place)
    element, others = terms.index[order, at], np.delete(terms.index[order], at, axis=1)
    if not others.shape[1]:
        return [element[:, None]]
    alike = np.column_stack([others, element - np.arange(len(element)), terms.scale[order]])
    starts = np.flatnonzero((np.diff(alike, axis=0, prepend=np.nan) != 0).any(axis=1))
    sizes = np.diff(starts, append=len(element))
    return [element[starts[sizes == d, None] + np.arange(d)] for d in np.unique(sizes)]


def names_beside(drafts: list[Draft]) -> list:
    """Return what is gathered of nodes and added beside a product."""
    of_one = [d for d in drafts if any(s.name == ONE for s in d.slots)]
    return [s.name for d in of_one for s in d.slots if isinstance(s.name, Gathered)]
