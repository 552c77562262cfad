"""Time calculators of other programs, and what `eqfuse.accelerate` makes of them, in turns.

    python -m benchmarks.clients.accelerate PROGRAM:FILE ...     # as in nequix:nequix-mp-1.nqx

It needs the programs in the same environment. A row is the median of processor times of energy,
forces and stress, of structures that are displaced each time, after two for warm-up.
"""

import argparse
import time
import warnings

import ase.build
import numpy as np

import eqfuse

WARM_UP, TURNS = 2, 8
MOST = 100
"""Atoms of a structure."""


def calculator_of(program: str, file: str):
    """Return the calculator of a program, on one CPU core and in float32."""
    if program != "nequix":
        import torch

        torch.set_num_threads(1)
    if program == "mace":
        from mace.calculators import MACECalculator

        return MACECalculator(model_paths=file, device="cpu", default_dtype="float32")
    if program == "sevenn":
        from sevenn.calculator import SevenNetCalculator

        return SevenNetCalculator(file, device="cpu")
    from nequix.calculator import NequixCalculator

    return NequixCalculator(model_path=file, use_kernel=False)


def structure_for(species) -> ase.Atoms:
    """Return up to `MOST` atoms with two of the elements, in the structure of rock salt."""
    pair = [11, 17] if {11, 17} <= set(species) else [*species[-2:]][:2]
    atoms = ase.build.bulk("NaCl", "rocksalt", a=5.2, cubic=True)
    atoms = atoms.repeat(int((MOST / len(atoms)) ** (1 / 3)))
    atoms.numbers = np.where(atoms.numbers == 11, pair[0], pair[-1])
    return atoms


def row_of(program: str, file: str) -> str:
    """Return the row of a calculator in the table."""
    theirs, start = calculator_of(program, file), time.process_time()
    fast = eqfuse.accelerate(theirs)
    seconds, atoms = time.process_time() - start, structure_for(fast.species)
    times, errors = [], []
    for turn in range(WARM_UP + TURNS):
        atoms.rattle(0.02, seed=turn)
        spent, found = [], []
        for calculator in (theirs, fast):
            one = atoms.copy()
            one.calc, start = calculator, time.process_time()
            forces = one.get_forces()
            one.get_stress()
            spent.append(1e3 * (time.process_time() - start))
            found.append(forces)
        times.append(spent)
        errors.append(np.abs(found[0] - found[1]).max() / np.abs(found[0]).max())
    times = np.array(times[WARM_UP:])
    ratios = times[:, 0] / times[:, 1]
    numbers = [f"{value:.3g}" for value in np.median(times, axis=0)]
    spread = "{:.3g} ({:.3g} to {:.3g})".format(*np.percentile(ratios, [50, 25, 75]))
    name = f"{program}, {file.rpartition('/')[2]}"
    cells = [name, len(atoms), f"{seconds:.1f}", *numbers, spread, f"{max(errors):.0e}"]
    return f"| {' | '.join(map(str, cells))} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="+", help="PROGRAM:FILE, as in nequix:nequix-mp-1.nqx")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    for argument in parser.parse_args().networks:
        program, _, file = argument.partition(":")
        print(row_of(program, file), flush=True)


if __name__ == "__main__":
    main()
