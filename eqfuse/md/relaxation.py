"""Relaxation of structures to the nearest minimum of the energy, by ASE's FIRE."""

import dataclasses
from collections.abc import Iterator
from functools import partial

import ase
import numpy as np
from ase import units
from ase.calculators.singlepoint import SinglePointCalculator
from ase.filters import UnitCellFilter
from ase.optimize import FIRE

from eqfuse.data import (
    DataError,
    Structure,
    iterate_atoms,
    labels_of,
    require_apart,
    species_index,
)
from eqfuse.inference import Calculator
from eqfuse.md.settings import RelaxSettings
from eqfuse.md.structures import atoms_of
from eqfuse.runs import naming


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The relaxation of one structure."""

    atoms: ase.Atoms  # at the end, with energy and forces, and stress if periodic
    first_energy: float  # eV, before
    largest: float  # eV/Å, force; of a cell, its share by atom (as in ASE's UnitCellFilter)
    steps: int  # that were taken
    is_relaxed: bool  # whether the largest force is below `fmax`


def relax(network, frames, settings: RelaxSettings | None = None, **changes) -> list[Outcome]:
    """Relax structures by ASE's FIRE, one after the other; cells by its UnitCellFilter.

    Args:
      network: the folder of a run, or a file of its network (.safetensors).
      frames: `ase.Atoms`, or several in any form, see `eqfuse.predict`. They are not changed, and
        their constraints hold. One has one outcome, in a list.
      settings: None for the defaults.
      changes: settings by name, such as fmax=0.001.
    Raises:
      ConfigError: impossible settings.
      DataError: atoms that overlap, are not finite, of unknown elements, periodic without a cell,
        or without three periodic directions where cells relax; or forces that became infinite;
        names the frame.
      CheckpointError: no readable network.
    """
    return [*relaxations(network, frames, settings, **changes)]


def relaxations(
    network, frames, settings: RelaxSettings | None = None, **changes
) -> Iterator[Outcome]:
    """Yield the outcomes of `relax`, each before the next structure is relaxed."""
    settings = dataclasses.replace(settings or RelaxSettings(), **changes)
    frames = atoms_of(frames, partial(iterate_atoms, types=settings.types))
    of_calculator = {name: getattr(settings, name) for name in ("dtype", "backend", "dispersion")}
    calculator = Calculator(network, **of_calculator)
    for number, atoms in enumerate(frames):
        with naming(f"frame {number}"):
            structure = Structure(atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc)
            species_index(atoms.numbers, calculator.species)
            require_apart(structure)
            if settings.cell and not atoms.pbc.all():
                raise DataError(
                    f"cell=true needs three periodic directions, and pbc={atoms.pbc.tolist()}"
                )
    for number, atoms in enumerate(frames):
        with naming(f"frame {number}"):
            outcome = _relax(calculator, atoms.copy(), settings)
        yield outcome


def _relax(calculator: Calculator, atoms: ase.Atoms, settings: RelaxSettings) -> Outcome:
    atoms.calc = calculator
    first = atoms.get_potential_energy()
    pressure = settings.pressure * units.GPa
    moved = UnitCellFilter(atoms, scalar_pressure=pressure) if settings.cell else atoms
    optimizer = FIRE(moved, logfile=None)
    optimizer.run(fmax=settings.fmax, steps=settings.steps)
    largest = float(np.linalg.norm(moved.get_forces(), axis=1).max())
    names = ("energy", "forces", *(["stress"] if atoms.pbc.all() else []))
    results = {name: calculator.get_property(name, atoms) for name in names}
    relaxed = atoms.copy()
    for name in labels_of(relaxed):
        relaxed.info.pop(name, None)
        relaxed.arrays.pop(name, None)
    if calculator.dispersion is not None:
        relaxed.info["dispersion"] = str(calculator.dispersion)
    relaxed.calc = SinglePointCalculator(relaxed, **results)
    steps, is_relaxed = optimizer.get_number_of_steps(), largest < settings.fmax
    return Outcome(relaxed, first, largest, steps, is_relaxed)
