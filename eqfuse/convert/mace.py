"""Networks of mace (`mace-torch`), read without torch: nothing in their files is executed."""

import dataclasses
import math

import e3nn_jax as e3nn
import numpy as np

from eqfuse.convert.converted import Converted, ConvertError, refuse
from eqfuse.convert.e3nn_torch import irreps_of
from eqfuse.convert.latent_charges import latent_ewald
from eqfuse.convert.mace_parameters import (
    charge_readouts,
    degrees_of,
    head_of,
    layers_of,
    order_of,
    parameters,
)
from eqfuse.convert.records import Record, read_module, value
from eqfuse.models import ZBL
from eqfuse.models.ewald import LatentEwald
from eqfuse.models.irreps import SCALAR
from eqfuse.models.potential import irreps_out

_NETWORKS = ("MACE", "ScaleShiftMACE", "MACELES")
PLAIN, RESIDUAL = "RealAgnosticInteractionBlock", "RealAgnosticResidualInteractionBlock"
DENSITY = "RealAgnosticDensityInteractionBlock"
DENSITY_RESIDUAL = "RealAgnosticDensityResidualInteractionBlock"
NONLINEAR = "RealAgnosticResidualNonLinearInteractionBlock"
_INTERACTIONS = (PLAIN, RESIDUAL, DENSITY, DENSITY_RESIDUAL, NONLINEAR)
_READOUTS = ("NonLinearReadoutBlock", "NonLinearBiasReadoutBlock")
BOHR = 0.529
"""Å, as mace's ZBL rounds it."""
COULOMB = 14.3996
"""e^2 / (4 pi epsilon_0), eV Å, as mace's ZBL rounds it."""


def heads_of_mace(path) -> list[str]:
    """Return the names of the heads of a file of mace."""
    return list(read_module(path).get("heads", ["Default"]))


def read_mace(path, head: str | None = None) -> Converted:
    """Read a file that mace has written by `torch.save(model, path)`, for one of its heads."""
    network = read_module(path)
    described = describe(network, head)
    return dataclasses.replace(described, params=parameters(network, described))


def describe(network: Record, head: str | None = None) -> Converted:
    """Return a network without its parameters, or refuse what it has and MACE here has not."""
    _check_kinds(network)
    order, (which, _) = order_of(network), head_of(network, head)
    species = tuple(int(value(network.get("atomic_numbers")[k])) for k in order)
    scale, shift = (
        float(np.atleast_1d(network.get(f"scale_shift.{name}", default))[which])
        for name, default in (("scale", 1.0), ("shift", 0.0))
    )
    energies = np.atleast_2d(network.get("atomic_energies_fn.atomic_energies"))[which]
    return Converted(
        program="mace",
        model="mace",
        fields=_fields(network, species),
        params={},
        scale=(scale,) * len(species),
        shift=(shift,) * len(species),
        references={z: float(energies[k]) for z, k in zip(species, order, strict=True)},
        dtype=str(network.get("node_embedding.linear.weight").dtype),
        repulsion=_repulsion(network, species, scale),
        long_range=_charges(network),
        choice=head,
    )


