"""Checkpoints of SevenNet (`sevenn`), read without torch: nothing in them is executed."""

import math

import e3nn_jax as e3nn
import numpy as np

from eqfuse.convert.converted import Converted, ConvertError, refuse
from eqfuse.convert.e3nn_torch import (
    SILU,
    convolution_paths,
    e3nn_gate,
    gate_in_torch,
    linear_matrices,
    one_hot_matrices,
)
from eqfuse.convert.layers import (
    Layer,
    hidden_setting,
    interactions,
    named,
    one_or_each,
    scaled,
)
from eqfuse.convert.records import read_saved, value
from eqfuse.models import NequIP
from eqfuse.models.irreps import SCALAR, harmonics

_RENAMED = {
    "EdgeEmbedding": "edge_embedding",
    "reducing nn input to hidden": "reduce_input_to_hidden",
    "reducing nn hidden to energy": "reduce_hidden_to_energy",
    "rescale atomic energy": "rescale_atomic_energy",
}
"""Modules of checkpoints from before 0.9.2 that newer ones call otherwise."""
_SKIPS = {"nequip": "species", "linear": "linear", "none": "none"}


def read_sevennet(path, modal: str | None = None) -> Converted:
    """Read a checkpoint of SevenNet, and of one that was trained on several fidelities, `modal`."""
    config, result = _config(path)
    state = {_name(key): value(entry) for key, entry in result["model_state_dict"].items()}
    return _Network(config, state, modal).converted()


def fidelities_of(path) -> list[str]:
    """Return the names of the fidelities of a checkpoint; none where it has one only."""
    return list(_config(path)[0].get("_modal_map") or {})


def _config(path) -> tuple[dict, dict]:
    """Return the configuration of a checkpoint, and all that it holds."""
    result = read_saved(path)
    if not isinstance(result, dict) or not {"config", "model_state_dict"} <= set(result):
        raise ConvertError(
            f"{path} is no checkpoint of SevenNet: it has no model_state_dict; name another "
            "program by `eqfuse convert PROGRAM FILE RUN`"
        )
    return {str(key): value(entry) for key, entry in result["config"].items()}, result


def _name(key: str) -> str:
    module, _, rest = key.partition(".")
    module = _RENAMED.get(module, module.replace(" ", "_"))
    return f"{module}.{rest.replace('denumerator', 'denominator')}"


