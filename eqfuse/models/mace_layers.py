"""Layers and the last readout of MACE."""

import math

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import jax.numpy as jnp

from eqfuse import ops
from eqfuse.models.irreps import SCALAR, gated
from eqfuse.models.message_passing import GATE, convolution, linear, num_products
from eqfuse.models.mlp import gate
from eqfuse.models.radial_table import RadialTable, kept

DENSITY_HIDDEN = 64
"""Width inside the network of densities."""
ALPHA = 20.0
"""Divisor of sums over neighbours before training."""


class PairMLP(nn.Module):
    """Dense layers with biases of a radial basis and of the embeddings of both species.

    Before each but the first is a layer norm and silu.

    References: mace-torch 0.3.16 (`RadialMLP`), after Fu et al. 2025 (eSEN).
    """

    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, basis, source, target, senders, receivers):
        """Return the output, [n_edges, widths[-1]].

        The embeddings of senders and of receivers are source and target, [num_species, channels].
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

    References: mace-torch 0.3.16 (`RealAgnosticResidualNonLinearInteractionBlock`).
    """

    irreps: str  # of A
    channels: int  # of the embeddings of species
    num_species: int
    hidden: tuple[int, ...]  # widths inside the network of weights
    backend: str | None
    fused: str | None = None

    @nn.compact
    def __call__(self, x, sh, basis, factor, species, edges):
        """Return A, [n_nodes, irreps], of what is sent, x [n_nodes, irreps_x].

        The factor [n_edges] of the weights and densities of edges is zero for padding.
        """
        irreps_gate = gated(e3nn.Irreps(self.irreps))
        init, shape = nn.initializers.normal(1e-3), (self.num_species, self.channels)
        tables = [self.param(name, init, shape, basis.dtype) for name in ("source", "target")]
        ends = [species[end] for end in (edges.senders, edges.receivers)]
        count = num_products(x.irreps, sh, irreps_gate)
        weights = PairMLP((*self.hidden, count), name="weights")(basis, *tables, *ends)
        weights = weights * factor[:, None]
        z = convolution(self, irreps_gate, "linear_basis")(x, sh, weights, edges)
        dense = PairMLP((DENSITY_HIDDEN, 1), name="density")(basis, *tables, *ends)[:, 0]
        dense = jnp.tanh(dense**2) * factor
        density = jax.ops.segment_sum(dense, edges.receivers, edges.num_nodes)
        density = edges.of_receivers(density)
        alpha = self.param("alpha", nn.initializers.constant(ALPHA), (), basis.dtype)
        beta = self.param("beta", nn.initializers.zeros, (), basis.dtype)
        z = z / (alpha + beta * density)[:, None] + linear(self, irreps_gate, "linear_residual")(x)
        acts = GATE | {"even_gate_act": jax.nn.sigmoid}
        return linear(self, self.irreps, "linear_gated")(gate(z, acts))


