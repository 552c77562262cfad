"""Time steps of silicon in LAMMPS by `pair_style eqfuse`, by ASE and by `eqfuse md`, in turns.

python -m benchmarks.lammps_pair RUN [--symbol Si] [--cells 4 8] [--ranks 1 2] [--turns 3]

Programs are made for the size of a rank; with --ladder, they are those of `eqfuse export`.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ase.build
import numpy as np
from ase import units
from ase.io.lammpsdata import write_lammps_data
from ase.md.velocitydistribution import thermalize_momenta
from ase.md.verlet import VelocityVerlet

import eqfuse
from eqfuse import md
from eqfuse.data import neighbor_list
from eqfuse.data.padding import room_for_pairs
from eqfuse.export import export_folder
from eqfuse.export.folder import ladder
from eqfuse.md import simulation

INPUT = """
units metal
read_data atoms.data
{pair}
neighbor 1.0 bin
fix move all nve
thermo 1000000
run 3
run {steps} pre no
"""
PAIR = "plugin load folder/eqfuseplugin.so\npair_style eqfuse folder\npair_coeff * * {symbol}"


def run_lammps(place: Path, pair: str, ranks: int, steps: int) -> dict:
    """Return milliseconds of a step, of the clock and of the processor, and what a rank had."""
    (place / "in.lammps").write_text(INPUT.format(pair=pair, steps=steps))
    tools = Path(sys.executable).parent
    command = [tools / "mpirun", "-n", str(ranks), tools / "lmp", "-in", "in.lammps"]
    text = subprocess.run(command, cwd=place, capture_output=True, text=True, check=True).stdout
    loops = re.findall(r"Loop time of (\S+) on .* for (\d+) steps", text)
    shares = re.findall(r"([\d.]+)% CPU use", text)
    seconds, count = float(loops[-1][0]), int(loops[-1][1])
    found = {"clock": 1e3 * seconds / count, "processor": 10 * seconds / count * float(shares[-1])}
    if last := re.findall(
        r"\(([\d.e+]+) MB sent\); at most (\d+) atoms and (\d+) ghosts, (\d+) MB", text
    ):
        found |= dict(zip(("MB", "atoms", "ghosts", "memory"), map(float, last[-1]), strict=True))
    return found


def run_ase(run, atoms, steps: int) -> dict:
    atoms = atoms.copy()
    atoms.calc = eqfuse.Calculator(run, skin=1.0)
    dynamics = VelocityVerlet(atoms, 1 * units.fs)
    dynamics.run(3)
    clock, processor = time.perf_counter(), time.process_time()
    dynamics.run(steps)
    clock, processor = time.perf_counter() - clock, time.process_time() - processor
    return {"clock": 1e3 * clock / steps, "processor": 1e3 * processor / steps}


def run_md(run, atoms, steps: int) -> dict:
    """Return milliseconds of the second half of a simulation, in which nothing compiles."""
    marks, take = [], simulation.Stepper.take

    def marked(*arguments):
        done = take(*arguments)
        np.asarray(done.rows)  # waits for the device
        marks.append((time.perf_counter(), time.process_time()))
        return done

    settings = {"ensemble": "nve", "timestep": 1.0, "skin": 1.0, "steps": 2 * steps}
    settings |= {"save_every": steps, "log_every": steps}
    simulation.Stepper.take = marked
    try:
        with tempfile.TemporaryDirectory() as name:
            md.run(run, atoms, run=f"{name}/md", **settings)
    finally:
        simulation.Stepper.take = take
    clock, processor = 1e3 / steps * np.subtract(marks[-1], marks[-2])
    return {"clock": clock, "processor": processor}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("--symbol", default="Si", help="an element, or NaCl as rocksalt")
    parser.add_argument("--cells", type=int, nargs="+", default=[4, 8], help="along a side")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--ladder", action="store_true", help="take programs of `eqfuse export`")
    options = parser.parse_args()
    print(
        "| atoms | by | ms a step, processor of a rank | clock | atoms, ghosts | MB a step | MB |"
    )
    print("|---:|---|---:|---:|---:|---:|---:|")
    for cells in options.cells:
        of = {"crystalstructure": "rocksalt", "a": 5.69} if options.symbol == "NaCl" else {}
        atoms = ase.build.bulk(options.symbol, cubic=True, **of) * (cells, cells, cells)
        types = sorted(set(atoms.symbols))
        atoms.rattle(0.05, seed=1)
        thermalize_momenta(atoms, 300, rng=np.random.default_rng(1))
        with tempfile.TemporaryDirectory() as name:
            place, run = Path(name), Path(options.run).resolve()
            data = {"velocities": True, "masses": True, "units": "metal", "specorder": types}
            write_lammps_data(place / "atoms.data", atoms, **data)
            cutoff = eqfuse.Calculator(run).cutoff
            pairs = neighbor_list(atoms.positions, atoms.cell, atoms.pbc, cutoff)[0]
            whole = len(atoms), room_for_pairs(len(pairs))
            sizes = [tuple(int(1.05 * n / ranks) for n in whole) for ranks in options.ranks]
            if options.ladder:
                sizes = ladder(len(pairs) / len(atoms), len(atoms))
            export_folder(run, place / "folder", types=types, sizes=sizes)
            pair = PAIR.format(symbol=" ".join(types))
            ways = {"ASE": lambda run=run, atoms=atoms: run_ase(run, atoms, options.steps)}
            ways["eqfuse md"] = lambda run=run, atoms=atoms: run_md(run, atoms, options.steps)
            for n in options.ranks:
                ways[f"pair style, {n} ranks"] = lambda n=n, p=place, s=pair: run_lammps(
                    p, s, n, options.steps
                )
            found = {way: [] for way in ways}
            for _ in range(options.turns):
                for way, measure in ways.items():
                    found[way].append(measure())
        for way, rows in found.items():
            times = [
                np.percentile([r[k] for r in rows], [50, 0, 100]) for k in ("processor", "clock")
            ]
            cells_of = " | ".join("{:.1f} ({:.1f} to {:.1f})".format(*t) for t in times)
            last = rows[-1]
            halo = f"{last['atoms']:.0f}, {last['ghosts']:.0f}" if "MB" in last else ""
            count = options.steps + 4  # 3 steps before, and the forces that they start with
            sent = f"{last['MB'] / count:.2f}" if "MB" in last else ""
            memory = f"{last['memory']:,.0f}" if "memory" in last else ""
            print(
                f"| {len(atoms):,} | {way} | {cells_of} | {halo} | {sent} | {memory} |", flush=True
            )


if __name__ == "__main__":
    main()
