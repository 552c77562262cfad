"""What the products of irreps are made of: blocks of irreps, coefficients, operands."""

import dataclasses
import functools
import math
from collections.abc import Iterable

import e3nn_jax as e3nn
import numpy as np

from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.operands import Operand, Path, Role, Segment, SegmentRef


@dataclasses.dataclass(frozen=True, eq=False)
class Product:
    """A form, the irreps of its output, and which of its output blocks are zero by structure.

    Where `channel_columns` is given, the inputs of the form are these columns of x and y, side by
    side, so that every pair of channels (u, v) is one channel.
    """

    form: Form
    irreps_out: e3nn.Irreps
    zero_flags: tuple[bool, ...]
    channel_columns: tuple[tuple["Columns", ...], tuple["Columns", ...]] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Columns:
    """Columns of an operand, [mul, dim], taken several times.

    Attributes:
      columns: their numbers.
      times: how often.
      axis: 0 repeats all of them, 1 every channel.
    """

    columns: np.ndarray
    times: int = 1
    axis: int = 0

    @property
    def size(self) -> int:
        return self.columns.size * self.times


@dataclasses.dataclass(frozen=True)
class Piece:
    """A block of an operand as it lies in the row; `channel` counts from the start of its group."""

    offset: int
    mul: int
    channel: int
    zero: bool


@dataclasses.dataclass(frozen=True)
class Group:
    """Blocks of one irrep that the product treats as one block of `mul` channels."""

    ir: e3nn.Irrep
    mul: int
    pieces: tuple[Piece, ...]

    @property
    def zero(self) -> bool:
        """Return whether all of its blocks are zero by structure."""
        return all(p.zero for p in self.pieces)


def groups(irreps, zero_flags, regroup: bool) -> list[Group]:
    """Return blocks as they are, or those of one irrep as one, sorted."""
    blocks, offset = [], 0
    for (mul, ir), zero in zip(irreps, zero_flags, strict=True):
        blocks.append((ir, offset, mul, zero))
        offset += mul * ir.dim
    if regroup:
        blocks = [b for b in sorted(blocks, key=lambda b: b[0]) if b[2] > 0]
    groups = []
    for ir, offset, mul, zero in blocks:
        if regroup and groups and groups[-1].ir == ir:
            last = groups.pop()
            pieces = (*last.pieces, Piece(offset, mul, last.mul, zero))
            groups.append(Group(ir, last.mul + mul, pieces))
        else:
            groups.append(Group(ir, mul, (Piece(offset, mul, 0, zero),)))
    return groups


@functools.cache
def coupling(
    ir1, ir2, ir_out, normalization: str
) -> tuple[tuple[tuple[int, int, int], float], ...]:
    """Return non-zero Clebsch-Gordan coefficients ((i, j, k), c) with e3nn's normalisation."""
    scale = {
        "component": math.sqrt(ir_out.dim),
        "norm": math.sqrt(ir1.dim * ir2.dim),
        "none": 1.0,
    }
    if normalization not in scale:
        raise ValueError(
            f"irrep_normalization={normalization!r} is not supported; "
            "choose 'component', 'norm' or 'none'"
        )
    cg = np.asarray(e3nn.clebsch_gordan(ir1.l, ir2.l, ir_out.l), np.float64) * scale[normalization]
    return tuple(
        (tuple(map(int, index)), float(cg[tuple(index)])) for index in np.argwhere(abs(cg) > 1e-12)
    )


def filled(known: Iterable[Segment], size: int, channels: bool) -> tuple[Segment, ...]:
    """Return segments of a row, followed by others that hold the rest of it.

    Args:
      known: segments.
      size: of the row.
      channels: whether its operand has channels; then the others are of one component each.
    Raises:
      ValueError: segments that overlap.
    """
    segments = list(known)
    free = np.ones(size, bool)
    for s in segments:
        places = (s.offset + s.channel_stride * np.arange(s.mul))[:, None]
        places = places + s.component_stride * np.arange(s.dim)
        if not free[places].all():
            raise ValueError("blocks of an operand overlap")
        free[places] = False
    width = max((s.mul for s in segments), default=1) if channels else size
    start = 0
    while start < size:
        stop = start
        while stop < size and free[stop] and stop - start < width:
            stop += 1
        if stop > start:
            mul, dim = (stop - start, 1) if channels else (1, stop - start)
            segments.append(Segment(start, mul, dim, dim))
        start = max(stop, start + 1)
    return tuple(segments)


class Operands:
    """Segments of the operands, numbered as they are first used."""

    def __init__(self):
        self.segments = {}

    def ref(self, operand: int, segment: Segment) -> SegmentRef:
        known = self.segments.setdefault(operand, {})
        return SegmentRef(operand, known.setdefault(segment, len(known)))

    def operand(self, number, size, channels, index) -> Operand:
        """Return the operand, with segments that were used and others for the rest of its row."""
        segments = filled(self.segments.get(number, {}), size, channels)
        name, role = NAMES[number]
        return Operand(name, size, segments, channels, index, role)


X, Y, W, OUT = range(4)
NAMES = (("x", Role.LEFT), ("y", Role.RIGHT), ("w", Role.OTHER), ("out", Role.OUTPUT))


def columns_of(group: Group) -> np.ndarray:
    """Return where the channels and components of a group lie in the row: [mul, dim]."""
    d = group.ir.dim
    return np.concatenate([p.offset + np.arange(p.mul * d).reshape(p.mul, d) for p in group.pieces])


def renumbered(form: Form, paths: list[Path]) -> Form:
    """Return the form with these paths, whose output slots were numbered `OUT`."""
    paths = [dataclasses.replace(p, output=SegmentRef(0, p.output.segment)) for p in paths]
    return dataclasses.replace(form, paths=tuple(paths)).merged()


def regrouped(irreps: e3nn.Irreps, zeros) -> tuple[e3nn.Irreps, tuple[bool, ...]]:
    """Merge sorted blocks of one irrep into one, which is zero if all of them are."""
    merged = {}
    for (mul, ir), zero in zip(irreps, zeros, strict=True):
        if mul:
            merged.setdefault(ir, []).append(zero)
    return irreps.simplify(), tuple(all(flags) for flags in merged.values())
