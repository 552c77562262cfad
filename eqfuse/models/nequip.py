"""NequIP: an equivariant message-passing potential (Batzner et al. 2022)."""

import itertools
import math

import e3nn_jax as e3nn
import flax.linen as nn
import jax

from eqfuse import ops
from eqfuse.models.irreps import (
    SCALAR,
    allowed,
    harmonics,
    products,
    require_at_least,
    require_positive,
    unreachable,
)
from eqfuse.models.message_passing import embed_species, linear, radial_networks
from eqfuse.models.radial import edge_geometry
from eqfuse.models.species import take_species


def hidden_irreps(
    irreps_out: str, *, layers: int, channels: int, lmax: int, parity: bool
) -> list[e3nn.Irreps]:
    """Return the irreps of the features after each layer, those that the output needs.

    An irrep of layer k is kept if the scalars that a network starts from can become it in k
    products with the spherical harmonics, and if it can become one of `irreps_out`, or a gate, in
    the layers that are left. All others are zero or unused. (A network of three layers for an
    energy has no use for 1e and 2o, whatever `parity`; one of four has.)

    Args:
      irreps_out: what the network predicts per node.
      layers: number of layers.
      channels: multiplicity of each irrep.
      lmax: largest l of features and spherical harmonics.
      parity: True for features of both parities, False for natural parity, (-1)^l, only.
    Returns:
      One Irreps per layer.
    Raises:
      ValueError: settings out of range, or an output that this network cannot reach.
    """
    require_at_least(layers=(layers, 1), channels=(channels, 1), lmax=(lmax, 0))
    sh, within = harmonics(lmax), allowed(lmax, parity)
    wanted = {ir for _, ir in e3nn.Irreps(irreps_out)}

    reachable = [{SCALAR}]
    for _ in range(layers):
        reachable.append(within & products(reachable[-1], sh))
    if missing := wanted - reachable[-1]:
        raise unreachable(irreps_out, missing, layers=layers, lmax=lmax, parity=parity)

    kept, needed = [], wanted
    for k in reversed(range(1, layers + 1)):
        kept.append(reachable[k] & needed)
        sources = gate_input(kept[-1], 1)
        needed = {ir for ir in within if products([ir], sh) & {ir for _, ir in sources}}
    return [e3nn.Irreps([(channels, ir) for ir in sorted(irs)]) for irs in reversed(kept)]


def gate_input(irreps, channels: int) -> e3nn.Irreps:
    """Return the input irreps of `e3nn.gate` for an output: scalars, gates, gated irreps.

    Args:
      irreps: the irreps (not repeated) after the gate.
      channels: multiplicity of each.
    """
    scalars = [(channels, ir) for ir in sorted(irreps) if ir.l == 0]
    gated = [(channels, ir) for ir in sorted(irreps) if ir.l > 0]
    gates = [(channels * len(gated), SCALAR)] if gated else []
    return e3nn.Irreps(scalars + gates + gated)


def messages(irreps_in, irreps_sh, irreps_out) -> e3nn.Irreps:
    """Return the irreps of the products of node features and harmonics that a layer needs.

    Args:
      irreps_in, irreps_out: node features before and after the layer.
      irreps_sh: spherical harmonics.
    """
    keep = {ir for _, ir in gate_input([ir for _, ir in irreps_out], 1)}
    return ops.tensor_product(irreps_in, irreps_sh, filter_ir_out=sorted(keep))


class Interaction(nn.Module):
    """One layer: messages through the tensor product, summed to the receivers, and the gate.

        h <- Gate(linear_down(sum_j TP(linear_up(h)_j, Y_ij; radial(B_ij)) / sqrt(n)) + skip_z(h))

    The gate is `e3nn.gate` with normalised activations: silu for even scalars, tanh for odd ones,
    and silu for the gates, which are even scalars, so that a gated feature keeps its parity.

    Attributes:
      irreps: node features after the layer, one multiplicity for all irreps.
      num_species: number of species, each with its own skip.
      backend: see `eqfuse.ops`.
    References: Batzner et al. 2022, eq. 9 and figure 1.
    """

    irreps: str
    num_species: int
    backend: str | None

    @nn.compact
    def __call__(self, h, sh, weights, species, edges):
        """Return the node features after the layer.

        Args:
          h: node features, IrrepsArray [n_nodes, irreps_in].
          sh: spherical harmonics divided by sqrt(n), IrrepsArray [n_edges, irreps_sh].
          weights: of the products, radial(B), [n_edges, irreps of the messages].
          species: [n_nodes] int32.
          edges: `eqfuse.ops.Edges`.
        Returns:
          IrrepsArray [n_nodes, irreps].
        """
        irreps = e3nn.Irreps(self.irreps)
        irreps_gate = gate_input([ir for _, ir in irreps], irreps[0].mul)
        x = linear(self, h.irreps, "linear_up")(h)
        skip = linear(self, irreps_gate, "skip", by_species=True)(species, h)
        # [n_nodes, irreps_gate]
        h = ops.TensorProductLinearGate(
            irreps_gate,
            force_irreps_out=True,
            # those that have weights; parameters are numbered by them
            filter_ir_out=sorted({ir for _, ir in irreps_gate}),
            even_act=jax.nn.silu,
            odd_act=jax.nn.tanh,
            even_gate_act=jax.nn.silu,
            backend=self.backend,
            name="linear_down",
        )(x, sh, weights, edges, skip=skip)
        assert h.irreps == irreps, (h.irreps, irreps)
        return h


