"""Steps of a program that are no forms, as functions: loops of numbers, copies, sums, rows."""

from eqfuse.ops.backends.llvm.functions import FunctionEmitter
from eqfuse.ops.backends.llvm.text import STORED, Function, kind, literal
from eqfuse.ops.ir.program import BYTES, Copy, ElementwiseLoop, Gather, Number, Reduce, ScatterAdd


def write_loop(f: Function, step: ElementwiseLoop, arrays, pointers: dict[int, str]):
    """Write functions of one size: each array is loaded once, results with a pointer are stored."""
    for loop, lanes in f.vector_loops(arrays[step.writes[0]].size):
        emitter, values = FunctionEmitter(f, lanes), {}
        for one in step.functions:
            operands, dtypes = [], one.dtypes(arrays)
            for n, dtype in zip(one.reads, dtypes, strict=True):
                if isinstance(n, Number):
                    operands.append(emitter.number(n.value, dtype))
                    continue
                if n not in values:
                    array = arrays[n]
                    values[n] = emitter.load(pointers[n], array.dtype, array.size, loop.index)
                operands.append(values[n])
            out = arrays[one.write].dtype
            values[one.write] = emitter.apply(one.function, operands, dtypes[-1], out, one.power)
            if one.write in pointers:
                emitter.store(values[one.write], pointers[one.write], out, loop.index)


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
    axes = step.axes
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
    over, axes = step.over, step.kept
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

    def run(value: str, place: str, axes) -> str:
        if not axes:
            new = emitter.load(place, dtype, 2, "0")
            return emitter.apply(step.function, [value, new], dtype, dtype)
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
    ElementwiseLoop: write_loop,
    Copy: write_copy,
    Reduce: write_reduce,
    Gather: write_gather,
    ScatterAdd: write_scatter_add,
}
"""By the kind of step that is no form, with pointers to those of its arrays that are in memory."""