class _Network:
    """A checkpoint, and what it holds of each part."""

    def __init__(self, config: dict, state: dict, modal: str | None):
        self.config, self.state = config, state
        self.version = tuple(int(part) for part in str(config["version"]).split(".")[:2])
        _check(config, state)
        self.so3 = not config.get("is_parity", True)
        lmax = config["lmax"]
        self.lmax = config["lmax_edge"] if config.get("lmax_edge", -1) > 0 else lmax
        self.harmonics = harmonics(self.lmax, self.so3)
        self.layers = int(config["num_convolution_layer"])
        self.biases = bool(config.get("_modal_map") or config.get("use_bias_in_linear"))
        self.features = self._features()
        numbers = sorted(config["_type_map"])
        self.species = tuple(int(z) for z in numbers)
        self.order = [int(config["_type_map"][z]) for z in numbers]
        self.modals = dict(config.get("_modal_map") or {})
        self.modal = int(self.modals[modal]) if self.modals else None

    def _features(self) -> list[e3nn.Irreps]:
        """Return the features after the embedding and after each layer, in their order."""
        config = self.config
        if config.get("irreps_manual"):
            result = [e3nn.Irreps(str(value(irreps))) for irreps in config["irreps_manual"]]
        else:
            result = [e3nn.Irreps(f"{config['channel']}x0e")]
            lmax_node = config["lmax_node"] if config.get("lmax_node", -1) > 0 else config["lmax"]
            for k in range(self.layers):
                last = k == self.layers - 1
                reached = self._reached(result[-1], 0 if last else lmax_node, last)
                result.append(e3nn.Irreps([(config["channel"], ir) for _, ir in reached]))
        if any(len({ir for _, ir in irreps}) < len(irreps) for irreps in result):
            refuse("features that list an irrep twice (irreps_manual)")
        if any(SCALAR not in {ir for _, ir in irreps} for irreps in result):
            refuse("gates that are odd scalars (features without 0e)")
        return result

    def _reached(self, before, lmax: int, even_only: bool) -> e3nn.Irreps:
        """Return the products of features with the harmonics, as sevenn sorts and counts them."""
        paths = convolution_paths(
            before,
            self.harmonics,
            lambda ir: ir.l <= lmax and not (even_only and ir.p < 0),
        )
        counts = {}
        for path in paths:
            counts[path.ir] = counts.get(path.ir, 0) + path.mul
        return e3nn.Irreps([(mul, ir) for ir, mul in counts.items()])

    def fields(self) -> dict:
        config, first = self.config, self.features[0]
        cutoff = dict(config["cutoff_function"])
        kinds = config.get("self_connection_type", "nequip")
        kinds = [kinds] * self.layers if isinstance(kinds, str) else list(kinds)
        widths = [int(width) for width in config["weight_nn_hidden_neurons"]]
        xplor = cutoff["cutoff_function_name"] == "XPLOR"
        return {
            "irreps_out": "0e",
            "num_species": len(self.species),
            "layers": self.layers,
            "channels": first.count(SCALAR),
            "lmax": self.lmax,
            "parity": not self.so3,
            "cutoff": float(config["cutoff"]),
            "num_bessel": len(self.state["edge_embedding.basis_function.coeffs"]),
            "poly_power": int(cutoff.get("poly_cut_p_value", 6)),
            "radial_layers": len(widths),
            "radial_hidden": widths[0],
            "avg_num_neighbors": 1.0,  # the divisor of each layer is in its matrices
            "hidden": hidden_setting(self.features[1:]),
            "so3": self.so3,
            "embedding_channels": first.count(SCALAR),
            "skip": one_or_each([_SKIPS[kind] for kind in kinds]),
            "biases": self.biases,
            "normalize_activation": False,
            "cutoff_function": "xplor" if xplor else "polynomial",
            "cutoff_onset": float(cutoff["cutoff_on"]) if xplor else None,
            "trainable_bessel": True,
            "solid_harmonics": not config.get("_normalize_sph", self.version > (0, 9)),
        }

    def converted(self) -> Converted:
        fields = self.fields()
        ours = NequIP(**fields).layer_irreps()[:-1]
        for irreps, theirs in zip(ours[1:], self.features[1:], strict=True):
            if missing := {ir for _, ir in irreps} - {ir for _, ir in theirs}:
                refuse(f"features that a layer could have but has not ({min(missing)})")
        state = self.state
        embedding, bias = self._linear("onehot_to_feature_x", f"{len(self.species)}x0e", ours[0])
        params = interactions([self._layer(k) for k in range(self.layers)], ours)
        params["embedding"] = embedding[SCALAR][self.order] + bias
        params["frequencies"] = np.asarray(
            state["edge_embedding.basis_function.coeffs"], np.float64
        )
        params["readout"], shift = self._readout(ours[-1])
        scale, shifts = self._rescale("scale"), self._rescale("shift")
        return Converted(
            program="sevennet",
            model="nequip",
            fields=fields,
            params=params,
            scale=tuple(scale),
            shift=(0.0,) * len(scale),
            references=dict(zip(self.species, (shifts + scale * shift).tolist(), strict=True)),
            dtype=str(state["onehot_to_feature_x.linear.weight"].dtype),
            choice=next((name for name, k in self.modals.items() if k == self.modal), None),
        )

    def _linear(self, name: str, irreps_in, irreps_out):
        """Return the matrices of a Linear, and its biases: its own, and the row of the fidelity.

        Even scalars after its input, one of which is 1, say the fidelity.
        """
        flat = np.asarray(self.state[f"{name}.linear.weight"], np.float64)
        irreps_in, irreps_out = e3nn.Irreps(irreps_in), e3nn.Irreps(irreps_out)
        need = sum(
            mul * mul_out for mul, ir in irreps_in for mul_out, out in irreps_out if ir == out
        )
        scalars = irreps_out.count(SCALAR)
        extra = (len(flat) - need) // scalars if scalars else 0
        if extra not in (0, len(self.modals)):
            refuse(f"in {name} {len(flat)} weights, where {need} fit its irreps")
        own = np.asarray(self.state.get(f"{name}.linear.bias", ()), np.float64)
        bias = own if own.size else np.zeros(scalars)
        if not extra:
            return linear_matrices(flat, irreps_in, irreps_out), bias
        matrices = linear_matrices(flat, irreps_in + f"{extra}x0e", irreps_out)
        matrices[SCALAR], rows = np.split(matrices[SCALAR], [-extra])
        return matrices, bias + rows[self.modal]

    def _layer(self, k: int) -> Layer:
        before, after, config = self.features[k], self.features[k + 1], self.config
        mid = self._reached(before, after.lmax, k == self.layers - 1)
        kept = {ir for _, ir in mid}
        gate = gate_in_torch(after)
        features = e3nn_gate(before) if k else {}
        up, up_bias = self._linear(f"{k}_self_interaction_1", before, before)
        down, down_bias = self._linear(f"{k}_self_interaction_2", mid, gate)
        divisor = float(self.state[f"{k}_convolution.denominator"][0])
        prefix, layers = f"{k}_convolution.weight_nn.layer", len(config["weight_nn_hidden_neurons"])
        # Bessel functions are 2/c sin()/d there and sqrt(2/c) sin()/d here
        radial, factor = [], math.sqrt(2 / float(config["cutoff"]))
        for j in range(layers + 1):
            weight = np.asarray(self.state[f"{prefix}{j}.weight"], np.float64)
            radial.append(weight * (factor / math.sqrt(len(weight))))
            factor = SILU
        stored = "{}_convolution.convolution._compiled_main_left_right._w3j_{}_{}_{}"
        paths = convolution_paths(
            before,
            self.harmonics,
            kept.__contains__,
            sort_weights=self.version >= (0, 11),
            couplings=lambda degrees: self.state.get(stored.format(k, *degrees)),
        )
        return Layer(
            after=after,
            up=scaled(up, features),
            paths=paths,
            radial=radial,
            down={ir: w / divisor for ir, w in down.items()},
            skip=self._skip(k, before, gate, features),
            up_bias=up_bias if self.biases else None,
            down_bias=down_bias if self.biases else None,
        )

    def _skip(self, k: int, before, gate, features):
        linear = self.state.get(f"{k}_self_connection_intro.linear.weight")
        if linear is not None:
            return scaled(linear_matrices(linear, before, gate), features)
        product = self.state.get(f"{k}_self_connection_intro.fc_tensor_product.weight")
        if product is None:
            return None
        result = one_hot_matrices(product, before, len(self.species), gate)
        return scaled({ir: w[self.order] for ir, w in result.items()}, features)

    def _readout(self, irreps) -> tuple[dict, float]:
        """Return the two Linears after the last layer as one, and its bias."""
        hidden = e3nn.Irreps(f"{irreps.dim // 2}x0e")
        first, inner = self._linear("reduce_input_to_hidden", irreps, hidden)
        second, outer = self._linear("reduce_hidden_to_energy", hidden, "0e")
        both = {SCALAR: scaled(first, e3nn_gate(irreps))[SCALAR] @ second[SCALAR]}
        bias = inner @ second[SCALAR] + outer
        return named(both, irreps, "0e"), float(bias[0])

    def _rescale(self, name: str) -> np.ndarray:
        values = np.asarray(self.state[f"rescale_atomic_energy.{name}"], np.float64)
        if values.ndim == 2:
            values = values[self.modal]
        return np.broadcast_to(values, (len(self.species),))[self.order]


