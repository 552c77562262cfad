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
    """The irreps of a product of edge features with the environment of their centre.

    Attributes:
      inputs: the edge features.
      environment: the spherical harmonics in the environment.
      products: what is kept of the product.
    """

    inputs: tuple[e3nn.Irrep, ...]
    environment: tuple[e3nn.Irrep, ...]
    products: tuple[e3nn.Irrep, ...]

    @property
    def num_scalars(self) -> int:
        """Return the number of pairs of an input and a spherical harmonic that give a scalar."""
        return sum(SCALAR in ir * y for ir in self.inputs for y in self.environment)


def times(channels: int, irs) -> e3nn.Irreps:
    """Return irreps with `channels` copies of each irrep."""
    return e3nn.Irreps([(channels, ir) for ir in irs])


class EnvironmentProduct(nn.Module):
    """Edge features times the environment of their centre, channel by channel, and a Linear.

        out_ij = Linear(V_ij (x) env_i),    env_i = sum_k (W x_ik) Y_ik / sqrt(n)

    The sum is over the edges of the centre i, so that out_ij does not depend on atoms further away.

    Attributes:
      paths: irreps of V, env and their product.
      parts: irreps of the output, one array for each.
      channels: multiplicity of each irrep of V and env.
      avg_num_neighbors: n.
      backend: see `eqfuse.ops`.
      fused: "auto", "always", "never", or None: see `eqfuse.ops.resolve_fused`.
    References: Musaelian et al. 2023, Nature Communications 14, 579.
    """

    paths: Paths
    parts: tuple[e3nn.Irreps, ...]
    channels: int
    avg_num_neighbors: float
    backend: str | None
    fused: str | None = None

    @nn.compact
    def __call__(self, x, v, sh, edges):
        """Return the product, mixed by the Linear.

        Args:
          x: latents, [n_edges, latent_dim].
          v: V, IrrepsArray [n_edges, channels x paths.inputs].
          sh: spherical harmonics, IrrepsArray [n_edges, irreps_sh].
          edges: `eqfuse.ops.Edges`.
        Returns:
          IrrepsArray [n_edges, irreps] for each of the parts.
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

    Args:
      layer: with `paths`, `channels`, `avg_num_neighbors` and `backend`.
      weights: [n_edges, irreps of the environment x channels].
      sh, edges: as in `EnvironmentProduct`.
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

    Attributes:
      paths: irreps of V, env and T.
      features: irreps of V after the layer; none after the last layer of an energy.
      channels: multiplicity of each irrep.
      latent_widths: of the matrices of the MLP, the last one that of x.
      latent_activation: silu between them, or nothing.
      avg_num_neighbors: n of `EnvironmentProduct`.
      backend: see `eqfuse.ops`.
      fused: "auto", "always", "never", or None: see `eqfuse.ops.resolve_fused`.
    References: Musaelian et al. 2023, Nature Communications 14, 579.
    """

    paths: Paths
    features: tuple[e3nn.Irrep, ...]
    channels: int
    latent_widths: tuple[int, ...]
    latent_activation: bool
    avg_num_neighbors: float
    backend: str | None
    fused: str | None = None

    @nn.compact
    def __call__(self, x, v, sh, envelope, edges):
        """Return latents and edge features after the layer.

        Args:
          x, v, sh, edges: as in `EnvironmentProduct`.
          envelope: u, [n_edges].
        Returns:
          The new x, [n_edges, latent_dim], and v, IrrepsArray [n_edges, channels x features].
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

    with the new latents x' beside those before, and w' the weights of the next environment.

    Attributes:
      paths, features, channels, latent_activation, avg_num_neighbors, backend: as in
        `AllegroLayer`.
      latent_widths: of the matrices of the MLP, the last one without that of w'.
      environment: number of irreps of the next environment, 0 after the last layer.
    References: Tan et al. 2025, arXiv:2504.16068; nequip-allegro 0.8.
    """

    paths: Paths
    features: tuple[e3nn.Irrep, ...]
    channels: int
    latent_widths: tuple[int, ...]
    latent_activation: bool
    environment: int
    avg_num_neighbors: float
    backend: str | None

    @nn.compact
    def __call__(self, x, weights, v, sh, edges):
        """Return latents, weights of the next environment and edge features after the layer.

        Args:
          x: latents of all layers before, [n_edges, any number].
          weights: of the environment, [n_edges, channels x paths.environment].
          v, sh, edges: as in `EnvironmentProduct`.
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
