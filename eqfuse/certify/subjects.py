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
from ase.calculators.calculator import CalculationFailed, all_changes
from ase.calculators.calculator import Calculator as AseCalculator
from ase.stress import full_3x3_to_voigt_6_stress as to_voigt

from eqfuse.certify import worker
from eqfuse.data import DataError
from eqfuse.inference import Calculator, predict

_ATOMS_AT_ONCE = 500


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


class Subject:
    """A calculator of ASE in this process.

    Attributes:
      name: for reports.
      elements: atomic numbers that it is known for; None if nothing says which.
      has_inversion: False for networks of SO(3) alone; None where nobody knows.
      is_local: whether far atoms have no energy with each other, as far as is known.
    """

    elements: Sequence[int] | None = None
    has_inversion: bool | None = None
    is_local: bool = True

    def __init__(self, calculator, name: str | None = None, modules: Sequence[str] = ()):
        self._calculator, self._modules = calculator, modules
        self.name = name or type(calculator).__name__

    def ask(self, kind: str, atoms: ase.Atoms | None = None, **options) -> dict:
        """Return the results of a task of `eqfuse.certify.worker`, or {"error": text}."""
        atoms = ase.Atoms() if atoms is None else atoms
        given = {name: getattr(atoms, name) for name in ("numbers", "positions", "pbc")}
        given |= {"cell": atoms.cell.array, "info": self.info_of(atoms)}
        return self._reply({"kind": kind, "atoms": given} | options)

    def info_of(self, atoms: ase.Atoms) -> dict:
        """Return the `info` of atoms that the calculator reads."""
        return {}

    def offset(self, atoms: ase.Atoms) -> float:
        """Return the part of the energy, eV, that is added in float64: it adds no rounding."""
        return 0.0

    def _reply(self, request: dict) -> dict:
        return worker.answer(self._calculator, **request)

    def _answer(self, atoms: ase.Atoms, **options) -> Answer:
        found = self.ask("compute", atoms, **options)
        if "error" in found:
            return Answer(np.nan, np.full((len(atoms), 3), np.nan), None, found["error"])
        stress = np.array(found["stress"]) if "stress" in found else None
        return Answer(float(found["energy"]), np.array(found["forces"]), stress)

    def in_turn(self, structures: Sequence[ase.Atoms]) -> list[Answer]:
        """Compute structures with one calculator, one after the other."""
        return [self._answer(atoms) for atoms in structures]

    def compute(self, structures: Sequence[ase.Atoms]) -> list[Answer]:
        """Compute structures, in any order and several at once."""
        return self.in_turn(structures)

    def fresh(self, structures: Sequence[ase.Atoms], other: ase.Atoms) -> list[Answer]:
        """Compute structures with a calculator that has seen none that is like them.

        It is a new one where one can be made; before each, it computes the `other` structure.
        """
        pairs = [(self._answer(other, fresh=True), self._answer(a, fresh=True)) for a in structures]
        return [answer for _, answer in pairs]

    def versions(self) -> dict[str, str]:
        """Return the versions of what computes."""
        return self.ask("versions", modules=list(self._modules))

    def close(self):
        """End what computes."""


