"""The interaction of later networks of mace, such as MACE-MH-1: it ends in a gate."""

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import jax.numpy as jnp

from eqfuse import ops
from eqfuse.models.message_passing import linear
from eqfuse.models.mlp import normalized
from eqfuse.models.nequip_irreps import gated

DENSITY_HIDDEN = 64
"""Width inside the network of densities."""
ALPHA = 20.0
"""What sums over neighbours are divided by, before training."""


class PairMLP(nn.Module):
    """Dense layers with biases of a radial basis and of the embeddings of both species.

    Before each but the first is a layer norm and silu.

    Attributes:
      widths: of the layers.
    References: mace-torch 0.3.16 (`RadialMLP`), after Fu et al. 2025 (eSEN).
    """

    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, basis, source, target, senders, receivers):
        """Return the output, [n_edges, widths[-1]].

        Args:
          basis: [n_edges, num_bessel].
          source, target: [num_species, channels] of senders and of receivers.
          senders, receivers: [n_edges] species of both ends.
        """
        dtype, first, size = basis.dtype, basis.shape[1], source.shape[1]
        shape = (first + 2 * size, self.widths[0])
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape, dtype)
        bias = self.param("bias", nn.initializers.zeros, shape[1:], dtype)
        of_basis, of_source, of_target = jnp.split(kernel, [first, first + size])
        x = basis @ of_basis + (source @ of_source)[senders] + (target @ of_target)[receivers]
        x = x + bias
        for k, width in enumerate(self.widths[1:]):
            options = {"dtype": dtype, "param_dtype": dtype}
            norm = nn.LayerNorm(epsilon=1e-5, use_fast_variance=False, name=f"norm_{k}", **options)
            x = nn.Dense(width, name=f"Dense_{k + 1}", **options)(jax.nn.silu(norm(x)))
        return x


class NonlinearBasis(nn.Module):
    """The atomic basis A after a gate, with weights that depend on the species of both ends.

        z_i = Linear(sum_j TP(x_j, Y_ij; PairMLP(B_ij, z_j, z_i))) / (alpha + beta density_i)
        A_i = Linear(Gate(z_i + Linear(x_i)))

    The gate has normalised silu for scalars and normalised sigmoid for gates.

    Attributes:
      irreps: of A.
      channels: of the embeddings of species.
      num_species: number of species.
      hidden: widths inside the network of weights.
      backend: see `eqfuse.ops`.
      fused: "auto", "always", "never", or None: see `eqfuse.ops.resolve_fused`.
    References: mace-torch 0.3.16 (`RealAgnosticResidualNonLinearInteractionBlock`).
    """

    irreps: str
    channels: int
    num_species: int
    hidden: tuple[int, ...]
    backend: str | None
    fused: str | None = None

    @nn.compact
    def __call__(self, x, sh, basis, factor, species, edges):
        """Return A, IrrepsArray [n_nodes, irreps].

        Args:
          x: what is sent, IrrepsArray [n_nodes, irreps_x].
          sh: spherical harmonics, IrrepsArray [n_edges, irreps_sh].
          basis: [n_edges, num_bessel].
          factor: of the weights and densities of edges, [n_edges], zero for padding.
          species: [n_nodes] int32.
          edges: `eqfuse.ops.Edges`.
        """
        irreps_gate = gated(e3nn.Irreps(self.irreps))
        keep = sorted({ir for _, ir in irreps_gate})
        init, shape = nn.initializers.normal(1e-3), (self.num_species, self.channels)
        tables = [self.param(name, init, shape, basis.dtype) for name in ("source", "target")]
        ends = [species[end] for end in (edges.senders, edges.receivers)]
        count = ops.tensor_product(x.irreps, sh.irreps, filter_ir_out=keep).num_irreps
        weights = PairMLP((*self.hidden, count), name="weights")(basis, *tables, *ends)
        z = ops.TensorProductLinear(
            irreps_gate,
            force_irreps_out=True,
            filter_ir_out=keep,
            backend=self.backend,
            fused=self.fused,
            name="linear_basis",
        )(x, sh, weights * factor[:, None], edges)
        dense = PairMLP((DENSITY_HIDDEN, 1), name="density")(basis, *tables, *ends)[:, 0]
        dense = jnp.tanh(dense**2) * factor
        density = jax.ops.segment_sum(dense, edges.receivers, edges.num_nodes)
        alpha = self.param("alpha", nn.initializers.constant(ALPHA), (), basis.dtype)
        beta = self.param("beta", nn.initializers.zeros, (), basis.dtype)
        z = z / (alpha + beta * density)[:, None] + linear(self, irreps_gate, "linear_residual")(x)
        acts = {"even_act": jax.nn.silu, "odd_act": jax.nn.tanh, "even_gate_act": jax.nn.sigmoid}
        acts = {name: normalized(act) for name, act in acts.items()}
        a = e3nn.gate(z, normalize_act=False, **acts)
        return linear(self, self.irreps, "linear_gated")(a)
