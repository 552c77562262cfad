"""The arguments of fused kernels, and the gate that they apply."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import NamedTuple

from eqfuse.ops.backends.triton.functions import activated
from eqfuse.ops.backends.triton.spec import KernelSpec
from eqfuse.ops.backends.triton.text import DenseEmitter
from eqfuse.ops.ir.form import Segment, Term
from eqfuse.ops.ir.fused import IDENTITY, Fused, Part, Tile


class FusedKernel(NamedTuple):
    """A kernel of a fused op and what it is called with."""

    spec: KernelSpec
    inputs: tuple[str, ...]  # names of operands of the op and index arrays
    shares: int = 1  # programs that have the same rows, some of the work each
    rows: int = 1  # of one program


class FusedEmitter(DenseEmitter):
    """Writes a fused kernel, of one node or of several rows; `columns` of the gate at a time."""

    row = "node"  # the variable of what a program has

    def __init__(self, fused: Fused, dtype: str, columns: int, warps: int):
        super().__init__(dtype, fused.linear.linear_form.input_precision)
        self.fused, self.form, self.linear = fused, fused.form, fused.linear
        self.columns, self.warps = columns, warps
        self.parameters = [f"p{n}" for n in range(len(self.linear.parameters))]

    def kernel(
        self, stem, note, inputs, integers, outputs: dict, scalars=(), shares=1, rows=1
    ) -> FusedKernel:
        """Return the kernel of the lines so far; `outputs` are dtypes by name."""
        types = dict.fromkeys(inputs, self.dtype) | dict.fromkeys(integers, "int32")
        spec = self.spec(stem, note, types, scalars, outputs, self.warps)
        return FusedKernel(spec, tuple(types), shares, rows)

    def parameter(self, term: Term) -> str:
        """Return the pointer to a matrix or a bias."""
        return f"p{term.w - 1}_ptr"

    def column(self, start: int) -> str:
        """Return the numbers of the columns of a tile of the gate."""
        return self.name(f"column + {start} + tl.arange(0, {self.columns})")

    def mask_of(self, v: str, mul: int) -> str:
        """Return which elements of a tile a part of so many columns has."""
        return f"{v} < {mul}"


@dataclasses.dataclass(frozen=True)
class Place:
    """Columns `v` of a part of the pre-activation: where a component of them lies."""

    t: FusedEmitter
    part: Part
    v: str

    @property
    def block(self) -> Segment:
        return self.t.linear.blocks_out[self.part.block]

    @property
    def mask(self) -> str:
        return self.t.mask_of(self.v, self.part.mul)

    def of_z(self, pointer: str, k: int) -> str:
        """Return the address in an array of the pre-activation or of its cotangents."""
        size = self.t.linear.size_out
        place = f"{self.block.offset + self.part.first * self.block.dim} + {self.v}"
        return f"{pointer}_ptr + {self.t.row} * {size} + {place} * {self.block.dim} + {k}"

    def of_out(self, pointer: str, tile: Tile, k: int) -> str:
        """Return the address in the gated row or in its cotangent."""
        place = f"{tile.offset} + {self.v} * {self.block.dim} + {k}"
        return f"{pointer}_ptr + {self.t.row} * {self.t.fused.sizes[0]} + {place}"

    def z(self) -> list[str]:
        """Return the components of the pre-activation."""
        return [self.load(self.of_z("z", k)) for k in range(self.block.dim)]

    def load(self, address: str) -> str:
        return self.t.load(address, self.mask)

    def store(self, address: str, value: str):
        self.t.emit(f"tl.store({address}, {value}, mask={self.mask})")


@contextlib.contextmanager
def _columns(t: FusedEmitter, tile: Tile):
    """Write a loop over the columns of a tile; give the places of its part and of its gate."""
    with t.block(f"for column in tl.range(0, {tile.part.mul}, {t.columns}, num_stages=1):"):
        v = t.column(0)
        yield Place(t, tile.part, v), Place(t, tile.gate, v) if tile.gate else None


def write_gated(t: FusedEmitter, tile: Tile):
    """Write a tile of the output, from the pre-activation in memory."""
    with _columns(t, tile) as (place, gate):
        values = place.z()
        if gate:
            act = activated(t, tile.act, *gate.z())
            values = [f"{act} * {value}" for value in values]
        else:
            values = [activated(t, tile.act, value) for value in values]
        for k, value in enumerate(values):
            place.store(place.of_out("out", tile, k), value)


def write_cotangent(t: FusedEmitter, tile: Tile, has_ct_z: bool):
    """Write the cotangent of the parts of the pre-activation that a tile is made of."""
    with _columns(t, tile) as (place, gate):
        cts = [place.load(place.of_out("ct_out", tile, k)) for k in range(place.block.dim)]
        if tile.act == IDENTITY and gate is None:
            results = [(place, cts)]
        elif gate is None:
            slopes = [activated(t, tile.act, x, 1) for x in place.z()]
            results = [(place, list(map(" * ".join, zip(cts, slopes, strict=True))))]
        else:
            z, [x] = place.z(), gate.z()
            act, slope = (activated(t, tile.act, x, order) for order in (0, 1))
            total = " + ".join(map(" * ".join, zip(cts, z, strict=True)))
            results = [(place, [f"{ct} * {act}" for ct in cts]), (gate, [f"({total}) * {slope}"])]
        for at, values in results:
            for k, value in enumerate(values):
                more = f" + {at.load(at.of_z('ct_z', k))}" if has_ct_z else ""
                at.store(at.of_z("dz", k), value + more)
