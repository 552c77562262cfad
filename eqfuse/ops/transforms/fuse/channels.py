"""From paths of elements to a form: channels and components of segments, evenly spaced."""

from __future__ import annotations

import numpy as np

from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.operands import Index, Operand, Path, Role, Segment, SegmentRef
from eqfuse.ops.ir.product_parts import filled
from eqfuse.ops.transforms.fuse.layouts import Draft, Slot, Unfit


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
