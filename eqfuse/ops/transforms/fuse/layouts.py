"""From polynomials of rows back to a form: channels and components of segments, from numbers.

A path of the form that a trace evaluates over rows becomes one or several paths of the new form,
each of channels that are evenly spaced in all operands.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from eqfuse.ops.ir.form import Form, Index, Operand, Path, Role, Segment, SegmentRef
from eqfuse.ops.ir.products import filled
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


def _monomials(operand: Polynomial) -> list[tuple | None]:
    """Return of each element of an operand (factors, scale, elements); None of one that is zero.

    Raises:
      Unfit: an element that is a sum.
    """
    monomials: list[tuple | None] = [None] * operand.size
    for key, terms in operand.terms.items():
        if not key:
            raise Unfit("an operand of the product is constant in part")
        for place, scale, index in zip(terms.place, terms.scale, terms.index, strict=True):
            if monomials[place] is not None:
                raise Unfit("an operand of the product is a sum of others")
            monomials[place] = key, float(scale), tuple(int(i) for i in index)
    return monomials


def _elements(operand: Operand, segment: Segment) -> np.ndarray:
    channels = segment.offset + segment.channel_stride * np.arange(segment.mul)
    elements = channels[:, None] + segment.component_stride * np.arange(segment.dim)
    return elements if operand.channels else elements[:1]


def _of_product(key, terms: Terms, product, form: Form, inputs) -> list[Draft]:
    """Return the drafts of those terms that have the product as one factor."""
    at = key.index(product)
    others = [n for n in range(len(key)) if n != at]
    order = np.argsort(terms.index[:, at], kind="stable")
    element = terms.index[order, at]
    [out] = form.outputs
    first = np.searchsorted(element, np.arange(out.size))
    count = np.searchsorted(element, np.arange(out.size), side="right") - first
    drafts = []
    for path in form.paths:
        elements = _elements(out, out.segments[path.output.segment])  # [channels, components]
        if (count[elements] != count[elements][:, :1]).any():
            raise Unfit("components of one irrep are treated differently")
        for copy in range(int(count[elements].max(initial=0))):
            channels = np.flatnonzero(count[elements][:, 0] > copy)
            rows = order[first[elements[channels]] + copy]
            slots, components, values = _factors(form, path, inputs, channels)
            index = np.array([c[-1] for c, _ in path.terms])
            values = values * terms.scale[rows][:, index]
            for n in others:
                slots.append(Slot(key[n], terms.index[rows, n]))
                components.append(index)
            slots.append(Slot(None, terms.place[rows]))
            components.append(index)
            drafts.append(_simplified(slots, components, values))
    return drafts


def _factors(form: Form, path: Path, inputs, channels):
    """Return the slots of a path's factors, in what the operands are made of."""
    slots, components = [], []
    values = np.tile([v for _, v in path.terms], (len(channels), 1))
    for number, ref in enumerate(path.factors):
        operand = form.inputs[ref.operand]
        elements = _elements(operand, operand.segments[ref.segment])
        if operand.channels:
            elements = elements[channels]
        monomials = [[inputs[ref.operand][e] for e in line] for line in elements]
        keys = {m[0] for line in monomials for m in line if m is not None}
        if len(keys) != 1 or any(m is None for line in monomials for m in line):
            raise Unfit("a block of an operand is made of several arrays, or of zeros")
        [key] = keys
        index = np.array([c[number] for c, _ in path.terms])
        scales = np.array([[m[1] for m in line] for line in monomials])[:, index]
        values = values * scales
        for n, name in enumerate(key):
            places = np.array([[m[2][n] for m in line] for line in monomials])
            slots.append(Slot(name, np.broadcast_to(places, (len(channels), places.shape[1]))))
            components.append(index)
    return slots, components, values


def _simplified(slots, components, values) -> Draft:
    """Return a draft; a slot that is the same for all components has one."""
    kept, columns = [], []
    for slot, index in zip(slots, components, strict=True):
        if slot.name is not None and (slot.elements == slot.elements[:, :1]).all():
            slot, index = Slot(slot.name, slot.elements[:, :1]), np.zeros_like(index)
        kept.append(slot)
        columns.append(index)
    return Draft(tuple(kept), np.column_stack(columns), values)


