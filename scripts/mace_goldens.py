"""Make the small networks of `tests/convert` with mace-torch, or compare large ones with it.

    python scripts/mace_goldens.py                          # writes tests/convert/goldens
    python scripts/mace_goldens.py --compare "MP-0 medium"  # converts one and compares, here

It needs mace-torch and torch (both on PyPI), and eqfuse for `--compare`. Weights are random: no
published network is needed.
"""

import argparse
import contextlib
import dataclasses
import io
import lzma
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # mace's own import needs it

import ase
import numpy as np
import torch
from e3nn.util.codegen import CodeGenMixin

from benchmarks.clients import mace_networks
from benchmarks.clients.mace_networks import DENSITY, DENSITY_RESIDUAL, NONLINEAR, PLAIN, Shape

FOLDER = Path(__file__).parents[1] / "tests" / "convert" / "goldens"
SMALL = {
    "elements": (1, 6, 8),
    "r_max": 4.5,
    "bessel": 4,
    "radial": (6, 6, 6),
    "readout": 4,
    "neighbors": 6.0,
    "gain": 100.0,
}
GOLDENS = {
    "small": Shape("4x0e", **SMALL),
    "medium": Shape("3x0e+3x1o", **SMALL),
    "large": Shape("2x0e+2x1o+2x2e", **SMALL | {"elements": (1, 8)}),
    "three_layers": Shape("2x0e+2x1o", **SMALL, layers=3, max_ell=2),
    "first_without_residual": Shape("3x0e+3x1o", **SMALL, max_ell=2, first=PLAIN),
    "density": Shape(
        "3x0e+3x1o",
        **SMALL,
        max_ell=2,
        first=DENSITY,
        then=DENSITY_RESIDUAL,
        transform="Agnesi",
        zbl=True,
    ),
    "two_heads": Shape("3x0e", **SMALL, max_ell=1, correlation=2, zbl=True, heads=("one", "two")),
    "edges": Shape(
        "3x0e+3x1o",
        **SMALL,
        layers=3,
        max_ell=2,
        correlation=2,
        first=DENSITY,
        then=DENSITY_RESIDUAL,
        transform="Soft",
        edges="2x0e+1x1o+1x2e",
        options={
            "apply_cutoff": False,
            "use_edge_irreps_first": True,
            "use_last_readout_only": True,
            "keep_last_layer_irreps": True,
        },
    ),
    "nonlinear": Shape(
        "4x0e+4x1o",
        **SMALL,
        max_ell=2,
        correlation=2,
        first=NONLINEAR,
        then=NONLINEAR,
        heads=("one", "two"),
        edges="3x0e+2x1o",
        biases=True,
        options={"apply_cutoff": False, "use_agnostic_product": True},
    ),
    "nonlinear_cutoff": Shape("3x0e", **SMALL, max_ell=1, first=NONLINEAR, then=NONLINEAR),
    "float32": Shape("3x0e+3x1o", **SMALL, max_ell=1),
}
"""By name; `float32` is of that precision, and `small` has its elements in another order."""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compare", help="a name in mace_networks.SHAPES, or all")
    parser.add_argument("--atoms", type=int, default=24)
    parser.add_argument("names", nargs="*", help="of the goldens to make; all if none is given")
    options = parser.parse_args()
    torch.set_num_threads(2)
    if options.compare:
        shapes = mace_networks.SHAPES
        for name in shapes if options.compare == "all" else [options.compare]:
            _compare(name, shapes[name], options.atoms)
        return
    FOLDER.mkdir(exist_ok=True)
    for name in options.names or GOLDENS:
        _make(name, GOLDENS[name])


