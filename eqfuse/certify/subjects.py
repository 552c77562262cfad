"""Potentials to certify: a run of eqfuse, a calculator of ASE, or one of another environment."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import ase
import numpy as np

from eqfuse.certify import worker
from eqfuse.data import DataError
from eqfuse.inference.calculator import Calculator
from eqfuse.inference.network import Network
from eqfuse.inference.predict import predict

_ATOMS_AT_ONCE = 500
_THREADS = "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"


class Answer(NamedTuple):
    """The results for one structure: eV, eV/Å [n_atoms, 3], eV/Å^3 [6] or None; or an error."""

    energy: float
    forces: np.ndarray
    stress: np.ndarray | None
    error: str | None = None

    @property
    def is_finite(self) -> bool:
        """Return True if all numbers are finite."""
        stress = 0.0 if self.stress is None else self.stress
        return bool(np.isfinite(self.energy + np.sum(self.forces) + np.sum(stress)))


def _answer(results: dict, num_atoms: int) -> Answer:
    if "error" in results:
        return Answer(np.nan, np.full((num_atoms, 3), np.nan), None, str(results["error"]))
    stress = results.get("stress")
    return Answer(float(results["energy"]), np.asarray(results["forces"]), stress)


class Subject:
    """A calculator of ASE in this process.

    Attributes:
      name: for reports.
      elements: atomic numbers that it is known for; None if nothing says which.
      has_inversion: False for networks of SO(3) alone; None where nobody knows.
    """

    elements: Sequence[int] | None = None
    has_inversion: bool | None = None

    def __init__(self, calculator, name: str | None = None, modules: Sequence[str] = ()):
        self._calculator, self._modules = calculator, modules
        self.name = name or type(calculator).__name__

    def ask(self, kind: str, atoms: ase.Atoms | None = None, **options) -> dict:
        """Return the arrays of a task of `eqfuse.certify.worker`, or {"error": text}."""
        request = {} if atoms is None else worker.arrays_of(atoms)
        request["task"] = json.dumps({"kind": kind, **options})
        return self._reply(request)

    def _reply(self, request: dict) -> dict:
        return worker.answer(self._calculator, request)

    def in_turn(self, structures: Sequence[ase.Atoms]) -> list[Answer]:
        """Compute structures with one calculator, one after the other."""
        return [_answer(self.ask("compute", atoms), len(atoms)) for atoms in structures]

    def compute(self, structures: Sequence[ase.Atoms]) -> list[Answer]:
        """Compute structures, in any order and several at once."""
        return self.in_turn(structures)

    def fresh(self, structures: Sequence[ase.Atoms], other: ase.Atoms) -> list[Answer]:
        """Compute structures with a calculator that has seen none that is like them.

        It is a new one where one can be made; before each, it computes the `other` structure.
        """
        answers = []
        for atoms in structures:
            self.ask("compute", other, fresh=True)
            answers.append(_answer(self.ask("compute", atoms, fresh=True), len(atoms)))
        return answers

    def versions(self) -> dict[str, str]:
        """Return the versions of what computes."""
        found = self.ask("versions", modules=list(self._modules))
        return json.loads(str(found["versions"]))

    def close(self):
        """End what computes."""


class Run(Subject):
    """A trained or converted run of eqfuse.

    Args:
      run, which, backend: see `eqfuse.Calculator`.
      dtype: "float64" if not given, whatever the run was trained in.
      batch: structures at once; as many as fit into some hundred atoms if not given.
    """

    def __init__(self, run, *, which=None, dtype=None, backend=None, batch: int | None = None):
        dtype = dtype or "float64"
        self._network = Network(run, which=which, dtype=dtype, backend=backend)
        calculator = Calculator(run, which=which, dtype=dtype, backend=backend)
        super().__init__(calculator, str(run), ("eqfuse",))
        self.elements, self._batch = self._network.species, batch
        self.has_inversion = not self._network.metadata["model_fields"].get("so3", False)

    def compute(self, structures):
        """Compute structures in batches; where a batch has an error, one after the other."""
        batch = self._batch or max(1, _ATOMS_AT_ONCE // max(map(len, structures)))
        try:
            found = predict(self._network, structures, batch_size=batch)
        except DataError:
            return self.in_turn(structures)
        voigt = [0, 4, 8, 5, 2, 1]
        stresses = [None if p.stress is None else p.stress.ravel()[voigt] for p in found]
        return [Answer(p.energy, p.forces, s) for p, s in zip(found, stresses, strict=True)]

    def fresh(self, structures, other):
        """Compute structures, each with a new neighbour list."""
        return self.compute(structures)


class Remote(Subject):
    """A calculator that `module:function(arguments)` names, in a process of its own.

    Args:
      name: see `worker.build`.
      python: of the environment; None for this one.
      threads: processors that it may use; None for all.
    Raises:
      DataError: the calculator cannot be made there; with what it says.
    """

    def __init__(self, name: str, python: str | Path | None = None, threads: int | None = None):
        super().__init__(None, name, (name.partition(":")[0].partition(".")[0],))
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it is closed with the process
        command = [str(python or sys.executable), worker.__file__, name, str(threads or 0)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._log}
        of_threads = dict.fromkeys(_THREADS, str(threads)) if threads else {}
        try:
            self._process = subprocess.Popen(command, **pipes, env=os.environ | of_threads)
        except OSError as error:
            self._log.close()
            raise DataError(f"python={python} cannot be run: {error.strerror}") from error
        ready = worker.receive(self._process.stdout)
        if ready is None or "error" in ready:
            said = self._last_line() if ready is None else str(ready["error"])
            self.close()
            raise DataError(f"the calculator {name} cannot be made: {said}")

    def _reply(self, request):
        with contextlib.suppress(BrokenPipeError):
            worker.send(self._process.stdin, request)
        reply = worker.receive(self._process.stdout)
        if reply is None:
            raise DataError(f"the process of {self.name} has ended: {self._last_line()}")
        return reply

    def _last_line(self) -> str:
        self._process.wait()
        self._log.seek(0)
        lines = self._log.read().strip().splitlines()
        return lines[-1] if lines else f"exit code {self._process.returncode}"

    def close(self):
        """End the process."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()


def open_subject(name: str, *, python=None, threads=None, batch=None, **of_run) -> Subject:
    """Return the potential that an argument of a command names, a run or `module:function(...)`.

    Args:
      name: of it.
      python, threads: see `Remote`; a run gets a process of its own for a number of threads.
      batch: see `Run`.
      of_run: `which`, `dtype` and `backend` of a run.
    Raises:
      CheckpointError, DataError: there is none, or an option that is not for it.
    """
    named = {option: value for option, value in of_run.items() if value is not None}
    if ":" in name and not Path(name).exists():
        if batch is not None or named:
            options = ", ".join(f"{k}=" for k in [*named, *(["batch"] if batch else [])])
            raise DataError(
                f"{options}: of a run only; give options of {name} between its parentheses"
            )
        return Remote(name, python, threads)
    if python is not None:
        raise DataError("python= is for calculators, module:function(arguments); a run needs none")
    if threads is None:
        return Run(name, batch=batch, **named)
    if batch is not None:
        raise DataError("threads= computes one structure at a time: leave out batch=")
    options = "".join(f", {k}={v!r}" for k, v in ({"dtype": "float64"} | named).items())
    return Remote(f"eqfuse:Calculator({str(name)!r}{options})", threads=threads)
