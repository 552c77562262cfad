"""Packages of nequip 0.7 and later (`.nequip.zip`), of whose code nothing is executed."""

import math

import numpy as np

from eqfuse.convert.e3nn_records import irreps_of, product_of
from eqfuse.convert.nequip_records import NequIPRecords, refuse
from eqfuse.convert.pickled import Record
from eqfuse.models import ZBL
from eqfuse.models.pairs import radii_of


def energy_parts(module: Record) -> Record:
    """Return the parts, in order, of the network of a package, which predict energies of atoms."""
    if module.name == "ModuleDict":  # the networks of a training, by name
        names = list(module.state["_modules"])
        if len(names) != 1:
            refuse(f"several networks in one file ({', '.join(names)})")
        module = module.get(names[0])
    while module.name in ("GraphModel", "ForceStressOutput"):
        module = module.get("model") or module.get("func")
    if module.name != "SequentialGraphNetwork":
        refuse(f"a part of the kind {module.name}")
    return module


class NequIPPackage(NequIPRecords):
    """The eager model of a package."""

    known = ("type_embed", "spharm", "edge_norm", "bessel_encode", "factor", "total_energy_sum")
    known += ("per_atom_energy_readout", "per_type_energy_scale_shift", "pair_potential")

    def __init__(self, func: Record):
        super().__init__(func, list(func.get("per_type_energy_scale_shift.type_names")))

    def part_names(self):
        """Return the names of the parts."""
        return list(self.func.state["_modules"])

    def harmonics(self):
        """Return the irreps of the spherical harmonics."""
        return irreps_of(self.func.get("spharm.irreps_edge_sh"))

    def basis(self):
        """Return the settings of the radial basis."""
        return self.basis_of(self.func.get("bessel_encode"))

    def basis_of(self, bessel: Record) -> dict:
        """Return the settings of a radial basis, as `NequIPRecords.basis` does."""
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

    def embedding(self):
        """Return the features of the species."""
        embed = self.func.get("type_embed")
        if embed.get("do_categorical_graph_field_embed"):
            refuse("embeddings of what is not an element (categorical_graph_field_embed)")
        return np.asarray(embed.get("embed_module.weight"), np.float64)

    def neighbors(self, conv):
        """Return n of the sums, which are divided by sqrt(n)."""
        return neighbors_of(conv.get("avg_num_neighbors_norm"))

    def repulsion(self):
        """Return the repulsion of nuclei, if there is one."""
        pair = self.func.get("pair_potential")
        if pair is None:
            return None
        if pair.name != "ZBL":
            refuse(f"a pair potential of the kind {pair.name}")
        (r_max, cutoffs), power = self.cutoffs(), pair.get("cutoff.p")
        if cutoffs is not None:
            refuse("ZBL with cutoffs for each pair of elements (per_edge_type_cutoff)")
        if float(power) != int(power):
            refuse(f"ZBL with a cutoff of the power {power}, which is no whole number")
        return ZBL(
            atomic_numbers=self.species,
            covalent_radii=radii_of(self.species),
            power=int(power),
            length=0.46850,
            coefficients=(0.18175, 0.50986, 0.28022, 0.02817),
            decays=(3.19980, 0.94229, 0.40290, 0.20162),
            coulomb=2 * float(np.asarray(pair.get("_qqr2exesquare"))),
            cutoff=r_max,
        )

    def product(self, conv):
        """Return the tensor product of a convolution."""
        return conv.get("tp_scatter.tp")

    def radial(self, conv, first):
        """Return the matrices of a radial network, between which is plain silu."""
        matrices = scalar_matrices(conv.get("edge_mlp"), "SiLU")
        return [matrices[0] * first, *matrices[1:]]

    def skip(self, conv):
        """Return the matrices of a self-connection with the embedding of the species."""
        embedding = self.embedding()
        matrices = product_of(conv.get("sc"))
        return {ir: np.einsum("sf,fuv->suv", embedding, w) for ir, w in matrices.items()}

    def readout(self):
        """Return the readout as one matrix."""
        matrices = scalar_matrices(self.func.get("per_atom_energy_readout.mlp_module"), None)
        return np.linalg.multi_dot(matrices) if len(matrices) > 1 else matrices[0]

    def per_species(self, name):
        """Return scales or shifts of the elements."""
        values = self.func.get(f"per_type_energy_scale_shift.{name}")
        if values is None or not np.size(values):
            return np.array(1.0 if name == "scales" else 0.0)
        return np.asarray(values, np.float64).ravel()

    def activation(self, owner, name):
        """Return an activation's function, and by what it is multiplied."""
        item = owner.get(name)
        function = getattr(item.get("f"), "kind", "?").rpartition(".")[2].lower()
        return function, 1.0 if item.get("_is_id") else float(item.get("cst"))


def neighbors_of(norm: Record) -> tuple[float, ...]:
    """Return n of an `AvgNumNeighborsNorm`, which divides by sqrt(n): one, or one for each type."""
    return tuple((1 / np.asarray(norm.get("norm_const"), np.float64).ravel() ** 2).tolist())


def scalar_matrices(network: Record, act: str | None) -> list[np.ndarray]:
    """Return the matrices of a ScalarMLPFunction, between which is an activation or nothing."""
    mlp = network.get("mlp")
    if mlp.name == "DeepLinearMLP":
        weights = [np.asarray(w, np.float64) for w in _parameters(mlp.get("weights"))]
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


def _parameters(parameters: Record) -> list:
    result = []
    while parameters.get(str(len(result))) is not None:
        result.append(parameters.get(str(len(result))))
    return result
