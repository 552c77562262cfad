"""One structure of a simulation: what it is, and what is written of it."""

import ase
import numpy as np
from ase.calculators.singlepoint import SinglePointCalculator

from eqfuse.data import DataError, Structure
from eqfuse.data.samples import species_index
from eqfuse.inference.network import Network
from eqfuse.md.integrators import State
from eqfuse.md.output import Folder
from eqfuse.md.settings import Settings
from eqfuse.md.start import require_apart
from eqfuse.md.steps import COLUMNS


class Member:
    """A structure of a simulation.

    Args:
      atoms: the structure.
      network: that simulates it.
      settings: of the simulation.

    Attributes:
      atoms: without labels and other properties, which would not be those of later frames.
      species: [n_atoms] int32.
      masses: [n_atoms] atomic mass units.
      folder: of its files; None before the simulation begins.
      last: the values of `COLUMNS` at the last step, with the reference energies.
    Raises:
      DataError: atoms that cannot be simulated; see `eqfuse.md.run`.
    """

    def __init__(self, atoms: ase.Atoms, network: Network, settings: Settings):
        if atoms.constraints:
            raise DataError("the atoms have constraints, which are not simulated; remove them")
        self._settings = settings
        structure = Structure(atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc)
        self.atoms = ase.Atoms(atoms.numbers, atoms.positions, cell=structure.cell, pbc=atoms.pbc)
        self.species = species_index(atoms.numbers, network.species)
        self._reference = float(network.references[self.species].sum())
        self.masses = np.asarray(atoms.get_masses(), np.float64)
        if not (np.isfinite(self.masses) & (self.masses > 0)).all():
            raise DataError("masses must be finite and greater than zero")
        if settings.ensemble == "npt" and not all(atoms.pbc):
            raise DataError(
                "ensemble=npt needs a cell with three periodic directions, and "
                f"pbc={atoms.pbc.tolist()}; choose another ensemble, or make the atoms periodic"
            )
        require_apart(atoms.positions, structure.cell, atoms.pbc)
        self.folder: Folder | None = None
        self.last: np.ndarray | None = None

    @property
    def cell(self) -> np.ndarray:
        """Return the cell at the start, [3, 3] Å."""
        return self.atoms.cell.array

    def record(self, rows, first: int, state: State):
        """Write the rows of steps from number `first` on, and the frame after them if it is due.

        Args:
          rows: [n_steps, len(COLUMNS)], without the reference energies.
          first: number of the first step.
          state: of this structure, after the last step.
        """
        rows = np.array(rows)
        rows[:, [COLUMNS.index("potential"), COLUMNS.index("conserved")]] += self._reference
        settings = self._settings
        for step, row in enumerate(rows, first):
            if step % settings.log_every == 0 or step == settings.steps:
                self.folder.add_row(step, dict(zip(COLUMNS, row, strict=True)))
        if len(rows):
            step, self.last = first + len(rows) - 1, rows[-1]
            if step % settings.save_every == 0 or step == settings.steps:
                self.add_frame(state)

    def add_frame(self, state: State):
        """Add the frame of a state to the trajectory."""
        self.folder.add_frame(self.frame(state), int(state.step))

    def frame(self, state: State) -> ase.Atoms:
        """Return the structure in a state, with velocities, energy and forces."""
        atoms, count = self.atoms.copy(), len(self.atoms)
        atoms.positions = state.positions[:count]
        if atoms.pbc.any():
            atoms.cell = state.cell
        atoms.set_masses(self.masses)
        atoms.set_velocities(state.velocities[:count])
        results = {"energy": float(self.last[0]), "forces": np.array(state.forces[:count])}
        atoms.calc = SinglePointCalculator(atoms, **results)
        return atoms

    def excess(self, row) -> str | None:
        """Return which limit the values of `COLUMNS` pass; None if they pass none."""
        settings = self._settings
        potential, _, temperature, force = row[:4]
        if not np.isfinite([potential, temperature, force]).all():
            return "energy or forces are not finite"
        if force > settings.max_force:
            return f"a force of {force:.4g} eV/Å is above max_force={settings.max_force:g}"
        if temperature > settings.max_temperature:
            limit = settings.max_temperature
            return f"a temperature of {temperature:.4g} K is above max_temperature={limit:g}"
        return None
