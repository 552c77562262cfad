"""NequIP: an equivariant message-passing potential (Batzner et al. 2022)."""

import math
from typing import Literal

import e3nn_jax as e3nn
import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from eqfuse import ops
from eqfuse.models.irreps import SCALAR, allowed, gated, harmonics, products, unreachable
from eqfuse.models.message_passing import (
    GATE,
    RMSNorm,
    convolution,
    embed_species,
    linear,
    radial_networks,
)
from eqfuse.models.mlp import gate
from eqfuse.models.network import Network
from eqfuse.models.radial import lengths_and_directions, xplor_cutoff

SKIPS = ("species", "linear", "none")
"""Kinds of self-connection: a Linear for each species, one for all, or none."""


class Interaction(nn.Module):
    """One layer: messages through the tensor product, summed to the receivers, and the gate.

        h <- Gate(linear_down(sum_j TP(linear_up(h)_j, Y_ij; radial(B_ij)) / sqrt(n)) + skip_z(h))

    With `one_hot`, the features before are a table of the species, as Linears of one-hots are:
    there is no `linear_up`, and the skip is a table too. Settings: see `NequIP`.

    References: Batzner et al. 2022, eq. 9 and figure 1.
    """

    irreps: str  # node features after the layer
    num_species: int
    skip: str  # one of `SKIPS`
    one_hot: bool
    layer_norm: bool
    biases: bool
    normalize_activation: bool
    backend: str | None
    fused: str | None = None

    @nn.compact
    def __call__(self, h, sh, weights, species, edges):
        """Return the node features after the layer, [n_nodes, irreps].

        Those before are h [n_nodes, irreps_in], with sh / sqrt(n) [n_edges, irreps_sh] and the
        weights of the products, radial(B), [n_edges, irreps of the messages].
        """
        irreps = e3nn.Irreps(self.irreps)
        irreps_gate = gated(irreps)
        x = h if self.one_hot else linear(self, h.irreps, "linear_up", biases=self.biases)(h)
        skip = self._skip(irreps_gate, species, h)  # [n_nodes, irreps_gate]
        op, options = ops.TensorProductLinear, {"biases": self.biases}
        if not self.layer_norm:
            op = ops.TensorProductLinearGate
            options |= {**GATE, "normalize_act": self.normalize_activation}
        down = convolution(self, irreps_gate, "linear_down", op, **options)
        h = down(x, sh, weights, edges, skip=skip)
        if self.layer_norm:
            h = gate(RMSNorm(name="norm")(h), GATE, self.normalize_activation)
        assert h.irreps == irreps, (h.irreps, irreps)
        return h

    def _skip(self, irreps_gate, species, h):
        """Return the self-connection, which is added before the gate, or None."""
        if self.skip == "none":
            return None
        if self.one_hot:
            shape = (self.num_species, irreps_gate.count(SCALAR))
            table = self.param("skip", nn.initializers.normal(1.0), shape, h.dtype)
            scalars = [ir == SCALAR for mul, ir in irreps_gate for _ in range(mul * ir.dim)]
            rows = jnp.zeros((*species.shape, irreps_gate.dim), h.dtype)
            rows = rows.at[:, np.flatnonzero(scalars)].set(table[species])
            return e3nn.IrrepsArray(irreps_gate, rows)
        if self.skip == "linear":
            return linear(self, irreps_gate, "skip_linear")(h)
        return linear(self, irreps_gate, "skip", by_species=True)(species, h)


