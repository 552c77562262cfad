"""Activations: JAX functions of one number as steps that kernels run, normalised as in e3nn-jax."""

import functools
from collections.abc import Callable

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from eqfuse.ops.ir import fused as gates
from eqfuse.ops.ir.functions import FUNCTIONS, OF_JAX
from eqfuse.ops.ir.fused import Activation, Gate, Steps

SAME = ("broadcast_in_dim", "reshape", "squeeze", "identity", "optimization_barrier")


def _tanh(x):
    """Return the hyperbolic tangent of x, odd to the last bit.

    Where 1 - exp(-2 |x|) would cancel, up to |x| = 0.4, it is the convergent of degree 7 of the
    continued fraction of Lambert: its error is 9e-18 of tanh(x) at most, and its terms have one
    sign.
    """
    t, q, small = jnp.exp(-2.0 * jnp.abs(x)), x * x, jnp.abs(x) < 0.4
    n = x * (135135.0 + q * (17325.0 + q * (378.0 + q)))
    n = jnp.where(small, n, jnp.where(x < 0, t - 1.0, 1.0 - t))
    d = 135135.0 + q * (62370.0 + q * (3150.0 + q * 28.0))
    return n / jnp.where(small, d, 1.0 + t)


WRITTEN_OUT = {"tanh": _tanh, "logistic": lambda x: 1.0 / (1.0 + jnp.exp(-x))}
"""Functions that kernels have as others: of arithmetic and exponentials."""


@functools.cache
def written_out(name: str) -> Steps:
    """Return the value of one of `WRITTEN_OUT` as steps."""
    return _steps(WRITTEN_OUT[name], "float32")


class UnknownActivationError(ValueError):
    """A function that kernels cannot compute, which XLA applies behind them."""


@functools.lru_cache(maxsize=256)
def traced(function: Callable, dtype: str) -> Steps:
    """Return a function, its slope and its curvature as steps, by JAX's rules of differentiation.

    Raises:
      UnknownActivationError: it is not made of `functions.FUNCTIONS` of one number and constants.
    """

    def orders(x) -> list:
        slope = jax.grad(function)
        return [f(x) for f in (function, slope, jax.grad(slope))]

    try:
        x = jax.ShapeDtypeStruct((), dtype)
        jax.eval_shape(lambda x: jax.jvp(function, (x,), (x,)), x)  # not of `jax.custom_vjp`
        return _steps(orders, dtype)
    except (TypeError, ValueError, IndexError) as error:  # it takes arrays of several numbers
        raise UnknownActivationError(f"activation {function!r}: {error}") from error


def _steps(function: Callable, dtype: str) -> Steps:
    closed = jax.make_jaxpr(function)(jax.ShapeDtypeStruct((), dtype))
    writer = _Writer(dtype)
    return Steps(*map(tuple, (writer.run(closed.jaxpr, closed.consts, ["x"]), writer.steps)))