def _beside(key, terms: Terms, known: list[Draft], wide: set) -> list[Draft]:
    """Return drafts of what is added beside a product: blocks of an operand of it, as they are."""
    nodes = [n for n, name in enumerate(key) if name in wide]
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
    row_of = np.full(1 + max(element.max(), max(b.max() for b in blocks.values())), -1)
    row_of[element] = np.arange(len(element))
    drafts = []
    for elements in blocks.values():
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
    if (row_of[element] >= 0).any():
        raise Unfit("rows are added beside the product that it does not read")
    return drafts


# channels


def _runs(draft: Draft) -> list[Draft]:
    """Return the draft as several, of evenly spaced channels each."""
    lines = np.column_stack([s.elements - s.elements[:, :1] for s in draft.slots] + [draft.values])
    starts = np.column_stack([s.elements[:, 0] for s in draft.slots])
    same = (lines[1:] == lines[:-1]).all(axis=1)
    steps = np.diff(starts, axis=0)
    runs, first, count = [], 0, len(lines)
    while first < count:
        last = first + 1
        if last < count and same[first]:
            step = steps[first]
            while last < count and same[last - 1] and (steps[last - 1] == step).all():
                last += 1
        slots = tuple(Slot(s.name, s.elements[first:last]) for s in draft.slots)
        runs.append(Draft(slots, draft.components, draft.values[first:last]))
        first = last
    return runs


def form_of(drafts: list[Draft], operands: dict, output: tuple[int, Index]) -> Form:
    """Return the form of some drafts.

    Args:
      operands: by the name of the slots (size of the row, index, role, name), in order.
      output: size and index of the output.
    Raises:
      Unfit: channels that are not evenly spaced, or blocks that overlap.
    """
    paths = [run for draft in drafts for run in _runs(draft)]
    if len(paths) > 2 * len(drafts) + 8:
        raise Unfit("channels are not evenly spaced")
    names = (*operands, None)
    channels = {name: _has_channels(paths, name) for name in names}
    if not any(channels[name] for name in operands):  # one channel: that of the left operand
        channels[names[0]] = True
    paths.sort(key=lambda path: int(path.slots[-1].elements[0, 0]))
    lines = [[_segment(slot, channels[slot.name]) for slot in path.slots] for path in paths]
    segments: dict = {name: [] for name in names}
    for path, line in zip(paths, lines, strict=True):
        for slot, segment in zip(path.slots, line, strict=True):
            segments[slot.name].append(segment)
    segments = {n: sorted(set(s), key=lambda s: s.offset) for n, s in segments.items()}
    numbers = {name: n for n, name in enumerate(operands)} | {None: 0}
    refs = []
    for path, line in zip(paths, lines, strict=True):
        *factors, out = (
            SegmentRef(numbers[slot.name], segments[slot.name].index(segment))
            for slot, segment in zip(path.slots, line, strict=True)
        )
        terms: dict = {}
        for components, value in zip(path.components, path.values[0], strict=True):
            key = tuple(int(c) for c in components)
            terms[key] = terms.get(key, 0.0) + float(value)
        refs.append(Path(tuple(factors), out, tuple(sorted(terms.items()))))
    try:
        inputs = tuple(
            Operand(
                label, size, filled(segments[name], size, channels[name]), channels[name], i, role
            )
            for name, (size, i, role, label) in operands.items()
        )
        size, index = output
        out = Operand("out", size, filled(segments[None], size, True), True, index, Role.OUTPUT)
        return Form(inputs, (out,), tuple(refs)).merged()
    except ValueError as error:
        raise Unfit(f"no form has these channels: {error}") from error


def _has_channels(paths: list[Draft], name) -> bool:
    """Return whether the channels of a path are in an operand, or the same for all of them."""
    differ = set()
    for path in paths:
        for slot in path.slots:
            if slot.name == name and len(slot.elements) > 1:
                differ.add(bool((slot.elements != slot.elements[:1]).any()))
    if len(differ) > 1:
        raise Unfit("an operand has channels in one path and none in another")
    return name is None or differ == {True}


def _segment(slot: Slot, channels: bool) -> Segment:
    elements = slot.elements if channels else slot.elements[:1]
    mul, dim = elements.shape
    component = int(elements[0, 1] - elements[0, 0]) if dim > 1 else 1
    channel = int(elements[1, 0] - elements[0, 0]) if mul > 1 else dim
    segment = Segment(int(elements[0, 0]), mul, dim, channel, component)
    expected = segment.offset + channel * np.arange(mul)[:, None] + component * np.arange(dim)
    if (expected != elements).any() or min(channel, component) < 1:
        raise Unfit("components of an irrep are not evenly spaced")
    return segment
