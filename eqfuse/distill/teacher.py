"""The teacher: a run, a published network by its name, or any calculator of ASE."""

from pathlib import Path

import ase
import numpy as np
from ase.calculators.calculator import CalculationFailed, Calculator, all_changes
from ase.calculators.singlepoint import SinglePointCalculator

import eqfuse
from eqfuse.certify.subjects import Remote
from eqfuse.certify.worker import compute
from eqfuse.data import DataError
from eqfuse.runs.errors import ConfigError
from eqfuse.runs.names import hint, is_published


class Asked(Calculator):
    """Calculator of ASE in a process of its own, which is started again if it has ended.

    Args:
      name: `module:function(arguments)`, see `eqfuse.certify.worker.build`.
      python: of its environment; None for this one.
    Raises:
      DataError: the calculator cannot be made there.
    """

    implemented_properties = ("energy", "forces", "stress")

    def __init__(self, name: str, python: Path | None = None):
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
        self.results = {name: np.array(value) for name, value in found.items()}
        self.results["energy"] = float(found["energy"])

    def close(self):
        """End the process."""
        if self._subject is not None:
            self._subject.close()
            self._subject = None


def open_teacher(name: str, *, python=None, head=None) -> Calculator:
    """Return the calculator of a teacher.

    Args:
      name: the folder of a run or a file of its network, the name of a published network, or
        `module:function(arguments)`.
      python: of the environment of a calculator of ASE.
      head: of a network with several.
    Raises:
      ConfigError: there is no such teacher, or an option that is not for it.
      CheckpointError, DataError: it cannot be read, found or made.
    """
    is_run = is_published(name) or Path(name).expanduser().exists()
    if not is_run and ":" in name:
        if head is not None:
            raise ConfigError(f"head={head} is for networks; give options of {name} in its name")
        return Asked(name, python)
    if python is not None:
        raise ConfigError("python= is for calculators, module:function(arguments)")
    if not is_run:
        raise ConfigError(
            f"{name} is {hint(name)}; a calculator of ASE is written as module:function(arguments)"
        )
    return eqfuse.Calculator(name, head=head)


def labelled(atoms: ase.Atoms, calculator) -> ase.Atoms:
    """Return a copy with energy, forces and, in a periodic cell, the stress of a calculator.

    Raises:
      CalculationFailed: a number that is not finite; and what the calculator raises.
    """
    results = compute(calculator, atoms)
    if not all(np.isfinite(value).all() for value in results.values()):
        raise CalculationFailed("energy, forces or stress are not finite")
    frame = atoms.copy()
    frame.calc = SinglePointCalculator(frame, **results | {"energy": float(results["energy"])})
    return frame