def _make(name: str, shape: Shape):
    dtype = "float32" if name == "float32" else "float64"
    # elements out of order, as a file may have them
    elements = shape.elements[::-1] if name == "small" else shape.elements
    shape = dataclasses.replace(shape, elements=elements)
    network = mace_networks.random_network(shape, dtype)
    _round_weights(network)
    # one is as mace saves it; the others are without the code that e3nn generates, most of a file
    with contextlib.nullcontext() if name == "two_heads" else _without_code():
        data = io.BytesIO()
        torch.save(network, data)
    (FOLDER / f"{name}.model.xz").write_bytes(lzma.compress(data.getvalue(), preset=9))
    network = network.double()
    arrays = {}
    for kind, atoms in structures(shape).items():
        arrays |= {
            f"{kind}_numbers": atoms.numbers,
            f"{kind}_positions": atoms.positions,
            f"{kind}_cell": atoms.cell.array,
        }
        for head in shape.heads:
            result = mace_networks.results(
                network, mace_networks.batch_of(network, shape, atoms, head)
            )
            prefix = f"{kind}_{head}" if len(shape.heads) > 1 else kind
            arrays |= {f"{prefix}_{k}": np.squeeze(v) for k, v in result.items()}
    np.savez_compressed(FOLDER / f"{name}.npz", **arrays)
    size = (FOLDER / f"{name}.model.xz").stat().st_size
    forces = max(abs(v).max() for k, v in arrays.items() if k.endswith("forces"))
    print(
        f"{name}: {size / 1000:.0f} kB, largest force {forces:.2f} eV/Å; float32 in mace itself: "
        f"{_single_precision(network, shape, arrays):.0e}",
        flush=True,
    )


def _round_weights(network: torch.nn.Module):
    """Round weights to five binary digits, with which files are a third as large."""
    for weight in network.parameters():
        mantissa, exponent = torch.frexp(weight.data)
        weight.data = torch.ldexp(torch.round(mantissa * 32) / 32, exponent)


def _single_precision(network, shape: Shape, arrays: dict) -> float:
    """Return the largest error of mace's forces in float32, relative to the largest force."""
    errors = []
    for kind, atoms in structures(shape).items():
        batch = mace_networks.batch_of(network.float(), shape, atoms, shape.heads[-1])
        forces = mace_networks.results(network, batch)["forces"]
        name = f"{kind}_{shape.heads[-1]}" if len(shape.heads) > 1 else kind
        expected = arrays[f"{name}_forces"]
        errors.append(abs(forces - expected).max() / abs(expected).max())
    return max(errors)


@contextlib.contextmanager
def _without_code():
    kept = CodeGenMixin.__getstate__

    def getstate(module):
        return kept(module) | {"__codegen__": {}}

    CodeGenMixin.__getstate__ = getstate
    try:
        yield
    finally:
        CodeGenMixin.__getstate__ = kept


def structures(shape: Shape) -> dict[str, ase.Atoms]:
    """Return a periodic cell and a molecule of the elements of a network."""
    periodic = mace_networks.crystal(shape, 6)
    molecule = mace_networks.crystal(shape, 5, seed=2)
    molecule.pbc = False
    molecule.cell = None
    return {"periodic": periodic, "molecule": molecule}


def _compare(name: str, shape: Shape, num_atoms: int):
    """Convert a large network, and print how far results of both are apart, relative to theirs."""
    import eqfuse
    from eqfuse.convert import convert

    network = mace_networks.random_network(shape)
    atoms = mace_networks.crystal(shape, num_atoms)
    theirs = mace_networks.results(network, mace_networks.batch_of(network, shape, atoms))
    with tempfile.TemporaryDirectory() as folder:
        torch.save(network, f"{folder}/random.model")
        convert("mace", f"{folder}/random.model", f"{folder}/run")
        errors = []
        for dtype in ("float64", "float32"):
            atoms.calc = eqfuse.Calculator(f"{folder}/run", dtype=dtype)
            energy = abs(atoms.get_potential_energy() / theirs["energy"][0] - 1)
            forces = abs(atoms.get_forces() - theirs["forces"]).max() / abs(theirs["forces"]).max()
            stress = abs(atoms.get_stress(voigt=False) - theirs["stress"][0]).max()
            errors += [energy, forces, stress / abs(theirs["stress"]).max()]
    print(f"| {name} | " + " | ".join(f"{error:.0e}" for error in errors) + " |", flush=True)


if __name__ == "__main__":
    main()
