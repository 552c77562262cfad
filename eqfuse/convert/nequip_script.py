"""Deployed networks of nequip 0.5 and 0.6 (TorchScript), of whose code nothing is executed."""

import math
import re

import e3nn_jax as e3nn
import numpy as np
from ase.data import atomic_numbers

from eqfuse.convert.converted import Converted
from eqfuse.convert.errors import ConvertError
from eqfuse.convert.irreps_matrices import linear_matrices, named, one_hot_matrices, scaled
from eqfuse.convert.nequip_layers import (
    Layer,
    Path,
    coupling_factor,
    layer_parameters,
    skip_setting,
)
from eqfuse.convert.pickled import Compiled, Record, read_compiled
from eqfuse.models import NequIP
from eqfuse.models.irreps import SCALAR

_KNOWN = ("one_hot", "spharm_edges", "radial_basis", "chemical_embedding", "total_energy_sum")
_KNOWN += ("conv_to_output_hidden", "output_hidden_to_scalar", "per_species_rescale")
_WRAPPERS = ("GraphModel", "RescaleOutput", "StressOutput", "GradientOutput", "PartialForceOutput")
_FUNCTION = re.compile(r"torch\.mul\(torch\.(\w+)\(\w+\), CONSTANTS\.c(\d+)\)")


def read_nequip(path, choice: None = None) -> Converted:
    """Read a file that `nequip-deploy build` of nequip 0.5 or 0.6 has written.

    Args:
      path: of the file.
      choice: None; the networks have one head.
    Raises:
      ConvertError: a file of another kind, or a network that NequIP here cannot represent.
    """
    if choice is not None:
        raise ConvertError(f"networks of nequip have one head only, and no {choice!r}")
    compiled = read_compiled(path)
    if not compiled.module.kind.startswith("__torch__.nequip."):
        raise ConvertError(f"{path} holds a {compiled.module.kind}, no network of nequip")
    return _Network(compiled).converted()


def _refuse(what: str):
    raise ConvertError(f"the network has {what}, which eqfuse's NequIP cannot represent")


def _irreps(pairs) -> e3nn.Irreps:
    return e3nn.Irreps([(mul, tuple(ir)) for mul, ir in pairs])


