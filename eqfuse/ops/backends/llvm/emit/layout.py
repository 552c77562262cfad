"""Where the kernels find the channels of an operand: in the array itself, or in a packed copy.

Kernels read vectors of neighbouring channels of one component. A segment whose channels lie side
by side in whole vectors serves as it is; others (e3nn's mul_ir, odd multiplicities) are copied to
[component, channel], padded with zeros to whole vectors, and outputs are copied back.
"""

import dataclasses
import functools

from eqfuse.ops.backends.llvm.emit.ir import STREAMED, Function
from eqfuse.ops.ir.operands import Operand, Segment


def lanes(mul: int, widest: int) -> int:
    """Return channels of one vector: a power of two, at most `widest`."""
    return min(widest, 1 << (mul - 1).bit_length())


def padded(mul: int, widest: int) -> int:
    """Return `mul` filled up to whole vectors."""
    n = lanes(mul, widest)
    return -(-mul // n) * n


def vectors(mul: int, widest: int) -> int:
    """Return the vectors that hold `mul` channels."""
    return padded(mul, widest) // lanes(mul, widest)


def is_direct(segment: Segment, widest: int) -> bool:
    """Return whether whole vectors of channels lie side by side in the row."""
    return segment.mul == 1 or (
        segment.channel_stride == 1 and segment.mul % lanes(segment.mul, widest) == 0
    )


@dataclasses.dataclass(frozen=True)
class Layout:
    """The places of the components of an operand with channels, in elements from its row.

    Attributes:
      segments: the segments in use.
      packed: whether the row is a packed copy.
      widest: lanes of the machine's vectors.
    """

    operand: Operand
    segments: tuple[int, ...]
    packed: bool
    widest: int

    @classmethod
    def of(cls, operand: Operand, segments, widest: int) -> "Layout":
        segments = tuple(sorted(segments))
        direct = all(is_direct(operand.segments[s], widest) for s in segments)
        return cls(operand, segments, not direct, widest)

    @functools.cached_property
    def _starts(self) -> dict[int, int]:
        starts, start = {}, 0
        for number in self.segments:
            starts[number] = start
            segment = self.operand.segments[number]
            start += segment.dim * padded(segment.mul, self.widest)
        starts[-1] = start
        return starts

    @property
    def size(self) -> int:
        """Return elements of a row."""
        return self._starts[-1] if self.packed else self.operand.size

    def place(self, segment: int, component: int) -> int:
        """Return where channel 0 of a component is; the other channels follow."""
        s = self.operand.segments[segment]
        if self.packed:
            return self._starts[segment] + component * padded(s.mul, self.widest)
        return s.offset + component * s.component_stride

    def is_streamable(self) -> bool:
        """Return whether the row is written in whole vectors, each at a multiple of its size."""
        widest, segments = self.widest, [self.operand.segments[n] for n in self.segments]
        whole = all(s.mul % widest == s.offset % widest == 0 for s in segments)
        if not whole or self.operand.size % widest:
            return False
        if self.packed:
            strides = [(s.channel_stride, s.component_stride) == (s.dim, 1) for s in segments]
            return self.covers_row() and all(strides)
        return all(s.dim == 1 or s.component_stride % widest == 0 for s in segments)

    def covers_row(self) -> bool:
        """Return whether the segments in use are the whole row of the operand."""
        used = (self.operand.segments[n] for n in self.segments)
        return sum(s.mul * s.dim for s in used) == self.operand.size


class Copies:
    """The functions of a module that copy segments to and from their packed form."""

    def __init__(self, dtype: str, widest: int):
        self.dtype, self.widest = dtype, widest
        self.functions: dict[str, str] = {}

    def pack(self, f: Function, layout: Layout, row: str, copy: str):
        """Copy the row of an operand to its packed copy."""
        self._call(f, layout, row, copy, "pack")

    def unpack(self, f: Function, layout: Layout, row: str, copy: str):
        """Copy the packed copy back to the row."""
        self._call(f, layout, row, copy, "unpack")

    def stream(self, f: Function, layout: Layout, row: str, copy: str):
        """Do as `unpack`, past the caches; for a layout that `is_streamable`."""
        self.functions["!0"] = STREAMED
        self._call(f, layout, row, copy, "stream")

    def _call(self, f: Function, layout: Layout, row: str, copy: str, verb: str):
        for number in layout.segments:
            s = layout.operand.segments[number]
            name = f"{verb}_{s.mul}x{s.dim}_{s.channel_stride}_{s.component_stride}"
            if name not in self.functions:
                self.functions[name] = self._function(name, s, verb)
            source = f.at(row, s.offset * f.bytes)
            target = f.at(copy, layout.place(number, 0) * f.bytes)
            f.do(f"call void @{name}(ptr {source}, ptr {target})")

    def _function(self, name: str, s: Segment, verb: str) -> str:
        to_copy = verb == "pack"
        header = f"define internal void @{name}(ptr noalias %row, ptr noalias %copy)"
        f = Function(header, self.dtype)
        n, length = lanes(s.mul, self.widest), padded(s.mul, self.widest)
        whole = 0
        if n > 1 and (
            s.channel_stride == 1 or (s.channel_stride, s.component_stride) == (s.dim, 1)
        ):
            whole = s.mul // n * n
        if to_copy and length > s.mul:
            for i in range(s.dim):
                zeros = f.constant(0.0, n)
                f.store(zeros, f.at("%copy", (i * length + length - n) * f.bytes), n)
        if whole:
            with f.loop(str(whole), step=n) as loop:
                self._vectors(f, s, loop.index, n, length, verb)
        if whole < s.mul:
            with f.loop(str(s.mul), start=str(whole)) as loop:
                row = f.at("%row", loop.index, s.channel_stride * f.bytes)
                copy = f.at("%copy", loop.index, f.bytes)
                for i in range(s.dim):
                    there = f.at(row, i * s.component_stride * f.bytes)
                    here = f.at(copy, i * length * f.bytes)
                    source, target = (there, here) if to_copy else (here, there)
                    f.store(f.load(source), target)
        return f.text()

    @staticmethod
    def _vectors(f: Function, s: Segment, channel: str, n: int, length: int, verb: str):
        """Move `n` channels of all components from one form to the other, by shuffles."""
        to_copy, store = verb == "pack", f.stream if verb == "stream" else f.store
        copy = f.at("%copy", channel, f.bytes)
        row = f.at("%row", channel, s.channel_stride * f.bytes)
        here = [f.at(copy, i * length * f.bytes) for i in range(s.dim)]
        if s.channel_stride == 1:
            there = [f.at(row, i * s.component_stride * f.bytes) for i in range(s.dim)]
            taken = [[(i, c) for c in range(n)] for i in range(s.dim)]
        else:
            there = [f.at(row, p * n * f.bytes) for p in range(s.dim)]
            flat = [[c * s.dim + i for c in range(n)] for i in range(s.dim)]
            if not to_copy:
                taken = [
                    [((p * n + c) % s.dim, (p * n + c) // s.dim) for c in range(n)]
                    for p in range(s.dim)
                ]
            else:
                taken = [[divmod(place, n) for place in places] for places in flat]
        sources, targets = (there, here) if to_copy else (here, there)
        values = [f.load(pointer, n) for pointer in sources]
        for lanes_of, target in zip(taken, targets, strict=True):
            store(_shuffled(f, values, lanes_of, n), target, n)


def _shuffled(f: Function, values, taken, n: int) -> str:
    """Return the vector whose lane c is lane taken[c][1] of values[taken[c][0]]."""
    used = sorted({number for number, _ in taken})
    result = values[used[0]]
    if len(used) == 1 and [lane for _, lane in taken] == list(range(n)):
        return result
    mask = [lane if number == used[0] else None for number, lane in taken]
    kind = f.vector(n)
    for other in used[1:] or used[:1]:
        if other != used[0]:
            mask = [
                n + lane if number == other else m
                for (number, lane), m in zip(taken, mask, strict=True)
            ]
        text = ", ".join("i32 poison" if m is None else f"i32 {m}" for m in mask)
        result = f.value(
            f"shufflevector {kind} {result}, {kind} {values[other]}, <{n} x i32> <{text}>"
        )
        mask = [None if m is None else c for c, m in enumerate(mask)]
    return result
