"""The parameters of mace's `RealAgnosticResidualNonLinearInteractionBlock`."""

import numpy as np

from eqfuse.convert.errors import ConvertError
from eqfuse.convert.irreps_matrices import Matrices, named, scaled
from eqfuse.convert.mace_linears import by_path, irreps, matrices_of, normalised
from eqfuse.convert.nequip_layers import gate_columns
from eqfuse.convert.pickled import Record
from eqfuse.models.irreps import SCALAR
from eqfuse.models.nequip_irreps import gated


def interaction(block: Record, paths: list[dict], irreps_basis, order) -> dict:
    """Return the parameters of `eqfuse.models.mace_nonlinear.NonlinearBasis`.

    Args:
      block: the interaction.
      paths: of its convolution, in our order.
      irreps_basis: of A here.
      order: places of the file's elements.
    """
    gate, whole = gated(irreps_basis), irreps(block.get("irreps_out"))
    columns = gate_columns(whole, irreps_basis)

    def narrowed(matrices: Matrices) -> Matrices:
        return {ir: w[:, columns] if ir == SCALAR else w for ir, w in matrices.items()}

    blocks = by_path(block, "linear_1")
    down = {
        ir: np.concatenate([blocks[p["out"]] * p["scale"] for p in paths if p["ir"] == ir])
        for _, ir in irreps_basis
    }
    mid = [(path["mul"], path["ir"]) for path in paths]
    scalars, gates = _gate_ratios(block.get("equivariant_nonlin"))
    ratios = {ir: scalars if ir == SCALAR else gates for _, ir in irreps_basis}
    after = scaled(matrices_of(block.get("linear_2")), ratios)
    tables = {
        name: matrices_of(block.get(f"{name}_embedding"))[SCALAR][order]
        for name in ("source", "target")
    }
    sent = irreps(block.get("linear_res.irreps_in"))
    return tables | {
        "weights": _pair_mlp(block.get("conv_tp_weights"), columns_of(paths)),
        "density": _pair_mlp(block.get("density_fn"), slice(None)),
        "alpha": np.asarray(block.get("alpha"), np.float64).reshape(()),
        "beta": np.asarray(block.get("beta"), np.float64).reshape(()),
        "linear_basis": named(narrowed(down), mid, gate),
        "linear_residual": named(narrowed(matrices_of(block.get("linear_res"))), sent, gate),
        "linear_gated": named(after, irreps_basis, irreps_basis),
    }


def columns_of(paths: list[dict]) -> np.ndarray:
    """Return the places of the weights of paths in the output of a radial network."""
    return np.concatenate([p["start"] + np.arange(p["mul"]) for p in paths])


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


def _pair_mlp(network: Record, columns) -> dict:
    """Return the parameters of `eqfuse.models.mace_nonlinear.PairMLP`."""
    layers, result = layers_of(network), {}
    for k, layer in enumerate(layers):
        kernel, bias = (np.asarray(layer.get(n), np.float64) for n in ("weight", "bias"))
        last = columns if k == len(layers) - 1 else slice(None)
        dense = {"kernel": kernel.T[:, last], "bias": bias[last]}
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
        float(constant) / normalised(name)
        for name, constant in zip(("silu", "sigmoid"), constants, strict=True)
    )
