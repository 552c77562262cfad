"""The settings of a network of mace as settings of this package's MACE."""

import dataclasses

import e3nn_jax as e3nn
import numpy as np

from eqfuse.convert.e3nn_records import irreps_of
from eqfuse.convert.errors import ConvertError
from eqfuse.convert.mace_checks import (
    DENSITY,
    DENSITY_RESIDUAL,
    NONLINEAR,
    RESIDUAL,
    check_kinds,
    is_silu,
    refuse,
)
from eqfuse.convert.mace_nonlinear import layers_of
from eqfuse.convert.pickled import Record, value
from eqfuse.models import ZBL
from eqfuse.models.irreps import SCALAR

BOHR = 0.529
"""Å, as mace's ZBL rounds it."""
COULOMB = 14.3996
"""e^2 / (4 pi epsilon_0), eV Å, as mace's ZBL rounds it."""


@dataclasses.dataclass(frozen=True)
class Description:
    """The settings of a network of mace in terms of this package.

    Attributes:
      fields: settings of `eqfuse.models.MACE`, except the backend.
      order: places of the file's elements, sorted by atomic number.
      scale, shift: of its energies, eV.
      references: energies of the elements, eV by atomic number.
      repulsion: of near atoms, or None.
      dtype: of the weights.
      head: number of the head, and how many there are.
    """

    fields: dict
    order: tuple[int, ...]
    scale: float
    shift: float
    references: dict[int, float]
    repulsion: ZBL | None
    dtype: str
    head: tuple[int, int]


def described(network: Record, head: str | None = None) -> Description:
    """Return the description of a network.

    Args:
      network: as `eqfuse.convert.pickled.read_module` returns it.
      head: the name of one of several heads.
    Raises:
      ConvertError: something that this package's MACE cannot represent, by name.
    """
    check_kinds(network)
    numbers = [int(value(z)) for z in network.get("atomic_numbers")]
    order = tuple(int(k) for k in np.argsort(numbers))
    species = tuple(numbers[k] for k in order)
    which = _head(network, head)
    scale = float(np.atleast_1d(network.get("scale_shift.scale", 1.0))[which[0]])
    shift = float(np.atleast_1d(network.get("scale_shift.shift", 0.0))[which[0]])
    energies = np.atleast_2d(network.get("atomic_energies_fn.atomic_energies"))[which[0]]
    return Description(
        fields=_fields(network, species),
        order=order,
        scale=scale,
        shift=shift,
        references={z: float(energies[k]) for z, k in zip(species, order, strict=True)},
        repulsion=_repulsion(network, species, scale),
        dtype=str(network.get("node_embedding.linear.weight").dtype),
        head=which,
    )


def mlp_layers(network: Record, layer: int) -> list[Record]:
    """Return the dense layers of the radial network of an interaction."""
    return network.get(f"interactions.{layer}.conv_tp_weights").children()


def _head(network: Record, head: str | None) -> tuple[int, int]:
    """Return the number of the head that is asked for, and the number of heads."""
    heads = network.get("heads", ["Default"])
    if head is None and len(heads) == 1:
        return 0, 1
    if head not in heads:
        got = "give one of them" if head is None else f"there is no {head}"
        raise ConvertError(f"the network has the heads {', '.join(heads)}; {got} by --head NAME")
    return heads.index(head), len(heads)


def _fields(network: Record, species: tuple[int, ...]) -> dict:
    blocks = network.get("interactions").children()
    kinds = [block.name for block in blocks]
    residual = [kind in (RESIDUAL, DENSITY_RESIDUAL, NONLINEAR) for kind in kinds]
    density = [kind in (DENSITY, DENSITY_RESIDUAL) for kind in kinds]
    if not all(residual[1:]):
        refuse(f"an interaction without a residual after the first one ({kinds[-1]})")
    if len(set(density)) > 1 or len({kind == NONLINEAR for kind in kinds}) > 1:
        refuse(f"interactions of kinds that do not go together ({', '.join(kinds)})")
    [neighbors] = _same("avg_num_neighbors", {float(b.get("avg_num_neighbors")) for b in blocks})
    hidden = irreps_of(network.get("products.0.linear.irreps_out"))
    channels = hidden[0].mul
    natural = [(channels, (l, (-1) ** l)) for l in range(len(hidden))]
    if len(blocks) > 1 and hidden != e3nn.Irreps(natural):
        refuse(f"the features {hidden}, not of one number of channels for l = 0, 1, 2, ...")
    contractions = [
        part
        for product in network.get("products").children()
        for part in product.get("symmetric_contractions.contractions").children()
    ]
    [correlation] = _same("correlation", {_correlation(part) for part in contractions})
    radial = network.get("radial_embedding")
    [widths] = _same("radial_MLP", {_radial_widths(network, k) for k in range(len(blocks))})
    sh = irreps_of(blocks[0].get("conv_tp.irreps_in2"))
    last = network.get("readouts").children()[-1]
    readout = irreps_of(last.get("linear_1.irreps_out")).dim
    return {
        "irreps_out": "0e",
        "num_species": len(species),
        "layers": len(blocks),
        "channels": channels,
        "lmax": sh.lmax,
        "hidden_lmax": hidden.lmax,
        "correlation": correlation,
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


def _same(name: str, values: set) -> set:
    if len(values) != 1:
        refuse(f"layers that differ in {name}: {sorted(values)}")
    return values


def _correlation(part: Record) -> int:
    count = sum(part.get(f"U_matrix_{nu}") is not None for nu in range(1, 10))
    if not count:
        refuse("a product basis without its coupling coefficients (U_matrix_1, ...)")
    return count


def _edge_irreps(blocks: list[Record], channels: int, hidden: e3nn.Irreps) -> dict:
    """Return the settings of what is sent along edges."""
    first, *others = (irreps_of(block.get("conv_tp.irreps_in1")) for block in blocks)
    [rest] = _same("edge_irreps", set(others)) if others else [None]
    own = first != e3nn.Irreps([(channels, SCALAR)])
    if rest == hidden and not own:
        return {"edge_irreps": None, "first_edge_irreps": False}
    given = first if rest is None else rest
    scalars = e3nn.Irreps([(given.count(SCALAR), SCALAR)])
    if given != given.regroup() or (own and first != scalars):
        refuse(f"the irreps {given} on edges, not each once and in order (edge_irreps)")
    return {"edge_irreps": str(given), "first_edge_irreps": own}


def _radial_widths(network: Record, layer: int) -> tuple[int, ...]:
    block = network.get(f"interactions.{layer}")
    if block.name == NONLINEAR:
        return _alike(
            tuple(len(w.get("bias")) for w in layers_of(block.get("conv_tp_weights"))[:-1])
        )
    *hidden, last = mlp_layers(network, layer)
    if last.get("act") is not None or not all(is_silu(h.get("act")) for h in hidden):
        refuse("a radial network with another activation than silu")
    return _alike(tuple(h.get("weight").shape[1] for h in hidden))


def _alike(widths: tuple[int, ...]) -> tuple[int, ...]:
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
