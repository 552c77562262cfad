"""Parts that NequIP and MACE share: features of species, weights, Linears and a norm."""

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from eqfuse import ops
from eqfuse.models.irreps import SCALAR
from eqfuse.models.radial import RadialNetworks

EPSILON = 1e-12
"""Smallest mean square of a row that `RMSNorm` divides by."""


def embed_species(network: nn.Module, species, dtype, channels=None) -> e3nn.IrrepsArray:
    """Return the first node features, [n_nodes, channels x 0e], parameters of each species.

    Args:
      network: whose parameter `embedding` it is, with `num_species` and `channels`.
      species: [n_nodes] int32.
      dtype: of the parameter.
      channels: number of features; None for those of the network.
    """
    channels = network.channels if channels is None else channels
    shape = (network.num_species, channels)
    embedding = network.param("embedding", nn.initializers.normal(1.0), shape, dtype)
    return e3nn.IrrepsArray([(channels, SCALAR)], embedding[species])


def radial_networks(network: nn.Module, basis, widths) -> list[jax.Array]:
    """Return the weights of the products of each layer, [n_edges, width].

    Args:
      network: whose submodule `radial` it is, with `radial_layers`, `radial_hidden` and `backend`.
      basis: [n_edges, num_bessel].
      widths: of each layer.
    """
    hidden = (network.radial_hidden,) * network.radial_layers
    return RadialNetworks(hidden, tuple(widths), network.backend, name="radial")(basis)


def linear(
    network: nn.Module, irreps, name: str, *, by_species: bool = False, biases: bool = False
) -> ops.Linear:
    """Return a Linear to `irreps`, all of which are in its output.

    Args:
      network: the module that it is part of, with `backend` and, for `by_species`, `num_species`.
      irreps: of the output.
      name: of its parameters.
      by_species: whether each species has weights of its own; then it is called with the species.
      biases: whether even scalars of the output have biases.
    """
    return ops.Linear(
        irreps,
        biases=biases,
        num_indexed_weights=network.num_species if by_species else None,
        force_irreps_out=True,
        backend=network.backend,
        name=name,
    )


class RMSNorm(nn.Module):
    """Divide a row by its root mean square, in which each irrep counts alike, and scale channels.

        out[u, m] = w[u] x[u, m] / sqrt(sum_uv x[u, m]^2 / (d_u^2 k) + epsilon)

    with d_u the dimension of the irrep of channel u, and k the number of irreps of the row.

    References: Koker et al. 2025 (Nequix), without centring; after Liao et al. 2024 (EquiformerV2).
    """

    @nn.compact
    def __call__(self, x: e3nn.IrrepsArray) -> e3nn.IrrepsArray:
        """Apply it to x [..., irreps]; the parameter `weight` has a number for each channel."""
        irreps = x.irreps
        dims = np.array([ir.dim for mul, ir in irreps for _ in range(mul)])
        kinds = len(irreps.regroup())
        weight = self.param("weight", nn.initializers.ones, (len(dims),), x.dtype)
        of_components = np.repeat(1 / (dims**2 * kinds), dims)
        squares = jnp.sum(x.array**2 * jnp.asarray(of_components, x.dtype), -1, keepdims=True)
        scaled = x.array * jnp.repeat(weight, dims, total_repeat_length=irreps.dim)
        return e3nn.IrrepsArray(irreps, scaled * jax.lax.rsqrt(squares + EPSILON))