class MACELayer(nn.Module):
    """One layer: the atomic basis A of each node, its symmetric products B, and the update.

        A_i = Linear(sum_j TP(Linear(h)_j, Y_ij; radial(B_ij))) / sqrt(n)
        h_i <- Linear(sum over correlations and paths of W_z(i) (A_i x ... x A_i)) + skip_z(h_i)

    References: Batatia et al. 2022, eqs. 8 to 12.
    """

    irreps_basis: str  # of A
    irreps: str  # of the node features after the layer
    correlation: int  # largest number of factors A
    num_species: int  # each with its own weights W and its own skip
    skip: bool  # a residual connection
    species_linear: bool  # whether A is mixed once more, by a Linear for each species
    density_normalization: bool  # whether A is divided by 1 + density, and not by sqrt(n)
    edge_irreps: str  # after the first Linear
    agnostic: bool  # whether all species share the weights W
    # widths inside the network of weights of a `NonlinearBasis`, whose skip all species share
    nonlinear: tuple[int, ...] | None
    backend: str | None
    fused: str | None = None

    @nn.compact
    def __call__(self, h, sh, weights, species, edges, basis, factor):
        """Return the node features after the layer, [n_nodes, irreps].

        The harmonics sh are divided by sqrt(n) if that normalises A; the weights of the products,
        radial(B) [n_edges, irreps of the products], are None if nonlinear; the basis B is
        [n_edges, num_bessel] or a `RadialTable`; a factor [n_edges] multiplies densities of edges.
        """
        irreps_basis, irreps = e3nn.Irreps(self.irreps_basis), e3nn.Irreps(self.irreps)
        x = linear(self, self.edge_irreps, "linear_up")(h)
        if self.nonlinear is None:
            a = convolution(self, irreps_basis, "linear_basis")(x, sh, weights, edges)
            if self.density_normalization:
                a = a / (1 + self._density(basis, edges, factor))[:, None]
        else:
            of_species = h.irreps.count(SCALAR), self.num_species, self.nonlinear
            kernels = self.backend, self.fused
            a = NonlinearBasis(self.irreps_basis, *of_species, *kernels, name="interaction")(
                x, sh, basis, factor, species, edges
            )
        species = edges.of_receivers(species)
        if self.species_linear:
            a = linear(self, irreps_basis, "species_linear", by_species=True)(species, a)
        b = ops.symmetric_contraction(
            a,
            self._contraction_weights(irreps_basis, irreps, h.dtype),
            jnp.zeros_like(species) if self.agnostic else species,
            irreps_out=irreps,
            correlation=self.correlation,
            backend=self.backend,
        )  # [n_nodes, irreps]
        out = linear(self, irreps, "linear_down")(b)
        if self.skip and self.nonlinear is not None:
            out += linear(self, irreps, "skip_linear")(h)
        elif self.skip:
            out += linear(self, irreps, "skip", by_species=True)(species, h)
        assert out.irreps == irreps, (out.irreps, irreps)
        return out

    def _density(self, basis, edges, factor):
        """Return the density of neighbours, [n_nodes]: the sum over edges of tanh((B w)^2)."""
        width = basis.shape[1]
        w = self.param("density", nn.initializers.normal(1.0), (width,), basis.dtype)

        def density(basis):
            return jnp.tanh(jnp.sum(basis * w.astype(basis.dtype), axis=1) ** 2 / width)

        if isinstance(basis, RadialTable):

            def make():
                return basis.table(lambda point: density(point.basis)[:, None])

            of_edges = basis.of_edges([kept(self, "density_table", make)])[0][:, 0]
        else:
            of_edges = density(basis)
        if factor is not None:
            of_edges *= factor
        sums = jax.ops.segment_sum(of_edges, edges.receivers, edges.num_nodes)
        return edges.of_receivers(sums)

    def _contraction_weights(self, irreps_basis, irreps, dtype):
        """Return the weights W of the contraction, [num_species or 1, paths, channels].

        A product of nu factors of variance 1 has a variance of the order of nu!.
        """
        paths = ops.symmetric_contraction_paths(irreps_basis, irreps, self.correlation)
        variances = [
            1 / (math.factorial(nu) * count) for _, nu, count in paths for _ in range(count)
        ]

        def init(key, shape):
            std = jnp.sqrt(jnp.asarray(variances, dtype))
            return std[:, None] * jax.random.normal(key, shape, dtype)

        shape = (1 if self.agnostic else self.num_species, len(variances), irreps[0].mul)
        return self.param("contraction", init, shape)


class Readout(nn.Module):
    """The last readout: a linear layer, a gate, a linear layer.

        out = Linear(Gate(Linear(h)))

    References: Batatia et al. 2022, eq. 13.
    """

    irreps_out: str
    hidden: int  # multiplicity of each irrep in the gate
    biases: bool  # one more Linear and gate, and biases after the first Linear
    backend: str | None

    @nn.compact
    def __call__(self, h):
        irreps_out = e3nn.Irreps(self.irreps_out)
        hidden = gated([(self.hidden, ir) for ir in {ir for _, ir in irreps_out}])
        # [n_nodes, hidden x each irrep]
        h = gate(linear(self, hidden, "linear_in")(h), GATE)
        if self.biases:
            h = gate(linear(self, hidden, "linear_mid", biases=True)(h), GATE)
        return linear(self, irreps_out, "linear_out", biases=self.biases)(h)
