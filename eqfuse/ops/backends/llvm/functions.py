"""Element-wise functions of vectors of numbers, and the activations of gates, as LLVM IR."""

import math
import struct

from eqfuse.ops.backends.activations import written_out
from eqfuse.ops.backends.llvm.text import SUFFIX, Function, kind, literal, suffix
from eqfuse.ops.ir.functions import FUNCTIONS
from eqfuse.ops.ir.fused import Activated, Activation, Steps
from eqfuse.ops.ir.program import BYTES

HIGHEST = 2
"""The highest derivative of an activation that is written out."""
OPERATIONS = 40
"""Vector operations of an activation and its slope, about."""


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
        place = self.f.at(pointer, index, BYTES[dtype]) if size > 1 else pointer
        stored = kind(dtype, lanes, True)
        value = self.f.value(f"load {stored}, ptr {place}, align {BYTES[dtype]}")
        if dtype == "bool":
            zero = "0" if lanes == 1 else "zeroinitializer"
            value = self.f.value(f"icmp ne {stored} {value}, {zero}")
        return value if lanes == self.lanes else self.f.splat(value, self.lanes, dtype)

    def store(self, value: str, pointer: str, dtype: str, index: str):
        stored = kind(dtype, self.lanes, True)
        if dtype == "bool":
            value = self.f.value(f"zext {self.type(dtype)} {value} to {stored}")
        place = self.f.at(pointer, index, BYTES[dtype])
        self.f.do(f"store {stored} {value}, ptr {place}, align {BYTES[dtype]}")

    def apply(self, name: str, values: list[str], dtype: str, out: str, power: int = 0) -> str:
        """Return a function of values of one dtype, of which the result is of the dtype `out`.

        The first operand of "select" is of bool, whatever `dtype` is.
        """
        a = values[0]
        if name == "select":
            return self._select(a, values[2], values[1], out)
        if FUNCTIONS[name].kind == "comparison":
            return self._compare(name, values, dtype)
        if name in ("and", "or"):
            return self._do(name, dtype, *values)
        if name == "not":
            return self._do("xor", dtype, a, self.number(1 if dtype == "bool" else -1, dtype))
        if name == "convert":
            return self._convert(a, dtype, out)
        if name == "identity":
            return a
        if dtype == "int32":
            return self._integer(name, values)
        return self._real(name, values, dtype, power)

    def _do(self, instruction: str, dtype: str, *values: str) -> str:
        return self.f.value(f"{instruction} {self.type(dtype)} {', '.join(values)}")

    def _select(self, which: str, yes: str, no: str, dtype: str) -> str:
        t = self.type(dtype)
        return self.f.value(f"select {self.type('bool')} {which}, {t} {yes}, {t} {no}")

    def _compare(self, name: str, values: list[str], dtype: str) -> str:
        if dtype in SUFFIX:
            return self._do(f"fcmp {FUNCTIONS[name].llvm}", dtype, *values)
        how = name if name in ("eq", "ne") else f"{'u' if dtype == 'bool' else 's'}{name}"
        return self._do(f"icmp {how}", dtype, *values)

    def _convert(self, value: str, dtype: str, out: str) -> str:
        if dtype == out:
            return value
        if out == "bool":
            return self._compare("ne", [value, self.number(0, dtype)], dtype)
        if dtype in SUFFIX and out == "int32":
            ends = suffix("i32", self.lanes), suffix(SUFFIX[dtype], self.lanes)
            return self._call(f"llvm.fptosi.sat.{'.'.join(ends)}", [value], dtype, out)
        names = {"bool": "zext" if out == "int32" else "uitofp", "int32": "sitofp"}
        names |= {"float32": "fpext", "float64": "fptrunc"}
        return self.f.value(f"{names[dtype]} {self.type(dtype)} {value} to {self.type(out)}")

    def _integer(self, name: str, values: list[str]) -> str:
        if name in ("add", "sub", "mul"):
            return self._do(name, "int32", *values)
        if name == "neg":
            return self._do("sub", "int32", self.number(0, "int32"), values[0])
        if name in ("max", "min"):
            more = self._do(f"icmp s{'gt' if name == 'max' else 'lt'}", "int32", *values)
            return self._select(more, *values, "int32")
        raise ValueError(f"no function {name!r} of int32")

    def binary(self, operation: str, a: str, b: str, dtype: str) -> str:
        return self._do(f"f{operation} contract", dtype, a, b)

    def _real(self, name: str, values: list[str], dtype: str, power: int) -> str:
        a, one, (kind_of, known, *_) = values[0], self.number(1, dtype), FUNCTIONS[name]
        if kind_of == "arithmetic":
            return self.binary(name, *values, dtype)
        if name == "neg":
            return self._do("fneg", dtype, a)
        if kind_of == "intrinsic":
            return self._intrinsic(known, values, dtype)
        if name == "rsqrt":
            return self.binary("div", one, self._intrinsic("sqrt", [a], dtype), dtype)
        if name == "square":
            return self.binary("mul", a, a, dtype)
        if name == "integer_pow":
            return self._power(a, power, dtype)
        if name == "is_finite":
            size = self._intrinsic("fabs", [a], dtype)
            return self._do("fcmp olt", dtype, size, self.number(math.inf, dtype))
        if name == "sign":
            is_zero = self._do("fcmp ueq", dtype, a, self.number(0, dtype))  # or NaN
            return self._select(is_zero, a, self._intrinsic("copysign", [one, a], dtype), dtype)
        if kind_of == "written out":
            return self._evaluated(written_out(name), [0], a, dtype, self.apply)[0]
        if dtype == "float32" and name in ("exp", "expm1"):
            return self._exp(a) if name == "exp" else self._expm1(a)
        return self._library(name, values, dtype)

    def _evaluated(self, steps: Steps, orders, x: str, dtype: str, apply) -> list[str]:
        """Return the results of steps; `apply` is like that of this class."""

        def step(function: str, values: list[str]) -> str:
            of = "bool" if function in ("and", "or", "not", "convert") else dtype
            return apply(function, values, of, dtype)

        return steps.evaluate(orders, x, lambda value: self.number(value, dtype), step)

    def activated(self, act: Activation, orders, x: str, dtype: str) -> list[str]:
        """Return the derivatives of these orders of an activation of x."""

        def apply(function: str, values: list[str], of: str, out: str) -> str:
            # rounded as JAX does: what cancels there cancels here
            if FUNCTIONS[function].kind == "arithmetic":
                return self._do(f"f{function}", dtype, *values)
            return self.apply(function, values, of, out)

        values = self._evaluated(act.steps, orders, x, dtype, apply)
        if act.scale == 1.0:
            return values
        scale = self.number(act.scale, dtype)
        return [self.binary("mul", scale, value, dtype) for value in values]

    def _power(self, a: str, power: int, dtype: str) -> str:
        one, result, square, rest = self.number(1, dtype), "", a, abs(power)
        while rest:
            if rest & 1:
                result = self.binary("mul", result, square, dtype) if result else square
            rest >>= 1
            square = self.binary("mul", square, square, dtype) if rest else square
        result = result or one
        return self.binary("div", one, result, dtype) if power < 0 else result

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
            outside = self._do(f"fcmp {compared}", d, a, self.number(bound, d))
            a = self._select(outside, self.number(bound, d), a, d)
        magic = 1.5 * 2**23  # what is added to it is rounded to an integer
        scaled = self._do("fmul", d, a, self.number(1 / math.log(2), d))
        shifted = self._do("fadd", d, scaled, self.number(magic, d))
        rounded = self._do("fsub", d, shifted, self.number(magic, d))
        high = 0.693359375  # few bits: its products with n are exact
        for part in (high, math.log(2) - high):
            a = self.binary("sub", a, self.binary("mul", rounded, self.number(part, d), d), d)
        result = self.number(1 / math.factorial(7), d)
        for n in range(6, 0, -1):
            result = self.binary("mul", result, a, d)
            result = self.binary("add", result, self.number(1 / math.factorial(n), d), d)
        result = self.binary("mul", result, a, d)
        bits = f.value(f"bitcast {t} {shifted} to {ints}")
        start = struct.unpack("i", struct.pack("f", magic))[0]
        n = self._do("sub", "int32", bits, self.number(start, "int32"))
        first = self._do("ashr", "int32", n, self.number(1, "int32"))
        halves = []
        for exponent in (first, self._do("sub", "int32", n, first)):
            biased = self._do("add", "int32", exponent, self.number(127, "int32"))
            moved = self._do("shl", "int32", biased, self.number(23, "int32"))
            halves.append(f.value(f"bitcast {ints} {moved} to {t}"))
        return result, halves

    def _expm1(self, a: str) -> str:
        """Return exp(a) - 1 = 2^n (exp(r) - 1) + (2^n - 1), which does not cancel near zero."""
        d = "float32"
        polynomial, (first, second) = self._reduced(a)
        power = self.binary("mul", first, second, d)
        scaled = self.binary("mul", self.binary("mul", polynomial, first, d), second, d)
        return self.binary("add", scaled, self.binary("sub", power, self.number(1, d), d), d)

    def _intrinsic(self, name: str, values: list[str], dtype: str) -> str:
        return self._call(f"llvm.{name}.{suffix(SUFFIX[dtype], self.lanes)}", values, dtype, dtype)

    def _call(self, name: str, values: list[str], dtype: str, out: str) -> str:
        operands = ", ".join(f"{self.type(dtype)} {value}" for value in values)
        return self.f.value(f"call {self.type(out)} @{name}({operands})")

    def _library(self, name: str, values: list[str], dtype: str) -> str:
        """Return a function of the C library, lane by lane."""
        assert FUNCTIONS[name].kind == "library", name
        one, scalar = FunctionEmitter(self.f, 1), kind(dtype, 1)
        symbol = name + "f" * (dtype == "float32")
        self.f.declared[symbol] = f"declare {scalar} @{symbol}({', '.join([scalar] * len(values))})"
        if self.lanes == 1:
            return one._call(symbol, values, dtype, dtype)
        t, result = self.type(dtype), "poison"
        for lane in range(self.lanes):
            parts = [self.f.value(f"extractelement {t} {v}, i64 {lane}") for v in values]
            collected = one._call(symbol, parts, dtype, dtype)
            result = self.f.value(f"insertelement {t} {result}, {scalar} {collected}, i64 {lane}")
        return result


def write_row(f: Function, activated: Activated, source: str, targets: list[str]) -> int:
    """Write the activations of a row, from `source` to a row of each order; return their cost."""
    cost = 0
    for (scalars, act), part in zip(activated.parts, activated.places(), strict=True):
        read, mul = f.at(source, scalars.offset, f.bytes), part.mul
        places = [f.at(target, part.offset, f.bytes) for target in targets]
        for loop, lanes in f.vector_loops(mul):
            emitter = FunctionEmitter(f, lanes)
            x = emitter.load(read, f.dtype, max(mul, 2), loop.index)
            values = emitter.activated(act, activated.orders, x, f.dtype)
            for value, place in zip(values, places, strict=True):
                emitter.store(value, place, f.dtype, loop.index)
        cost += OPERATIONS * -(-mul // f.widest)
    return cost
