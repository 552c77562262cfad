"""A program that runs whole as one native kernel: its steps one after the other, on one thread.

Only those passes of forms and linear forms are shared out over threads that are worth it. Arrays
between the steps lie in scratch memory, which an array leaves to others after its last use. Steps
of equal text are one function, so that code does not grow with the number of equal layers.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import struct

from eqfuse.ops.backends.llvm import form as native_form
from eqfuse.ops.backends.llvm import linear as native_linear
from eqfuse.ops.backends.llvm import text as ir
from eqfuse.ops.backends.llvm.layout import Machine
from eqfuse.ops.backends.llvm.linear import transposed
from eqfuse.ops.backends.llvm.text import (
    DATA,
    DTYPES,
    ROWS,
    SIGNATURE,
    Arguments,
    Axis,
    Entry,
    Function,
    KernelPasses,
    Module,
    Pass,
    Units,
    assemble,
)
from eqfuse.ops.ir import functions
from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.functions import Expression, variable
from eqfuse.ops.ir.gate import Activated
from eqfuse.ops.ir.linear import LinearForm
from eqfuse.ops.ir.program import (
    BYTES,
    Activate,
    Array,
    Copy,
    Elementwise,
    ElementwiseLoop,
    Gather,
    Multilinear,
    Number,
    Program,
    Reduce,
    ScatterAdd,
    Step,
    merged_axes,
)

TYPES = {"bool": "i1", "int32": "i32", "float32": "float", "float64": "double"}
STORED = {**TYPES, "bool": "i8"}
SUFFIX = {"float32": "f32", "float64": "f64"}

COMPARED = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
ARITHMETIC = {"add": "add", "sub": "sub", "mul": "mul", "div": "div"}
INTRINSICS = {"abs": "fabs", "sqrt": "sqrt", "max": "maximum", "min": "minimum"}
"""LLVM's own functions. Of those of two numbers, NaN where either is, and -0 is less than 0."""
LIBRARY = ("exp", "log", "log1p", "expm1", "sin", "cos", "pow")
"""Functions of the C library, in float32 with an f behind the name."""


def kind(dtype: str, lanes: int, stored: bool = False) -> str:
    """Return the type of `lanes` numbers, in registers or as they are stored."""
    name = (STORED if stored else TYPES)[dtype]
    return name if lanes == 1 else f"<{lanes} x {name}>"


def literal(value: float, dtype: str, lanes: int = 1) -> str:
    """Return a constant, in every lane."""
    if dtype == "bool":
        text = "true" if value else "false"
    elif dtype == "int32":
        text = str(int(value))
    else:
        value = float(value)
        if dtype == "float32" and math.isfinite(value):
            value = struct.unpack("f", struct.pack("f", value))[0]
        text = f"0x{struct.unpack('>Q', struct.pack('>d', value))[0]:016X}"
    return text if lanes == 1 else f"splat ({TYPES[dtype]} {text})"


