"""Element-wise loops, copies, sums, and rows chosen by an index array, by all threads of a block.

Each function here writes the statements of a step: pointers `a0_ptr`, `a1_ptr`, ... are its arrays.
An element is written by one thread, and sums are in a fixed order: repeatable bit for bit.
"""

import math

from eqfuse.ops.backends.triton.emit.elementwise import (
    FunctionEmitter,
    constant,
    larger,
    literal,
    operands,
)
from eqfuse.ops.backends.triton.emit.emitter import Emitter, power_of_two
from eqfuse.ops.ir.steps import (
    Copy,
    ElementwiseLoop,
    Gather,
    Number,
    Reduce,
    ScatterAdd,
    Step,
    merged_axes,
)

REDUCED = 64
"""Elements of a sum that are added side by side, at most."""

STORED = {"bool": "int32", "int32": "int32", "float32": "float32", "float64": "float64"}
"""Dtypes in memory."""


def elements(t: Emitter, size: int, threads: int):
    """Return a loop over `size` elements, with `i` and the mask `inside`."""
    block = min(power_of_two(size), threads)
    loop = t.block(f"for begin in tl.range(0, {size}, {block}, num_stages=1):")
    return loop, (f"i = begin + tl.arange(0, {block})", f"inside = i < {size}")


def place(index: str, axes, number: int, first: int = 0) -> str:
    """Return the offset of an element.

    Args:
      index: a variable, its number in the order of the axes.
      axes: (size, stride of each array) of each axis, neighbours joined.
      number: which stride.
      first: the offset of the first element.
    """
    parts, after = [str(first)] if first else [], math.prod(size for size, *_ in axes)
    for n, (size, *strides) in enumerate(axes):
        after //= size
        along = index if after == 1 else f"({index} // {after})"
        along = f"({along} % {size})" if n else along
        if strides[number]:
            parts.append(f"{along} * {strides[number]}" if strides[number] != 1 else along)
    return " + ".join(parts if any(s[number] for _, *s in axes) else [*parts, f"{index} * 0"])


def write_loop(t: Emitter, step: ElementwiseLoop, arrays, names: dict[int, str], threads: int):
    """Write functions of one size; those results are stored that have a name."""
    loop, head = elements(t, arrays[step.writes[0]].size, threads)
    values: dict[int, str] = {}
    functions = FunctionEmitter(t)

    def read(n: int) -> str:
        if n not in values:
            one = arrays[n].size == 1
            address = names[n] if one else f"{names[n]} + i, mask=inside, other=0"
            value = functions.name(f"tl.load({address})")
            values[n] = functions.name(f"{value} != 0") if arrays[n].dtype == "bool" else value
        return values[n]

    with loop:
        for line in head:
            t.emit(line)
        for m in step.functions:
            result, dtype = operands(m, arrays, read)
            out = arrays[m.write].dtype
            values[m.write] = functions.apply(m.function, result, dtype, out, m.power)
            if m.write in names:
                _store(t, names[m.write], "i", values[m.write], out)


def _store(t: Emitter, pointer: str, at: str, value: str, dtype: str):
    value = f"{value}.to(tl.int32)" if dtype == "bool" else value
    t.emit(f"tl.store({pointer} + {at}, {value}, mask=inside)")


def _constant(number: Number, dtype: str, shape: str) -> str:
    """Return a number as what is stored between steps."""
    value = int(number.value) if dtype == "bool" else number.value
    return constant(value, STORED[dtype], shape)


def _loaded(address: str, dtype: str, other: str = "0") -> str:
    """Return the text of a load, as what is stored between steps."""
    text = f"tl.load({address}, mask=inside, other={other})"
    return f"{text}.to(tl.int32)" if dtype == "bool" else text


def write_copy(t: Emitter, step: Copy, arrays, names: dict[int, str], threads: int) -> list[int]:
    """Write a copy, with sizes and strides as arguments, so that one function serves many.

    Returns:
      The numbers that it is called with behind the pointers: `n0`, `n1`, ...
    """
    dtype = arrays[step.write].dtype
    axes = merged_axes(step.sizes, step.strides_in, step.strides_out) or [(1, 1, 1)]
    [read] = step.reads
    numbers = [math.prod(step.sizes), step.first_in, step.first_out]
    t.emit(f"for begin in tl.range(0, n0, {threads}, num_stages=1):")
    t.indent += 1
    t.emit(f"i = begin + tl.arange(0, {threads})")
    t.emit("inside = i < n0")
    t.emit("rest, source, target = i, n1, n2")
    for k, (size, stride_in, stride_out) in enumerate(reversed(axes)):
        index = "rest"
        if k < len(axes) - 1:
            t.emit(f"index{k} = rest % n{len(numbers)}")
            t.emit(f"rest = rest // n{len(numbers)}")
            numbers.append(size)
            index = f"index{k}"
        t.emit(f"source += {index} * n{len(numbers)}")
        t.emit(f"target += {index} * n{len(numbers) + 1}")
        numbers += [stride_in, stride_out]
    if isinstance(read, Number):
        value = _constant(read, dtype, "[]")
    else:
        t.emit(f"value = {_loaded(f'{names[read]} + source', dtype)}")
        value = "value"
    t.emit(f"tl.store({names[step.write]} + target, {value}, mask=inside)")
    t.indent -= 1
    return numbers


