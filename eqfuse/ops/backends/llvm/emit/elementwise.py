"""Element-wise functions as LLVM IR, in vectors: one loop for all functions of one size.

exp and what follows from it are computed here in float32, to about one unit in the last place,
several numbers at once; all else that is not arithmetic is the C library's.
"""

import math
import struct

from eqfuse.ops.backends.llvm.emit.ir import Function
from eqfuse.ops.ir import functions
from eqfuse.ops.ir.functions import Expression, variable
from eqfuse.ops.ir.steps import Elementwise, ElementwiseLoop, Number

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
