"""MACE: message passing with higher-order equivariant messages (Batatia et al. 2022)."""

import math
from typing import Literal

import e3nn_jax as e3nn
import flax.linen as nn

from eqfuse import ops
from eqfuse.models.irreps import SCALAR, allowed, harmonics, products, unreachable
from eqfuse.models.mace_layers import MACELayer, Readout
from eqfuse.models.message_passing import embed_species, linear, radial_networks
from eqfuse.models.network import Network
from eqfuse.models.pairs import length_transform


class MACE(Network):
    """MACE: species embedding, `layers` layers of higher-order messages, a readout of each.

    The sum of the readouts is predicted: linear ones, and a small network for the last. Edges of
    zero length (padding) and edges beyond the cutoff contribute exactly zero.

    The paper leaves some things open, and the published programs fill them in differently:

    - The sum over neighbours is divided by sqrt(n) here, as in NequIP, where the programs divide by
      n: the same functions, for parameters of another size.
    - Eq. 12 has a skip in every layer. In the first it only adds a constant for each element, which
      an isolated atom would have too; without it, the default here and in the program of the paper,
      that is predicted to be zero. `first_skip=True` has it, as later programs do.
    - Where they have no skip, the programs mix A once more, by a Linear for each element. Eqs. 8
      and 10 have none; `species_linear=True` has it.
    - Networks of later programs, such as MACE-MPA-0, divide A by a density of neighbours that is
      learned (`density_normalization=True`), and transform lengths by the covalent radii of the
      pair before the Bessel functions (`distance_transform="agnesi"`). Their repulsion of near
      atoms is a field of `eqfuse.models.Potential`.
    - Networks since 2025, such as MACE-MH-1, differ in what `nonlinear` and the settings from
      `apply_cutoff` on say.
    - A has natural parity, (-1)^l, in all of them. `parity=True` keeps both parities.

    Attributes:
      layers: number of layers.
      channels: multiplicity of each irrep.
      lmax: largest l of the spherical harmonics and of A.
      hidden_lmax: largest l of the node features between layers, L of the paper.
      correlation: largest number of factors A in a message, the body order less one.
      parity: A and node features of both parities, or of natural parity (-1)^l only, as published.
      first_skip: whether the first layer has a skip too.
      species_linear: whether a layer without a skip has a Linear of A for each species instead.
      density_normalization: A / (1 + sum_j tanh((B_ij w)^2)), with weights w, not A / sqrt(n).
      distance_transform: of lengths before the Bessel functions; None for none.
      transform_constants: q, p and a of agnesi, see `eqfuse.models.pairs.agnesi_transform`.
      soft_steepness: of soft, see `eqfuse.models.pairs.soft_transform`.
      atomic_numbers: of the species, for a transform.
      covalent_radii: of the species, Å, for a transform; None for those of ASE.
      radial_layers: hidden layers of the radial network.
      radial_hidden: width of the radial network.
      readout_hidden: width of the last readout.
      apply_cutoff: whether the polynomial cutoff multiplies the radial basis; if not, it multiplies
        the weights of the products and the densities.
      edge_irreps: irreps of what the first Linear of a layer sends along edges, such as
        "32x0e+32x1o"; None for those of the features.
      first_edge_irreps: whether the first layer has the scalars of `edge_irreps` too.
      agnostic_product: all species share the weights of the symmetric products.
      last_readout_only: the sum of readouts is the last one alone.
      readout_biases: the last readout has one more layer, and biases.
      nonlinear: A is that of `eqfuse.models.mace_layers.NonlinearBasis`, in every layer, with a
        skip.
    References: Batatia et al. 2022, Advances in Neural Information Processing Systems 35.
    """

    poly_power: int = 5
    layers: int = 2
    channels: int = 32
    lmax: int = 2
    hidden_lmax: int = 1
    correlation: int = 3
    parity: bool = False
    first_skip: bool = False
    species_linear: bool = False
    density_normalization: bool = False
    distance_transform: Literal["agnesi", "soft"] | None = None
    transform_constants: tuple[float, float, float] = (0.9183, 4.5791, 1.0805)
    soft_steepness: float = 4.0
    atomic_numbers: tuple[int, ...] | None = None
    covalent_radii: tuple[float, ...] | None = None
    radial_layers: int = 2
    radial_hidden: int = 64
    readout_hidden: int = 16
    apply_cutoff: bool = True
    edge_irreps: str | None = None
    first_edge_irreps: bool = False
    agnostic_product: bool = False
    last_readout_only: bool = False
    readout_biases: bool = False
    nonlinear: bool = False

    positive = ("readout_hidden",)
    least = (*Network.least, ("hidden_lmax", 0), ("correlation", 1))

    @property
    def of_species(self) -> tuple[str, ...]:
        """Return the names of parameters, or modules, whose first axis counts the species."""
        names = ("embedding", "species_linear", "skip", "source", "target")
        return names if self.agnostic_product else (*names, "contraction")

    def layer_irreps(self) -> list[e3nn.Irreps]:
        """Return the node features from the embedding to the readout, `layers + 2` Irreps."""
        hidden = [features for _, features in self.basis_and_feature_irreps()]
        return [e3nn.Irreps([(self.channels, SCALAR)]), *hidden, e3nn.Irreps(self.irreps_out)]

    def num_pairs(self) -> int:
        """Return the number of pairs of species that have radial functions of their own."""
        count = self.num_species
        return 1 if self.distance_transform is None else count * (count + 1) // 2

    def basis_and_feature_irreps(self) -> list[tuple[e3nn.Irreps, e3nn.Irreps]]:
        """Return the irreps of the atomic basis A and of the node features of each layer.

        A has every irrep up to `lmax` that the features before it can become in a product with the
        spherical harmonics, and that can be a factor of the features after it. Features have those
        up to `hidden_lmax` that a symmetric product of A can become; the last ones only what the
        readout of `irreps_out` needs.
        """
        sh, within = harmonics(self.lmax), allowed(self.lmax, self.parity)
        wanted = {ir for _, ir in e3nn.Irreps(self.irreps_out)}
        gates = {SCALAR} if any(ir.l > 0 for ir in wanted) else set()

        features, pairs = {SCALAR}, []
        for k in range(self.layers):
            basis = within & products(features, sh)
            last = k == self.layers - 1
            wishes = wanted | gates if last else allowed(self.hidden_lmax, self.parity)
            features = {ir for ir in wishes if _contracts(basis, ir, self.correlation)}
            pairs.append((_needed(basis, features, self.correlation), features))
        if missing := wanted - features:
            names = ("layers", "lmax", "correlation", "parity")
            settings = {name: getattr(self, name) for name in names}
            raise unreachable(self.irreps_out, missing, **settings)
        return [
            tuple(e3nn.Irreps([(self.channels, ir) for ir in sorted(irs)]) for irs in pair)
            for pair in pairs
        ]

    @nn.compact
    def __call__(self, vectors, species, edges):
        """Predict `irreps_out` for each node; operands, result and errors are those of `NequIP`."""
        self.check()
        all_irreps = self.basis_and_feature_irreps()
        transform, pairs = length_transform(self, species, edges)
        sh, basis, envelope, _ = self.edge_functions(vectors, species, edges, pairs, transform)
        if not (self.density_normalization or self.nonlinear):
            sh = sh / math.sqrt(self.avg_num_neighbors)
        h = embed_species(self, edges.of_receivers(species), basis.dtype)
        features = [h.irreps, *(irreps for _, irreps in all_irreps)]
        sent = self._edge_irreps(features[:-1])
        factor = None if self.apply_cutoff else envelope
        if self.nonlinear:  # what has biases does not vanish with the basis
            factor = (envelope > 0).astype(basis.dtype) if self.apply_cutoff else envelope
            radial = [None] * self.layers
        else:
            layers = zip(sent, (irreps_basis for irreps_basis, _ in all_irreps), strict=True)
            radial = radial_networks(self, basis, sh, layers)
            if factor is not None:
                radial = [
                    w.times(factor[:, None])
                    if isinstance(w, ops.Tabulated)
                    else (w * factor[:, None]).astype(w.dtype)
                    for w in radial
                ]
        hidden = (self.radial_hidden,) * self.radial_layers
        out = 0
        for k, (irreps_basis, irreps) in enumerate(all_irreps):
            skip = k > 0 or self.first_skip or self.nonlinear
            h = MACELayer(
                str(irreps_basis),
                str(irreps),
                self.correlation,
                self.num_species,
                skip,
                self.species_linear and not skip,
                self.density_normalization,
                str(sent[k]),
                self.agnostic_product,
                hidden if self.nonlinear else None,
                self.backend,
                self.fused,
                name=f"layer_{k}",
            )(h, sh, radial[k], species, edges, basis, factor)  # [n_nodes, irreps]
            if k < self.layers - 1 and not self.last_readout_only:
                out += linear(self, self.irreps_out, f"readout_{k}")(h)
        options = self.readout_hidden, self.readout_biases, self.backend
        return out + Readout(self.irreps_out, *options, name=f"readout_{self.layers - 1}")(h)

    def _edge_irreps(self, features: list[e3nn.Irreps]) -> list[e3nn.Irreps]:
        """Return the irreps that each layer sends along edges, of features before each layer."""
        if self.edge_irreps is None:
            return features
        given = e3nn.Irreps(self.edge_irreps).regroup()
        sent = [given.filter(keep=[ir for _, ir in irreps]) for irreps in features]
        return sent if self.first_edge_irreps else [features[0], *sent[1:]]


def _contracts(basis, ir, correlation: int) -> bool:
    """Check that a symmetric product of up to `correlation` factors of `basis` gives `ir`."""
    irreps = e3nn.Irreps([(1, b) for b in sorted(basis)])
    try:
        ops.symmetric_contraction_paths(irreps, [(1, ir)], correlation)
    except ValueError:
        return False
    return True


def _needed(basis, features, correlation: int):
    """Return the irreps of `basis` that can be a factor of an irrep of `features`."""
    others = {SCALAR}
    for _ in range(correlation - 1):
        others |= {out for ir in others for b in basis for out in ir * b}
    return {b for b in basis if any(out in features for ir in others for out in ir * b)}
