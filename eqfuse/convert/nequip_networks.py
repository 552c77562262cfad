"""Networks of nequip, as packages have them (`.nequip.zip`): records of their modules."""

import math
import re

import numpy as np
from ase.data import atomic_numbers

from eqfuse.convert.converted import Converted, refuse, whole_power
from eqfuse.convert.e3nn_torch import (
    Matrices,
    constant_of,
    irreps_of,
    linear_of,
    paths_of,
    product_of,
)
from eqfuse.convert.latent_charges import latent_ewald
from eqfuse.convert.layers import (
    Layer,
    hidden_setting,
    interactions,
    named,
    one_or_each,
    scaled,
)
from eqfuse.convert.records import Record
from eqfuse.models import ZBL, NequIP
from eqfuse.models.ewald import LatentEwald
from eqfuse.models.irreps import SCALAR
from eqfuse.models.pairs import radii_of
from eqfuse.models.potential import irreps_out

SILU = "SiLU"


class NequIPPackage:
    """The eager model of a package; in its arrays, elements have the order of the file."""

    known = ("type_embed", "spharm", "edge_norm", "bessel_encode", "factor", "total_energy_sum")
    known += ("per_atom_energy_readout", "per_type_energy_scale_shift", "pair_potential")
    # of NequIP-LES
    known += ("sr_energy_sum", "latent_charge_readout", "lr_energy_sum")
    layer_names = r"layer\d+_convnet"  # the parts of a network besides

    def __init__(self, func: Record):
        self.func, names = func, list(func.get("per_type_energy_scale_shift.type_names"))
        if unknown := [name for name in names if name not in atomic_numbers]:
            refuse(f"types of atoms that are no elements ({', '.join(unknown)})")
        numbers = [atomic_numbers[name] for name in names]
        self.order = [int(k) for k in np.argsort(numbers)]
        self.species = tuple(sorted(numbers))
        for name in self.func.state["_modules"]:
            if name not in self.known and not re.fullmatch(self.layer_names, name):
                refuse(f"a part that is not known here ({name})")
        self._read_layers()

    def _read_layers(self):
        self.layers = []
        while (layer := self.func.get(f"layer{len(self.layers)}_convnet")) is not None:
            self.layers.append(layer)
        if not self.layers:
            refuse("no layers called layer0_convnet, ...")
        self.features = [irreps_of(self.layers[0].get("conv.linear_1.irreps_out"))]
        self.factors = [{}]
        for layer in self.layers:
            after, factors = self._gate(layer)
            self.features.append(after)
            self.factors.append(factors)

    def dtype(self) -> str:
        return str(np.asarray(self.layers[0].get("conv.linear_1.weight")).dtype)

    def factor(self, owner: Record, name: str, expected: str) -> float:
        """Return the factor of an activation; refuse another function."""
        item = owner.get(name)
        function = getattr(item.get("f"), "kind", "?").rpartition(".")[2].lower()
        if function != expected:
            refuse(f"an activation other than {expected} ({function}, in {name})")
        return constant_of(item)

    def linear(self, linear: Record) -> Matrices:
        """Return the matrices of an `e3nn.o3.Linear`; refuse biases."""
        if np.asarray(linear.get("bias", ())).size:
            refuse("Linears with biases")
        return linear_of(linear)

    def converted(self) -> Converted:
        basis, fields = self.basis_of(self.func.get("bessel_encode")), self._fields()
        ours = NequIP(**fields).layer_irreps()[:-1]
        params = interactions([self._layer(k, basis) for k in range(len(self.layers))], ours)
        params["embedding"] = self.embedding()[self.order]
        params["frequencies"] = np.asarray(basis["frequencies"], np.float64).ravel()
        readout = scaled({SCALAR: self.readout()}, self.factors[-1])
        params["readout"] = named(readout, ours[-1], irreps_out(self.long_range()))
        return self._with_energies("nequip", fields, params)

    def _with_energies(self, model: str, fields: dict, params: dict) -> Converted:
        """Return the network, with the scales and shifts of its energies."""
        scales, shifts = (
            np.broadcast_to(self.per_species(name), (len(self.species),))[self.order]
            for name in ("scales", "shifts")
        )
        return Converted(
            program="nequip",
            model=model,
            fields=fields,
            params=params,
            scale=tuple(scales.tolist()),
            shift=(0.0,) * len(self.species),
            references=dict(zip(self.species, shifts.tolist(), strict=True)),
            dtype=self.dtype(),
            repulsion=self.repulsion(),
            long_range=self.long_range(),
        )

    def _gate(self, layer: Record):
        """Return the features after a gate, and the factor of each irrep."""
        gate = layer.get("equivariant_nonlin")
        if gate.name != "Gate":
            refuse(f"a nonlinearity of the kind {gate.name} (nonlinearity_type)")
        if layer.get("resnet"):
            refuse("residual layers (resnet)")
        names = ("scalars", "gates", "gated")
        scalars, gates, gated = (irreps_of(gate.get(f"irreps_{name}")) for name in names)
        if any(ir != SCALAR for _, ir in gates):
            refuse("gates that are odd scalars")
        factors = {}
        for k, (_, ir) in enumerate(scalars):
            expected = "silu" if ir == SCALAR else "tanh"
            factors[ir] = self.factor(gate, f"act_scalars.acts.{k}", expected)
        for k, (_, ir) in enumerate(gated):
            factors[ir] = self.factor(gate, f"act_gates.acts.{k}", "silu")
        return scalars + gated, factors

    def _fields(self) -> dict:
        basis = self.basis_of(self.func.get("bessel_encode"))
        harmonics = irreps_of(self.func.get("spharm.irreps_edge_sh"))
        norms = (layer.get("conv.avg_num_neighbors_norm") for layer in self.layers)
        neighbors = {*map(neighbors_of, norms)}
        widths = {
            tuple(len(w) for w in self.radial(layer.get("conv"), 1.0)[1:]) for layer in self.layers
        }
        if len(neighbors) > 1 or len(widths) > 1 or len(set(min(widths))) > 1:
            refuse(f"layers that differ (avg_num_neighbors {neighbors}, widths {widths})")
        skips = ["species" if layer.get("conv.use_sc") else "none" for layer in self.layers]
        so3 = any(ir.p != (-1) ** ir.l for _, ir in harmonics)
        [widths], [neighbors] = widths, neighbors
        return self._common_fields(basis, neighbors) | {
            "layers": len(self.layers),
            "channels": self.features[1].count(SCALAR),
            "lmax": harmonics.lmax,
            "parity": not so3,
            "radial_layers": len(widths),
            "radial_hidden": int(widths[0]) if widths else 1,
            "hidden": hidden_setting(self.features[1:]),
            "so3": so3,
            "embedding_channels": self.features[0].count(SCALAR),
            "skip": one_or_each(skips),
            "normalize_activation": False,
        }

    def _common_fields(self, basis: dict, neighbors: tuple[float, ...]) -> dict:
        """Return the settings that NequIP and Allegro share."""
        cutoffs = basis["pair_cutoffs"]
        if cutoffs is not None:
            cutoffs = np.asarray(cutoffs)[np.ix_(self.order, self.order)].tolist()
        return {
            "irreps_out": irreps_out(self.long_range()),
            "num_species": len(self.species),
            "cutoff": float(basis["cutoff"]),
            "num_bessel": np.size(basis["frequencies"]),
            "poly_power": whole_power(basis["poly_power"]),
            "avg_num_neighbors": float(np.mean(neighbors)),
            "species_neighbors": [neighbors[k] for k in self.order] if len(neighbors) > 1 else None,
            "trainable_bessel": True,
            "pair_cutoffs": cutoffs,
        }

    def _layer(self, k: int, basis: dict) -> Layer:
        conv, factors = self.layers[k].get("conv"), self.factors[k]
        skip = None
        if conv.get("use_sc"):
            matrices = self.skip(conv)
            skip = scaled({ir: w[self.order] for ir, w in matrices.items()}, factors)
        # Bessel functions here are sqrt(2/c) sin(f d)/d
        first = basis["factor"] / math.sqrt(2 / basis["cutoff"])
        return Layer(
            after=self.features[k + 1],
            up=scaled(self.linear(conv.get("linear_1")), factors),
            paths=paths_of(conv.get("tp_scatter.tp")),
            radial=self.radial(conv, first),
            down=self.linear(conv.get("linear_2")),
            skip=skip,
        )

    def long_range(self) -> LatentEwald | None:
        """Return the sum of latent charges, if there are any."""
        les = self.func.get("lr_energy_sum.les")
        return None if les is None else latent_ewald(les)

    def basis_of(self, bessel: Record) -> dict:
        """Return settings of a radial basis.

        They are `cutoff`, `poly_power` and `pair_cutoffs` as ours, and `frequencies` f, 1/Å, of the
        Bessel functions, which are `factor` sin(f d)/d.
        """
        if bessel.name != "BesselEdgeLengthEncoding":
            refuse(f"a radial basis of the kind {bessel.name}")
        if bessel.get("cutoff").name != "PolynomialCutoff":
            refuse(f"a cutoff function of the kind {bessel.get('cutoff').name}")
        r_max, cutoffs = self.cutoffs()
        # sinc(x w) w = sin(pi w d / c) c / (pi d)
        weights = np.asarray(bessel.get("bessel_weights"), np.float64)
        return {
            "cutoff": r_max,
            "poly_power": bessel.get("cutoff.p"),
            "pair_cutoffs": cutoffs,
            "frequencies": weights * (math.pi / r_max),
            "factor": float(self.func.get("factor.factor", 1.0)) * r_max / math.pi,
        }

    def cutoffs(self) -> tuple[float, np.ndarray | None]:
        """Return the cutoff, and those of pairs of species if they differ, Å."""
        norm = self.func.get("edge_norm")
        if not norm.get("_per_edge_type"):
            return float(norm.get("r_max")), None
        count = int(norm.get("num_types"))
        reciprocal = np.asarray(norm.get("_rmax_recip"), np.float64).reshape(count, count)
        return float(norm.get("r_max")), 1 / reciprocal

    def embedding(self) -> np.ndarray:
        """Return the features of the species, [species, channels]."""
        embed = self.func.get("type_embed")
        if embed.get("do_categorical_graph_field_embed"):
            refuse("embeddings of what is not an element (categorical_graph_field_embed)")
        return np.asarray(embed.get("embed_module.weight"), np.float64)

    def repulsion(self) -> ZBL | None:
        """Return the repulsion of nuclei, if there is one."""
        pair = self.func.get("pair_potential")
        if pair is None:
            return None
        if pair.name != "ZBL":
            refuse(f"a pair potential of the kind {pair.name}")
        (r_max, cutoffs), power = self.cutoffs(), pair.get("cutoff.p")
        if cutoffs is not None:
            refuse("ZBL with cutoffs for each pair of elements (per_edge_type_cutoff)")
        return ZBL(
            atomic_numbers=self.species,
            covalent_radii=radii_of(self.species),
            power=whole_power(power, "ZBL with a cutoff"),
            length=0.46850,
            coefficients=(0.18175, 0.50986, 0.28022, 0.02817),
            decays=(3.19980, 0.94229, 0.40290, 0.20162),
            coulomb=2 * float(np.asarray(pair.get("_qqr2exesquare"))),
            cutoff=r_max,
        )

    def radial(self, conv: Record, first: float) -> list[np.ndarray]:
        """Return the matrices of a radial network, whose input is multiplied with `first`."""
        matrices = scalar_matrices(conv.get("edge_mlp"), SILU)
        return [matrices[0] * first, *matrices[1:]]

    def skip(self, conv: Record) -> Matrices:
        """Return the matrices of a self-connection, [species, rows, columns]."""
        embedding = self.embedding()
        matrices = product_of(conv.get("sc"))
        return {ir: np.einsum("sf,fuv->suv", embedding, w) for ir, w in matrices.items()}

    def readout(self) -> np.ndarray:
        """Return the matrix of the even scalars of the last layer, [channels, 1], or [channels, 2].

        The second column is that of latent charges.
        """
        names = ["per_atom_energy_readout"]
        names += [] if self.long_range() is None else ["latent_charge_readout"]
        each = [scalar_matrices(self.func.get(f"{name}.mlp_module"), None) for name in names]
        columns = [w[0] if len(w) == 1 else np.linalg.multi_dot(w) for w in each]
        return np.concatenate(columns, axis=1)

    def per_species(self, name: str) -> np.ndarray:
        """Return scales or shifts of the species, eV."""
        values = self.func.get(f"per_type_energy_scale_shift.{name}")
        if values is None or not np.size(values):
            return np.array(1.0 if name == "scales" else 0.0)
        return np.asarray(values, np.float64).ravel()


def neighbors_of(norm: Record) -> tuple[float, ...]:
    """Return n of an `AvgNumNeighborsNorm`, which divides by sqrt(n): one, or one for each type."""
    return tuple((1 / np.asarray(norm.get("norm_const"), np.float64).ravel() ** 2).tolist())


def scalar_matrices(network: Record, act: str | None) -> list[np.ndarray]:
    """Return the matrices of a ScalarMLPFunction, between which is an activation or nothing."""
    mlp = network.get("mlp")
    if mlp.name == "DeepLinearMLP":
        weights = [np.asarray(w, np.float64) for w in mlp.get("weights").arrays()]
        return [np.linalg.multi_dot(weights) * float(np.asarray(mlp.get("alpha")))]
    matrices = []
    for layer in mlp.children():
        if layer.name == "ScalarLinearLayer":
            if layer.get("bias") is not None:
                refuse("networks of scalars with biases")
            weight = np.asarray(layer.get("weight"), np.float64)
            matrices.append(weight * float(np.asarray(layer.get("alpha"))))
        elif layer.name != act:
            expected = act or "no activation"
            refuse(f"a network of scalars with {layer.name}, where {expected} is expected")
    return matrices
