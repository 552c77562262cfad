"""Teachers that fail, as calculators of ASE."""

import os

import numpy as np
from ase.calculators.emt import EMT


class Failing(EMT):
    """EMT that fails where a cell has less than a volume of each atom.

    Args:
      volume: Å^3 per atom.
      how: "raises", "nan" or "exits".
    """

    def __init__(self, volume: float, how: str = "raises"):
        super().__init__()
        self._volume, self._how = volume, how

    def calculate(self, atoms=None, properties=("energy",), system_changes=("positions",)):
        super().calculate(atoms, properties, system_changes)
        if atoms.pbc.all() and atoms.get_volume() / len(atoms) < self._volume:
            if self._how == "exits":
                os._exit(3)
            if self._how == "raises":
                raise RuntimeError("no convergence")
            self.results["forces"] = np.full_like(self.results["forces"], np.nan)