def write_reduce(t: Emitter, step: Reduce, arrays, names: dict[int, str], threads: int):
    """Write a sum or the like: `k` of what stays by `r` of what it runs over."""
    [read], dtype = step.reads, arrays[step.write].dtype
    kept = merged_axes(step.sizes, step.strides)
    over = merged_axes(step.sizes_over, step.strides_over)
    count, length = math.prod(step.sizes), math.prod(step.sizes_over)
    across = min(power_of_two(length), REDUCED)
    down = min(power_of_two(count), max(1, threads // across))
    stored = STORED[dtype]
    first = literal(step.initial(dtype), stored)
    with t.block(f"for begin in tl.range(0, {count}, {down}, num_stages=1):"):
        t.emit(f"k = begin + tl.arange(0, {down})[:, None]")
        t.emit(f"total = tl.full([{down}, {across}], {first}, tl.{stored})")
        with t.block(f"for over in tl.range(0, {length}, {across}, num_stages=1):"):
            t.emit(f"r = over + tl.arange(0, {across})[None, :]")
            t.emit(f"inside = (k < {count}) & (r < {length})")
            at = f"{place('k', kept, 0)} + {place('r', over, 0)}"
            t.emit(f"value = {_loaded(f'{names[read]} + {at}', dtype, first)}")
            t.emit(f"total = {_combined(step.function, 'total', 'value', dtype)}")
        t.emit(f"whole = {_over_axis(step.function, dtype)}")
        t.emit(f"tl.store({names[step.write]} + k, whole, mask=k < {count})")


def _combined(function: str, a: str, b: str, dtype: str) -> str:
    if function in ("max", "min"):
        return larger(a, b, dtype, function)
    return f"{a} {dict(add='+', **{'or': '|', 'and': '&'})[function]} {b}"


def _over_axis(function: str, dtype: str) -> str:
    if function == "add":
        return "tl.sum(total, axis=1, keep_dims=True)"
    largest = function in ("max", "or")
    text = f"tl.{'max' if largest else 'min'}(total, axis=1, keep_dims=True)"
    if dtype in ("bool", "int32"):
        return text
    nan = "tl.sum((total != total).to(tl.int32), axis=1, keep_dims=True) > 0"
    return f'tl.where({nan}, float("nan"), {text})'


def _rows(t: Emitter, size: int, width: int):
    t.emit(f"row = i // {width}")
    t.emit(f"column = i % {width}")


def write_gather(t: Emitter, step: Gather, arrays, names: dict[int, str], threads: int):
    """Write rows chosen by an index."""
    source, index = step.reads
    rows, size = arrays[source].size // step.width, arrays[step.write].size
    loop, head = elements(t, size, threads)
    with loop:
        for line in head:
            t.emit(line)
        _rows(t, size, step.width)
        t.emit(f"chosen = tl.load({names[index]} + row, mask=inside, other=0)")
        t.emit(f"nearest = tl.minimum(tl.maximum(chosen, 0), {rows - 1})")
        address = f"{names[source]} + nearest * {step.width} + column"
        t.emit(f"value = {_loaded(address, arrays[source].dtype)}")
        if step.fill is not None:
            fill = _constant(step.fill, arrays[source].dtype, "[1]")
            t.emit(f"value = tl.where(chosen == nearest, value, {fill})")
        t.emit(f"tl.store({names[step.write]} + i, value, mask=inside)")


def write_scatter_add(t: Emitter, step: ScatterAdd, arrays, names: dict[int, str], threads: int):
    """Write rows added to others: each element looks through all indices, in order."""
    start, index, updates = step.reads
    size, count = arrays[start].size, arrays[index].size
    loop, head = elements(t, size, threads)
    with loop:
        for line in head:
            t.emit(line)
        _rows(t, size, step.width)
        t.emit(f"total = tl.load({names[start]} + i, mask=inside, other=0)")
        with t.block(f"for update in tl.range(0, {count}, num_stages=1):"):
            t.emit(f"chosen = tl.load({names[index]} + update)")
            if step.clipped:
                rows = size // step.width
                t.emit(f"chosen = tl.minimum(tl.maximum(chosen, 0), {rows - 1})")
            t.emit("mine = inside & (row == chosen)")
            address = f"{names[updates]} + update * {step.width} + column"
            t.emit(f"total += tl.load({address}, mask=mine, other=0)")
        t.emit(f"tl.store({names[step.write]} + i, total, mask=inside)")


WRITERS = {
    ElementwiseLoop: write_loop,
    Copy: write_copy,
    Reduce: write_reduce,
    Gather: write_gather,
    ScatterAdd: write_scatter_add,
}


def emit(t: Emitter, step: Step, arrays, names: dict[int, str], threads: int) -> list[int]:
    """Write a step that is no form; return the numbers that it is called with behind the pointers.

    Args:
      names: of the pointers to those of its arrays that are in memory.
    """
    return WRITERS[type(step)](t, step, arrays, names, threads) or []
