"""The activations that kernels know, as JAX functions."""

import functools
from collections.abc import Callable

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp

from eqfuse.ops.ir.gates import Activation

FUNCTIONS: dict[str, Callable] = {
    "identity": lambda x: x,
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "soft_odd": e3nn.soft_odd,
    "abs": jnp.abs,
}
_ALIASES = {jnp.tanh: "tanh", jax.nn.tanh: "tanh", jax.nn.swish: "silu", None: "identity"}


def apply(act: Activation, x):
    """Return the activation of an array."""
    return FUNCTIONS[act.name](x) * act.scale


class UnknownActivationError(ValueError):
    """A function that kernels do not know, which is then composed."""


def activation(function: Callable | None, normalize: bool = True) -> Activation:
    """Return the activation that kernels run for a JAX function, normalised as in e3nn-jax.

    Raises:
      UnknownActivationError: a function that kernels do not know, naming those that they do.
    """
    names = {f: name for name, f in FUNCTIONS.items()} | _ALIASES
    if function not in names:
        raise UnknownActivationError(
            f"activation {function!r} is not known to the kernels, which have "
            f"{', '.join(FUNCTIONS)}"
        )
    name = names[function]
    if not normalize or name == "identity":
        return Activation(name, 1.0, parity(name))
    scale = _normalization(name, bool(jax.config.jax_enable_x64))
    return Activation(name, scale, parity(name))


@functools.cache
def _normalization(name: str, x64: bool) -> float:
    """Return 1 / c of `e3nn.normalize_function`, in the precision that JAX now computes in."""

    def function(x):
        return 1.0 if x is None else FUNCTIONS[name](x)

    return e3nn.normalize_function(function)(None)  # of nothing, it is 1 / c alone


@functools.cache
def parity(name: str) -> int:
    """Return 1 for an even function, -1 for an odd one, 0 for neither."""
    with jax.ensure_compile_time_eval():
        x = jnp.linspace(0.0, 10.0, 256)
        positive, negative = FUNCTIONS[name](x), FUNCTIONS[name](-x)
        if jnp.abs(positive - negative).max() < 1e-5:
            return 1
        return -1 if jnp.abs(positive + negative).max() < 1e-5 else 0
