"""Lattice constants, bulk moduli and dynamics of trained networks, by their programs and by eqfuse.

    python -m benchmarks.clients.solids PROGRAM FILE [--choice X] [--steps 300]

PROGRAM is sevennet or nequix, which must be installed beside eqfuse. Energies of eleven volumes of
Si, NaCl and MgO are fitted by Birch and Murnaghan's equation. The dynamics are 64 atoms of silicon
at 600 K at constant energy, with velocity Verlet and steps of 2 fs, from the same velocities: drift
of the total energy, and how far the two trajectories are apart at the end.
"""

import argparse
import sys
import tempfile
import warnings
from pathlib import Path

import ase.build
import numpy as np
from ase import units
from ase.eos import EquationOfState
from ase.md.velocitydistribution import thermalize_momenta
from ase.md.verlet import VelocityVerlet

import eqfuse
from benchmarks.clients.trained_networks import OTHERS
from eqfuse.convert import convert

SOLIDS = {
    "Si": ("diamond", 5.43),
    "NaCl": ("rocksalt", 5.64),
    "MgO": ("rocksalt", 4.21),
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", choices=("sevennet", "nequix"))
    parser.add_argument("file")
    parser.add_argument("--choice")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        convert(options.program, options.file, f"{folder}/run", choice=options.choice)
        ours = eqfuse.Calculator(f"{folder}/run")
    calculators = {"theirs": OTHERS[options.program](options.file, options.choice)[1], "ours": ours}
    name = Path(options.file).stem
    print("| network | solid | a, theirs, Å | a, eqfuse, Å | B, theirs, GPa | B, eqfuse, GPa |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for formula in SOLIDS:
        (a, bulk), (our_a, our_bulk) = (_solid(formula, c) for c in calculators.values())
        cells = f"{a:.4f} | {our_a:.4f} | {bulk:.2f} | {our_bulk:.2f}"
        print(f"| {name} | {formula} | {cells} |", flush=True)
    ends = {}
    for kind, calculator in calculators.items():
        atoms, energies = _dynamics(calculator, options.steps)
        ends[kind] = atoms.positions
        times = np.arange(len(energies)) * 0.002
        slope = np.polyfit(times, energies, 1)[0] / len(atoms)
        spread = np.std(energies) / len(atoms)
        print(f"{kind}: drift {slope * 1e3:.3f} meV/atom/ps, spread {spread * 1e3:.3f} meV/atom")
    print(f"apart at the end: {abs(ends['ours'] - ends['theirs']).max():.1e} Å")
    return 0


def _solid(formula: str, calculator) -> tuple[float, float]:
    """Return the lattice constant, Å, and the bulk modulus, GPa."""
    structure, guess = SOLIDS[formula]
    for width in (0.06, 0.03):  # the second time around the minimum of the first
        volumes, energies = [], []
        for side in guess * np.linspace(1 - width, 1 + width, 11):
            atoms = ase.build.bulk(formula, structure, side, cubic=True)
            atoms.calc = calculator
            volumes.append(atoms.get_volume())
            energies.append(atoms.get_potential_energy())
        fit = EquationOfState(volumes, energies, eos="birchmurnaghan")
        volume, _, bulk = fit.fit()
        guess = volume ** (1 / 3)
    return guess, bulk / units.GPa


def _dynamics(calculator, steps: int):
    atoms = ase.build.bulk("Si", "diamond", 5.43, cubic=True) * 2
    rng = np.random.default_rng(0)
    thermalize_momenta(atoms, 1200, rng=rng)  # half of it becomes potential energy
    atoms.calc = calculator
    dynamics, energies = VelocityVerlet(atoms, 2 * units.fs), []
    dynamics.attach(lambda: energies.append(atoms.get_total_energy()))
    dynamics.run(steps)
    return atoms, energies


if __name__ == "__main__":
    sys.exit(main())