class FunctionEmitter:
    """Writes functions of values that are `lanes` numbers each."""

    def __init__(self, f: Function, lanes: int):
        self.f, self.lanes = f, lanes

    def type(self, dtype: str) -> str:
        return kind(dtype, self.lanes)

    def number(self, value: float, dtype: str) -> str:
        return literal(value, dtype, self.lanes)

    def load(self, pointer: str, dtype: str, size: int, index: str) -> str:
        """Return `lanes` numbers of an array from `index` on, or its only one in every lane."""
        lanes = self.lanes if size > 1 else 1
        width = 1 if dtype == "bool" else 8 if dtype == "float64" else 4
        place = self.f.at(pointer, index, width) if size > 1 else pointer
        value = self.f.value(f"load {kind(dtype, lanes, True)}, ptr {place}, align {width}")
        if dtype == "bool":
            zero = "0" if lanes == 1 else "zeroinitializer"
            value = self.f.value(f"icmp ne {kind(dtype, lanes, True)} {value}, {zero}")
        if lanes == self.lanes:
            return value
        vector = self.type(dtype)
        first = self.f.value(f"insertelement {vector} poison, {TYPES[dtype]} {value}, i64 0")
        mask = f"<{self.lanes} x i32> zeroinitializer"
        return self.f.value(f"shufflevector {vector} {first}, {vector} poison, {mask}")

    def store(self, value: str, pointer: str, dtype: str, index: str):
        width = 1 if dtype == "bool" else 8 if dtype == "float64" else 4
        stored = kind(dtype, self.lanes, True)
        if dtype == "bool":
            value = self.f.value(f"zext {self.type(dtype)} {value} to {stored}")
        place = self.f.at(pointer, index, width)
        self.f.do(f"store {stored} {value}, ptr {place}, align {width}")

    def apply(self, name: str, values: list[str], dtype: str, out: str, power: int = 0) -> str:
        """Return a function of values of one dtype, of which the result is of the dtype `out`.

        The first operand of "select" is of bool, whatever `dtype` is.
        """
        if name == "select":
            which, no, yes = values
            t = self.type(out)
            return self.f.value(f"select {self.type('bool')} {which}, {t} {yes}, {t} {no}")
        if name in COMPARED:
            return self._compare(name, values, dtype)
        if name in ("and", "or"):
            return self.f.value(f"{name} {self.type(dtype)} {values[0]}, {values[1]}")
        if name == "not":
            ones = self.number(1 if dtype == "bool" else -1, dtype)
            return self.f.value(f"xor {self.type(dtype)} {values[0]}, {ones}")
        if name == "convert":
            return self._convert(values[0], dtype, out)
        if name == "identity":
            return values[0]
        if dtype == "int32":
            return self._integer(name, values)
        return self._real(name, values, dtype, power)

    def _compare(self, name: str, values: list[str], dtype: str) -> str:
        a, b = values
        if dtype in SUFFIX:
            return self.f.value(f"fcmp {COMPARED[name]} {self.type(dtype)} {a}, {b}")
        how = name if name in ("eq", "ne") else f"{'u' if dtype == 'bool' else 's'}{name}"
        return self.f.value(f"icmp {how} {self.type(dtype)} {a}, {b}")

    def _convert(self, value: str, dtype: str, out: str) -> str:
        if dtype == out:
            return value
        a, b = self.type(dtype), self.type(out)
        if out == "bool":
            if dtype in SUFFIX:
                return self.f.value(f"fcmp une {a} {value}, {self.number(0, dtype)}")
            return self.f.value(f"icmp ne {a} {value}, {self.number(0, dtype)}")
        if dtype in SUFFIX and out == "int32":
            return self._call(
                f"llvm.fptosi.sat.{self._lanes('i32')}.{self._of(dtype)}", [value], dtype, out
            )
        names = {"bool": "zext" if out == "int32" else "uitofp", "int32": "sitofp"}
        names |= {"float32": "fpext", "float64": "fptrunc"}
        return self.f.value(f"{names[dtype]} {a} {value} to {b}")

    def _integer(self, name: str, values: list[str]) -> str:
        f, t = self.f, self.type("int32")
        if name in ("add", "sub", "mul"):
            return f.value(f"{name} {t} {values[0]}, {values[1]}")
        if name == "neg":
            return f.value(f"sub {t} {self.number(0, 'int32')}, {values[0]}")
        if name in ("max", "min"):
            more = f.value(f"icmp s{'gt' if name == 'max' else 'lt'} {t} {values[0]}, {values[1]}")
            return f.value(f"select {self.type('bool')} {more}, {t} {values[0]}, {t} {values[1]}")
        raise ValueError(f"no function {name!r} of int32")

    def binary(self, operation: str, a: str, b: str, dtype: str) -> str:
        return self.f.value(f"f{operation} contract {self.type(dtype)} {a}, {b}")

    def _real(self, name: str, values: list[str], dtype: str, power: int) -> str:
        a = values[0]
        one = self.number(1, dtype)
        if name in ARITHMETIC:
            return self.binary(name, a, values[1], dtype)
        if name == "neg":
            return self.f.value(f"fneg {self.type(dtype)} {a}")
        if name in INTRINSICS:
            return self._intrinsic(INTRINSICS[name], values, dtype)
        if name == "rsqrt":
            return self.binary("div", one, self._intrinsic("sqrt", [a], dtype), dtype)
        if name == "square":
            return self.binary("mul", a, a, dtype)
        if name == "integer_pow":
            return self._power(a, power, dtype)
        if name == "is_finite":
            size = self._intrinsic("fabs", [a], dtype)
            return self.f.value(
                f"fcmp olt {self.type(dtype)} {size}, {self.number(math.inf, dtype)}"
            )
        if name == "sign":
            zero = self.number(0, dtype)
            is_zero = self.f.value(f"fcmp ueq {self.type(dtype)} {a}, {zero}")  # or NaN
            signed = self._intrinsic("copysign", [one, a], dtype)
            t = self.type(dtype)
            return self.f.value(f"select {self.type('bool')} {is_zero}, {t} {a}, {t} {signed}")
        if name == "logistic":
            return self._evaluate(functions.logistic(variable(a)), dtype)
        if name == "tanh":
            return self._evaluate(functions.tanh(variable(a), self._let(dtype)), dtype)
        if dtype == "float32" and name in ("exp", "expm1"):
            return self._exp(a) if name == "exp" else self._expm1(a)
        return self._library(name, values, dtype)

    def _evaluate(self, expression: Expression | float, dtype: str) -> str:
        """Return the value of an expression of numbers of one dtype."""
        if not isinstance(expression, Expression):
            return self.number(expression, dtype)
        if expression.function == "variable":
            return expression.operands[0]
        values = [self._evaluate(operand, dtype) for operand in expression.operands]
        return self.apply(expression.function, values, dtype, dtype)

    def activated(self, name: str, order: int, x: str, scale: float, dtype: str) -> str:
        """Return a derivative of an activation of x, times a number."""
        value = functions.derivative(name, order, variable(x), self._let(dtype))
        return self._evaluate(value if scale == 1.0 else scale * value, dtype)

    def _let(self, dtype: str) -> functions.Let:
        return lambda name, expression: variable(self._evaluate(expression, dtype))

    def _power(self, a: str, power: int, dtype: str) -> str:
        result = functions.power(variable(a), abs(power), self._let(dtype))
        result = self.number(1, dtype) if result is None else self._evaluate(result, dtype)
        return self.binary("div", self.number(1, dtype), result, dtype) if power < 0 else result

    def _exp(self, a: str) -> str:
        """Return exp(a) in float32."""
        polynomial, halves = self._reduced(a)
        e = self.binary("add", polynomial, self.number(1, "float32"), "float32")
        for half in halves:
            e = self.binary("mul", e, half, "float32")
        return e

    def _reduced(self, a: str) -> tuple[str, list[str]]:
        """Return exp(r) - 1, and the two factors of 2^n, of a = n log 2 + r with |r| <= log(2)/2.

        exp(r) - 1 = r (1 + r/2 + ... + r^6/7!): an error of 1e-9.
        """
        f, t, ints, d = self.f, self.type("float32"), self.type("int32"), "float32"
        for compared, bound in (("ogt", 89.0), ("olt", -104.0)):  # beyond, inf and 0
            outside = f.value(f"fcmp {compared} {t} {a}, {self.number(bound, d)}")
            bounded = f"select {self.type('bool')} {outside}, {t} {self.number(bound, d)}, {t} {a}"
            a = f.value(bounded)
        magic = 1.5 * 2**23  # what is added to it is rounded to an integer
        scaled = f.value(f"fmul {t} {a}, {self.number(1 / math.log(2), d)}")
        shifted = f.value(f"fadd {t} {scaled}, {self.number(magic, d)}")
        rounded = f.value(f"fsub {t} {shifted}, {self.number(magic, d)}")
        high = 0.693359375  # few bits: its products with n are exact
        for part in (high, math.log(2) - high):
            product = f.value(f"fmul contract {t} {rounded}, {self.number(part, d)}")
            a = f.value(f"fsub contract {t} {a}, {product}")
        result = self.number(1 / math.factorial(7), d)
        for n in range(6, 0, -1):
            result = self.binary("mul", result, a, d)
            result = self.binary("add", result, self.number(1 / math.factorial(n), d), d)
        result = self.binary("mul", result, a, d)
        bits = f.value(f"bitcast {t} {shifted} to {ints}")
        start = struct.unpack("i", struct.pack("f", magic))[0]
        n = f.value(f"sub {ints} {bits}, {self.number(start, 'int32')}")
        first = f.value(f"ashr {ints} {n}, {self.number(1, 'int32')}")
        halves = []
        for exponent in (first, f.value(f"sub {ints} {n}, {first}")):
            biased = f.value(f"add {ints} {exponent}, {self.number(127, 'int32')}")
            moved = f.value(f"shl {ints} {biased}, {self.number(23, 'int32')}")
            halves.append(f.value(f"bitcast {ints} {moved} to {t}"))
        return result, halves

    def _expm1(self, a: str) -> str:
        """Return exp(a) - 1 = 2^n (exp(r) - 1) + (2^n - 1), which does not cancel near zero."""
        d = "float32"
        polynomial, (first, second) = self._reduced(a)
        power = self.binary("mul", first, second, d)
        scaled = self.binary("mul", self.binary("mul", polynomial, first, d), second, d)
        return self.binary("add", scaled, self.binary("sub", power, self.number(1, d), d), d)

    def _of(self, dtype: str) -> str:
        return self._lanes(SUFFIX[dtype])

    def _lanes(self, suffix: str) -> str:
        return suffix if self.lanes == 1 else f"v{self.lanes}{suffix}"

    def _intrinsic(self, name: str, values: list[str], dtype: str) -> str:
        return self._call(f"llvm.{name}.{self._of(dtype)}", values, dtype, dtype)

    def _call(self, name: str, values: list[str], dtype: str, out: str) -> str:
        a, b = self.type(dtype), self.type(out)
        self.f.declared.add(f"declare {b} @{name}({', '.join([a] * len(values))})")
        return self.f.value(f"call {b} @{name}({', '.join(f'{a} {v}' for v in values)})")

    def _library(self, name: str, values: list[str], dtype: str) -> str:
        """Return a function of the C library, lane by lane."""
        assert name in LIBRARY, name
        one = FunctionEmitter(self.f, 1)
        symbol = name + "f" * (dtype == "float32")
        if self.lanes == 1:
            return one._call(symbol, values, dtype, dtype)
        t, scalar, result = self.type(dtype), TYPES[dtype], "poison"
        for lane in range(self.lanes):
            parts = [self.f.value(f"extractelement {t} {v}, i64 {lane}") for v in values]
            collected = one._call(symbol, parts, dtype, dtype)
            result = self.f.value(f"insertelement {t} {result}, {scalar} {collected}, i64 {lane}")
        return result