class Run(Subject):
    """A trained or converted run of eqfuse.

    Args:
      run: see `eqfuse.Calculator`.
      dtype: "float64" if not given, whatever the run was trained in.
      options: which, backend: see `eqfuse.Calculator`.
    """

    def __init__(self, run, *, dtype=None, **options):
        calculator = Calculator(run, dtype=dtype or "float64", **options)
        super().__init__(calculator, str(run), ("eqfuse",))
        self._network, self.elements = calculator.network, calculator.species
        self.has_inversion = not self._network.metadata["model_fields"].get("so3", False)
        self.is_local = self._network.module.potential.long_range is None

    def info_of(self, atoms):
        """Return the total charge, 0 where atoms have none, if the network reads it."""
        key = self._network.charge_key
        return {} if key is None else {key: atoms.info.get(key, 0)}

    def offset(self, atoms):
        """Return the sum of the reference energies, eV."""
        references = dict(zip(self.elements, self._network.references, strict=True))
        return float(sum(references.get(int(z), 0.0) for z in atoms.numbers))

    def compute(self, structures):
        """Compute structures in batches; where a batch has an error, one after the other."""
        batch = max(1, _ATOMS_AT_ONCE // max(map(len, structures), default=1))
        if self._network.charge_key is not None:
            structures = [atoms.copy() for atoms in structures]
            for atoms in structures:
                atoms.info = self.info_of(atoms)
        try:
            found = predict(self._network, structures, batch_size=batch)
        except DataError:
            return self.in_turn(structures)
        stresses = [p.stress if p.stress is None else to_voigt(p.stress) for p in found]
        return [Answer(p.energy, p.forces, s) for p, s in zip(found, stresses, strict=True)]

    def fresh(self, structures, other):
        """Compute structures, each with a new neighbour list."""
        return self.compute(structures)


class Remote(Subject):
    """A calculator that `module:function(arguments)` names, in a process of its own.

    Args:
      name: see `worker.build`.
      python: of the environment; None for this one.
    Raises:
      DataError: the calculator cannot be made there; with what it says.
    """

    def __init__(self, name: str, python: str | Path | None = None):
        super().__init__(None, name, (name.partition(":")[0].partition(".")[0],))
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - see `close`
        command = [str(python or sys.executable), worker.__file__, name]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._log}
        try:
            self._process = subprocess.Popen(command, **pipes, text=True, errors="replace")
        except OSError as error:
            self._log.close()
            raise DataError(f"python={python} cannot be run: {error.strerror}") from error
        ready = self._received()
        if "ready" not in ready:
            self.close()
            why = ready.get("error", ready.get("ended"))
            why = "quote texts, 'like this'" if "malformed node" in why else why
            raise DataError(f"the calculator {name} cannot be made: {why}")

    def info_of(self, atoms):
        """Return the total charge and the spin that atoms have, which calculators read there."""
        return {name: atoms.info[name] for name in ("charge", "spin") if name in atoms.info}

    def _reply(self, request):
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(worker.as_line(request))
            self._process.stdin.flush()
        reply = self._received()
        if "ended" in reply:
            raise DataError(f"the process of {self.name} has ended: {reply['ended']}")
        return reply

    def _received(self) -> dict:
        """Return the next reply, or {"ended": why} of a process that will not answer."""
        while line := self._process.stdout.readline():
            if line.startswith("{"):  # a script around Python may print others before
                return json.loads(line)
        self._process.wait()
        self._log.seek(0)
        lines = self._log.read().strip().splitlines()
        return {"ended": lines[-1] if lines else f"exit code {self._process.returncode}"}

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


class RemoteCalculator(AseCalculator):
    """Calculator of ASE in a process of its own, a `Remote`, which is started again if it ended."""

    implemented_properties = ("energy", "forces", "stress")

    def __init__(self, name: str, python: str | None = None):
        super().__init__()
        self._made = name, python
        self._subject = Remote(*self._made)

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes):
        """Compute energy (eV), forces (eV/Å), and stress (eV/Å^3) where there is one.

        Raises:
          CalculationFailed: an error of the calculator, or its process has ended.
        """
        super().calculate(atoms, properties, system_changes)
        self._subject = self._subject or Remote(*self._made)
        try:
            found = self._subject.ask("compute", self.atoms)
        except DataError as error:
            self.close()
            raise CalculationFailed(str(error)) from error
        if "error" in found:
            raise CalculationFailed(found["error"])
        self.results = {n: np.array(v) if n != "energy" else v for n, v in found.items()}

    def close(self):
        """End the process."""
        if self._subject is not None:
            self._subject.close()
            self._subject = None


def open_subject(name: str, *, python=None, **of_run) -> Subject:
    """Return the potential that an argument of a command names, a run or `module:function(...)`.

    Args:
      name: of it.
      python: see `Remote`.
      of_run: `which`, `dtype` and `backend` of a run.
    Raises:
      CheckpointError, DataError: there is none, or an option that is not for it.
    """
    named = {option: value for option, value in of_run.items() if value is not None}
    if ":" in name and not os.path.exists(name):  # False for a name that is too long
        if named:
            options = ", ".join(f"{option}=" for option in named)
            raise DataError(
                f"{options}: of a run only; give options of {name} between its parentheses"
            )
        return Remote(name, python)
    if python is not None:
        raise DataError("python= is for calculators, module:function(arguments); a run needs none")
    return Run(name, **named)
