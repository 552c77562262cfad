"""Copies, sums, and rows chosen by an index array, as loops of LLVM IR."""

from __future__ import annotations

import math

from eqfuse.ops.backends.llvm.emit.elementwise import (
    STORED,
    FunctionEmitter,
    emit_loop,
    kind,
    literal,
)
from eqfuse.ops.backends.llvm.emit.ir import Function
from eqfuse.ops.ir.steps import (
    BYTES,
    Copy,
    ElementwiseLoop,
    Gather,
    Number,
    Reduce,
    ScatterAdd,
    Step,
    merged_axes,
)

UNROLLED = 8
"""Turns of an inner loop that are written out."""


def nested(f: Function, axes, pointers: list[str], widths: list[int], body):
    """Write loops over axes (size, stride of each pointer) around `body(pointers)`."""
    if not axes:
        body(pointers)
        return
    (size, *strides), rest = axes[0], axes[1:]

    def moved(index):
        pairs = zip(pointers, strides, widths, strict=True)
        return [f.at(p, index, s * w) if s else p for p, s, w in pairs]

    if not rest and size <= UNROLLED:
        for n in range(size):
            body(moved(n))
        return
    with f.loop(str(size)) as loop:
        nested(f, rest, moved(loop.index), widths, body)


def write_copy(f: Function, step: Copy, arrays, pointers: dict[int, str]):
    """Write a copy between the first elements that it reads and writes, where `pointers` are."""
    dtype = arrays[step.write].dtype
    width, stored = BYTES[dtype], STORED[dtype]
    axes = merged_axes(step.sizes, step.strides_in, step.strides_out)
    target = pointers[step.write]
    [read] = step.reads
    if isinstance(read, Number):
        value = _stored_literal(read, dtype)
        axes = [(size, out) for size, _, out in axes]
        nested(f, axes, [target], [width], lambda p: _store(f, value, stored, p[0], width))
        return
    source = pointers[read]
    block = 0
    if axes and axes[-1][1:] == (1, 1) and axes[-1][0] * width > 8:
        block = axes.pop()[0] * width

    def body(places):
        if block:
            _memcpy(f, places[1], places[0], block)
            return
        value = f.value(f"load {stored}, ptr {places[0]}, align {width}")
        _store(f, value, stored, places[1], width)

    nested(f, axes, [source, target], [width, width], body)


def _stored_literal(number: Number, dtype: str) -> str:
    """Return a constant as it lies in memory."""
    return str(int(number.value)) if dtype == "bool" else literal(number.value, dtype)


def _store(f: Function, value: str, stored: str, place: str, width: int):
    f.do(f"store {stored} {value}, ptr {place}, align {width}")


def _memcpy(f: Function, target: str, source: str, num_bytes: int):
    f.do(f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {num_bytes}, i1 false)")


def write_reduce(f: Function, step: Reduce, arrays, pointers: dict[int, str]):
    """Write a sum or the like; numbers that lie side by side in vectors where they stay so."""
    [read], out = step.reads, step.write
    dtype = arrays[out].dtype
    width = BYTES[dtype]
    over = merged_axes(step.sizes_over, step.strides_over)
    steps_out = [math.prod(step.sizes[k + 1 :]) for k in range(len(step.sizes))]
    axes = merged_axes(step.sizes, step.strides, steps_out)
    inner = axes.pop() if axes and axes[-1][1] == 1 else None

    def total(source: str, target: str, lanes: int):
        emitter = FunctionEmitter(f, lanes)
        emitter.store(_reduced(emitter, step, dtype, source, over), target, dtype, "0")

    def body(places):
        if inner is None:
            total(*places, 1)
            return
        for loop, lanes in f.vector_loops(inner[0]):
            total(*(f.at(p, loop.index, width) for p in places), lanes)

    nested(f, axes, [pointers[read], pointers[out]], [width, width], body)


def _reduced(emitter: FunctionEmitter, step: Reduce, dtype: str, source: str, over) -> str:
    """Return the sum over some axes, a loop for each, from `lanes` numbers at `source` on."""
    f = emitter.f

    def added(value: str, place: str) -> str:
        new = emitter.load(place, dtype, 2, "0")
        return emitter.apply(step.function, [value, new], dtype, dtype)

    def run(value: str, place: str, axes) -> str:
        if not axes:
            return added(value, place)
        (size, stride), rest = axes[0], axes[1:]
        width = BYTES[dtype]
        with f.loop(str(size), carried=[value], kinds=[kind(dtype, emitter.lanes)]) as loop:
            loop.next = [run(loop.carried[0], f.at(place, loop.index, stride * width), rest)]
        return loop.carried[0]

    return run(emitter.number(step.initial(dtype), dtype), source, over)


def write_gather(f: Function, step: Gather, arrays, pointers: dict[int, str]):
    source, index = step.reads
    dtype = arrays[source].dtype
    row_bytes = step.width * BYTES[dtype]
    rows = arrays[source].size // step.width
    with f.loop(str(arrays[index].size)) as loop:
        chosen = f.load_index(pointers[index], loop.index)
        nearest = f.maximum(f.minimum(chosen, str(rows - 1)), "0")
        place = f.at(pointers[source], nearest, row_bytes)
        target = f.at(pointers[step.write], loop.index, row_bytes)
        _memcpy(f, target, place, row_bytes)
        if step.fill is None:
            return
        outside = f.value(f"icmp ne i64 {chosen}, {nearest}")
        turns = f.times(f.value(f"zext i1 {outside} to i64"), step.width)
        with f.loop(turns) as elements:
            element = f.at(target, elements.index, BYTES[dtype])
            value = _stored_literal(step.fill, dtype)
            _store(f, value, STORED[dtype], element, BYTES[dtype])


def write_scatter_add(f: Function, step: ScatterAdd, arrays, pointers: dict[int, str]):
    start, index, updates = step.reads
    dtype = arrays[start].dtype
    width, row_bytes = BYTES[dtype], step.width * BYTES[dtype]
    rows = arrays[start].size // step.width
    target = pointers[step.write]
    _memcpy(f, target, pointers[start], arrays[start].bytes)
    with f.loop(str(arrays[index].size)) as loop:
        chosen = f.load_index(pointers[index], loop.index)
        nearest = f.maximum(f.minimum(chosen, str(rows - 1)), "0")
        turns = str(step.width)
        if not step.clipped:
            inside = f.value(f"icmp eq i64 {chosen}, {nearest}")
            turns = f.times(f.value(f"zext i1 {inside} to i64"), step.width)
        row = f.at(target, nearest, row_bytes)
        update = f.at(pointers[updates], loop.index, row_bytes)
        with f.loop(turns) as elements:
            here = f.at(row, elements.index, width)
            there = f.at(update, elements.index, width)
            t = STORED[dtype]
            old = f.value(f"load {t}, ptr {here}, align {width}")
            new = f.value(f"load {t}, ptr {there}, align {width}")
            total = f.value(f"{'add' if dtype == 'int32' else 'fadd'} {t} {old}, {new}")
            _store(f, total, t, here, width)


WRITERS = {
    ElementwiseLoop: emit_loop,
    Copy: write_copy,
    Reduce: write_reduce,
    Gather: write_gather,
    ScatterAdd: write_scatter_add,
}


def write(f: Function, step: Step, arrays, pointers: dict[int, str]):
    """Write a step that is no form, with pointers to those of its arrays that are in memory."""
    WRITERS[type(step)](f, step, arrays, pointers)
