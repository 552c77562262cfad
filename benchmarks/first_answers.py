"""Processor seconds from the shell to the first answer: calculator, `eqfuse md` and LAMMPS.

    python -m benchmarks.first_answers RUN [--starts 3] [--without LAMMPS]

Each is a process of its own on rattled SrTiO3 of 100 atoms. The first
start has an empty cache (`EQFUSE_CACHE_DIR`), those after it find what it left there. Bytecode of
Python is there before, as after `pip install`. Dynamics and LAMMPS compute one step; the export for
LAMMPS is a start of its own.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import ase.io
import numpy as np
from ase.io.lammpsdata import write_lammps_data

from benchmarks.clients.side_by_side import rattled
from benchmarks.lammps_pair import INPUT, PAIR

CALCULATOR = """
import sys, ase.io, eqfuse
atoms = ase.io.read("atoms.xyz")
atoms.calc = eqfuse.Calculator(sys.argv[1])
atoms.get_potential_energy()
"""
ATOMS = 100


def processor(command, start: int, place: Path, cache: Path) -> float:
    """Return the seconds of all threads of a command and its children, user and system."""
    command = [str(word).replace("START", str(start)) for word in command]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = os.environ | {"EQFUSE_CACHE_DIR": str(cache)}
    environment |= {"PYTHONPYCACHEPREFIX": str(place / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}
    subprocess.run(command, cwd=place, env=environment, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def commands(run: Path, place: Path) -> dict[str, list]:
    """Return the command of each start, in a folder that has its atoms."""
    atoms = rattled(ATOMS)
    types = sorted(set(atoms.symbols))
    ase.io.write(place / "atoms.xyz", atoms)
    write_lammps_data(
        place / "atoms.data", atoms, masses=True, units="metal", specorder=types, velocities=False
    )
    pair = PAIR.format(symbol=" ".join(types)).replace("folder", "folder-0")
    (place / "in.lammps").write_text(INPUT.format(pair=pair, steps=1).replace("run 3", "run 0"))
    eqfuse = [sys.executable, "-m", "eqfuse"]
    dynamics = ["temperature=300", "steps=1", "timestep=1", "run=md-START"]
    export = ["export", run, "folder-START", "for=lammps", f"types={','.join(types)}"]
    return {
        "calculator": [sys.executable, "-c", CALCULATOR, run],
        "eqfuse md": [*eqfuse, "md", run, "atoms.xyz", *dynamics],
        "eqfuse export for=lammps": [*eqfuse, *export],
        "LAMMPS": [Path(sys.executable).parent / "lmp", "-in", "in.lammps"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--starts", type=int, default=3, help="with the cache of the first")
    parser.add_argument("--without", nargs="+", default=[], help="what to leave out")
    options = parser.parse_args()
    print("| first answer | empty cache, s | later starts, s |\n|---|---:|---:|")
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for way, command in commands(options.run.resolve(), place).items():
            if way in options.without:
                continue
            cache = place / way.replace(" ", "-")
            processor(command, -1, place, place / "other-cache")  # leaves the bytecode
            cold, *warm = (processor(command, k, place, cache) for k in range(1 + options.starts))
            middle, low, high = np.percentile(warm, [50, 0, 100])
            print(f"| {way} | {cold:.1f} | {middle:.1f} ({low:.1f} to {high:.1f}) |", flush=True)


if __name__ == "__main__":
    main()
