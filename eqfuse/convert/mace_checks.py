"""What this package's MACE cannot represent of mace's networks, refused by name."""

import math

import numpy as np

from eqfuse.convert.errors import ConvertError
from eqfuse.convert.pickled import Record

_NETWORKS = ("MACE", "ScaleShiftMACE")
PLAIN, RESIDUAL = "RealAgnosticInteractionBlock", "RealAgnosticResidualInteractionBlock"
DENSITY = "RealAgnosticDensityInteractionBlock"
DENSITY_RESIDUAL = "RealAgnosticDensityResidualInteractionBlock"
NONLINEAR = "RealAgnosticResidualNonLinearInteractionBlock"
_INTERACTIONS = (PLAIN, RESIDUAL, DENSITY, DENSITY_RESIDUAL, NONLINEAR)
_READOUTS = ("NonLinearReadoutBlock", "NonLinearBiasReadoutBlock")


def is_silu(activation: Record | None) -> bool:
    """Return whether an activation of e3nn's, normalised, is silu."""
    function = None if activation is None else activation.get("f")
    return getattr(function, "kind", "").rpartition(".")[2] in ("silu", "SiLU")


def refuse(what: str):
    """Raise the error of a network with something that is not known here."""
    raise ConvertError(f"the network has {what}, which eqfuse's MACE cannot represent")


def check_kinds(network: Record):
    """Refuse a network with parts or options of an unknown kind."""
    if network.name not in _NETWORKS or not network.kind.startswith("mace."):
        raise ConvertError(
            f"the file holds a {network.kind}; only {' and '.join(_NETWORKS)} of mace, which "
            "predict energies, can be converted"
        )
    if network.get("joint_embedding") is not None:
        refuse("embeddings of charge or spin (embedding_specs)")
    if network.get("use_so3"):  # files of old versions have no such name
        refuse("couplings of SO(3) (use_so3)")
    _check_radial(network.get("radial_embedding"))
    _check_interactions(network)
    _check_readouts(network)


def _check_interactions(network: Record):
    for block in network.get("interactions").children():
        if block.name not in _INTERACTIONS:
            refuse(f"an interaction of the kind {block.name}")
        for name in ("cueq_config", "oeq_config"):
            config = block.get(name)
            if config is not None and config.get("enabled"):
                refuse(
                    f"the layout of another library ({name}); convert it back by mace's own "
                    "mace_cueq_to_e3nn or mace_oeq_to_e3nn"
                )
        nonlinear = block.name == NONLINEAR
        linears = ("linear_up", "linear_1", "linear_2", "linear_res", "skip_tp")
        for name in linears if nonlinear else ("linear_up", "linear"):
            _expect(block, name, "e3nn.", "Linear")
        _expect(block, "conv_tp", "e3nn.", "TensorProduct")
        if not nonlinear:
            _expect(block, "skip_tp", "e3nn.", "FullyConnectedTensorProduct")
        radial = block.get("conv_tp_weights").name
        for layer in block.get("conv_tp_weights").children():
            if layer.name == "LoRAFCLayer":
                refuse("a LoRAFCLayer, which mace's merge_lora_weights merges")
        if radial != ("RadialMLP" if nonlinear else "FullyConnectedNet"):
            refuse(f"a radial network of the kind {radial} in a {block.name}")
    for product in network.get("products").children():
        _expect(product, "symmetric_contractions", "mace.", "SymmetricContraction")
        _expect(product, "linear", "e3nn.", "Linear")


def _expect(block: Record, name: str, package: str, kind: str):
    part = block.get(name)
    if part is None or not part.kind.startswith(package) or part.name != kind:
        what = "none" if part is None else part.kind
        refuse(f"in {block.name}.{name} not a {kind} of {package.rstrip('.')} but {what}")


def _check_radial(radial: Record):
    basis, cutoff = radial.get("bessel_fn"), radial.get("r_max", None)
    if basis.name != "BesselBasis":
        refuse(f"a radial basis of the kind {basis.name}")
    cutoff = float(radial.get("cutoff_fn.r_max"))
    frequencies = np.asarray(basis.get("bessel_weights"), np.float64)
    expected = np.arange(1, len(frequencies) + 1) * math.pi / cutoff
    if abs(frequencies / expected - 1).max() > 1e-5:
        refuse("Bessel functions with frequencies that were trained")
    transform = radial.get("distance_transform")
    if transform is not None and transform.name not in ("AgnesiTransform", "SoftTransform"):
        refuse(f"a transform of distances of the kind {transform.name}")
    if transform is not None and transform.get("b") is not None:
        refuse("the SoftTransform of mace 0.3.5 to 0.3.9, whose formula is another one")


def _check_readouts(network: Record):
    *linear, last = network.get("readouts").children()
    layers = len(network.get("interactions").children())
    if len(linear) + 1 != (1 if network.get("use_last_readout_only") else layers):
        refuse("not a readout for each layer")
    for readout in linear:
        if readout.name != "LinearReadoutBlock":
            refuse(f"before the last layer a readout of the kind {readout.name}")
    if last.name not in _READOUTS:
        refuse(f"in the last layer a readout of the kind {last.name}")
    if not is_silu(last.get("non_linearity.acts.0")):
        refuse("a readout with another activation than silu (gate)")
