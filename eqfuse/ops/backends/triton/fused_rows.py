"""Kernels of a fused op over rows: a tile of rows, the product, and matmuls of it.

A component of an operand, of the product or of the pre-activation is [ROWS, channels], so that a
matmul is of one component: nothing is stacked or taken apart. A tile has more channels than rows,
since Triton gives warps other channels of such tiles, and of others other rows, which are too few.

For example, 32x0e times a scalar, mixed to 32x0e, and relu. The product `out_0_0` of 16 rows and 16
of the channels is a factor of a matmul as soon as it is there; the gate reads the result again.

    z_0_0_0 = tl.zeros([16, 32], tl.float32)
    for chunk in tl.range(0, 2, num_stages=1):
        lane = (chunk * 16 + tl.arange(0, 16))[None, :]
    ...
            x_0_0 = tl.load(x_first + (x_row + 0 + lane * 1))
            y_0_0 = tl.load(y_first + (y_row + 0))
            v1 = x_0_0 * y_0_0
            out_0_0 += v1
            t1 = tl.where(lane < 32, 0.1767766952966369 * out_0_0, 0.0)
            u = (chunk * 16 + tl.arange(0, 16))[:, None]
            v = tl.arange(0, 32)[None, :]
    ...
            z_0_0_0 = tl.dot(t1, t2, z_0_0_0, input_precision='ieee', out_dtype=tl.float32)
    ...
        t5 = tl.maximum(t4, 0.0, tl.PropagateNan.ALL)
        t6 = t5
"""

import functools
import itertools
import math
from dataclasses import replace

from eqfuse.ops.backends.triton.epilogue import (
    FusedEmitter,
    FusedKernel,
    write_cotangent,
    write_gated,
)
from eqfuse.ops.backends.triton.text import (
    SLICE,
    ArithmeticEmitter,
    component_names,
    packed,
    power_of_two,
)
from eqfuse.ops.ir.form import Form, Index, Term, backward_form
from eqfuse.ops.ir.fused import Fused, Part, Tile

ROWS = 16  # of a tile: those of one instruction of the matrix unit
WIDTHS = 32, 64  # columns of a tile that is a matmul's result, of few channels and of many
# a thread has four elements of [ROWS, 8], the fewest of the matrix unit
COLUMNS_OF_A_WARP = 8


