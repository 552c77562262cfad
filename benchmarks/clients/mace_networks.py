"""Make networks of mace-torch with random weights, in the shapes of published ones.

`scripts/mace_goldens.py` and `benchmarks.clients.mace_torch` use them. They need mace-torch and
torch; nothing is downloaded.
"""

import dataclasses
import functools
import warnings

import ase
import numpy as np
import torch
from e3nn import o3

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from mace import data, modules
    from mace.modules import symmetric_contraction
    from mace.tools import AtomicNumberTable, torch_geometric

RESIDUAL = "RealAgnosticResidualInteractionBlock"
PLAIN = "RealAgnosticInteractionBlock"
DENSITY = "RealAgnosticDensityInteractionBlock"
DENSITY_RESIDUAL = "RealAgnosticDensityResidualInteractionBlock"
NONLINEAR = "RealAgnosticResidualNonLinearInteractionBlock"

MATERIALS = tuple(z for z in range(1, 95) if z not in (84, 85, 86, 87, 88))
"""The 89 elements of the Materials Project's networks."""

ORGANIC = (1, 6, 7, 8, 9, 15, 16, 17, 35, 53)


@dataclasses.dataclass(frozen=True)
class Shape:
    """What a network is like.

    Attributes:
      hidden: irreps between layers.
      r_max: cutoff, Å.
      elements: atomic numbers.
      first, then: kinds of the first and of the other interactions.
      bessel: number of Bessel functions.
      layers, max_ell, correlation, radial, readout: as mace has them.
      transform: of distances, "None", "Agnesi" or "Soft".
      zbl: whether there is pair repulsion.
      heads: their names.
      neighbors: average number, a normalisation.
      gain: of the last matrices: random networks of few channels have small forces.
      edges: irreps on edges (edge_irreps), "" for those of the features.
      biases: whether the last readout is a NonLinearBiasReadoutBlock.
      options: other arguments of mace's network.
    """

    hidden: str
    r_max: float = 6.0
    elements: tuple[int, ...] = MATERIALS
    first: str = RESIDUAL
    then: str = RESIDUAL
    bessel: int = 10
    layers: int = 2
    max_ell: int = 3
    correlation: int = 3
    radial: tuple[int, ...] = (64, 64, 64)
    readout: int = 16
    transform: str = "None"
    zbl: bool = False
    heads: tuple[str, ...] = ("Default",)
    neighbors: float = 31.7
    gain: float = 1.0
    edges: str = ""
    biases: bool = False
    options: dict = dataclasses.field(default_factory=dict)


SHAPES = {
    "MP-0 small": Shape("128x0e"),
    "MP-0 medium": Shape("128x0e+128x1o"),
    "MP-0 large": Shape("128x0e+128x1o+128x2e"),
    "MPA-0 medium": Shape(
        "128x0e+128x1o", first=DENSITY, then=DENSITY_RESIDUAL, transform="Agnesi", zbl=True
    ),
    "OFF23 small": Shape("96x0e", r_max=4.5, elements=ORGANIC, bessel=8),
    "OFF23 medium": Shape("128x0e+128x1o", r_max=5.0, elements=ORGANIC, bessel=8),
    "OFF23 large": Shape("192x0e+192x1o+192x2e", r_max=5.0, elements=ORGANIC, bessel=8),
    "three layers": Shape("16x0e+16x1o+16x2e", r_max=4.0, elements=ORGANIC, layers=3),
    "first without residual": Shape("16x0e+16x1o", r_max=5.0, elements=ORGANIC, first=PLAIN),
}
"""By name: what networks of that name are like, as far as their hyper-parameters are published."""


@functools.cache
def _couplings(irreps_in, irreps_out, correlation, dtype):
    return _U_MATRIX_REAL(
        irreps_in=irreps_in,
        irreps_out=irreps_out,
        correlation=correlation,
        use_cueq_cg=False,
        dtype=dtype,
    )


def _cached_couplings(irreps_in, irreps_out, correlation, dtype=None, **_):
    found = _couplings(str(irreps_in), str(irreps_out), correlation, dtype)
    return [t.clone() if torch.is_tensor(t) else t for t in found]


_U_MATRIX_REAL = symmetric_contraction.U_matrix_real
# mace computes them again for every layer: minutes for the large networks
symmetric_contraction.U_matrix_real = _cached_couplings


