"""Time steps of dynamics through ASE by other programs and by eqfuse, in turns.

    python -m benchmarks.clients.dynamics PROGRAM FILE [--atoms 24 96 512] [--seconds 4]

PROGRAM and FILE are those of `benchmarks.clients.trained_networks`, and so are the crystals. Both
take steps of 1 fs of ASE's velocity Verlet at 300 K from the same start, in float32 on the same two
threads. Prints a row of a Markdown table for each crystal.
"""

import os

os.environ.setdefault("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # mace's own import needs it

import argparse
import statistics
import tempfile
import time
import warnings
from pathlib import Path

import ase.build
import numpy as np
from ase import units
from ase.md.velocitydistribution import thermalize_momenta
from ase.md.verlet import VelocityVerlet

import eqfuse
from benchmarks.clients.trained_networks import CRYSTALS, MATERIALS, OTHERS, THREADS
from eqfuse.convert import convert


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", choices=MATERIALS)
    parser.add_argument("file")
    parser.add_argument("--atoms", nargs="*", type=int, default=list(CRYSTALS))
    parser.add_argument("--seconds", type=float, default=4.0, help="of a round of theirs")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    # before JAX makes its threads, which then are as many
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    theirs = OTHERS[options.program](options.file, None)[1]
    with tempfile.TemporaryDirectory() as folder:
        convert(options.program, options.file, f"{folder}/run")
        ours = eqfuse.Calculator(f"{folder}/run", dtype="float32")
    for count in options.atoms:
        print(row(options, count, {"theirs": theirs, "ours": ours}), flush=True)


def row(options, count: int, calculators: dict) -> str:
    """Return ms a step of both, the ratio of rounds in turns, and how far positions are apart."""
    formula, side = MATERIALS[options.program]
    start = ase.build.bulk(formula, "rocksalt", side, cubic=True) * CRYSTALS[count]
    start.rattle(0.1, seed=0)
    thermalize_momenta(start, temperature_K=300, rng=np.random.default_rng(0))
    runs = {}
    for name, calculator in calculators.items():
        atoms = start.copy()
        atoms.calc = calculator
        runs[name] = VelocityVerlet(atoms, 1.0 * units.fs)
        runs[name].run(2)
    began = time.perf_counter()
    runs["theirs"].run(1)
    runs["ours"].run(1)
    steps = max(1, int(options.seconds / (time.perf_counter() - began)))
    times = {name: [] for name in runs}
    for _ in range(options.rounds):
        for name, dynamics in runs.items():
            began = time.perf_counter()
            dynamics.run(steps)
            times[name].append(1e3 * (time.perf_counter() - began) / steps)
    first, second = (dynamics.atoms.positions for dynamics in runs.values())
    ratios = [a / b for a, b in zip(times["theirs"], times["ours"], strict=True)]
    cells = [Path(options.file).stem, str(count), str(runs["ours"].nsteps)]
    cells += [f"{statistics.median(values):.3g}" for values in times.values()]
    cells.append(f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})")
    cells.append(f"{np.abs(first - second).max():.0e}")
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
