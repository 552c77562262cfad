"""Networks of nequip as records of their modules, and the deployed ones, of TorchScript."""

import math
import re

import numpy as np
from ase.data import atomic_numbers

from eqfuse.convert.converted import Converted, refuse, whole_power
from eqfuse.convert.e3nn_torch import (
    Matrices,
    irreps_of,
    linear_of,
    network_of,
    paths_of,
    product_of,
)
from eqfuse.convert.layers import (
    Layer,
    hidden_setting,
    interactions,
    named,
    one_or_each,
    scaled,
)
from eqfuse.convert.records import Compiled, Record
from eqfuse.models import ZBL, NequIP
from eqfuse.models.ewald import LatentEwald
from eqfuse.models.irreps import SCALAR
from eqfuse.models.potential import irreps_out


class NequIPRecords:
    """A network, and what its records hold of each part; readers of files complete it.

    Readers of files define these methods, in whose arrays elements have the order of the file:
      part_names(): names of the parts of `func`.
      basis(): settings of the radial basis: `cutoff`, `poly_power` and `pair_cutoffs` as ours, and
        `frequencies` f, 1/Å, of the Bessel functions, which are `factor` sin(f d)/d.
      embedding(): features of the species, [species, channels].
      neighbors(conv): n of the sums, which are divided by sqrt(n): one, or one for each species.
      radial(conv, first): matrices of a radial network, whose input is multiplied with `first`.
      skip(conv): matrices of a self-connection, [species, rows, columns].
      readout(): the matrix of the even scalars of the last layer, [channels, 1], or [channels, 2]
        with latent charges.
      per_species(name): scales or shifts of the species, eV.
      activation(owner, name): an activation's function, and its factor.
    """

    harmonics: str  # the name of the irreps of the spherical harmonics in `func`
    product: str  # the name of the tensor product in a convolution
    known: tuple[str, ...] = ()  # parts of `func` besides the layers
    layer_names = r"layer\d+_convnet"

    def __init__(self, func: Record, names: list[str], scale: float = 1.0):
        self.func, self.scale = func, scale  # what predicts energies of atoms, and their factor
        if unknown := [name for name in names if name not in atomic_numbers]:
            refuse(f"types of atoms that are no elements ({', '.join(unknown)})")
        numbers = [atomic_numbers[name] for name in names]
        self.order = [int(k) for k in np.argsort(numbers)]
        self.species = tuple(sorted(numbers))
        for name in self.part_names():
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

    def repulsion(self) -> ZBL | None:
        """Return the repulsion of nuclei, if there is one."""
        return None

    def long_range(self) -> LatentEwald | None:
        """Return the sum of latent charges, if there are any."""
        return None

    def factor(self, owner: Record, name: str, expected: str) -> float:
        """Return the factor of an activation; refuse another function."""
        function, constant = self.activation(owner, name)
        if function != expected:
            refuse(f"an activation other than {expected} ({function}, in {name})")
        return constant

    def linear(self, linear: Record) -> Matrices:
        """Return the matrices of an `e3nn.o3.Linear`; refuse biases."""
        if np.asarray(linear.get("bias", ())).size:
            refuse("Linears with biases")
        return linear_of(linear)

    def converted(self) -> Converted:
        basis, fields = self.basis(), self._fields()
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
            np.broadcast_to(self.scale * self.per_species(name), (len(self.species),))[self.order]
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
        basis, harmonics = self.basis(), irreps_of(self.func.get(self.harmonics))
        neighbors = {self.neighbors(layer.get("conv")) for layer in self.layers}
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
            paths=paths_of(conv.get(self.product)),
            radial=self.radial(conv, first),
            down=self.linear(conv.get("linear_2")),
            skip=skip,
        )


_WRAPPERS = ("GraphModel", "RescaleOutput", "StressOutput", "GradientOutput", "PartialForceOutput")
_WRAPPERS += ("ForceStressOutput",)
_FUNCTION = re.compile(r"torch\.mul\(torch\.(\w+)\(\w+\), CONSTANTS\.c(\d+)\)")


class NequIPScript(NequIPRecords):
    """A file of `nequip-deploy build`."""

    known = ("one_hot", "spharm_edges", "radial_basis", "chemical_embedding", "total_energy_sum")
    known += ("conv_to_output_hidden", "output_hidden_to_scalar", "per_species_rescale")
    harmonics, product = "spharm_edges.irreps_edge_sh", "tp"

    def __init__(self, compiled: Compiled):
        self._compiled = compiled
        scale, func = unwrapped(compiled.module)
        super().__init__(func, compiled.extra["type_names"].split(), scale)

    def part_names(self):
        parts = {k: part for k, part in self.func.state.items() if isinstance(part, Record)}
        return [name for name, part in parts.items() if part.kind.startswith("__torch__.")]

    def basis(self):
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
        return self.linear(self.func.get("chemical_embedding.linear"))[SCALAR]

    def neighbors(self, conv):
        return (float(conv.get("avg_num_neighbors") or 1.0),)

    def radial(self, conv, first):
        network = conv.get("fc")
        layers = [network.get(f"layer{j}") for j in range(len(network.get("hs")) - 1)]
        return network_of(layers, lambda layer: self.factor(layer, "act", "silu"), first)

    def skip(self, conv):
        matrices = product_of(conv.get("sc"))
        if any(len(w) != len(self.species) for w in matrices.values()):
            refuse("a self-connection with something else than the element")
        return matrices

    def readout(self):
        first, second = (
            self.linear(self.func.get(f"{name}.linear"))[SCALAR]
            for name in ("conv_to_output_hidden", "output_hidden_to_scalar")
        )
        return first @ second

    def per_species(self, name):
        rescale = self.func.get("per_species_rescale")
        if rescale is None or not rescale.get(f"has_{name}"):
            return np.array(1.0 if name == "scales" else 0.0)
        return np.asarray(rescale.get(name), np.float64)

    def activation(self, owner, name):
        kind = owner.get(name).kind.rpartition(".")[0]
        match = _FUNCTION.search(self._compiled.code[kind.replace(".", "/") + ".py"])
        if match is None:
            return "one that is not known here", 1.0
        return match[1], float(self._compiled.constants[int(match[2])])


def unwrapped(module: Record) -> tuple[float, Record]:
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