class RowEmitter(FusedEmitter):
    """Writes a fused kernel over rows: so many `channels` of the product at a time.

    A matmul's result has `width` columns.
    """

    row = "row"

    def __init__(self, fused: Fused, dtype: str, channels: int, width: int):
        super().__init__(fused, dtype, WIDTHS[0], width // COLUMNS_OF_A_WARP)
        self.channels, self.width = channels, width
        self.chunks = -(-self.form.max_mul // channels)
        [self.out] = self.form.outputs
        self.integers = ["receivers"] * self.form.on_graph

    def finished(self, stem, note, inputs, outputs: dict, shares, *scalars: str) -> FusedKernel:
        """Return the kernel of the lines so far, which reads the product's inputs and `inputs`."""
        note = f"{note}\n{self.form!r}\nmixed to {self.linear.irreps_out}"
        inputs = [*(o.name for o in self.form.inputs), *inputs]
        scalars = "num_rows", *["num_nodes"] * self.form.on_graph, *scalars
        return self.kernel(stem, note, inputs, self.integers, outputs, scalars, shares, ROWS)

    # rows and channels

    def begin(self, shares: int):
        """Write the rows of a program, and its number `share` among programs of the same rows.

        If fewer rows are left than a tile has, the program reads the last row several times.
        """
        self.emit("program = tl.program_id(0)")
        self.emit(f"share = program % {shares}")
        self.rows_from(f"program // {shares} * {ROWS}", "num_rows")

    def rows_from(self, first: str, stop: str):
        self.emit(f"first = {first}")
        self.emit(f"inside = tl.arange(0, {ROWS})[:, None]")
        self.emit(f"present = inside < {stop} - first")
        self.emit(f"inside = tl.minimum(inside, {stop} - 1 - first)")
        self.emit("row = first.to(tl.int64) + inside")
        if self.form.on_graph:
            node = self.node_index("tl.load(receivers_ptr + row)")
            self.emit(f"node = {node}.to(tl.int64)")

    def row_pointers(self, operands):
        for operand in operands:
            name, size = operand.name, operand.size
            of_node = operand.index is Index.RECEIVER
            start = f"node * {size}" if of_node else f"first.to(tl.int64) * {size}"
            self.emit(f"{name}_first = {name}_ptr + {start}")
            self.emit(f"{name}_row = {'0' if of_node else f'inside * {size}'}")

    def all_channels(self):
        """Return a loop over chunks of channels, if there are several."""
        if self.chunks > 1:
            return self.block(f"for chunk in tl.range(0, {self.chunks}, num_stages=1):")
        self.emit("chunk = 0")
        return self.block("")

    def lanes(self, operands):
        """Write the channels of a chunk, [1, CHANNELS], and the mask `in_40` of segments of 40."""
        self.emit(f"lane = (chunk * {self.channels} + tl.arange(0, {self.channels}))[None, :]")
        for mul in sorted({s.mul for o in operands if o.channels for s in o.segments}):
            if not self.fills(mul):
                self.emit(f"in_{mul} = lane < {mul}")

    def fills(self, mul: int) -> bool:
        return mul == self.chunks * self.channels

    def apart(self, number: int):
        """Return a block, which always runs, for what one segment of the product takes.

        Without blocks, compilers add up all segments at the end, and keep the factors until then.
        """
        return self.block(f"if num_rows != {-1 - number}:")

    # the product

    def place(self, operand, segment, component: int) -> tuple[str, str]:
        """Return the address of a component, and its mask, "" where there is none."""
        offset = segment.offset + component * segment.component_stride
        start = f"{operand.name}_first + ({operand.name}_row + {offset}"
        if not operand.channels:
            return f"{start})", ""
        mask = "" if self.fills(segment.mul) else f"in_{segment.mul}"
        return f"{start} + lane * {segment.channel_stride})", mask

    def loaded_where(self, address: str, *masks: str) -> str:
        """Return a load, zero where a mask is not true; "" is no mask."""
        mask = " & ".join(f"({m})" for m in masks if m)
        return f"tl.load({address}, mask={mask}, other=0.0)" if mask else f"tl.load({address})"

    def zeros(self, height: int, width: int) -> str:
        return f"tl.zeros([{height}, {width}], {self.real})"

    def arithmetic(self, form: Form, paths, given=()):
        """Write the sums of paths over components of outputs; `given` components are loaded."""

        def load(operand, segment, component, name):
            address, mask = self.place(operand, segment, component)
            self.emit(f"{name} = {self.widened(self.loaded_where(address, mask))}")

        emitter = ArithmeticEmitter(replace(form, paths=tuple(paths)), load, self.emit)
        emitter.loaded(given)
        emitter.add_all()

    def clear(self, operand, segment: int) -> list[str]:
        """Set the components of a segment to zero, [ROWS, CHANNELS], and return their names."""
        names = component_names(operand, segment)
        for name in names:
            self.emit(f"{name} = {self.zeros(ROWS, self.channels)}")
        return names

    def product(self, segment: int) -> list[str]:
        """Return the components of a segment of the product, [ROWS, CHANNELS]."""
        names = self.clear(self.out, segment)
        paths = [p for p in self.form.paths if p.output.segment == segment]
        self.arithmetic(self.form, paths)
        return names

    def segments(self) -> list[int]:
        """Return the segments of the product that are computed, those of a block together."""
        written = {path.output.segment for path in self.form.paths}
        return [
            n
            for block in self.linear.blocks_in
            for n in sorted(written)
            if block.holds(self.out.segments[n])
        ]

    # the Linear

    def terms_of(self, segment: int) -> list[Term]:
        """Return the matrices that read a segment of the product."""
        held = [b.holds(self.out.segments[segment]) for b in self.linear.blocks_in]
        terms = self.linear.linear_form.terms
        return [t for t in terms if t.x is not None and held[t.x.segment]]

    def rows_of(self, segment: int, term: Term) -> tuple[int, int]:
        """Return (first, step): channel u of a segment has row first + u * step of a matrix."""
        s, block = self.out.segments[segment], self.linear.blocks_in[term.x.segment]
        return (s.offset - block.offset) // s.dim, s.channel_stride // s.dim

    def add_dot(self, total: str, left: str, right: str):
        if self.dtype != self.wide:
            left = f"({left}).to(tl.{self.dtype})"
        self.emit(
            f"{total} = tl.dot({left}, {right}, {total}, "
            f"input_precision={self.input_precision!r}, out_dtype={self.real})"
        )

    # the pre-activation

    def dim(self, part: Part) -> int:
        return self.linear.blocks_out[part.block].dim

    def column(self, start: int) -> str:
        return self.name(f"(column + {start} + tl.arange(0, {self.columns}))[None, :]")

    def mask_of(self, v: str, mul: int) -> str:
        return f"present & ({v} < {mul})"


def width_for(muls) -> int:
    """Return the columns of tiles for so many channels."""
    return min(max(power_of_two(max(muls)), WIDTHS[0]), WIDTHS[-1])


SUMS = 96  # of the pre-activation or of gradients that a thread has, at most; float64 counts twice


@functools.lru_cache(maxsize=256)
def forward(fused: Fused, dtype: str) -> FusedKernel:
    """Return the kernel of a fused op: writes out, and z too if there is a gate."""
    return _Forward(fused, dtype).whole_kernel()


class _Forward(RowEmitter):
    def __init__(self, fused: Fused, dtype: str):
        super().__init__(fused, dtype, SLICE, width_for(b.mul for b in fused.linear.blocks_out))

    def whole_kernel(self) -> FusedKernel:
        shares = self._shares()
        self.begin(len(shares))
        self.row_pointers(self.form.inputs)
        for n, (parts, tiles) in enumerate(shares):
            with self.block(f"if share == {n}:" if len(shares) > 1 else ""):
                self._write(parts)
                if tiles:
                    self.emit("tl.debug_barrier()")
                for tile in tiles:
                    write_gated(self, tile)
        inputs = [*self.parameters, *["skip"] * self.fused.skip]
        outputs = dict.fromkeys(self.fused.outputs, self.dtype)
        return self.finished("fused", "product, Linear and gate of", inputs, outputs, len(shares))

    def _shares(self) -> list[tuple[list[Part], list[Tile]]]:
        """Return the parts of the pre-activation, and the tiles of the gate, of each program."""
        blocks = self.linear.blocks_out
        if self.fused.gate is None:
            whole = [Part(n, 0, block.mul) for n, block in enumerate(blocks)]
            units = [([part], []) for w in whole for part in w.cut(self.width)]
        else:
            tiles = [t for w in self.fused.gate.tiles for t in w.cut(self.dim(w.part), self.width)]
            units = [([t.part, *([t.gate] if t.gate else [])], [t]) for t in tiles]
        sums = ROWS * self.width // (32 * self.warps) * (2 if self.dtype == "float64" else 1)
        sizes = [sum(map(self.dim, parts)) * sums for parts, _ in units]
        return [
            ([p for parts, _ in share for p in parts], [t for _, tiles in share for t in tiles])
            for share in packed(units, sizes, SUMS)
        ]

    def _pairs(self, segment: int, parts: list[Part]) -> list[tuple[Part, Term]]:
        """Return the parts of the pre-activation that read a segment, each with its matrix."""
        return [
            (part, term)
            for term in self.terms_of(segment)
            for part in parts
            if term.z.segment == part.block
        ]

    def _write(self, parts: list[Part]):
        z = {p: [f"z_{p.block}_{p.first}_{k}" for k in range(self.dim(p))] for p in parts}
        for name in itertools.chain(*z.values()):
            self.emit(f"{name} = {self.zeros(ROWS, self.width)}")
        with self.all_channels():
            self.lanes(self.form.inputs)
            for segment in self.segments():
                if pairs := self._pairs(segment, parts):
                    with self.apart(segment):
                        self._add_linear(segment, pairs, z)
        for part, names in z.items():
            self._finish(part, names)

    def _add_linear(self, segment: int, pairs, z):
        """Add the Linear of a segment of the product to the parts that read it."""
        s = self.out.segments[segment]
        components = self.product(segment)
        scaled: dict[float, list[str]] = {}
        for scale in (term.scale for _, term in pairs):
            if scale not in scaled:
                # the mask keeps the layout of factors, a copy for each warp, from the product
                values = (f"tl.where(lane < {s.mul}, {scale!r} * {c}, 0.0)" for c in components)
                scaled[scale] = [self.name(value) for value in values]
        self.emit(f"u = (chunk * {self.channels} + tl.arange(0, {self.channels}))[:, None]")
        self.emit(f"v = tl.arange(0, {self.width})[None, :]")
        for part, term in pairs:
            first, step = self.rows_of(segment, term)
            mul = self.linear.blocks_out[part.block].mul
            place = f"({first} + u * {step}) * {mul} + {part.first} + v"
            mask = f"(u < {s.mul}) & (v < {part.mul})"
            matrix = self.factor(f"{self.parameter(term)} + {place}", mask)
            for total, component in zip(z[part], scaled[term.scale], strict=True):
                self.add_dot(total, component, matrix)

    def _finish(self, part: Part, names: list[str]):
        """Add bias and skip to a part of the pre-activation, and write it."""
        v = f"tl.arange(0, {self.width})[None, :]"
        mask = f"present & ({v} < {part.mul})"
        for term in self.linear.biases(part.block):
            bias = self.load(f"{self.parameter(term)} + {part.first} + {v}", mask)
            self.emit(f"{names[0]} += {bias}")
        block, size = self.linear.blocks_out[part.block], self.linear.size_out
        for k, name in enumerate(names):
            offset = block.offset + part.first * block.dim + k
            place = f"row * {size} + {offset} + {v} * {block.dim}"
            if self.fused.skip:
                self.emit(f"{name} += {self.load(f'skip_ptr + {place}', mask)}")
            self.emit(f"tl.store(z_ptr + {place}, {name}, mask={mask})")


# components of the operands' cotangents that a program sums, at most; in float64 half as many
COMPONENTS = 28


@functools.lru_cache(maxsize=256)
def backward(fused: Fused, wanted, given, dtype: str) -> FusedKernel:
    """Return the kernel of the `wanted` cotangents of the product's inputs, and of dz with a gate.

    `given` says which cotangents of the outputs there are.
    """
    return _Backward(fused, wanted, given, dtype).whole_kernel()


class _Backward(RowEmitter):
    def __init__(self, fused: Fused, wanted, given, dtype: str):
        width = width_for([fused.form.max_mul])
        super().__init__(fused, dtype, width, width)
        self.cotangents = backward_form(fused.form, wanted) if any(wanted) else None
        self.given = fused.cotangents(given)
        self.gated = "ct_out" in self.given

    def whole_kernel(self) -> FusedKernel:
        form = self.cotangents
        groups = self._groups() if form else []
        # what is summed over channels, and what the gate makes, is whole in a program
        across = self.gated or any(not o.channels for o in form.outputs)
        chunks = 1 if across else self.chunks
        shares = max(1, len(groups)) * chunks
        self.begin(shares)
        if self.gated:
            for tile in self.fused.gate.tiles:
                write_cotangent(self, tile, "ct_z" in self.given)
            self.emit("tl.debug_barrier()")
        if form:
            self.row_pointers(form.inputs[:-1])
            # those of nodes are summed by another kernel
            self.row_pointers(replace(o, index=Index.ROW) for o in form.outputs)
        for n, group in enumerate(groups):
            with self.block(f"if share // {chunks} == {n}:" if len(groups) > 1 else ""):
                self._write(group, chunks > 1)
        names = [o.name for o in form.outputs] if form else []
        outputs = dict.fromkeys([*names, *["dz"] * self.gated], self.dtype)
        inputs = [*self.parameters, *["z"] * self.gated, *self.given]
        return self.finished("fused_backward", "backward of", inputs, outputs, shares)

    def _groups(self) -> list[list[tuple[int, int]]]:
        """Return the segments (operand, segment) of the cotangents that each program writes."""
        most = COMPONENTS // (2 if self.dtype == "float64" else 1)
        outputs = self.cotangents.outputs
        units = [(o, s) for o, operand in enumerate(outputs) for s in range(len(operand.segments))]
        return packed(units, [outputs[o].segments[s].dim for o, s in units], most)

    def _write(self, group, one_chunk: bool):
        """Write some segments of the operands' cotangents, all or one of the chunks of channels."""
        form, last = self.cotangents, len(self.cotangents.inputs) - 1
        with_channels = [(form.outputs[o], s) for o, s in group if form.outputs[o].channels]
        shared = [(form.outputs[o], s) for o, s in group if not form.outputs[o].channels]
        for pair in shared:
            self.clear(*pair)
        if one_chunk:
            self.emit(f"chunk = share % {self.chunks}")
        with self.block("") if one_chunk else self.all_channels():
            self.lanes([*form.inputs, *form.outputs])
            for pair in with_channels:
                self.clear(*pair)
            for segment in self.segments():
                paths = [
                    p
                    for p in form.paths
                    if (p.output.operand, p.output.segment) in group
                    and any(f.operand == last and f.segment == segment for f in p.factors)
                ]
                if paths:
                    with self.apart(segment):
                        self.arithmetic(form, paths, self._through_linear(segment))
            for pair in with_channels:
                self._store(*pair)
        for operand, s in shared:
            for name in component_names(operand, s):
                self.emit(f"{name} = tl.sum({name}, axis=1, keep_dims=True)")
            self._store(operand, s)

    def _store(self, operand, s: int):
        for k, name in enumerate(component_names(operand, s)):
            address, mask = self.place(operand, operand.segments[s], k)
            mask = f"present & {mask}" if mask else "present"
            self.emit(f"tl.store({address}, {name}, mask={mask})")

    def _through_linear(self, segment: int) -> list[str]:
        """Return the cotangents of the components of a segment of the product."""
        names = component_names(self.cotangents.inputs[-1], segment)
        s, size = self.out.segments[segment], self.linear.size_out
        pointer = "dz" if self.gated else "ct_z"
        self.emit("u = tl.trans(lane)")
        for count, term in enumerate(self.terms_of(segment)):
            block = self.linear.blocks_out[term.z.segment]
            first, step = self.rows_of(segment, term)
            totals = [self.name(self.zeros(ROWS, self.channels)) for _ in names]
            with self.block(f"for at in tl.range(0, {block.mul}, {SLICE}, num_stages=1):"):
                self.emit(f"v = (at + tl.arange(0, {SLICE}))[None, :]")
                place = f"inside * {size} + {block.offset} + v * {block.dim}"
                start = f"{pointer}_ptr + first.to(tl.int64) * {size}"  # 32 bits from here on
                has_v = f"v < {block.mul}" if block.mul % SLICE else ""
                lefts = [
                    self.name(self.loaded_where(f"{start} + ({place} + {k})", has_v))
                    for k in range(s.dim)
                ]
                place = f"{self.parameter(term)} + (({first} + u * {step}) * {block.mul} + v)"
                has_u = "" if self.fills(s.mul) else f"u < {s.mul}"
                # neighbours of a row of the matrix are loaded at once, and turned
                matrix = self.name(f"tl.trans({self.loaded_where(place, has_u, has_v)})")
                for total, left in zip(totals, lefts, strict=True):
                    self.add_dot(total, left, matrix)
            for name, total in zip(names, totals, strict=True):
                more = f" + {name}" if count else ""
                self.emit(f"{name} = {term.scale!r} * {total}{more}")
        return names


@functools.lru_cache(maxsize=256)
def gradients(fused: Fused, wanted, dtype: str, partial: bool = False) -> FusedKernel:
    """Return the kernel of the wanted parameters' gradients, of dz: that of the pre-activation.

    It is called with num_rows and num_parts, and has `shares` programs for each part of the rows;
    with `partial`, gradients are [num_parts, ...] sums, in float32 or better.
    """
    return _Gradients(fused, wanted, dtype).whole_kernel(partial)


class _Gradients(RowEmitter):
    def __init__(self, fused: Fused, wanted, dtype: str):
        width = width_for(b.mul for b in fused.linear.blocks_out)
        # fewer channels than columns, so that warps have other columns, as in `RowEmitter`
        super().__init__(fused, dtype, width // 2, width)
        self.wanted = wanted

    def whole_kernel(self, partial: bool) -> FusedKernel:
        jobs = self._jobs()
        self.emit("program = tl.program_id(0)")
        self.emit(f"job = program % {len(jobs)}")
        self.emit(f"rest = program // {len(jobs)}")
        self.emit(f"chunk = rest % {self.chunks}")
        self.emit(f"part = rest // {self.chunks}")
        self.emit("rows = (num_rows + num_parts - 1) // num_parts")
        self.emit("begin = tl.minimum(part * rows, num_rows)")
        self.emit("end = tl.minimum(begin + rows, num_rows)")
        for n, job in enumerate(jobs):
            with self.block(f"if job == {n}:"):
                self._write(*job)
        real = self.wide if partial else self.dtype
        outputs = {f"dp{n}": real for n, is_wanted in enumerate(self.wanted) if is_wanted}
        shares, note = len(jobs) * self.chunks, "gradients of"
        return self.finished("fused_gradients", note, ["dz_z"], outputs, shares, "num_parts")

    def _jobs(self) -> list[tuple[int | None, list[tuple[Term, Part]]]]:
        """Return each program's segment of the product, None of biases, and its columns.

        Also for segments that no path adds to. Columns are matrices or biases, and a part of each.
        """
        most = SUMS * 32 * self.warps // (2 if self.dtype == "float64" else 1)
        most //= self.width * self.channels
        biases = [t for t in self.linear.linear_form.terms if t.x is None]
        of_segments = [(n, self.terms_of(n), most) for n in range(len(self.out.segments))]
        jobs = []
        for segment, terms, count in [(None, biases, 1), *of_segments]:
            found = [
                (term, part)
                for term in terms
                if self.wanted[term.w - 1]
                for block in [term.z.segment]
                for part in Part(block, 0, self.linear.blocks_out[block].mul).cut(self.width)
            ]
            jobs += [(segment, found[n : n + count]) for n in range(0, len(found), count)]
        return jobs

    def _write(self, segment: int | None, columns: list[tuple[Term, Part]]):
        """Write the loop over tiles of rows, and the store of the sums."""
        totals = [f"total_{n}" for n in range(len(columns))]
        height = self.channels if segment is not None else ROWS
        for total in totals:
            self.emit(f"{total} = {self.zeros(height, self.width)}")
        self.lanes(self.form.inputs)
        self.emit(f"v = tl.arange(0, {self.width})[None, :]")
        with self.block(f"for at in tl.range(begin, end, {ROWS}, num_stages=1):"):
            self.rows_from("at", "end")
            if segment is None:
                for (_, part), total in zip(columns, totals, strict=True):
                    value = self.widened(self._cotangent(part, 0))
                    self.emit(f"{total} += tl.where(present, {value}, 0.0)")
            else:
                self.row_pointers(self.form.inputs)
                mul = self.out.segments[segment].mul
                for k, component in enumerate(self.product(segment)):
                    value = self.name(f"tl.where(present & (lane < {mul}), {component}, 0.0)")
                    for (_, part), total in zip(columns, totals, strict=True):
                        self.add_dot(total, f"tl.trans({value})", self._cotangent(part, k))
        for (term, part), total in zip(columns, totals, strict=True):
            self._store(segment, term, part, total)

    def _cotangent(self, part: Part, k: int) -> str:
        """Return a component of a part of the pre-activation's cotangent, [ROWS, WIDTH]."""
        block = self.linear.blocks_out[part.block]
        offset = block.offset + part.first * block.dim + k
        place = f"dz_z_ptr + row * {self.linear.size_out} + {offset} + v * {block.dim}"
        return self.factor(place, f"v < {part.mul}")

    def _store(self, segment: int | None, term: Term, part: Part, total: str):
        shape = self.linear.parameters[term.w - 1].shape
        place = f"dp{term.w - 1}_ptr + part.to(tl.int64) * {math.prod(shape)}"
        if segment is None:
            self.emit(f"{total} = tl.sum({total}, axis=0, keep_dims=True)")
            place = f"{place} + {part.first} + v"
            mask = f"v < tl.where(chunk == 0, {part.mul}, 0)"
        else:
            first, step = self.rows_of(segment, term)
            self.emit("u = tl.trans(lane)")
            place = f"{place} + ({first} + u * {step}) * {shape[1]} + {part.first} + v"
            mask = f"(u < {self.out.segments[segment].mul}) & (v < {part.mul})"
        scaled = total if term.scale == 1.0 else f"{term.scale!r} * {total}"
        self.emit(f"tl.store({place}, {scaled}, mask={mask})")
