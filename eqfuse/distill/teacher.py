"""The teacher: a run, a published network by its name, or any calculator of ASE."""

import ase
import numpy as np
from ase.calculators.calculator import CalculationFailed, Calculator
from ase.calculators.singlepoint import SinglePointCalculator

import eqfuse
from eqfuse.certify.subjects import RemoteCalculator
from eqfuse.certify.worker import compute
from eqfuse.distill.settings import is_code
from eqfuse.runs import ConfigError


def open_teacher(name: str, *, python: str | None = None, head: str | None = None) -> Calculator:
    """Return the calculator that `module:function(arguments)` or a run names.

    Raises:
      ConfigError: `python`, of a calculator's environment, or `head`, of a network, is not for it.
      CheckpointError, DataError: it cannot be read, found or made.
    """
    if is_code(name):
        if head is not None:
            raise ConfigError(f"head={head} is for networks; give options of {name} in its name")
        return RemoteCalculator(name, python)
    if python is not None:
        raise ConfigError("python= is for calculators, module:function(arguments)")
    return eqfuse.Calculator(name, head=head)


def labelled(atoms: ase.Atoms, calculator) -> ase.Atoms:
    """Return a copy with energy, forces and, in a cell, stress; CalculationFailed if not finite."""
    results = compute(calculator, atoms)
    if not all(np.isfinite(value).all() for value in results.values()):
        raise CalculationFailed("energy, forces or stress are not finite")
    frame = atoms.copy()
    frame.calc = SinglePointCalculator(frame, **results | {"energy": float(results["energy"])})
    return frame