class NequIP(nn.Module):
    """NequIP: species embedding, `layers` interactions, a linear readout per node.

    Edges of zero length (padding) and edges beyond the cutoff contribute exactly zero.

    Attributes:
      irreps_out: what is predicted per node; "0e" for an energy.
      num_species: number of species.
      layers: number of interactions.
      channels: multiplicity of each irrep of the hidden features.
      lmax: largest l of the hidden features and of the spherical harmonics.
      parity: hidden features of both parities, or of natural parity (-1)^l only.
      cutoff: radius of the neighbourhood, Å.
      num_bessel: number of Bessel functions of the edge length.
      poly_power: p of the polynomial cutoff.
      radial_layers: hidden layers of the radial network.
      radial_hidden: width of the radial network.
      avg_num_neighbors: mean number of neighbours in the training data, a normalisation.
      backend: see `eqfuse.ops`; the parameters are the same for all.
    References: Batzner et al. 2022, Nature Communications 13, 2453.
    """

    irreps_out: str = "0e"
    num_species: int = 1
    layers: int = 3
    channels: int = 32
    lmax: int = 2
    parity: bool = True
    cutoff: float = 5.0
    num_bessel: int = 8
    poly_power: int = 6
    radial_layers: int = 2
    radial_hidden: int = 64
    avg_num_neighbors: float = 1.0
    backend: str | None = None

    def layer_irreps(self) -> list[e3nn.Irreps]:
        """Return the node features from the embedding to the readout, `layers + 2` Irreps."""
        hidden = hidden_irreps(
            self.irreps_out,
            layers=self.layers,
            channels=self.channels,
            lmax=self.lmax,
            parity=self.parity,
        )
        return [e3nn.Irreps([(self.channels, SCALAR)]), *hidden, e3nn.Irreps(self.irreps_out)]

    def narrow(self, params: dict, keep) -> tuple["NequIP", dict]:
        """Return this network for some of its species, with the same predictions for them.

        Args:
          params: its parameters.
          keep: [n] numbers of the species that stay, in their new order.
        """
        params = take_species(params, keep, ("embedding", "skip"))
        return self.clone(num_species=len(keep)), params

    @nn.compact
    def __call__(self, vectors, species, edges):
        """Predict `irreps_out` for each node.

        Args:
          vectors: [n_edges, 3] Å, from receiver (centre) to sender (neighbour).
          species: [n_nodes] int32, in [0, num_species).
          edges: `eqfuse.ops.Edges`.
        Returns:
          IrrepsArray [n_nodes, irreps_out], dtype of vectors.
        Raises:
          ValueError: settings out of range, or `irreps_out` that cannot be reached.
        """
        require_positive(num_species=self.num_species, avg_num_neighbors=self.avg_num_neighbors)
        irreps_in, *hidden, irreps_out = self.layer_irreps()

        sh, basis, _ = edge_geometry(
            vectors, self.lmax, self.cutoff, self.num_bessel, self.poly_power
        )  # [n_edges, irreps_sh], [n_edges, num_bessel]
        sh = sh / math.sqrt(self.avg_num_neighbors)
        h = embed_species(self, species, basis.dtype)
        widths = [
            messages(before, sh.irreps, after).num_irreps
            for before, after in itertools.pairwise([irreps_in, *hidden])
        ]
        radial = radial_networks(self, basis, widths)  # [n_edges, width] for each layer
        for k, irreps in enumerate(hidden):
            h = Interaction(str(irreps), self.num_species, self.backend, name=f"layer_{k}")(
                h, sh, radial[k], species, edges
            )  # [n_nodes, irreps]
        return linear(self, irreps_out, "readout")(h)
