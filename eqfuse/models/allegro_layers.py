"""Layers of Allegro: a product with the environment of the centre, and new latents."""

import math
from typing import NamedTuple

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import jax.numpy as jnp

from eqfuse import ops
from eqfuse.models.irreps import SCALAR
from eqfuse.models.mlp import MLP


class Paths(NamedTuple):
    """The irreps of a product of edge features with the environment of their centre."""

    inputs: tuple[e3nn.Irrep, ...]
    environment: tuple[e3nn.Irrep, ...]  # spherical harmonics
    products: tuple[e3nn.Irrep, ...]  # those that are kept


def times(channels: int, irs) -> e3nn.Irreps:
    """Return irreps with `channels` copies of each irrep."""
    return e3nn.Irreps([(channels, ir) for ir in irs])


def weighted_channels(y: e3nn.IrrepsArray, weights) -> e3nn.IrrepsArray:
    """Return channels of each irrep of y [n_edges, irreps], each with a weight of its own.

    The weights are [n_edges, irreps x channels], those of the first irrep first.
    """
    weights = jnp.split(weights, len(y.irreps), axis=1)  # [n_edges, channels] for each irrep
    columns = zip(weights, y.irreps.slices(), strict=True)
    chunks = [w[:, :, None] * y.array[:, None, place] for w, place in columns]
    irreps = times(weights[0].shape[1], [ir for _, ir in y.irreps])
    return e3nn.from_chunks(irreps, chunks, y.shape[:-1], y.dtype)


def environment(network: nn.Module, paths: Paths, weights, sh, edges) -> e3nn.IrrepsArray:
    """Return the weighted harmonics around each node, [n_nodes, channels x paths.environment].

        env_i = sum_k w_ik Y_ik / sqrt(n)

    The weights w are [n_edges, irreps of the environment x channels].
    """
    factor = 1 / math.sqrt(network.avg_num_neighbors)  # cheaper here than over the edges
    factors = jnp.full((edges.num_nodes, network.channels), factor, weights.dtype)
    return ops.graph_tensor_product(
        e3nn.IrrepsArray(times(network.channels, [SCALAR]), factors),
        sh.filter(keep=paths.environment),
        weights,
        edges,
        backend=network.backend,
    )


class AllegroLayer(nn.Module):
    """One layer: a product with the environment of the centre, and latents beside those before.

        T_ij = sum over paths p: w_p (V_ij (x) env_i)_p
        x'_ij, w'_ij = MLP(all latents before, scalars of T_ij),    V_ij <- T_ij

    with w' the weights of the next environment. The environment is a sum over the edges of the
    centre i, so that nothing of the edge depends on atoms further away.

    References: Musaelian et al. 2023, Nature Communications 14, 579; Tan et al. 2025,
      arXiv:2504.16068; nequip-allegro 0.8.
    """

    paths: Paths  # irreps of V, env and T
    features: tuple[e3nn.Irrep, ...]  # V after the layer; none after the last of an energy
    channels: int  # multiplicity of each irrep of V and env
    latent_widths: tuple[int, ...]  # of the matrices of the MLP, the last one without that of w'
    environment: int  # number of irreps of the next environment, 0 after the last layer
    avg_num_neighbors: float  # n
    backend: str | None

    @nn.compact
    def __call__(self, x, weights, v, sh, edges):
        """Return latents, weights of the next environment and edge features after the layer.

        Those before are x [n_edges, any number], of all layers, weights [n_edges, channels x
        paths.environment] and V [n_edges, channels x paths.inputs].
        """
        around = environment(self, self.paths, weights, sh, edges)
        irreps = ops.channelwise_tensor_product(
            v.irreps, around.irreps, filter_ir_out=self.paths.products
        )
        shape, init = (irreps.num_irreps,), nn.initializers.normal(1.0)
        products = ops.channelwise_tensor_product(
            v,
            around,
            edges,
            weights=self.param("path_weights", init, shape, x.dtype),
            filter_ir_out=self.paths.products,
            backend=self.backend,
        )  # [n_edges, channels x products]
        inputs = jnp.concatenate([x, products.filter(keep=SCALAR).array], axis=1)
        *widths, last = self.latent_widths
        widths = (*widths, last + self.channels * self.environment)
        new = MLP(widths, jax.nn.silu, self.backend, name="mlp")(inputs)
        x = jnp.concatenate([x, new[:, :last]], axis=1)
        return x, new[:, last:], products.filter(keep=self.features)
