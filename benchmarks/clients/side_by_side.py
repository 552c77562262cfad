"""Time energy, forces and stress by other programs and eqfuse, each in its own environment.

    python -m benchmarks.clients.side_by_side --python mace=PYTHON symmetrix=PYTHON [--json FILE]
    python -m benchmarks.clients.side_by_side --python sevennet=PYTHON --files 7net-0
    python -m benchmarks.clients.side_by_side --python nequip=PYTHON --files NAME.nequip.zip
    python -m benchmarks.clients.side_by_side --training --python mace=PYTHON
    python -m benchmarks.clients.side_by_side --training --python mlip=PYTHON --run RUN
    python -m benchmarks.clients.side_by_side --run RUN --atoms 500 50000  # eqfuse alone

Each program is a process (`.worker`) that computes rattled SrTiO3 once more when it is asked to, in
turns with the others, on the same threads; atoms move between calls. Without --files the networks
have random weights in the shape of MACE-MP-0, which mace's Python makes. Energies and forces are
compared with those of eqfuse in float64 at every call, and programs that are further apart than
`AGREE` are not timed; mlip has weights of its own, and is not compared. With --training they
compute steps of training (`worker.TrainingInTorch`). Ratios are of calls of one turn: seconds of a
processor, which other work on the machine disturbs less than those of the clock.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import ase
import ase.io
import numpy as np

from benchmarks.record import Record, Spread, add_json_option
from eqfuse.convert import convert

CELLS = {25: (5, 1, 1), 100: (5, 2, 2), 500: (5, 5, 4), 2000: (10, 8, 5)}
CELLS |= {10_000: (20, 10, 10), 50_000: (25, 20, 20)}
"""Repeats of the cubic cell of SrTiO3, by the number of atoms."""
AGREE = {"float64": (1e-6, 1e-4), "float32": (1e-4, 1e-3)}
"""Largest difference of energies, eV an atom, and of forces, relative to the largest: symmetrix has
cubic splines, and mace sums energies in float32."""
WARM = 1
LONG, FEW = 4.0, 2
"""Seconds of a call from which on a program takes part in this many turns, without warm ones, if it
is not alone."""
EITHER = "float64", "float32"
OF_MACE = {
    "symmetrix": ("symmetrix", EITHER),
    "symmetrix, evaluator": ("symmetrix", EITHER),
    "symmetrix, serial evaluator": ("symmetrix", ("float64",)),
    "mace-torch": ("mace", EITHER),
    "mace-torch, forces only": ("mace", EITHER),
    "mace-torch, compiled": ("mace", EITHER),
}
"""Programs of networks of mace: whose Python they run with, and in which dtypes."""
TRAINING = {"mace": "mace-torch", "sevennet": "sevenn", "nequix": "nequix"}
OWN_WEIGHTS = ("mlip, training",)
"""Programs with other weights than eqfuse."""
OTHERS = {"sevennet": ("sevenn",), "nequix": ("nequix",), "nequip": ("nequip, compiled",)}


class Side:
    """A program in a process of its own."""

    def __init__(self, program, python, file, structure, dtype, threads: int):
        given = [python, "-m", "benchmarks.clients.worker", program, file, structure, dtype]
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        variables = os.environ | dict.fromkeys(names, str(threads)) | {"OMP_PROC_BIND": "false"}
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self.program, self.calls, self.error = program, [], None
        self.process = subprocess.Popen(list(map(str, given)), text=True, env=variables, **pipes)

    def call(self):
        """Compute once more; returns the energy and the forces."""
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
            line = json.loads(self.process.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError):
            lines = self.process.communicate()[1].strip().splitlines()
            self.error = lines[-1] if lines else f"ended with {self.process.returncode}"
            return None
        forces = np.array(line.pop("forces"))
        self.calls.append(line)
        return line["energy"] / len(forces), forces

    def takes_part(self, turn: int, alone: bool) -> bool:
        long = not alone and self.calls and self.calls[-1]["clock"] > LONG
        return self.error is None and not (long and turn >= FEW)

    def end(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            self.process.stderr.close()
            self.process.wait()


def measure(sides: list[Side], turns: int, agree: dict) -> list[dict]:
    """Return times and differences of each side; the others are compared with the first."""
    apart = {side.program: (0.0, 0.0) for side in sides}
    for turn in range(turns + WARM):
        expected = None
        for side in sides:
            takes_part = side.takes_part(turn, alone=len(sides) == 1)
            if not takes_part or (found := side.call()) is None:
                continue
            expected = expected or found
            energy, forces = (np.abs(a - b).max() for a, b in zip(found, expected, strict=True))
            errors = energy, forces / np.abs(expected[1]).max()
            apart[side.program] = tuple(map(max, errors, apart[side.program]))
            compared = side.program not in OWN_WEIGHTS
            if compared and not all(a <= b for a, b in zip(errors, agree, strict=True)):
                side.error = (
                    f"apart by {errors[0]:.1e} eV an atom and {errors[1]:.1e} of the forces"
                )
    found = []
    for side in sides:
        side.end()
        row = {"program": side.program, "energy": apart[side.program][0]}
        row |= {"forces": apart[side.program][1], "calls": side.calls}
        if side.error is not None:
            found.append(row | {"why_not": side.error})
            continue
        for name in ("processor", "clock"):
            own, first = ([c[name] for c in s.calls] for s in (side, sides[0]))
            warm = WARM if len(own) > FEW else 0
            ratio = [a / b for a, b in zip(own[warm:], first[warm:], strict=False)]
            row[name] = {"ms": Spread.of(1e3 * np.array(own), warm), "ratio": Spread.of(ratio)}
        found.append(row)
    return found


def networks(options, folder: Path):
    """Yield name, run and {program: (Python, file, dtypes)} of each network."""
    pythons = options.python
    if options.run is not None:
        run, peers = options.run.resolve(), {}
        if options.training and "mlip" in pythons:
            peers = {"mlip, training": (pythons["mlip"], run / "config.yaml", EITHER)}
        yield run.name, run, peers
        return
    if options.files:
        for file in options.files:
            kind = next(kind for kind in OTHERS if kind in pythons)
            run = folder / Path(file).stem
            convert(kind, file, run)
            if kind == "nequip":  # nequip-compile, by AOTInductor
                compiled = folder / f"{Path(file).stem}.nequip.pt2"
                given = ["--mode", "aotinductor", "--device", "cpu", "--target", "ase"]
                program = [pythons[kind], "-m", "nequip.scripts.compile"]
                subprocess.run([*program, file, compiled, *given], check=True)
                file = compiled
            programs = (f"{TRAINING[kind]}, training",) if options.training else OTHERS[kind]
            peers = dict.fromkeys(programs, (pythons[kind], file, ("float32",)))
            yield Path(file).stem, run, peers
        return
    for shape in options.shapes:
        file, run = folder / f"{shape}.model", folder / shape
        subprocess.run([pythons["mace"], "-c", MAKE, shape, file], check=True)
        convert("mace", str(file), run)
        table = folder / f"{shape}.json"
        if "symmetrix" in pythons:
            subprocess.run([pythons["symmetrix"], "-c", EXTRACT, file, table], check=True)
        files = {"mace": file, "symmetrix": table}
        if options.training:
            yield shape, run, {"mace-torch, training": (pythons["mace"], file, EITHER)}
            continue
        yield (
            shape,
            run,
            {
                program: (pythons[kind], files[kind], dtypes)
                for program, (kind, dtypes) in OF_MACE.items()
                if kind in pythons
            },
        )


MAKE = """
import dataclasses, sys, torch
from benchmarks.clients import mace_networks
shape = mace_networks.SHAPES[sys.argv[1]]
if shape.first == mace_networks.RESIDUAL:  # symmetrix reads no other
    shape = dataclasses.replace(shape, first=mace_networks.PLAIN)
