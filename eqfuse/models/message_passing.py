"""The first steps of NequIP and MACE: features of the species, weights of the products."""

import e3nn_jax as e3nn
import flax.linen as nn
import jax

from eqfuse import ops
from eqfuse.models.irreps import SCALAR
from eqfuse.models.radial import RadialNetworks


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
