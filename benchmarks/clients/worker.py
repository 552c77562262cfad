"""Compute moving atoms with one program, as often as its parent asks; see `.side_by_side`.

    PYTHON -m benchmarks.clients.worker PROGRAM FILE STRUCTURE DTYPE

It runs in the environment of that program. For each line that it reads, it displaces the atoms by
hundredths of an Å, the same for all programs, and prints JSON: energy (eV), forces (eV/Å), and the
seconds of a processor and of the clock. What is read back from memory that another program has used
is not timed: of several calls in a row, it is the last.
"""

import os

os.environ.setdefault("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # mace's own import needs it

import argparse
import json
import sys
import time
import warnings

import ase.io
import numpy as np

STEP = 0.01
"""Displacements, Å: a standard deviation."""
CALLS, LARGE = 3, 1.0
"""Calls in a row, and seconds of a call that is timed without others before it."""


class Calculator:
    """A program through its calculator of ASE: energy, forces and stress, with its list."""

    def __init__(self, calculator):
        self.calculator = calculator

    def prepare(self, atoms):
        self.atoms = atoms

    def compute(self):
        self.calculator.calculate(self.atoms, ["energy", "forces", "stress"], ["positions"])

    def results(self):
        results = self.calculator.results
        return results["energy"], results["forces"]


class Alone:
    """The evaluator of symmetrix on pairs that are at hand: energies and forces of pairs."""

    def __init__(self, calculator):
        self.evaluator = calculator.evaluator

    def prepare(self, atoms):
        from matscipy.neighbours import neighbour_list

        known, count = self.evaluator.atomic_numbers, len(atoms)
        types = np.searchsorted(known, atoms.numbers).astype(np.int32)
        i, j, lengths, vectors = neighbour_list("ijdD", atoms, self.evaluator.r_cut)
        neighbours = np.bincount(i, minlength=count).astype(np.int32)
        self.ends = i, j
        self.arguments = count, types, neighbours, j.astype(np.int32), types[j]
        self.arguments += vectors.ravel(), lengths

    def compute(self):
        self.evaluator.compute_node_energies_forces(*self.arguments)

    def results(self):
        i, j = self.ends
        pairs = np.reshape(self.evaluator.node_forces, (-1, 3))[: len(i)]
        forces = np.zeros((self.arguments[0], 3))
        np.add.at(forces, j, pairs)
        np.add.at(forces, i, -pairs)
        return np.sum(self.evaluator.node_energies[: len(forces)]), forces


class ForcesOnly:
    """A network of mace-torch on a batch that is at hand: energy and forces."""

    def __init__(self, calculator):
        self.made, self.network = calculator, calculator.models[0]

    def prepare(self, atoms):
        self.batch = self.made._atoms_to_batch(atoms).to_dict()

    def compute(self):
        self.found = self.network(self.batch, compute_stress=False)

    def results(self):
        return tuple(self.found[name].detach().numpy() for name in ("energy", "forces"))


def _eqfuse(file, dtype):
    import eqfuse

    return Calculator(eqfuse.Calculator(file, dtype=dtype))


def _mace(file, dtype, **options):
    import torch
    from mace.calculators import MACECalculator

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    return MACECalculator(model_paths=file, device="cpu", default_dtype=dtype, **options)


def _sevennet(file, dtype):
    import torch
    from sevenn.calculator import SevenNetCalculator

    _only(dtype, "float32")
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    return Calculator(SevenNetCalculator(file, device="cpu"))


def _nequip(file, dtype):
    import torch
    from nequip.integrations.ase import NequIPCalculator

    _only(dtype, "float32")
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    return Calculator(NequIPCalculator.from_compiled_model(file, device="cpu"))


def _nequix(file, dtype):
    from nequix.calculator import NequixCalculator

    _only(dtype, "float32")
    return Calculator(NequixCalculator(model_path=file, use_kernel=False))


def _symmetrix(file, dtype, kokkos=True):
    from symmetrix import Symmetrix

    return Symmetrix(file, dtype=dtype, use_kokkos=kokkos)


def _only(dtype: str, known: str):
    if dtype != known:
        raise ValueError(f"computes in {known}")


PROGRAMS = {
    "eqfuse": _eqfuse,
    "symmetrix": lambda file, dtype: Calculator(_symmetrix(file, dtype)),
    "symmetrix, evaluator": lambda file, dtype: Alone(_symmetrix(file, dtype)),
    "symmetrix, serial evaluator": lambda *given: Alone(_symmetrix(*given, kokkos=False)),
    "mace-torch": lambda file, dtype: Calculator(_mace(file, dtype)),
    "mace-torch, forces only": lambda file, dtype: ForcesOnly(_mace(file, dtype)),
    "mace-torch, compiled": lambda *given: Calculator(
        _mace(*given, compile_mode="default", fullgraph=False)
    ),
    "sevenn": _sevennet,
    "nequip, compiled": _nequip,
    "nequix": _nequix,
}
"""What computes, by name: functions of a file and a dtype."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", choices=PROGRAMS)
    for name in ("file", "structure", "dtype"):
        parser.add_argument(name)
    options = parser.parse_args()
    results, sys.stdout = sys.stdout, sys.stderr  # programs print, too
    warnings.simplefilter("ignore")
    atoms = ase.io.read(options.structure)
    side = PROGRAMS[options.program](options.file, options.dtype)
    start = atoms.positions.copy()
    seconds = (0.0, 0.0)
    for turn, _ in enumerate(sys.stdin):
        for call in reversed(range(CALLS if seconds[1] < LARGE else 1)):
            rng = np.random.default_rng([turn, call])
            atoms.positions = start + STEP * rng.normal(size=start.shape)
            side.prepare(atoms)
            before = time.process_time(), time.perf_counter()
            side.compute()
            seconds = time.process_time() - before[0], time.perf_counter() - before[1]
        energy, forces = side.results()
        line = {"energy": float(np.sum(energy)), "forces": np.asarray(forces).tolist()}
        line |= dict(zip(("processor", "clock"), seconds, strict=True))
        print(json.dumps(line), file=results, flush=True)


if __name__ == "__main__":
    main()
