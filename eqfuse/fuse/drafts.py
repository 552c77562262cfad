"""The paths of a row that is made of a product: drafts of paths, and the form that has them."""

from __future__ import annotations

import collections
import dataclasses
import itertools

import numpy as np

from eqfuse.fuse.moves import Gathered
from eqfuse.fuse.polynomials import Polynomial, Terms, Unfit
from eqfuse.ops.ir.form import Form, Index, Operand, Path, Role, Segment, SegmentRef
from eqfuse.ops.ir.products import filled

ONE = "one"
"""The name of a factor that is 1 in every row."""


@dataclasses.dataclass(frozen=True)
class Slot:
    """Elements of an operand that a path reads or writes."""

    name: object
    elements: np.ndarray  # [channels, components]
    component: np.ndarray  # [terms], which of them each term of the path reads or writes


@dataclasses.dataclass(frozen=True)
class Draft:
    """A path before its channels are known: factors, and the output, which is named None."""

    slots: tuple[Slot, ...]
    values: np.ndarray  # [channels, terms]

    def renamed(self, place) -> Draft:
        """Return the draft of which `place` gives each name and the first element there."""
        slots = []
        for slot in self.slots:
            name, start = place(slot.name)
            slots.append(Slot(name, slot.elements + start, slot.component))
        return Draft(tuple(slots), self.values)


def drafts_of(
    row: Polynomial, product, group: int, form: Form, operands: list[Polynomial]
) -> list[Draft]:
    """Return the paths of a row that is made of a product and, beside it, of its left operand.

    `product` is the name of the product, of which each row is `group` of its form, and `operands`
    are the rows of the form's inputs.
    """
    inputs = [monomials(o) for o in operands]
    paths, rest = [], []
    for key, terms in row.terms.items():
        if key.count(product) == 1:
            paths += _of_product(key, terms, product, group, form, inputs)
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


def monomials(operand: Polynomial) -> dict[tuple, tuple[np.ndarray, np.ndarray]]:
    """Return by factors the scale of each element, zero for none, and which ones it is made of."""
    try:
        return {key: terms.by_place(operand.size) for key, terms in operand.terms.items()}
    except Unfit as error:
        raise Unfit("an operand of the product is a sum of others") from error


def _elements(operand: Operand, segment: Segment, mul: int, group: int) -> np.ndarray:
    """Return the elements of `group` rows of a segment as those of one, [mul * group, dim]."""
    channel = segment.channel_stride if operand.channels else 0
    apart = 0 if operand.index is Index.SHARED else operand.size
    rows = np.arange(mul)[:, None] * channel + np.arange(group) * apart
    return segment.offset + rows.reshape(-1, 1) + segment.component_stride * np.arange(segment.dim)


def _of_product(key, terms: Terms, product, group: int, form: Form, inputs) -> list[Draft]:
    """Return the drafts of those terms that have the product as one factor."""
    at = key.index(product)
    others = [n for n in range(len(key)) if n != at]
    order = np.argsort(terms.index[:, at], kind="stable")
    element = terms.index[order, at]
    [out] = form.outputs
    size = out.size * group
    first = np.searchsorted(element, np.arange(size))
    count = np.searchsorted(element, np.arange(size), side="right") - first
    drafts = []
    for path in form.paths:
        segment = out.segments[path.output.segment]
        elements = _elements(out, segment, segment.mul, group)  # [channels, components]
        component = np.array([c[-1] for c, _ in path.terms])
        if (count[elements] != count[elements][:, :1]).any():
            raise Unfit(
                "components of one irrep are treated differently: give each irrep one weight, "
                "as in messages * weights"
            )
        factors = _factors(form, path, inputs, group)
        for copy in range(int(count[elements].max(initial=0))):
            read = count[elements][:, 0] > copy
            for channels, slots, values in factors:
                kept = read[channels]
                if not kept.any():
                    continue
                rows = order[first[elements[channels[kept]]] + copy]
                slots = [dataclasses.replace(s, elements=s.elements[kept]) for s in slots]
                slots += [Slot(key[n], terms.index[rows, n], component) for n in others]
                slots.append(Slot(None, terms.place[rows], component))
                scale = terms.scale[rows][:, component]
                drafts.append(_simplified(slots, values[kept] * scale))
    return drafts


def _factors(form: Form, path: Path, inputs, group: int) -> list[tuple]:
    """Return (channels, slots, values) of a path's factors, in what they are made of.

    Where an operand is a sum, each of its parts is multiplied for itself.
    """
    [out] = form.outputs
    mul = out.segments[path.output.segment].mul
    blocks = []  # of each factor: (what it is made of, channels that are, scales, elements)
    for ref in path.factors:
        operand = form.inputs[ref.operand]
        elements = _elements(operand, operand.segments[ref.segment], mul, group)
        parts, read = [], np.zeros(len(elements), bool)
        for key, (scale, index) in inputs[ref.operand].items():
            scale = scale[elements]
            own = (scale != 0).any(axis=1)
            if (scale[own] == 0).any():
                raise Unfit("a block of an operand is made of several arrays, or of zeros")
            if not key and operand.channels and own.any():
                raise Unfit("an operand of the product is constant in part")
            read |= own
            parts.append((key, own, scale, index[elements]))
        if not read.all():
            raise Unfit("a block of an operand is made of several arrays, or of zeros")
        blocks.append(parts)
    found = []
    for parts in itertools.product(*blocks):
        channels = np.flatnonzero(np.all([own for _, own, *_ in parts], axis=0))
        slots, values = [], np.tile([v for _, v in path.terms], (len(channels), 1))
        for number, (key, _, scale, index) in enumerate(parts):
            component = np.array([c[number] for c, _ in path.terms])
            values = values * scale[channels][:, component]
            slots += [Slot(name, index[channels, :, n], component) for n, name in enumerate(key)]
            slots += [] if key else [_one(len(channels), component)]
        if len(channels):
            found.append((channels, slots, values))
    return found