class _Network:
    """A file, and what it says of each part."""

    def __init__(self, compiled: Compiled):
        self.compiled = compiled
        self.scale, self.func = _unwrapped(compiled.module)
        names = compiled.extra["type_names"].split()
        if unknown := [name for name in names if name not in atomic_numbers]:
            _refuse(f"types of atoms that are no elements ({', '.join(unknown)})")
        numbers = [atomic_numbers[name] for name in names]
        self.order = [int(k) for k in np.argsort(numbers)]
        self.species = tuple(sorted(numbers))
        self.layers = []
        while (layer := self.func.get(f"layer{len(self.layers)}_convnet")) is not None:
            self.layers.append(layer)
        for name, part in self.func.state.items():
            module = isinstance(part, Record) and part.kind.startswith("__torch__.")
            if module and name not in _KNOWN and not re.fullmatch(r"layer\d+_convnet", name):
                _refuse(f"a part that is not known here ({name})")
        self.harmonics = _irreps(self.func.get("spharm_edges.irreps_edge_sh"))
        self.so3 = any(ir.p != (-1) ** ir.l for _, ir in self.harmonics)
        self.features = [_irreps(self.layers[0].get("conv.linear_1.irreps_out"))]
        self.factors = [{}]
        for layer in self.layers:
            after, factors = self._gate(layer)
            self.features.append(after)
            self.factors.append(factors)

    def _gate(self, layer: Record):
        """Return the features after a gate, and the factor of each irrep."""
        gate = layer.get("equivariant_nonlin")
        if gate.name != "Gate":
            _refuse(f"a nonlinearity of the kind {gate.name} (nonlinearity_type)")
        if layer.get("resnet"):
            _refuse("residual layers (resnet)")
        parts = {
            name: _irreps(gate.get(f"irreps_{name}")) for name in ("scalars", "gates", "gated")
        }
        if any(ir != SCALAR for _, ir in parts["gates"]):
            _refuse("gates that are odd scalars")
        factors = {}
        for k, (_, ir) in enumerate(parts["scalars"]):
            factors[ir] = self._factor(
                gate, f"act_scalars.acts.{k}", "silu" if ir.p > 0 else "tanh"
            )
        for k, (_, ir) in enumerate(parts["gated"]):
            factors[ir] = self._factor(gate, f"act_gates.acts.{k}", "silu")
        return parts["scalars"] + parts["gated"], factors

    def _factor(self, owner: Record, name: str, expected: str) -> float:
        """Return by what an activation is multiplied, as the code says."""
        activation = owner.get(name)
        text = self.compiled.code[activation.kind.rpartition(".")[0].replace(".", "/") + ".py"]
        match = _FUNCTION.search(text)
        if match is None or match[1] != expected:
            _refuse(f"an activation other than {expected} ({match and match[1]}, in {name})")
        return float(self.compiled.constants[int(match[2])])

    def converted(self) -> Converted:
        """Return the network."""
        fields = self._fields()
        ours = NequIP(**fields).layer_irreps()[:-1]
        basis = self.func.get("radial_basis.basis")
        frequencies = np.asarray(basis.get("bessel_weights"), np.float64) / fields["cutoff"]
        embedding = self._linear(self.func.get("chemical_embedding.linear"))[SCALAR]
        params = {"frequencies": frequencies, "embedding": embedding[self.order], "radial": {}}
        for k in range(len(self.layers)):
            result, radial = layer_parameters(self._layer(k), ours[k], ours[k + 1])
            params[f"layer_{k}"], params["radial"][f"layer_{k}"] = result, radial
        first, second = (
            self._linear(self.func.get(f"{name}.linear"))
            for name in ("conv_to_output_hidden", "output_hidden_to_scalar")
        )
        both = {SCALAR: scaled(first, self.factors[-1])[SCALAR] @ second[SCALAR]}
        params["readout"] = named(both, ours[-1], "0e")
        count = len(self.species)
        scales, shifts = (self._per_species(name, count) for name in ("scales", "shifts"))
        references = self.scale * shifts
        return Converted(
            program="nequip",
            model="nequip",
            fields=fields,
            params=params,
            scale=tuple((self.scale * scales).tolist()),
            shift=(0.0,) * count,
            references=dict(zip(self.species, references.tolist(), strict=True)),
            dtype=str(np.asarray(self.func.get("chemical_embedding.linear.weight")).dtype),
        )

    def _per_species(self, name: str, count: int) -> np.ndarray:
        """Return scales or shifts of the elements; what is not there changes nothing."""
        rescale = self.func.get("per_species_rescale")
        if rescale is None or not rescale.get(f"has_{name}"):
            return np.full(count, 1.0 if name == "scales" else 0.0)
        values = np.asarray(rescale.get(name), np.float64)
        return np.broadcast_to(values, (count,))[self.order]

    def _fields(self) -> dict:
        basis, cutoff = (self.func.get(f"radial_basis.{name}") for name in ("basis", "cutoff"))
        if basis.name != "BesselBasis" or cutoff.name != "PolynomialCutoff":
            _refuse(f"a radial basis of the kinds {basis.name} and {cutoff.name}")
        if float(cutoff.get("p")) != int(cutoff.get("p")):
            _refuse(f"a cutoff of the power {cutoff.get('p')}, which is no whole number")
        neighbors = {layer.get("conv.avg_num_neighbors") or 1.0 for layer in self.layers}
        widths = {tuple(layer.get("conv.fc.hs")[1:-1]) for layer in self.layers}
        if len(neighbors) > 1 or len(widths) > 1 or len(set(min(widths))) > 1:
            _refuse(f"layers that differ (avg_num_neighbors {neighbors}, widths {widths})")
        [widths] = widths
        hidden = {}
        for irreps in self.features[1:]:
            for mul, ir in irreps:
                if hidden.setdefault(ir, mul) != mul:
                    _refuse(f"layers of unlike multiplicities of {ir}")
        skips = ["species" if layer.get("conv.use_sc") else "none" for layer in self.layers]
        channels = self.features[0].count(SCALAR)
        return {
            "irreps_out": "0e",
            "num_species": len(self.species),
            "layers": len(self.layers),
            "channels": channels,
            "lmax": self.harmonics.lmax,
            "parity": not self.so3,
            "cutoff": float(basis.get("r_max")),
            "num_bessel": int(basis.get("num_basis")),
            "poly_power": int(cutoff.get("p")),
            "radial_layers": len(widths),
            "radial_hidden": int(widths[0]),
            "avg_num_neighbors": float(min(neighbors)),
            "hidden": str(e3nn.Irreps([(hidden[ir], ir) for ir in sorted(hidden)])),
            "so3": self.so3,
            "embedding_channels": channels,
            "skip": skip_setting(skips),
            "normalize_activation": False,
            "trainable_bessel": True,
        }

    def _linear(self, linear: Record):
        if np.asarray(linear.get("bias")).size:
            _refuse("Linears with biases")
        irreps = (_irreps(linear.get(f"irreps_{side}")) for side in ("in", "out"))
        return linear_matrices(linear.get("weight"), *irreps)[0]

    def _layer(self, k: int) -> Layer:
        conv, before, factors = self.layers[k].get("conv"), self.features[k], self.factors[k]
        skip = None
        if conv.get("use_sc"):
            product = conv.get("sc")
            irreps = _irreps(product.get("irreps_in1")), _irreps(product.get("irreps_out"))
            count = len(self.species)
            if _irreps(product.get("irreps_in2")).dim != count:
                _refuse("a self-connection with something else than the element")
            skip = one_hot_matrices(product.get("weight"), irreps[0], count, irreps[1])
            skip = scaled({ir: w[self.order] for ir, w in skip.items()}, factors)
        return Layer(
            before=before,
            after=self.features[k + 1],
            up=scaled(self._linear(conv.get("linear_1")), factors),
            paths=_paths(conv.get("tp")),
            radial=self._radial(conv.get("fc")),
            down=self._linear(conv.get("linear_2")),
            skip=skip,
        )

    def _radial(self, network: Record) -> list[np.ndarray]:
        """Return the matrices of a radial network, between which is plain silu."""
        # Bessel functions are 2/c sin()/d there and sqrt(2/c) sin()/d here
        basis = self.func.get("radial_basis.basis")
        before = float(basis.get("prefactor")) / math.sqrt(2 / float(basis.get("r_max")))
        matrices, count = [], len(network.get("hs")) - 1
        for j in range(count):
            layer = network.get(f"layer{j}")
            weight = np.asarray(layer.get("weight"), np.float64) * before
            weight = weight / math.sqrt(layer.get("h_in") * layer.get("var_in"))
            if j < count - 1:
                before = self._factor(layer, "act", "silu") * math.sqrt(layer.get("var_out"))
            else:
                weight = weight * math.sqrt(layer.get("var_out"))
            matrices.append(weight)
        return matrices