def _fields(network: Record, species: tuple[int, ...]) -> dict:
    blocks = network.get("interactions").children()
    kinds = [block.name for block in blocks]
    residual = [kind in (RESIDUAL, DENSITY_RESIDUAL, NONLINEAR) for kind in kinds]
    density = [kind in (DENSITY, DENSITY_RESIDUAL) for kind in kinds]
    if not all(residual[1:]):
        refuse(f"an interaction without a residual after the first one ({kinds[-1]})")
    if len(set(density)) > 1 or len({kind == NONLINEAR for kind in kinds}) > 1:
        refuse(f"interactions of kinds that do not go together ({', '.join(kinds)})")
    neighbors = _same("avg_num_neighbors", (float(b.get("avg_num_neighbors")) for b in blocks))
    hidden = irreps_of(network.get("products.0.linear.irreps_out"))
    channels = hidden[0].mul
    natural = [(channels, (l, (-1) ** l)) for l in range(len(hidden))]
    if len(blocks) > 1 and hidden != e3nn.Irreps(natural):
        refuse(f"the features {hidden}, not of one number of channels for l = 0, 1, 2, ...")
    degrees = [
        degrees_of(part)
        for product in network.get("products").children()
        for part in product.get("symmetric_contractions.contractions").children()
    ]
    if not all(degrees):
        refuse("a product basis without its coupling coefficients (U_matrix_1, ...)")
    radial = network.get("radial_embedding")
    widths = _same("radial_MLP", map(_radial_widths, blocks))
    sh = irreps_of(blocks[0].get("conv_tp.irreps_in2"))
    last = network.get("readouts").children()[-1]
    lasts = [last, *charge_readouts(network)[-1:]]
    readout = sum(irreps_of(one.get("linear_1.irreps_out")).dim for one in lasts)
    return {
        "irreps_out": irreps_out(_charges(network)),
        "num_species": len(species),
        "layers": len(blocks),
        "channels": channels,
        "lmax": sh.lmax,
        "hidden_lmax": hidden.lmax,
        "correlation": _same("correlation", map(len, degrees)),
        "parity": False,
        "first_skip": residual[0],
        "species_linear": not residual[0],
        "density_normalization": density[0],
        "nonlinear": kinds[0] == NONLINEAR,
        **_transform(radial.get("distance_transform"), species),
        **_edge_irreps(blocks, channels, hidden),
        "apply_cutoff": radial.get("apply_cutoff", True) is not False,
        "agnostic_product": bool(network.get("use_agnostic_product")),
        "last_readout_only": bool(network.get("use_last_readout_only")),
        "readout_biases": last.name == "NonLinearBiasReadoutBlock",
        "cutoff": float(radial.get("cutoff_fn.r_max")),
        "num_bessel": len(radial.get("bessel_fn.bessel_weights")),
        "poly_power": int(radial.get("cutoff_fn.p")),
        "radial_layers": len(widths),
        "radial_hidden": widths[0],
        "readout_hidden": readout // len(network.get("heads", ["Default"])),
        "avg_num_neighbors": neighbors,
    }


def _same(name: str, values):
    """Return the value that all layers have."""
    values = set(values)
    if len(values) != 1:
        refuse(f"layers that differ in {name}: {sorted(values)}")
    return values.pop()


def _edge_irreps(blocks: list[Record], channels: int, hidden: e3nn.Irreps) -> dict:
    first, *others = (irreps_of(block.get("conv_tp.irreps_in1")) for block in blocks)
    rest = _same("edge_irreps", others) if others else None
    own = first != e3nn.Irreps([(channels, SCALAR)])
    if rest == hidden and not own:
        return {"edge_irreps": None, "first_edge_irreps": False}
    given = first if rest is None else rest
    scalars = e3nn.Irreps([(given.count(SCALAR), SCALAR)])
    if given != given.regroup() or (own and first != scalars):
        refuse(f"the irreps {given} on edges, not each once and in order (edge_irreps)")
    return {"edge_irreps": str(given), "first_edge_irreps": own}


def _radial_widths(block: Record) -> tuple[int, ...]:
    if block.name == NONLINEAR:
        hidden = layers_of(block.get("conv_tp_weights"))[:-1]
        widths = tuple(len(layer.get("bias")) for layer in hidden)
    else:
        *hidden, last = block.get("conv_tp_weights").children()
        if last.get("act") is not None or not all(_is_silu(h.get("act")) for h in hidden):
            refuse("a radial network with another activation than silu")
        widths = tuple(h.get("weight").shape[1] for h in hidden)
    if not widths or len(set(widths)) != 1:
        refuse(f"a radial network with hidden layers of the widths {widths}, not all alike")
    return widths


def _transform(transform: Record | None, species: tuple[int, ...]) -> dict:
    if transform is None:
        return {"distance_transform": None}
    radii = transform.get("covalent_radii")
    if transform.name == "SoftTransform":
        own = {"distance_transform": "soft", "soft_steepness": float(transform.get("alpha"))}
    else:
        constants = [float(transform.get(name)) for name in "qpa"]
        own = {"distance_transform": "agnesi", "transform_constants": constants}
    return own | {
        "atomic_numbers": list(species),
        "covalent_radii": [float(radii[z]) for z in species],
    }


def _repulsion(network: Record, species: tuple[int, ...], scale: float) -> ZBL | None:
    """Return the pair repulsion, which mace scales with the other energies."""
    zbl = network.get("pair_repulsion_fn")
    if zbl is None:
        return None
    if zbl.name != "ZBLBasis":
        refuse(f"a pair repulsion of the kind {zbl.name}")
    radii = zbl.get("covalent_radii")
    return ZBL(
        atomic_numbers=species,
        covalent_radii=tuple(float(radii[z]) for z in species),
        power=int(zbl.get("p")),
        exponent=float(zbl.get("a_exp")),
        length=float(zbl.get("a_prefactor")) * BOHR,
        coefficients=tuple(float(c) for c in zbl.get("c")),
        coulomb=COULOMB * scale,
    )


