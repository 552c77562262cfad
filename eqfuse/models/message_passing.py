"""Parts that NequIP and MACE share: features of species, weights, Linears and a norm."""

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from eqfuse import ops
from eqfuse.models.irreps import SCALAR
from eqfuse.models.radial import RadialNetworks

GATE = {"even_act": jax.nn.silu, "odd_act": jax.nn.tanh, "even_gate_act": jax.nn.silu}
"""The activations of `e3nn.gate`, which keeps the parity of features: gates are even scalars."""
EPSILON = 1e-12
"""Smallest mean square of a row that `RMSNorm` divides by."""


def embed_species(network: nn.Module, species, dtype, channels=None) -> e3nn.IrrepsArray:
    """Return the first node features, [n_nodes, channels x 0e], of the parameter `embedding`.

    The network has `num_species`, and `channels` if that is not given.
    """
    channels = network.channels if channels is None else channels
    shape = (network.num_species, channels)
    embedding = network.param("embedding", nn.initializers.normal(1.0), shape, dtype)
    return e3nn.IrrepsArray([(channels, SCALAR)], embedding[species])


def radial_networks(network: nn.Module, basis, sh, layers) -> list[jax.Array]:
    """Return the weights of the products with sh of each layer, [n_edges, irreps of the products].

    Layers are pairs of what is sent and what is kept of the products, both Irreps.
    """
    hidden = (network.radial_hidden,) * network.radial_layers
    widths = tuple(num_products(sent, sh, kept) for sent, kept in layers)
    dtype = jnp.bfloat16 if network.half_weights else basis.dtype
    weights = RadialNetworks(hidden, widths, network.backend, dtype, name="radial")(basis)
    return [w if isinstance(w, ops.Tabulated) else w.astype(dtype) for w in weights]


def num_products(sent: e3nn.Irreps, sh, kept: e3nn.Irreps) -> int:
    """Return the number of irreps, with multiplicities, of a product that `convolution` weights."""
    return ops.tensor_product(sent, sh.irreps, filter_ir_out=_irreps_in(kept)).num_irreps


def convolution(network: nn.Module, irreps, name: str, op=ops.TensorProductLinear, **options):
    """Return the product with the harmonics of edges, summed to receivers, and a Linear."""
    return op(
        irreps,
        force_irreps_out=True,
        # those that have weights; parameters are numbered by them
        filter_ir_out=_irreps_in(irreps),
        backend=network.backend,
        fused=network.fused,
        name=name,
        **options,
    )


def _irreps_in(irreps) -> list[e3nn.Irrep]:
    return sorted({ir for _, ir in e3nn.Irreps(irreps)})


def linear(
    network: nn.Module, irreps, name: str, *, by_species: bool = False, biases: bool = False
) -> ops.Linear:
    """Return a Linear to `irreps`, all of which are in its output.

    With `by_species`, each species has weights of its own, and it is called with the species. With
    `biases`, even scalars of the output have them.
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