def _one(count: int, component: np.ndarray) -> Slot:
    return Slot(ONE, np.zeros((count, 1), int), np.zeros_like(component))


def _simplified(slots: list[Slot], values) -> Draft:
    """Return a draft; a slot that is the same for all components has one, others are in order."""
    ordered = []
    for slot in slots:
        elements, component = slot.elements, slot.component
        if slot.name is not None and (elements == elements[:, :1]).all():
            elements, component = elements[:, :1], np.zeros_like(component)
        order = np.argsort(elements[0], kind="stable")
        ordered.append(Slot(slot.name, elements[:, order], np.argsort(order)[component]))
    return Draft(tuple(ordered), values)


def _beside(key, terms: Terms, known: list[Draft], wide: set) -> list[Draft]:
    """Return drafts of x[senders] beside a product, as in `concatenate([x[senders], product])`."""
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
        slots = [Slot(key[n], terms.index[rows, n], dim) for n in range(len(key))]
        slots += [_one(len(channels), dim), Slot(None, terms.place[rows], dim)]
        drafts.append(_simplified(slots, terms.scale[rows]))
    if (row_of >= 0).any():
        raise Unfit("rows beside the product are cut into other blocks than the product reads")
    return drafts


def _blocks_of_equal_weights(terms: Terms, at: int) -> list[np.ndarray]:
    """Return the elements of a factor, [channels, components], of blocks that no path reads.

    A last layer of scalars has them. What lies side by side and has the same weight is a channel;
    where there are no weights, each element is one.
    """
    order = np.argsort(terms.place)
    element, others = terms.index[order, at], np.delete(terms.index[order], at, axis=1)
    if not others.shape[1]:
        return [element[:, None]]
    scale = terms.scale[order].astype(np.float32)  # coefficients of one are so but for rounding
    alike = np.column_stack([others, element - np.arange(len(element)), scale])
    starts = np.flatnonzero((np.diff(alike, axis=0, prepend=np.nan) != 0).any(axis=1))
    sizes = np.diff(starts, append=len(element))
    return [element[starts[sizes == d, None] + np.arange(d)] for d in np.unique(sizes)]


def names_beside(drafts: list[Draft]) -> list:
    """Return the rows that are gathered of nodes and added beside a product."""
    of_one = [d for d in drafts if any(s.name == ONE for s in d.slots)]
    return [s.name for d in of_one for s in d.slots if isinstance(s.name, Gathered)]


def _runs(draft: Draft) -> list[Draft]:
    """Return the draft as several, of evenly spaced channels each."""
    lines = np.column_stack([s.elements - s.elements[:, :1] for s in draft.slots] + [draft.values])
    starts = np.column_stack([s.elements[:, 0] for s in draft.slots])
    same = (lines[1:] == lines[:-1]).all(axis=1)
    steps = np.diff(starts, axis=0)
    runs, first, count = [], 0, len(lines)
    while first < count:
        last = first + 1
        while last < count and same[last - 1] and (steps[last - 1] == steps[first]).all():
            last += 1
        slots = (dataclasses.replace(s, elements=s.elements[first:last]) for s in draft.slots)
        runs.append(Draft(tuple(slots), draft.values[first:last]))
        first = last
    return runs


def form_of(drafts: list[Draft], operands: dict, output: tuple[int, Index]) -> Form:
    """Return the form of some drafts, or raise Unfit where channels are not evenly spaced.

    `operands` has, by the name of the slots, (size of the row, index, role, name), in order;
    `output` is size and index.
    """
    paths = [run for draft in drafts for run in _runs(draft)]
    if len(paths) > 2 * len(drafts) + 8:
        raise Unfit("channels are not evenly spaced")
    names = (*operands, None)
    channels = {name: _has_channels(paths, name) for name in names}
    for path in paths:  # one channel: that of the left operand
        if not any(channels[slot.name] for slot in path.slots[:-1]):
            channels[path.slots[0].name] = True
    paths.sort(key=lambda path: int(path.slots[-1].elements[0, 0]))
    lines = [[(s.name, _segment(s, channels[s.name])) for s in path.slots] for path in paths]
    used = {pair for line in lines for pair in line}
    segments = {
        name: sorted((s for of, s in used if of == name), key=lambda s: s.offset) for name in names
    }
    numbers = {name: n for n, name in enumerate(operands)} | {None: 0}
    refs = []
    for path, line in zip(paths, lines, strict=True):
        *factors, out = (SegmentRef(numbers[name], segments[name].index(s)) for name, s in line)
        terms: dict = collections.defaultdict(float)
        components = zip(*(slot.component.tolist() for slot in path.slots), strict=True)
        for key, value in zip(components, path.values[0].tolist(), strict=True):
            terms[key] += value
        refs.append(Path(tuple(factors), out, tuple(sorted(terms.items()))))

    def operand(name, size: int, index: Index, role: Role, label: str) -> Operand:
        of_name = filled(segments[name], size, channels[name])
        return Operand(label, size, of_name, channels[name], index, role)

    try:
        inputs = tuple(operand(name, *described) for name, described in operands.items())
        out = operand(None, *output, Role.OUTPUT, "out")
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
    if (segment.elements() != elements).any() or min(channel, component) < 1:
        raise Unfit("components of an irrep are not evenly spaced")
    return segment
