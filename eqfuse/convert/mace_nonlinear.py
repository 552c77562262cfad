"""The parameters of mace's `RealAgnosticResidualNonLinearInteractionBlock`."""

import numpy as np

from eqfuse.convert.activations import normalized_by
from eqfuse.convert.e3nn_records import irreps_of, linear_of
from eqfuse.convert.errors import ConvertError
from eqfuse.convert.irreps_matrices import Matrices, named, scaled
from eqfuse.convert.nequip_layers import Path, after_convolution, gate_columns
from eqfuse.convert.pickled import Record
from eqfuse.models.irreps import SCALAR, gated


def interaction(block: Record, paths: list[Path], irreps_basis, order) -> dict:
    """Return the parameters of `eqfuse.models.mace_layers.NonlinearBasis`.

    Args:
      block: the interaction.
      paths: of its convolution, in our order.
      irreps_basis: of A here.
      order: places of the file's elements.
    """
    gate, whole = gated(irreps_basis), irreps_of(block.get("irreps_out"))
    columns = gate_columns(whole, irreps_basis)

    def narrowed(matrices: Matrices) -> Matrices:
        return {ir: w[:, columns] if ir == SCALAR else w for ir, w in matrices.items()}

    scalars, gates = _gate_ratios(block.get("equivariant_nonlin"))
    ratios = {ir: scalars if ir == SCALAR else gates for _, ir in irreps_basis}
    after = scaled(linear_of(block.get("linear_2")), ratios)
    tables = {
        name: linear_of(block.get(f"{name}_embedding"))[SCALAR][order]
        for name in ("source", "target")
    }
    sent = irreps_of(block.get("linear_res.irreps_in"))
    return tables | {
        "weights": _pair_mlp(block.get("conv_tp_weights"), paths),
        "density": _pair_mlp(block.get("density_fn")),
        "alpha": np.asarray(block.get("alpha"), np.float64).reshape(()),
        "beta": np.asarray(block.get("beta"), np.float64).reshape(()),
        "linear_basis": after_convolution(narrowed(linear_of(block.get("linear_1"))), paths, gate),
        "linear_residual": named(narrowed(linear_of(block.get("linear_res"))), sent, gate),
        "linear_gated": named(after, irreps_basis, irreps_basis),
    }


def layers_of(network: Record) -> list[Record]:
    """Return the Linears of a `RadialMLP`.

    Raises:
      ConvertError: other parts between them than a layer norm and silu.
    """
    parts = network.get("net").children()
    kinds = [part.name for part in parts]
    count = kinds.count("Linear")
    if kinds != ["Linear", "LayerNorm", "SiLU"] * (count - 1) + ["Linear"]:
        raise ConvertError(f"the network has a radial network of {kinds}, which eqfuse has not")
    return parts[::3]


def _pair_mlp(network: Record, paths: list[Path] | None = None) -> dict:
    """Return the parameters of a `PairMLP`, whose output may be for some paths."""
    layers = [
        [np.asarray(layer.get(name), np.float64).T for name in ("weight", "bias")]
        for layer in layers_of(network)
    ]
    if paths is not None:
        columns = np.concatenate([p.start + np.arange(p.mul) for p in paths])
        factors = np.concatenate([np.full(p.mul, p.factor) for p in paths])
        layers[-1] = [array[..., columns] * factors for array in layers[-1]]
    result = {}
    for k, (kernel, bias) in enumerate(layers):
        dense = {"kernel": kernel, "bias": bias}
        result |= {f"Dense_{k}": dense} if k else dense
    norms = [part for part in network.get("net").children() if part.name == "LayerNorm"]
    for k, norm in enumerate(norms):
        scale, bias = (np.asarray(norm.get(n), np.float64) for n in ("weight", "bias"))
        result[f"norm_{k}"] = {"scale": scale, "bias": bias}
    return result


def _gate_ratios(gate: Record) -> tuple[float, float]:
    """Return by what the scalars and the gates of a file differ from those here."""
    if gate.name == "Gate":  # e3nn's, before 0.3.15
        acts = [gate.get(f"{name}.acts.0") for name in ("act_scalars", "act_gates")]
        functions, constants = ([act.get(name) for act in acts] for name in ("f", "cst"))
    else:
        functions = [gate.get("_act_scalar"), gate.get("_act_gate")]
        constants = [gate.get("_scalar_cst"), gate.get("_gate_cst")]
    names = [getattr(f, "kind", "none").rpartition(".")[2] for f in functions]
    if names not in (["silu", "sigmoid"], ["silu", "none"]):
        raise ConvertError(f"the network has a gate of {' and '.join(names)}, not silu and sigmoid")
    return tuple(
        float(constant) / normalized_by(name)
        for name, constant in zip(("silu", "sigmoid"), constants, strict=True)
    )
