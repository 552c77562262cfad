"""Layers of Allegro: a product with the environment of the centre, and new latents."""

import dataclasses
import math

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import jax.numpy as jnp

from eqfuse import ops
from eqfuse.models.irreps import SCALAR
from eqfuse.models.mlp import MLP, normalized

UPDATE = 0.5
"""a in the residual update of the latents."""


@dataclasses.dataclass(frozen=True)
class Paths:
    """The irreps of a product of edge features with the environment of their centre."""

    inputs: tuple[e3nn.Irrep, ...]
    environment: tuple[e3nn.Irrep, ...]  # spherical harmonics
    products: tuple[e3nn.Irrep, ...]  # those that are kept

    @property
    def num_scalars(self) -> int:
        """Return the number of pairs of an input and a spherical harmonic that give a scalar."""
        return sum(SCALAR in ir * y for ir in self.inputs for y in self.environment)


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


class EnvironmentProduct(nn.Module):
    """Edge features times the environment of their centre, channel by channel, and a Linear.

        out_ij = Linear(V_ij (x) env_i),    env_i = sum_k (W x_ik) Y_ik / sqrt(n)

    The sum is over the edges of the centre i, so that out_ij does not depend on atoms further away.

    References: Musaelian et al. 2023, Nature Communications 14, 579.
    """

    paths: Paths
    parts: tuple[e3nn.Irreps, ...]  # of the output, one array for each
    channels: int  # multiplicity of each irrep of V and env
    avg_num_neighbors: float  # n
    backend: str | None
    fused: str | None = None

    @nn.compact
    def __call__(self, x, v, sh, edges):
        """Return the product, mixed by the Linear: an IrrepsArray [n_edges, irreps] for each part.

        The latents are x [n_edges, latent_dim], and V [n_edges, channels x paths.inputs].
        """
        widths = (self.channels * len(self.paths.environment),)
        weights = MLP(widths, None, self.backend, name="weights")(x)
        environment = _environment(self, weights, sh, edges)  # [n_nodes, channels x irreps]
        return ops.TensorProductLinear(
            e3nn.Irreps([mul_ir for part in self.parts for mul_ir in part]),
            force_irreps_out=True,
            filter_ir_out=self.paths.products,
            channelwise=True,
            split=self.parts,
            backend=self.backend,
            fused=self.fused,
            name="linear",
        )(v, environment, edges=edges)


def _environment(layer, weights, sh, edges) -> e3nn.IrrepsArray:
    """Return the weighted harmonics around each node, [n_nodes, channels x paths.environment].

    The weights are [n_edges, irreps of the environment x channels].
    """
    factor = 1 / math.sqrt(layer.avg_num_neighbors)  # cheaper here than over the edges
    factors = jnp.full((edges.num_nodes, layer.channels), factor, weights.dtype)
    return ops.graph_tensor_product(
        e3nn.IrrepsArray(times(layer.channels, [SCALAR]), factors),
        sh.filter(keep=layer.paths.environment),
        weights,
        edges,
        backend=layer.backend,
    )


class AllegroLayer(nn.Module):
    """One layer: a product with the environment, new latents, new edge features.

        T_ij = V_ij (x) env_i
        x_ij <- (x_ij + a u_ij MLP(x_ij, scalars of T_ij)) / sqrt(1 + a^2),    a = 1/2
        V_ij <- Linear(T_ij)

    The first matrix of the MLP is one of x, and one of the scalars, which is part of the Linear: so
    T itself is not in memory on a CPU, nor on a GPU where it is large.

    References: Musaelian et al. 2023, Nature Communications 14, 579.
    """

    paths: Paths  # irreps of V, env and T
    features: tuple[e3nn.Irrep, ...]  # V after the layer; none after the last of an energy
    channels: int
    latent_widths: tuple[int, ...]  # of the matrices of the MLP, the last one that of x
    latent_activation: bool  # silu between them
    avg_num_neighbors: float
    backend: str | None
    fused: str | None = None

    @nn.compact
    def __call__(self, x, v, sh, envelope, edges):
        """Return x [n_edges, latent_dim] and V [n_edges, channels x features] after the layer.

        The envelope u is [n_edges]; the others are as in `EnvironmentProduct`.
        """
        latents = e3nn.Irreps([(self.latent_widths[0], SCALAR)])
        features = times(self.channels, self.features)
        scalars, v = EnvironmentProduct(
            self.paths,
            (latents, features),
            self.channels,
            self.avg_num_neighbors,
            self.backend,
            self.fused,
            name="product",
        )(x, v, sh, edges)  # [n_edges, latents], [n_edges, features]
        new = self._latents(x, scalars.array)
        x = (x + UPDATE * envelope[:, None] * new) / math.sqrt(1 + UPDATE**2)
        return x, v

    def _latents(self, x, mixed):
        """Return the MLP of x and of the scalars, whose Linear is `mixed`, [n_edges, width]."""
        first, *widths = self.latent_widths
        width, scalars = x.shape[-1], self.channels * self.paths.num_scalars
        # each is normalised by its own number of columns, and the matrix by that of all
        own, other = (math.sqrt(n / (width + scalars)) for n in (width, scalars))
        new = own * MLP((first,), None, self.backend, name="latents")(x) + other * mixed
        if not widths:
            return new
        act = jax.nn.silu if self.latent_activation else None
        return MLP(tuple(widths), act, self.backend, name="mlp")(normalized(act)(new))


class DenseLayer(nn.Module):
    """One layer of the program since 2024: a weight for each path, latents of all layers.

        T_ij = sum over paths p: w_p (V_ij (x) env_i)_p,    env_i = sum_k w_ik Y_ik / sqrt(n)
        x'_ij, w'_ij = MLP(all latents before, scalars of T_ij),    V_ij <- T_ij

    with the new latents x' beside those before, and w' the weights of the next environment. Fields
    are those of `AllegroLayer`.

    References: Tan et al. 2025, arXiv:2504.16068; nequip-allegro 0.8.
    """

    paths: Paths
    features: tuple[e3nn.Irrep, ...]
    channels: int
    latent_widths: tuple[int, ...]  # the last one without that of w'
    latent_activation: bool
    environment: int  # number of irreps of the next environment, 0 after the last layer
    avg_num_neighbors: float
    backend: str | None

    @nn.compact
    def __call__(self, x, weights, v, sh, edges):
        """Return latents, weights of the next environment and edge features after the layer.

        Those before are x [n_edges, any number], of all layers, and weights [n_edges, channels x
        paths.environment]; the others are as in `EnvironmentProduct`.
        """
        environment = _environment(self, weights, sh, edges)
        irreps = ops.channelwise_tensor_product(
            v.irreps, environment.irreps, filter_ir_out=self.paths.products
        )
        shape, init = (irreps.num_irreps,), nn.initializers.normal(1.0)
        products = ops.channelwise_tensor_product(
            v,
            environment,
            edges,
            weights=self.param("path_weights", init, shape, x.dtype),
            filter_ir_out=self.paths.products,
            backend=self.backend,
        )  # [n_edges, channels x products]
        inputs = jnp.concatenate([x, products.filter(keep=SCALAR).array], axis=1)
        *widths, last = self.latent_widths
        widths = (*widths, last + self.channels * self.environment)
        act = jax.nn.silu if self.latent_activation else None
        new = MLP(widths, act, self.backend, name="mlp")(inputs)
        x = jnp.concatenate([x, new[:, :last]], axis=1)
        return x, new[:, last:], products.filter(keep=self.features)
