"""A fused op over rows as the text of one Triton kernel.

For each irrep, a program computes the product's components in registers, multiplies them by the
matrices of the Linear, and at the end applies the gate; the product is never written to memory.
"""

import dataclasses

from eqfuse.ops.backends.triton.emit.elementwise import activated
from eqfuse.ops.backends.triton.emit.emitter import SLICE
from eqfuse.ops.backends.triton.emit.fused_emitter import FusedEmitter
from eqfuse.ops.backends.triton.spec import KernelSpec
from eqfuse.ops.ir.fused import Fused
from eqfuse.ops.ir.gates import Part, Tile


@dataclasses.dataclass(frozen=True)
class FusedKernel:
    """A kernel of a fused op and what it is called with.

    Attributes:
      inputs: names of its inputs: operands of the op and index arrays.
      outputs: names of its outputs.
      rows: how many one program has.
      shares: how many programs have the same rows, some of the channels each.
    """

    spec: KernelSpec
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    rows: int
    shares: int = 1


def forward(fused: Fused, dtype: str) -> FusedKernel:
    """Return the kernel of a fused op: writes out, and z too if there is a gate."""
    t = FusedEmitter(fused, dtype, least=1)
    t.row_prologue()
    z: dict[Part, str] = {}
    finished: set[Part] = set()
    waiting = list(t.tiles)
    for source, parts in t.parts_by_input():
        for part in parts:
            z[part] = f"z_{part.block}_{part.first}"
            height = t.rows * t.padded(t.dim(part))
            t.emit(f"{z[part]} = {t.zeros(height, t.width(part))}")
        if source is not None:
            with t.channel_chunks():
                for segments in t.together(t.segments[source]):
                    _add_linear(t, segments, parts, z)
        for part in parts:
            _finish(t, part, z)
        finished.update(parts)
        for tile in waiting[:]:
            if {tile.part, tile.gate or tile.part} <= finished:
                t.store_tile("out", fused.sizes[0], tile.offset, tile.part, _value(t, tile, z))
                waiting.remove(tile)
    outputs = fused.outputs
    inputs = t.inputs(*(["skip"] if fused.skip else []))
    note = f"{fused.form!r}\nmixed to {fused.linear.irreps_out}"
    types = dict.fromkeys(outputs, dtype)
    spec = t.spec("fused", note, inputs, t.integers(), ("num_rows",), types)
    return FusedKernel(spec, tuple(inputs), tuple(outputs), t.rows)


def _add_linear(t: FusedEmitter, segments: list[int], parts: list[Part], z: dict[Part, str]):
    """Add the Linear of segments of the product to the parts that read them."""
    for segment, components in t.product(segments).items():
        s = t.out.segments[segment]
        height = t.rows * t.padded(s.dim)
        tile = t.stacked(components)
        with t.slices(t.channels):
            piece = t.piece(tile, height)
            t.emit(f"u = (chunk * {t.channels} + at + tl.arange(0, {SLICE}))[:, None]")
            for part in parts:
                for term in t.linear.into(part.block):
                    first, step = t.rows_of(segment, term)
                    v = f"tl.arange(0, {t.width(part)})[None, :]"
                    place = t.matrix_place(term, part, f"{first} + u * {step}", v)
                    mask = f"(u < {s.mul}) & ({v} < {part.mul})"
                    matrix = t.load(f"{t.parameter(term)} + {place}", mask)
                    t.emit(f"{z[part]} += {t.dot(piece, matrix, term.scale)}")


def _finish(t: FusedEmitter, part: Part, z: dict[Part, str]):
    """Add bias and skip, and store the pre-activation; its tile becomes three-dimensional."""
    name, width = z[part], t.width(part)
    padded = t.padded(t.dim(part))
    t.emit(f"{name} = tl.reshape({name}, ({t.rows}, {padded}, {width}))")
    for term in t.linear.biases(part.block):
        v = f"tl.arange(0, {width})[None, None, :]"
        mask = f"({v} < {part.mul}) & (tl.arange(0, {padded})[None, :, None] < 1)"
        bias = t.load(f"{t.parameter(term)} + {part.first} + {v}", mask)
        t.emit(f"{name} += {bias}")
    if t.fused.skip:
        t.emit(f"{name} += {t.load_tile('skip', t.linear.size_out, t.offset(part), part)}")
    t.store_tile(*t.place_of(part), part, name)


def _value(t: FusedEmitter, tile: Tile, z: dict[Part, str]) -> str:
    """Return what the gate makes of a part."""
    value = z[tile.part]
    if tile.gate is None:
        return activated(t, tile.act, value)
    return t.name(f"{gate_value(t, tile, z[tile.gate])} * {value}")


def gate_value(t: FusedEmitter, tile: Tile, z: str, derivative: bool = False) -> str:
    """Return act(gate), or its derivative, [ROWS, 1, columns], from the first component of z."""
    first = t.name(f"tl.sum({z}, axis=1, keep_dims=True)")
    return activated(t, tile.act, first, derivative)