def random_network(shape: Shape, dtype: str = "float64", seed: int = 0) -> modules.ScaleShiftMACE:
    """Make a network of mace-torch with random weights.

    Args:
      shape: what it is like.
      dtype: of its weights.
      seed: of them.
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    torch.set_default_dtype(getattr(torch, dtype))
    heads = len(shape.heads)
    many = (heads,) if heads > 1 else ()
    network = modules.ScaleShiftMACE(
        r_max=shape.r_max,
        num_bessel=shape.bessel,
        num_polynomial_cutoff=5,
        max_ell=shape.max_ell,
        interaction_cls=modules.interaction_classes[shape.then],
        interaction_cls_first=modules.interaction_classes[shape.first],
        num_interactions=shape.layers,
        num_elements=len(shape.elements),
        hidden_irreps=o3.Irreps(shape.hidden),
        MLP_irreps=o3.Irreps(f"{shape.readout}x0e"),
        atomic_energies=rng.normal(size=(*many, len(shape.elements))) * 10,
        avg_num_neighbors=shape.neighbors,
        atomic_numbers=list(shape.elements),
        correlation=shape.correlation,
        gate=torch.nn.functional.silu,
        radial_MLP=list(shape.radial),
        distance_transform=shape.transform,
        pair_repulsion=shape.zbl,
        use_reduced_cg=False,
        heads=list(shape.heads),
        atomic_inter_scale=[0.8 + 0.1 * k for k in range(heads)] if many else 0.8,
        atomic_inter_shift=[0.164 - 0.3 * k for k in range(heads)] if many else 0.164,
        **_newer(shape),
    )
    with torch.no_grad():
        # mace begins with small weights of products of several factors: let all of them count
        for product in network.products:
            for part in product.symmetric_contractions.contractions:
                for weights in (part.weights_max, *part.weights):
                    weights.mul_(weights.shape[1] / 2)
        for readout in network.readouts:
            last = readout.linear_2 if hasattr(readout, "linear_2") else readout.linear
            last.weight.mul_(shape.gain)
        if shape.first == NONLINEAR or shape.biases:
            _move_from_initial_values(network)
    return network


def _newer(shape: Shape) -> dict:
    """Return arguments that mace has since 2025."""
    newer = dict(shape.options)
    if shape.edges:
        newer["edge_irreps"] = o3.Irreps(shape.edges)
    if shape.biases:
        newer["readout_cls"] = modules.NonLinearBiasReadoutBlock
    return newer


def _move_from_initial_values(network):
    """Change what begins as zero, one or nearly zero, which no comparison would see."""
    for name, p in network.named_parameters():
        if name.endswith(("alpha", "beta")):
            p.fill_(3.0 if name.endswith("alpha") else 0.7)
        elif name.endswith("embedding.weight") and "interactions" in name:
            p.normal_()
        elif "conv_tp_weights" in name or "density_fn" in name or name.endswith("bias"):
            p.add_(0.3 * torch.randn_like(p))


def crystal(shape: Shape, num_atoms: int, seed: int = 1) -> ase.Atoms:
    """Return a skewed periodic cell of random elements, with a bond, or a collision for ZBL."""
    rng = np.random.default_rng(seed)
    side = (num_atoms / 0.06) ** (1 / 3)
    cell = np.array([[side, 0, 0], [0.3, side * 1.05, 0], [0.1, -0.4, side * 0.95]])
    count = int(np.ceil(num_atoms ** (1 / 3)))
    grid = np.stack(np.meshgrid(*[np.arange(count)] * 3, indexing="ij"), -1).reshape(-1, 3)
    places = (grid[:num_atoms] + 0.5) / count + rng.normal(size=(num_atoms, 3)) * 0.03
    positions = places @ cell
    positions[1] = positions[0] + ([0.7, 0.1, 0.2] if shape.zbl else [1.1, 0.3, 0.4])
    numbers = rng.choice(shape.elements, num_atoms)
    return ase.Atoms(numbers, positions, cell=cell, pbc=True)


def batch_of(network, shape: Shape, atoms: ase.Atoms, head: str = "Default") -> dict:
    """Return the atoms as mace's networks read them, of the network's dtype."""
    torch.set_default_dtype(network.r_max.dtype)
    heads = list(shape.heads)
    config = data.config_from_atoms(atoms, head_name=head)
    table = AtomicNumberTable(list(shape.elements))
    made = data.AtomicData.from_config(config, z_table=table, cutoff=shape.r_max, heads=heads)
    loader = torch_geometric.dataloader.DataLoader([made], batch_size=1)
    return next(iter(loader)).to_dict()


def results(network, batch: dict) -> dict[str, np.ndarray]:
    """Return energy (eV), forces (eV/Å) and stress (eV/Å^3, zero without a cell) by mace itself."""
    found = network(batch, compute_stress=True)
    return {name: found[name].detach().numpy() for name in ("energy", "forces", "stress")}