def _charges(network: Record) -> LatentEwald | None:
    """Return the sum of latent charges of a MACELES, whose constants are those of its file."""
    les = network.get("les")
    if les is None:
        if network.name == "MACELES":
            refuse("a MACELES without its sum of charges (les)")
        return None
    read = ("les", "les_readouts")
    for name, part in network.submodules().items():
        if name.startswith("les") and name not in read and part.children():
            refuse(f"latent dipoles, quadrupoles or polarizabilities ({name})")
    for name in ("use_dipoles", "use_quads", "use_induced_charges", "use_induced_dipoles"):
        if network.get(name):
            refuse(f"an option of LES that is not known here ({name})")
    return latent_ewald(les, float(network.get("les_output_scale", 1.0)))


def _is_silu(activation: Record | None) -> bool:
    function = None if activation is None else activation.get("f")
    return getattr(function, "kind", "").rpartition(".")[2] in ("silu", "SiLU")


def _check_kinds(network: Record):
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
        radial, nonlinear = block.get("conv_tp_weights"), block.name == NONLINEAR
        if block.name not in _INTERACTIONS:
            refuse(f"an interaction of the kind {block.name}")
        for name in ("cueq_config", "oeq_config"):
            config = block.get(name)
            if config is not None and config.get("enabled"):
                refuse(
                    f"the layout of another library ({name}); convert it back by mace's own "
                    "mace_cueq_to_e3nn or mace_oeq_to_e3nn"
                )
        linears = ("linear_up", "linear_1", "linear_2", "linear_res", "skip_tp")
        for name in linears if nonlinear else ("linear_up", "linear"):
            _expect(block, name, "e3nn.", "Linear")
        _expect(block, "conv_tp", "e3nn.", "TensorProduct")
        if not nonlinear:
            _expect(block, "skip_tp", "e3nn.", "FullyConnectedTensorProduct")
        if any(layer.name == "LoRAFCLayer" for layer in radial.children()):
            refuse("a LoRAFCLayer, which mace's merge_lora_weights merges")
        if radial.name != ("RadialMLP" if nonlinear else "FullyConnectedNet"):
            refuse(f"a radial network of the kind {radial.name} in a {block.name}")
    for product in network.get("products").children():
        _expect(product, "symmetric_contractions", "mace.", "SymmetricContraction")
        _expect(product, "linear", "e3nn.", "Linear")


def _expect(block: Record, name: str, package: str, kind: str):
    part = block.get(name)
    if part is None or not part.kind.startswith(package) or part.name != kind:
        what = "none" if part is None else part.kind
        refuse(f"in {block.name}.{name} not a {kind} of {package.rstrip('.')} but {what}")


def _check_radial(radial: Record):
    basis, transform = radial.get("bessel_fn"), radial.get("distance_transform")
    if basis.name != "BesselBasis":
        refuse(f"a radial basis of the kind {basis.name}")
    cutoff = float(radial.get("cutoff_fn.r_max"))
    frequencies = np.asarray(basis.get("bessel_weights"), np.float64)
    expected = np.arange(1, len(frequencies) + 1) * math.pi / cutoff
    if abs(frequencies / expected - 1).max() > 1e-5:
        refuse("Bessel functions with frequencies that were trained")
    if transform is None:
        return
    if transform.name not in ("AgnesiTransform", "SoftTransform"):
        refuse(f"a transform of distances of the kind {transform.name}")
    if transform.get("b") is not None:
        refuse("the SoftTransform of mace 0.3.5 to 0.3.9, whose formula is another one")


def _check_readouts(network: Record):
    energies, charges = network.get("readouts").children(), charge_readouts(network)
    layers = len(network.get("interactions").children())
    for *linear, last in filter(None, (energies, charges)):
        if len(linear) + 1 != (1 if network.get("use_last_readout_only") else layers):
            refuse("not a readout for each layer")
        for readout in linear:
            if readout.name != "LinearReadoutBlock":
                refuse(f"before the last layer a readout of the kind {readout.name}")
        if last.name not in _READOUTS:
            refuse(f"in the last layer a readout of the kind {last.name}")
        if not _is_silu(last.get("non_linearity.acts.0")):
            refuse("a readout with another activation than silu (gate)")
    if charges and energies[-1].name != "NonLinearReadoutBlock":
        refuse(f"charges beside a readout of the kind {energies[-1].name}")