def _unwrapped(module: Record) -> tuple[float, Record]:
    """Return the factor of all energies, and the network that predicts those of the atoms."""
    scale = 1.0
    while module.name in _WRAPPERS:
        if module.name == "RescaleOutput":
            if module.get("has_scale"):
                scale *= float(module.get("scale_by"))
            if module.get("has_shift") and np.any(np.asarray(module.get("shift_by"))):
                _refuse("a shift of the energy that does not depend on the atoms (shift_by)")
        module = module.get("model") or module.get("func")
    if module.name != "SequentialGraphNetwork":
        _refuse(f"a part of the kind {module.name}")
    return scale, module


def _paths(product: Record) -> list[Path]:
    """Return the paths of a convolution, of which the file has a list."""
    factors, outputs = (_irreps(product.get(name)) for name in ("irreps_in1", "irreps_out"))
    harmonics = _irreps(product.get("irreps_in2"))
    rows, used = [], {}
    for mul, ir in outputs:
        rows.append(used.get(ir, 0))
        used[ir] = used.get(ir, 0) + mul
    paths, start = [], 0
    for i1, i2, o, mode, _, weight, _ in product.get("instructions"):
        mul, ir_in = factors[i1]
        ir, l = outputs[o].ir, harmonics[i2].ir.l
        if mode != "uvu":
            _refuse(f"a convolution of the mode {mode}")
        degrees = (ir_in.l, l, ir.l)
        stored = product.get("_compiled_main_left_right._w3j_{}_{}_{}".format(*degrees))
        factor = coupling_factor(stored, degrees) * float(weight) / math.sqrt(ir.dim)
        paths.append(Path(ir_in, l, ir, start, rows[o], mul, factor))
        start += mul
    return paths