def _check(config: dict, state: dict):
    """Refuse what is not known here, by name."""
    if config.get("interaction_type") not in (None, "nequip"):
        refuse(f"interactions of the kind {config['interaction_type']!r} (interaction_type)")
    if config.get("readout_as_fcn"):
        refuse("a readout that is a network (readout_as_fcn)")
    if config.get("optimize_by_reduce") is False:
        refuse("a layout that sevenn itself reads no more (optimize_by_reduce: False)")
    acts = [config.get("act_radial"), *(config[name]["e"] for name in ("act_scalar", "act_gate"))]
    if set(acts) != {"silu"} or config["act_scalar"].get("o", "tanh") != "tanh":
        refuse(f"activations other than silu, and tanh for odd scalars ({', '.join(acts)})")
    kinds = config.get("self_connection_type", "nequip")
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        if kind not in _SKIPS:
            refuse(f"a self-connection of the kind {kind!r} (self_connection_type)")
    if dict(config["cutoff_function"])["cutoff_function_name"] not in ("poly_cut", "XPLOR"):
        refuse(f"the cutoff function {dict(config['cutoff_function'])['cutoff_function_name']!r}")
    if dict(config.get("radial_basis", {})).get("radial_basis_name", "bessel") != "bessel":
        refuse(f"the radial basis {dict(config['radial_basis'])['radial_basis_name']!r}")
    if len(set(config["weight_nn_hidden_neurons"])) != 1:
        refuse(f"a radial network of the widths {config['weight_nn_hidden_neurons']}, not alike")
    known = ("edge_embedding", "onehot_to_feature_x", "reduce_input_to_hidden")
    known += ("reduce_hidden_to_energy", "rescale_atomic_energy")
    for name in state:
        module = name.partition(".")[0]
        if module not in known and not module[:1].isdigit():
            refuse(f"a part that is not known here ({module}), such as ZBL or D3")