torch.save(mace_networks.random_network(shape, "float64"), sys.argv[2])
"""
EXTRACT = """
import json, sys
from symmetrix.extract_mace_data import extract_mace_data
json.dump(extract_mace_data(sys.argv[1], [8, 22, 38]), open(sys.argv[2], "w"))
"""


def rattled(count: int) -> ase.Atoms:
    """Return a rattled supercell of SrTiO3 of one of the sizes of `CELLS`."""
    positions = [[0, 0, 0], [0.5, 0.5, 0.5], [0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0.5]]
    atoms = ase.Atoms("SrTiO3", positions, cell=[1, 1, 1], pbc=True)
    atoms.set_cell([3.905] * 3, scale_atoms=True)
    atoms *= CELLS[count]
    atoms.rattle(0.05, seed=0)
    return atoms


def of_an_atom(result: dict, count: int) -> str:
    """Return the median of a side and its peak of memory, both also for each atom."""
    if "why_not" in result:
        return f"{result['program']}: {result['why_not']}"
    micro = 1e3 * result["processor"]["ms"].median / count
    peak = max(call["peak"] for call in result["calls"])
    return (
        f"{result['program']} {micro:.4g} µs an atom; {peak / 1e9:.2f} GB at most, "
        f"{peak / count / 1e3:.0f} kB an atom"
    )


def cell(result: dict, kind: str) -> str:
    """Return the median of a side, and how many times that of eqfuse it is."""
    if "why_not" in result:
        return f"{result['program']}: {result['why_not']}"
    ms, ratio = result[kind]["ms"], result[kind]["ratio"]
    return (
        f"{result['program']} {ms.median:.4g} ms; {ratio.median:.2f} ({ratio.low:.2f} to "
        f"{ratio.high:.2f}), {result['energy']:.0e}, {result['forces']:.0e}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--python", nargs="+", metavar="PROGRAM=PYTHON", default=[])
    parser.add_argument("--run", type=Path, help="time eqfuse alone, by a run of its own")
    parser.add_argument("--shapes", nargs="+", default=["MP-0 small", "MP-0 medium"])
    parser.add_argument("--files", nargs="+", default=[], help="of sevennet, nequix, nequip")
    parser.add_argument("--atoms", nargs="+", type=int, default=list(CELLS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--dtypes", nargs="+", default=["float64", "float32"])
    parser.add_argument("--without", nargs="+", default=[], help="programs to leave out")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--training", action="store_true", help="steps of training instead")
    add_json_option(parser)
    options = parser.parse_args()
    os.environ.setdefault("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # mace's own import needs it
    options.python = dict(given.split("=", 1) for given in options.python)
    record = Record(options.json)
    processors = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for name, run, peers in networks(options, folder):
            for count in options.atoms:
                structure = folder / f"{count}.traj"
                ase.io.write(structure, rattled(count))
                for threads in options.threads:
                    os.sched_setaffinity(0, sorted(processors)[:threads])
                    for dtype in options.dtypes:
                        given = sys.executable, run, structure, dtype, threads
                        kind = ", training" if options.training else ""
                        sides = [Side(f"eqfuse{kind}", *given)]
                        if options.training:
                            sides.append(Side("e3nn-jax, training", *given))
                        for program, (python, file, dtypes) in peers.items():
                            if dtype in dtypes and program not in options.without:
                                given = program, python, file, structure, dtype, threads
                                sides.append(Side(*given))
                        rows = measure(sides, options.turns, AGREE[dtype])
                        case = {"network": name, "atoms": count, "threads": threads}
                        case |= {"dtype": dtype, "load": os.getloadavg()[0], "sides": rows}
                        record.add(case)
                        print(f"{name}, {count} atoms, {dtype}, {threads} threads:", flush=True)
                        for kind in ("processor", "clock"):
                            print(f"  {kind}", *(cell(r, kind) for r in rows), sep="\n    ")
                        print("  of an atom", *(of_an_atom(r, count) for r in rows), sep="\n    ")
    os.sched_setaffinity(0, processors)


if __name__ == "__main__":
    main()