def emit_loop(f: Function, step: ElementwiseLoop, arrays, pointers: dict[int, str]):
    """Write a loop over functions of one size; those results are stored that have a pointer."""
    for loop, lanes in f.vector_loops(arrays[step.writes[0]].size):
        emitter, values = FunctionEmitter(f, lanes), {}
        for function in step.functions:
            _apply(emitter, function, arrays, pointers, values, loop.index)


def _apply(emitter: FunctionEmitter, step: Elementwise, arrays, pointers, values, index: str):
    dtypes, operands = step.dtypes(arrays), []
    for n, dtype in zip(step.reads, dtypes, strict=True):
        if isinstance(n, Number):
            operands.append(emitter.number(n.value, dtype))
            continue
        if n not in values:
            values[n] = emitter.load(pointers[n], arrays[n].dtype, arrays[n].size, index)
        operands.append(values[n])
    out = arrays[step.write].dtype
    values[step.write] = emitter.apply(step.function, operands, dtypes[-1], out, step.power)
    if step.write in pointers:
        emitter.store(values[step.write], pointers[step.write], out, index)


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


def write_movement(f: Function, step: Step, arrays, pointers: dict[int, str]):
    """Write a step that is no form, with pointers to those of its arrays that are in memory."""
    WRITERS[type(step)](f, step, arrays, pointers)


