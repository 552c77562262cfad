"""Energies of a network and their derivative by edge vectors, as a function for programs.

Features of ghosts between layers come from the owners, and their gradients go back: ghosts then
reach one cutoff, however many layers a network has.
"""

import contextlib
import functools

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from ase.data import chemical_symbols

from eqfuse import ops
from eqfuse.inference import Network
from eqfuse.models import energy_and_gradient
from eqfuse.ops import Edges

FORWARD, REVERSE = "eqfuse_forward", "eqfuse_reverse"
"""The calls of a program that its host answers, see `Engine::exchange` of `eqfuse_engine.hpp`."""


@contextlib.contextmanager
def exchanging(fetch):
    """Let each product on a graph read `fetch(x)` in the place of x, [n_receivers, irreps]."""

    def intercept(layer, arguments, named, context):
        is_product = isinstance(context.module, ops.TensorProductLinear)
        if is_product and context.method_name == "__call__":
            x, *rest = arguments
            arguments = (e3nn.IrrepsArray(x.irreps, fetch(x.array)), *rest)
        return layer(*arguments, **named)

    with nn.intercept_methods(intercept):
        yield


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def fetch(rows, host, num_nodes: int):
    """Return rows [n_owned, width], and behind them those of ghosts as their owners have them.

    Backwards, owned rows gain the gradients of their ghosts. `host`, int32 [2], is the address of
    the engine that exchanges them.
    """
    return _ask(FORWARD, num_nodes, rows, host)


def _ask(name: str, count: int, rows, *others):
    shape = jax.ShapeDtypeStruct((count, rows.shape[1]), rows.dtype)
    return jax.ffi.ffi_call(name, shape)(rows, *others)


def _forward(rows, host, num_nodes):
    all_rows = fetch(rows, host, num_nodes)
    return all_rows, (host, all_rows[0, 0], len(rows))


def _backward(num_nodes, kept, gradient):
    # the number is not read: all ranks exchange forwards before they do so backwards
    host, first, count = kept
    return _ask(REVERSE, count, gradient, host, first), np.zeros(host.shape, jax.dtypes.float0)


fetch.defvjp(_forward, _backward)


def of_vectors(network: Network, params, numbers, vectors, edges: Edges, atoms):
    """Return energies [n_receivers] without references, and the derivative by vectors, [e, 3].

    Atoms for which `atoms` [n_receivers] is false have no energy; unknown elements that of NaN.
    Vectors beyond the cutoff are taken for padding, whose derivative is zero.
    """
    known = np.full(len(chemical_symbols), -1, np.int32)
    known[list(network.species)] = np.arange(len(network.species))
    species = jnp.asarray(known)[numbers]
    near = jnp.sum(vectors**2, axis=1, keepdims=True) < network.cutoff**2
    vectors = jnp.where(near, vectors, 0)
    operands = params, vectors, jnp.maximum(species, 0), edges, atoms
    found = energy_and_gradient(network.module.potential, *operands)
    is_unknown = atoms & (edges.of_receivers(species) < 0)
    energies = jnp.where(is_unknown, jnp.nan, found.node_energy)
    return energies, jnp.where(near, found.gradient, 0)
