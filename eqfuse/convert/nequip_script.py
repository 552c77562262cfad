"""Deployed networks of nequip 0.5 and 0.6 (TorchScript), of whose code nothing is executed."""

import re

import numpy as np

from eqfuse.convert.archives import Compiled
from eqfuse.convert.e3nn_records import irreps_of, network_of, product_of
from eqfuse.convert.nequip_records import NequIPRecords, refuse
from eqfuse.convert.pickled import Record
from eqfuse.models.irreps import SCALAR

_WRAPPERS = ("GraphModel", "RescaleOutput", "StressOutput", "GradientOutput", "PartialForceOutput")
_FUNCTION = re.compile(r"torch\.mul\(torch\.(\w+)\(\w+\), CONSTANTS\.c(\d+)\)")


class NequIPScript(NequIPRecords):
    """A file of `nequip-deploy build`."""

    known = ("one_hot", "spharm_edges", "radial_basis", "chemical_embedding", "total_energy_sum")
    known += ("conv_to_output_hidden", "output_hidden_to_scalar", "per_species_rescale")

    def __init__(self, compiled: Compiled):
        self._compiled = compiled
        scale, func = _unwrapped(compiled.module)
        super().__init__(func, compiled.extra["type_names"].split(), scale)

    def part_names(self):
        """Return the names of the parts."""
        parts = self.func.state.items()
        return [
            name
            for name, part in parts
            if isinstance(part, Record) and part.kind.startswith("__torch__.")
        ]

    def harmonics(self):
        """Return the irreps of the spherical harmonics."""
        return irreps_of(self.func.get("spharm_edges.irreps_edge_sh"))

    def basis(self):
        """Return the settings of the radial basis."""
        basis, cutoff = (self.func.get(f"radial_basis.{name}") for name in ("basis", "cutoff"))
        if basis.name != "BesselBasis" or cutoff.name != "PolynomialCutoff":
            refuse(f"a radial basis of the kinds {basis.name} and {cutoff.name}")
        r_max = float(basis.get("r_max"))
        return {
            "cutoff": r_max,
            "poly_power": cutoff.get("p"),
            "pair_cutoffs": None,
            "frequencies": np.asarray(basis.get("bessel_weights"), np.float64) / r_max,
            "factor": float(basis.get("prefactor")),
        }

    def embedding(self):
        """Return the features of the species."""
        return self.linear(self.func.get("chemical_embedding.linear"))[SCALAR]

    def neighbors(self, conv):
        """Return n of the sums, which are divided by sqrt(n)."""
        return (float(conv.get("avg_num_neighbors") or 1.0),)

    def product(self, conv):
        """Return the tensor product of a convolution."""
        return conv.get("tp")

    def radial(self, conv, first):
        """Return the matrices of a radial network, between which is plain silu."""
        network = conv.get("fc")
        layers = [network.get(f"layer{j}") for j in range(len(network.get("hs")) - 1)]
        return network_of(layers, lambda layer: self.factor(layer, "act", "silu"), first)

    def skip(self, conv):
        """Return the matrices of a self-connection with the one-hot of the species."""
        matrices = product_of(conv.get("sc"))
        if any(len(w) != len(self.species) for w in matrices.values()):
            refuse("a self-connection with something else than the element")
        return matrices

    def readout(self):
        """Return the two Linears of the readout as one matrix."""
        first, second = (
            self.linear(self.func.get(f"{name}.linear"))[SCALAR]
            for name in ("conv_to_output_hidden", "output_hidden_to_scalar")
        )
        return first @ second

    def per_species(self, name):
        """Return scales or shifts of the elements; what is not there changes nothing."""
        rescale = self.func.get("per_species_rescale")
        if rescale is None or not rescale.get(f"has_{name}"):
            return np.array(1.0 if name == "scales" else 0.0)
        return np.asarray(rescale.get(name), np.float64)

    def activation(self, owner, name):
        """Return an activation's function and factor, as the text of its code has them."""
        kind = owner.get(name).kind.rpartition(".")[0]
        match = _FUNCTION.search(self._compiled.code[kind.replace(".", "/") + ".py"])
        if match is None:
            return "one that is not known here", 1.0
        return match[1], float(self._compiled.constants[int(match[2])])


def _unwrapped(module: Record) -> tuple[float, Record]:
    """Return the factor of all energies, and the network that predicts those of the atoms."""
    scale = 1.0
    while module.name in _WRAPPERS:
        if module.name == "RescaleOutput":
            if module.get("has_scale"):
                scale *= float(module.get("scale_by"))
            if module.get("has_shift") and np.any(np.asarray(module.get("shift_by"))):
                refuse("a shift of the energy that does not depend on the atoms (shift_by)")
        module = module.get("model") or module.get("func")
    if module.name != "SequentialGraphNetwork":
        refuse(f"a part of the kind {module.name}")
    return scale, module