HIGHEST = 2
"""The highest derivative that is written out."""
OPERATIONS = 40
"""Vector operations of an activation and its slope, about."""


def write_activated(activated: Activated, dtype: str, machine: Machine) -> KernelPasses:
    """Return the pass that computes activations of all rows."""
    arguments = Arguments(dtype)
    arguments.add(("in", 0), ROWS, activated.rows.size, "row")
    arguments.end()
    for n in range(len(activated.orders)):
        arguments.add(("out", n), ROWS, activated.size, f"activations {n}")
    f = Function(f"define internal void @activate{SIGNATURE}", dtype)
    f.widest = machine.vector_bytes // f.bytes
    source, *targets = (arguments.load(f, *key) for key in list(arguments.numbers))
    with f.loop("%end", start="%begin") as rows:
        read = f.at(source, rows.index, activated.rows.size * f.bytes)
        places = [f.at(target, rows.index, activated.size * f.bytes) for target in targets]
        cost = write_row(f, activated, dtype, read, places)
    passes = [Pass("activate", f.text(), Units(Axis.ROWS), cost)]
    return KernelPasses(arguments, {}, passes, (), (), frozenset(f.declared))


def write_row(
    f: Function, activated: Activated, dtype: str, source: str, targets: list[str]
) -> int:
    """Write the activations of a row that starts at `source`, and return what they cost.

    Args:
      targets: where the rows of the results start, one for each order.
    """
    cost = 0
    width = f.bytes
    for part, (offset, mul, _) in zip(activated.parts, activated.places(), strict=True):
        read = f.at(source, part.offset, width)
        places = [f.at(target, offset, width) for target in targets]
        for loop, lanes in f.vector_loops(mul):
            emitter = FunctionEmitter(f, lanes)
            x = emitter.load(read, dtype, max(mul, 2), loop.index)
            for order, place in zip(activated.orders, places, strict=True):
                value = emitter.activated(part.name, order, x, part.scale, dtype)
                emitter.store(value, place, dtype, loop.index)
        cost += OPERATIONS * -(-mul // f.widest)
    return cost


def is_written(activated: Activated) -> bool:
    """Return whether all of its orders are written out."""
    return max(activated.orders) <= HIGHEST


WORK_OF_A_THREAD = 300_000
"""Vector operations of a pass from which on it is shared out: about a tenth of a millisecond.

That is more than in `runtime.threads`. There a pass is a call, and what it reads was written by all
threads; here the next step, on one thread, would have to fetch what another has written.
"""
LONGEST = 256
"""Steps in a function, at most: LLVM takes more than twice as long for one of twice as many."""


@functools.lru_cache(maxsize=64)
def generate(program: Program, dtype: str, machine: Machine, work: int = 0) -> Module:
    """Return the module that computes a program whose forms are of one dtype.

    Arguments: the inputs, [1, size], index arrays [size]. Results: the outputs, [1, size], and
    scratch memory.

    Args:
      work: vector operations of a pass from which on it is shared out; 0 is `WORK_OF_A_THREAD`.
    """
    return _ProgramEmitter(program, dtype, machine, work or WORK_OF_A_THREAD).module()


def cost(program: Program, dtype: str, machine: Machine) -> int:
    """Return the vector operations of all steps, about."""
    total = program.elements // (machine.vector_bytes // ir.BYTES[dtype])
    for step in program.multilinear:
        total += sum(_cost(p, step) for p in _written(step.form, dtype, machine).passes)
    return total


@functools.lru_cache(maxsize=1024)
def _written(form: Form | LinearForm | Activated, dtype: str, machine: Machine) -> KernelPasses:
    writers = {
        Form: native_form.write,
        LinearForm: native_linear.write,
        Activated: write_activated,
    }
    return writers[type(form)](form, dtype, machine)


def prepared(program: Program, dtype: str, machine: Machine) -> Program:
    """Return the same with all arrays that forms need: transposed weights, copies of rows.

    The operands of a form are then the arguments of its kernel and those that are written its
    results, in the order of its table.
    """
    arrays, result = list(program.arrays), []
    known: dict[tuple[int, tuple], int] = {}

    def new(size: int) -> int:
        arrays.append(Array(size, dtype))
        return len(arrays) - 1

    for step in program.steps:
        if not isinstance(step, Multilinear):
            result.append(step)
            continue
        form, operands = step.form, list(step.operands)
        written = _written(form, dtype, machine)
        for i in transposed(form) if isinstance(form, LinearForm) else ():
            rows, columns = form.inputs[i].shape
            sizes = (max(1, form.num_sets), columns, rows)
            key = step.operands[i], sizes
            if key not in known:
                known[key] = new(arrays[step.operands[i]].size)
                strides = (rows * columns, 1, columns), (rows * columns, rows, 1)
                result.append(Copy((step.operands[i],), known[key], sizes, *strides))
            operands.append(known[key])
        by_name = dict(step.indices)
        operands += [by_name[name] for name in written.index_arrays]
        count = step.num_nodes if isinstance(form, Form) else step.num_rows
        writes = (*step.writes, *(new(count * width) for width in written.copies))
        result.append(
            dataclasses.replace(step, operands=tuple(operands), indices=(), writes=writes)
        )
    return dataclasses.replace(program, arrays=tuple(arrays), steps=tuple(result))


class _ProgramEmitter:
    def __init__(self, program: Program, dtype: str, machine: Machine, work: int):
        self.dtype, self.machine, self.work = dtype, machine, work
        self.program = prepared(program, dtype, machine).in_loops
        self.arrays = self.program.arrays
        self.widest = machine.vector_bytes // ir.BYTES[dtype]
        self.declared: set[str] = set()
        self.texts: dict[str, str] = {}  # by name
        self.kernels: dict[Form | LinearForm | Activated, str] = {}
        self.passes: list[Pass] = []
        self.places, self.scratch = self.program.places()
        self.arguments = self._arguments()

    def module(self) -> Module:
        """Return the kernel; its passes are the steps, but for those that are shared out."""
        self._begin()
        for k, step in enumerate(self.program.steps):
            if k and k % LONGEST == 0:
                self._end()
                self._begin()
            if isinstance(step, Activate | Multilinear):
                self._multilinear(step)
            else:
                self._step(step)
        self._end()
        own = ir.declarations(self.dtype)
        declared = sorted(d for d in self.declared if d not in own.splitlines())
        memcpy = "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)"
        texts = [own, memcpy, *declared, *self.texts.values(), *(p.text for p in self.passes)]
        # its scratch memory is that of all threads, and so a result
        elements = max(1, self.scratch // ir.BYTES[self.dtype])
        scratch = Entry(DTYPES[self.dtype], 2, -1, elements, DATA, "scratch memory of a sequence")
        self.arguments.entries.append(scratch)
        text, name = assemble(texts, self.arguments, self.passes)
        return Module(name, text, (), (elements,))

    def _arguments(self) -> Arguments:
        arguments = Arguments(self.dtype)
        indices = {n: (name, limit) for n, name, limit in self.program.indices}
        for side, numbers in (("in", self.program.inputs), ("out", self.program.outputs)):
            for k, n in enumerate(numbers):
                array = self.arrays[n]
                arguments.add_word((side, n))
                if side == "in" and n in indices:
                    name, limit = indices[n]
                    arguments.entries.append(Entry.of_known_index(name, array.size, limit))
                else:
                    code, name = DTYPES[array.dtype], f"{side}put {k} of a sequence"
                    arguments.entries.append(Entry(code, 2, -1, array.size, DATA, name))
            if side == "in":
                arguments.end()
        arguments.add_word(("scratch", 0))
        return arguments

    def _begin(self):
        """Begin a function that takes the next steps, one after the other."""
        name = f"steps{len(self.passes)}"
        self.main = Function(f"define internal void @{name}{SIGNATURE}", self.dtype)
        self.name, self.most, self.pointers = name, 0, {}
        self.memory = self.arguments.load(self.main, "scratch", 0)

    def _end(self):
        units = Units(Axis.ROWS, count=1)
        self.passes.append(Pass(self.name, self.main.text(), units, scratch=self.most))

    def _pointer(self, n: int) -> str:
        """Return where an array lies."""
        if n not in self.pointers:
            if n in self.places:
                result = self.main.at(self.memory, self.places[n])
            else:
                side = "in" if ("in", n) in self.arguments.numbers else "out"
                result = self.arguments.load(self.main, side, n)
            self.pointers[n] = result
        return self.pointers[n]

    def _step(self, step: Step):
        """Call the function of a step that is no form, which equal ones share."""
        names = {n: f"%a{k}" for k, n in enumerate(self.program.in_memory(step))}
        parameters = ", ".join(f"ptr {name}" for name in names.values())
        f = Function(f"define internal void @NAME({parameters})", self.dtype, self.widest)
        write_movement(f, step, self.arrays, names)
        self.declared |= f.declared
        text = f.text()
        name = f"step_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        self.texts[name] = text.replace("@NAME(", f"@{name}(", 1)
        pointers = {n: self._pointer(n) for n in names}
        if isinstance(step, Copy):  # where it starts is no part of its function
            width = BYTES[self.arrays[step.write].dtype]
            starts = [(step.write, step.first_out), *((n, step.first_in) for n in step.reads)]
            for n, first in starts:
                if n in pointers:
                    pointers[n] = self.main.at(pointers[n], first * width)
        arguments = ", ".join(f"ptr {pointer}" for pointer in pointers.values())
        self.main.do(f"call void @{name}({arguments})")

    def _multilinear(self, step: Activate | Multilinear):
        """Call the passes of a form, a linear form or activations, with a table of its arrays."""
        form, main = step.form, self.main
        written = _written(form, self.dtype, self.machine)
        if form not in self.kernels:
            self.kernels[form] = f"kernel{len(self.kernels)}"
            self.texts |= written.functions
            for p in written.passes:
                name = f"{self.kernels[form]}_{p.name}"
                self.texts[name] = p.text.replace(f"@{p.name}(", f"@{name}(")
            self.declared |= written.declared
        numbers = (*step.operands, *step.writes)
        place, self.scratch = self.scratch, self.scratch + 8 * len(numbers)
        table = main.at(self.memory, place)
        for k, n in enumerate(numbers):
            main.do(f"store ptr {self._pointer(n)}, ptr {main.at(table, 8 * k)}, align 8")
        for p in written.passes:
            name = f"{self.kernels[form]}_{p.name}"
            units, work = p.units.number(step.num_rows, step.num_nodes), _cost(p, step)
            if work < self.work:
                self.most = max(self.most, p.scratch)
                table = self.main.at(self.memory, place)
                values = f"i64 0, i64 {units}, i64 {step.num_rows}"
                self.main.do(f"call void @{name}(ptr {table}, {values}, ptr %scratch)")
                continue
            self._end()
            self._begin()
            table = self.main.at(self.memory, place)
            values = f"i64 %begin, i64 %end, i64 {step.num_rows}"
            self.main.do(f"call void @{name}(ptr {table}, {values}, ptr %scratch)")
            fixed = Units(Axis.ROWS, count=units)
            shared = Pass(self.name, self.main.text(), fixed, work, scratch=p.scratch)
            self.passes.append(shared)
            self._begin()


def _cost(p: Pass, step: Activate | Multilinear) -> int:
    """Return about how many vector operations a pass is."""
    return p.row_cost * step.num_rows + p.node_cost * step.num_nodes
