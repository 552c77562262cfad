"""Make the goldens of trained networks of other programs: what the programs predict for structures.

    python scripts/network_goldens.py PROGRAM FILE NAME [--choice X] [--python P] [--elements Si O]

writes tests/convert/goldens/networks/NAME.npz: two structures of elements of the network, and the
energies, forces and stress that the program itself, run by the interpreter P of an environment that
has it, gives for them in float64. No weights are stored. The tests read the file of the network in
place, or skip where it is not there.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import ase
import numpy as np
from ase.data import atomic_numbers, covalent_radii

from eqfuse.convert.conversion import READERS

FOLDER = Path(__file__).parents[1] / "tests" / "convert" / "goldens" / "networks"


def example_structures(elements) -> list[ase.Atoms]:
    """Return a skewed periodic cell of eight atoms, and a molecule of five, both disordered.

    Args:
      elements: atomic numbers; eight at most are taken, at random.
    """
    rng = np.random.default_rng(0)
    elements = np.array(sorted(elements))
    numbers = rng.permutation(elements)[:8]
    numbers = np.concatenate([numbers, rng.choice(elements, 8 - len(numbers))])
    spacing = 2.1 * covalent_radii[numbers].mean()
    cell = 2 * spacing * np.array([[1, 0, 0], [0.06, 1.05, 0], [0.02, -0.08, 0.95]])
    grid = np.stack(np.meshgrid(*[np.arange(2)] * 3, indexing="ij"), -1).reshape(-1, 3)
    places = (grid + 0.5) / 2 + rng.normal(size=(8, 3)) * 0.03
    crystal = ase.Atoms(numbers, places @ cell, cell=cell, pbc=True)
    molecule = ase.Atoms(numbers[:5], 0.9 * crystal.positions[:5])
    return [crystal, molecule]


def original_results(program: str, path, arrays, choice=None, python=sys.executable) -> dict:
    """Return energies, forces and stress of structures by the program itself, run by `python`."""
    script = Path(__file__).with_name("network_original.py")
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder) / "structures.npz", Path(folder) / "results.npz"
        np.savez(given, **arrays)
        command = [python, str(script), program, str(Path(path).resolve()), str(given), str(out)]
        subprocess.run(command + ([choice] if choice else []), check=True)
        with np.load(out) as results:
            return dict(results)


def to_arrays(structures) -> dict[str, np.ndarray]:
    """Return structures as arrays, which `network_original.py` reads."""
    arrays = {"count": np.array(len(structures))}
    for k, atoms in enumerate(structures):
        arrays |= {
            f"{k}_numbers": atoms.numbers,
            f"{k}_positions": atoms.positions,
            f"{k}_cell": atoms.cell.array,
            f"{k}_pbc": atoms.pbc,
        }
    return arrays


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", choices=READERS)
    parser.add_argument("file")
    parser.add_argument("name")
    parser.add_argument("--choice")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--elements", nargs="*", help="symbols; all of the network if not given")
    options = parser.parse_args()
    network = READERS[options.program](options.file, options.choice)
    elements = [atomic_numbers[symbol] for symbol in options.elements or ()]
    structures = to_arrays(example_structures(elements or network.references))
    own = {"choice": options.choice, "python": options.python}
    results = original_results(options.program, options.file, structures, **own)
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{options.name}.npz"
    given = {"program": options.program, "network": Path(options.file).name}
    given |= {"choice": options.choice or "", "dtype": network.dtype}
    np.savez_compressed(path, **structures, **given, **results)
    print(f"{path}: {path.stat().st_size / 1000:.1f} kB, by {results['version']}")


if __name__ == "__main__":
    main()
