"""What the fused kernels share about the Linear and the pre-activation: places, tiles, masks."""

import math

from eqfuse.ops.backends.triton.emit.emitter import SLICE, WARPS, DenseEmitter, power_of_two
from eqfuse.ops.ir.gates import Part
from eqfuse.ops.ir.linear_form import Term

THREADS = 32 * WARPS
ELEMENTS = 4
"""Elements of a matmul's result that a thread holds, at most."""


class PreactivationEmitter(DenseEmitter):
    """Writes the parts of a fused kernel that read or write the pre-activation and the parameters.

    The row is cut into parts, some columns of one irrep each, whose tiles are [rows, components,
    columns]; components are padded to a power of two.

    Attributes:
      fused, form, linear, out: the op, its product, its Linear, the product's output.
      tiles: the pieces of the row that the gate has; none without a gate.
      segments: those of the product that are computed, by the block of the Linear's input.
      rows: how many a program has at a time.
      least: rows times components of a tile, at least.
    """

    def padded(self, dim: int) -> int:
        """Return components of a tile: a power of two."""
        return max(power_of_two(dim), -(-self.least // self.rows))

    # the Linear

    def parameter(self, term: Term) -> str:
        """Return the pointer to a parameter."""
        n = term.w - 1
        if not self.fused.num_sets:
            return f"p{n}_ptr"
        return f"p{n}_ptr + set_index * {math.prod(self.linear.parameters[n].shape)}"

    def rows_of(self, segment: int, term: Term):
        """Return (first, step): channel u of a segment has row first + u * step of a matrix."""
        s, block = self.out.segments[segment], self.linear.blocks_in[term.x.block]
        return (s.offset - block.offset) // s.dim, s.channel_stride // s.dim

    def matrix_place(self, term: Term, part: Part, u: str, v: str) -> str:
        """Return the offset of row u and column v of a part in a matrix."""
        mul = self.linear.blocks_out[self.linear.block_of(term)].mul
        return f"({u}) * {mul} + {part.first} + {v}"

    # parts of the pre-activation

    def parts(self) -> list[Part]:
        """Return every part of the pre-activation that a tile reads, scalars first."""
        blocks = self.linear.blocks_out
        if self.fused.gate is None:
            whole = [Part(n, 0, b.mul) for n, b in enumerate(blocks)]
            parts = {p for w in whole for p in w.cut(self.most_columns(blocks[w.block].dim))}
        else:
            parts = {t.part for t in self.tiles} | {t.gate for t in self.tiles if t.gate}
        return sorted(parts, key=lambda p: (blocks[p.block].dim, p.block, p.first))

    def parts_by_input(self) -> list[tuple[int | None, list[Part]]]:
        """Return pairs (number of a block of the product, or None; parts that read it)."""
        groups: dict[int | None, list[Part]] = {}
        for part in self.parts():
            source = [t.x.block for t in self.linear.into(part.block) if self.segments[t.x.block]]
            groups.setdefault(source[0] if source else None, []).append(part)
        return list(groups.items())

    def most_columns(self, dim: int) -> int:
        """Return columns of a tile, at most: a thread holds rows and columns of both factors."""
        elements = ELEMENTS // (2 if self.dtype == "float64" else 1)
        return max(2 * SLICE, elements * THREADS // (self.rows * self.padded(dim)))

    def width(self, part: Part) -> int:
        """Return columns of a part's tile."""
        return max(power_of_two(part.mul), SLICE)

    def dim(self, part: Part) -> int:
        """Return components of a part."""
        return self.linear.blocks_out[part.block].dim

    def offset(self, part: Part) -> int:
        """Return where a part begins in its array of the pre-activation."""
        block = self.linear.blocks_out[part.block]
        return block.offset + part.first * block.dim

    def place_of(self, part: Part, prefix: str = "") -> tuple[str, int, int]:
        """Return a part's array of the pre-activation, its size, and where the part begins."""
        array = self.linear.array_of(part.block)
        size = self.linear.linear_form.outputs[array].size
        return f"{prefix}{self.fused.arrays[array]}", size, self.offset(part)

    def tile_place(self, size: int, offset: int, part: Part, at: str = "", width: int = 0):
        """Return offsets and mask of a part of rows of `size`, as [ROWS, components, columns].

        All of its columns, or `width` of them from variable `at` on.
        """
        dim = self.dim(part)
        k = f"tl.arange(0, {self.padded(dim)})[None, :, None]"
        v = f"tl.arange(0, {width or self.width(part)})"
        v = f"({at} + {v})[None, None, :]" if at else f"{v}[None, None, :]"
        place = f"row3 * {size} + {offset} + {v} * {dim} + {k}"
        return place, f"present3 & ({k} < {dim}) & ({v} < {part.mul})"

    def load_tile(self, pointer: str, size: int, offset: int, part: Part, *columns) -> str:
        """Return a part of rows of `size`, [ROWS, components, columns]; see `tile_place`."""
        place, mask = self.tile_place(size, offset, part, *columns)
        return self.load(f"{pointer}_ptr + {place}", mask)

    def store_tile(self, pointer: str, size: int, offset: int, part: Part, value: str):
        """Write a part of rows of `size`."""
        place, mask = self.tile_place(size, offset, part)
        self.emit(f"tl.store({pointer}_ptr + {place}, {value}, mask={mask})")

    def flat(self, part: Part, tile: str) -> str:
        """Return a tile as [ROWS * components, columns]."""
        height = self.rows * self.padded(self.dim(part))
        return self.name(f"tl.reshape({tile}, ({height}, {self.width(part)}))")