class NequIP(Network):
    """NequIP: species embedding, `layers` interactions, a linear readout per node.

    Edges of zero length (padding) and edges beyond the cutoff contribute exactly zero.

    The settings from `hidden` on are those in which published networks differ (SevenNet,
    Nequix, networks of nequip); their defaults are the network of the paper.

    Attributes:
      layers: number of interactions.
      channels: multiplicity of each irrep of the hidden features.
      lmax: largest l of the hidden features and of the spherical harmonics.
      parity: hidden features of both parities, or of natural parity (-1)^l only.
      radial_layers: hidden layers of the radial network.
      radial_hidden: width of the radial network.
      hidden: irreps of the hidden features with their multiplicities, 128x0e+64x1o+32x2e, or those
        of each layer with commas, instead of `channels` and `parity`; None for these.
      keep_irreps: whether layers keep irreps that no later layer reads.
      so3: all irreps are even: equivariance under rotations only.
      embedding_channels: scalars that the network starts from; None: as many as `channels`, or as
        hidden 0e.
      one_hot: the first layer has no Linear before its product, and its skip is a table of the
        species: what Linears of one-hots are.
      skip: the kind of self-connection, "species" (a Linear for each), "linear" or "none"; for all
        layers, or one for each, with commas: "none,species,species".
      layer_norm: normalise what each gate reads, see `eqfuse.models.message_passing.RMSNorm`.
      biases: Linears before and after the products add biases to even scalars.
      normalize_activation: gates have normalised activations.
      cutoff_function: of edge lengths; xplor is one up to `cutoff_onset`.
      cutoff_onset: of the cutoff function xplor, Å.
      trainable_bessel: the frequencies of the Bessel functions are parameters.
      species_neighbors: mean number of neighbours for each species of the sender, in place of
        `avg_num_neighbors`; None for that.
      pair_cutoffs: a cutoff for each species of receiver and sender, at most `cutoff`, Å; None for
        one cutoff.
      solid_harmonics: spherical harmonics of vectors, which grow as d^l, and not of directions.
    References: Batzner et al. 2022, Nature Communications 13, 2453; Park et al. 2024 (SevenNet);
      Koker et al. 2025 (Nequix).
    """

    layers: int = 3
    channels: int = 32
    lmax: int = 2
    parity: bool = True
    radial_layers: int = 2
    radial_hidden: int = 64
    hidden: str | None = None
    keep_irreps: bool = False
    so3: bool = False
    embedding_channels: int | None = None
    one_hot: bool = False
    skip: str = "species"
    layer_norm: bool = False
    biases: bool = False
    normalize_activation: bool = True
    cutoff_function: Literal["polynomial", "xplor"] = "polynomial"
    cutoff_onset: float | None = None
    trainable_bessel: bool = False
    species_neighbors: tuple[float, ...] | None = None
    pair_cutoffs: tuple[tuple[float, ...], ...] | None = None
    solid_harmonics: bool = False

    of_species = ("embedding", "skip")

    def layer_irreps(self) -> list[e3nn.Irreps]:
        """Return the node features from the embedding to the readout, `layers + 2` Irreps.

        An irrep of layer k is kept if the scalars that a network starts from can become it in k
        products with the spherical harmonics, and if it can become one of `irreps_out`, or a gate,
        in the layers that are left. All others are zero or unused. (A network of three layers for
        an energy has no use for 1e and 2o, whatever `parity`; one of four has.)

        Raises:
          ValueError: an output that this network cannot reach.
        """
        layers, lmax, parity = self.layers, self.lmax, self.parity
        sh = harmonics(lmax, self.so3)
        muls = self._multiplicities(sh if self.so3 else allowed(lmax, parity))
        wanted = {ir for _, ir in e3nn.Irreps(self.irreps_out)}

        reachable = [{SCALAR}]
        for mul in muls:
            reachable.append(set(mul) & products(reachable[-1], sh))
        if missing := wanted - reachable[-1]:
            raise unreachable(self.irreps_out, missing, layers=layers, lmax=lmax, parity=parity)

        kept, needed = [], wanted
        for k in reversed(range(layers)):
            keeps_all = self.keep_irreps and k + 1 < layers
            kept.append(reachable[k + 1] if keeps_all else reachable[k + 1] & needed)
            sources = {ir for _, ir in gated([(1, ir) for ir in kept[-1]])}
            needed = {ir for ir in muls[k - 1] if products([ir], sh) & sources}
        hidden = [
            e3nn.Irreps([(mul[ir], ir) for ir in sorted(irs)])
            for mul, irs in zip(muls, reversed(kept), strict=True)
        ]
        first = self.embedding_channels
        if first is None:
            first = self.channels if self.hidden is None else hidden[0].count(SCALAR)
        return [e3nn.Irreps([(first, SCALAR)]), *hidden, e3nn.Irreps(self.irreps_out)]

    def _multiplicities(self, irs) -> list[dict]:
        """Return the multiplicity of each irrep that a layer may have, for each layer."""
        if self.hidden is None:
            return [dict.fromkeys(irs, self.channels)] * self.layers
        parts = self._of_layers("hidden", "irreps, or irreps")
        return [{ir: mul for mul, ir in e3nn.Irreps(part).regroup()} for part in parts]

    def skips(self) -> list[str]:
        """Return the kind of self-connection of each layer."""
        return self._of_layers("skip", f"one of {', '.join(SKIPS)}, or one of them", SKIPS)

    def _of_layers(self, name: str, kind: str, known: tuple[str, ...] | None = None) -> list[str]:
        """Return the parts of a setting that is one for all layers, or one for each with commas."""
        parts = getattr(self, name).split(",")
        parts = parts * self.layers if len(parts) == 1 else parts
        if len(parts) != self.layers or (known and not set(parts) <= set(known)):
            raise ValueError(
                f"{name} must be {kind} for each of the {self.layers} layers with commas, got "
                f"{getattr(self, name)!r}"
            )
        return parts

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
        self.check()
        irreps_in, *hidden, irreps_out = self.layer_irreps()
        # [n_edges, irreps_sh], [n_edges, num_bessel] or a table
        sh, basis = self._edges(vectors, species, edges)
        if self.species_neighbors is None:
            sh = sh / math.sqrt(self.avg_num_neighbors)
        else:
            counts = jnp.asarray(self.species_neighbors, sh.dtype)[species[edges.senders]]
            sh = sh / jnp.sqrt(counts)[:, None]
        species = edges.of_receivers(species)
        h = embed_species(self, species, basis.dtype, irreps_in.dim)
        layers = zip([irreps_in, *hidden[:-1]], map(gated, hidden), strict=True)
        radial = radial_networks(self, basis, sh, layers)  # [n_edges, width] for each layer
        for k, (irreps, skip) in enumerate(zip(hidden, self.skips(), strict=True)):
            h = Interaction(
                str(irreps),
                self.num_species,
                skip,
                self.one_hot and k == 0,
                self.layer_norm,
                self.biases,
                self.normalize_activation,
                self.backend,
                self.fused,
                name=f"layer_{k}",
            )(h, sh, radial[k], species, edges)  # [n_nodes, irreps]
        return linear(self, irreps_out, "readout")(h)

    def _edges(self, vectors, species, edges):
        """Return spherical harmonics and the radial basis of each edge, or a table in its place."""
        sh, basis, _, _ = self.edge_functions(vectors, species, edges)
        if self.solid_harmonics:
            lengths, _, _ = lengths_and_directions(vectors)
            powers = [lengths[:, None] ** ir.l * jnp.ones(ir.dim, sh.dtype) for _, ir in sh.irreps]
            sh = e3nn.IrrepsArray(sh.irreps, sh.array * jnp.concatenate(powers, axis=1))
        if self.so3:
            sh = e3nn.IrrepsArray([(mul, (ir.l, 1)) for mul, ir in sh.irreps], sh.array)
        return sh, basis

    def breaks(self) -> tuple[float, ...]:
        onset = (float(self.cutoff_onset),) if self.cutoff_function == "xplor" else ()
        return onset + super().breaks()

    def envelope(self, lengths):
        if self.cutoff_function == "xplor":
            return xplor_cutoff(lengths, self.cutoff_onset, self.cutoff)
        return super().envelope(lengths)

    def check(self):
        super().check()
        self.skips()
        onset = self.cutoff_onset
        if self.cutoff_function == "xplor" and not (onset and 0 < onset < self.cutoff):
            raise ValueError(
                "cutoff_function='xplor' needs a cutoff_onset between 0 and "
                f"{self.cutoff} Å, got {onset}"
            )