class _Writer:
    """Collects steps; equal ones are one."""

    def __init__(self, dtype: str):
        self.dtype, self.steps, self.known = dtype, [], {}

    def add(self, function: str, *operands: str) -> str:
        if function == "mul" and "1.0" in operands:
            return operands[operands[0] == "1.0"]
        if function in ("add", "mul"):
            operands = tuple(sorted(operands))
        name = self.known.setdefault((function, operands), f"v{len(self.steps)}")
        if name == f"v{len(self.steps)}":
            self.steps.append((function, operands))
        return name

    def number(self, value) -> str:
        if isinstance(value, jax.core.Tracer) or np.size(value) != 1:
            raise UnknownActivationError("an activation depends on x alone")
        return repr(float(np.asarray(value).item()))

    def run(self, jaxpr, consts, arguments: list[str]) -> list[str]:
        values = dict(zip(jaxpr.invars, arguments, strict=True))
        values |= dict(zip(jaxpr.constvars, map(self.number, consts), strict=True))

        def read(v) -> str:
            return self.number(v.val) if isinstance(v, Literal) else values[v]

        for eqn in jaxpr.eqns:
            inner = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
            operands = list(map(read, eqn.invars))
            if inner is None:
                outputs = [self.step(eqn, operands)]
            else:
                consts = getattr(inner, "consts", ())
                outputs = self.run(getattr(inner, "jaxpr", inner), consts, operands)
            values.update(zip(eqn.outvars, outputs, strict=True))
        return list(map(read, jaxpr.outvars))

    def step(self, eqn, operands: list[str]) -> str:
        [out] = eqn.outvars
        name = OF_JAX.get(eqn.primitive.name, eqn.primitive.name)
        kinds = [v.aval.dtype.name for v in (*eqn.invars, out)]
        if name == "convert" and operands[0][0] not in "xv":  # of a number
            return operands[0]
        if out.aval.shape or not {*kinds} <= {self.dtype, "bool"}:
            raise UnknownActivationError(f"{name} of {', '.join(kinds)}")
        if name in SAME or (name == "convert" and kinds[0] == kinds[1]):
            return operands[0]
        if name == "convert" and kinds[0] == "bool":
            return self.add("convert", *operands)
        if name == "integer_pow":
            return self.power(operands[0], eqn.params["y"])
        if name == "square":
            return self.add("mul", *operands, *operands)
        if name == "clamp":
            return self.add("min", self.add("max", *operands[:2]), operands[2])
        if name == "one_minus_square":  # JAX 0.12 has it for the slope of tanh
            pair = (self.add(f, "1.0", *operands) for f in ("sub", "add"))
            return self.add("mul", *pair)
        takes_bool = name in ("and", "or", "not") or (name == "select" and kinds[-1] != "bool")
        if name not in FUNCTIONS or name == "convert" or ("bool" in kinds[:-1]) != takes_bool:
            raise UnknownActivationError(f"{name} of {', '.join(kinds)}")
        return self.add(name, *operands)

    def power(self, x: str, exponent: int) -> str:
        if exponent < 0:
            return self.add("div", "1.0", self.power(x, -exponent))
        result = "1.0"
        for bit in f"{exponent:b}":
            result = self.add("mul", result, result)
            result = self.add("mul", result, x) if bit == "1" else result
        return result


# Parity, and c of `e3nn.normalize_function` in float32 and float64, of a million points each time.
CONSTANTS: dict[Callable, tuple[int, float, float]] = {
    jax.nn.silu: (0, 0.5964577198028564, 0.5964586854233045),
    jax.nn.gelu: (0, 0.6520581841468811, 0.6520590985126534),
    jax.nn.sigmoid: (0, 0.5416445136070251, 0.5416445654162108),
    jnp.tanh: (-1, 0.6279281973838806, 0.6279282481638502),
    jax.nn.tanh: (-1, 0.6279281973838806, 0.6279282481638502),
    jax.nn.relu: (0, 0.707097053527832, 0.707097894018724),
    e3nn.soft_odd: (-1, 0.8393544554710388, 0.8393551737104532),
    jnp.abs: (1, 0.99998676776886, 0.9999874316467329),
}


@functools.lru_cache(maxsize=256)
def normalization(function: Callable, x64: bool) -> float:
    """Return c of `e3nn.normalize_function`, in float32 or float64."""
    if function in CONSTANTS:
        return CONSTANTS[function][2 if x64 else 1]
    with jax.enable_x64(x64):  # of nothing, it is 1 / c alone
        return 1 / e3nn.normalize_function(lambda x: 1.0 if x is None else function(x))(None)


@functools.lru_cache(maxsize=256)
def parity(function: Callable) -> int:
    """Return 1 for an even function, -1 for an odd one, 0 for neither."""
    if function in CONSTANTS:
        return CONSTANTS[function][0]
    with jax.ensure_compile_time_eval():
        x = jnp.linspace(0.0, 10.0, 256)
        positive, negative = function(x), function(-x)
        if jnp.abs(positive - negative).max() < 1e-5:
            return 1
        return -1 if jnp.abs(positive + negative).max() < 1e-5 else 0


def activation(function: Callable | None, normalize: bool = True) -> Activation:
    """Return the activation that kernels run for a JAX function, normalised as in e3nn-jax."""
    if function is None:
        return gates.IDENTITY
    x64 = bool(jax.config.jax_enable_x64)
    steps = traced(function, "float64" if x64 else "float32")
    scale = 1.0 / normalization(function, x64) if normalize else 1.0
    return Activation(steps, scale, parity(function), function)


def gate(z: e3nn.Irreps, *, normalize_act: bool, gated: bool = True, **functions) -> Gate:
    """Return `e3nn.gate` of a row, or `e3nn.scalar_activation`; `functions` as there."""

    def find(kind: str, parity: int):  # when it is needed
        function = functions[f"{'even' if parity == 1 else 'odd'}_{kind}"]
        return activation(function, normalize_act)

    return gates.gate(z, find, gated)
