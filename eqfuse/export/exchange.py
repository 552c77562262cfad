"""Features of ghosts between layers: they come from the owners, and their gradients go back.

Ghosts then reach one cutoff, however many layers a network has.
"""

import contextlib

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import numpy as np

from eqfuse.models.mace_layers import MACELayer
from eqfuse.models.nequip import Interaction

FORWARD, REVERSE = "eqfuse_forward", "eqfuse_reverse"
"""The calls of a program that its host answers, see `Engine::exchange` of `eqfuse_engine.hpp`."""


@contextlib.contextmanager
def exchanging(fetch):
    """Let each layer after the first read `fetch(h)` in the place of h, [n_nodes, irreps]."""

    def intercept(layer, arguments, named, context):
        module = context.module
        is_layer = isinstance(module, (Interaction, MACELayer)) and module.name != "layer_0"
        if is_layer and context.method_name == "__call__":
            h, *rest = arguments
            arguments = (e3nn.IrrepsArray(h.irreps, fetch(h.array)), *rest)
        return layer(*arguments, **named)

    with nn.intercept_methods(intercept):
        yield


@jax.custom_vjp
def fetch(rows, host):
    """Return rows [n_nodes, width] with those of ghosts as their owners have them.

    Backwards, owned rows gain the gradients of their ghosts, which become zero. `host`, int32 [2],
    is the address of the engine that exchanges them.
    """
    return _ask(FORWARD, rows, host)


def _ask(name: str, rows, *others):
    shape = jax.ShapeDtypeStruct(rows.shape, rows.dtype)
    return jax.ffi.ffi_call(name, shape, input_output_aliases={0: 0})(rows, *others)


def _forward(rows, host):
    rows = fetch(rows, host)
    return rows, (host, rows[0, 0])


def _backward(kept, gradient):
    # the number is not read: all ranks exchange forwards before they do so backwards
    host, first = kept
    return _ask(REVERSE, gradient, host, first), np.zeros(host.shape, jax.dtypes.float0)


fetch.defvjp(_forward, _backward)
