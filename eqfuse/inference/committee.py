"""A committee of trained runs as a calculator of ASE."""

import ase.calculators.calculator
import numpy as np

from eqfuse.inference.calculator import Calculator
from eqfuse.inference.predict import find_runs, require_different


class Committee(ase.calculators.calculator.Calculator):
    """The mean of what several trained runs give, and their spread.

        atoms.calc = eqfuse.Committee("runs/sweep")  # a folder of runs, as seeds=4 makes it
        atoms.get_forces()
        atoms.calc.results["forces_spread"]

    Besides the properties of `eqfuse.Calculator`, the results have `energy_spread` (eV),
    `energies_spread` ([n_atoms] eV), `forces_spread` ([n_atoms] eV/Å) and, in a cell,
    `stress_spread` ([6] eV/Å^3): standard deviations, see `eqfuse.inference.predicted.Spread`.

    Args:
      runs: a folder of runs, a pattern such as "runs/seed*", or a sequence of runs or files; at
        least two networks.
      atoms: as in ASE's calculators.
      options: of each `eqfuse.Calculator`.
    Raises:
      CheckpointError: no readable checkpoint, or a run given twice.
      ValueError: a single run; see `eqfuse.Calculator`.
    """

    implemented_properties = Calculator.implemented_properties

    def __init__(self, runs, *, atoms=None, **options):
        found = require_different(find_runs(runs))
        if len(found) < 2:
            raise ValueError(
                f"a committee needs several runs, and {runs} is one; train others with seeds=4, or "
                "use eqfuse.Calculator"
            )
        self.members = [Calculator(run, **options) for run in found]
        super().__init__(atoms=atoms)

    def calculate(self, atoms=None, properties=("energy",), system_changes=()):
        """Compute the mean and the spread, in eV, eV/Å and eV/Å^3.

        Raises:
          DataError: see `eqfuse.Calculator.calculate`.
        """
        super().calculate(atoms, properties, system_changes)
        for member in self.members:
            member.calculate(self.atoms, properties, system_changes)
        names = self.members[0].results
        values = {name: np.array([m.results[name] for m in self.members]) for name in names}
        self.results = {name: value.mean(axis=0) for name, value in values.items()}
        for name in ("energy", "free_energy"):
            self.results[name] = float(self.results[name])
        deviation = {name: value.std(axis=0, ddof=1) for name, value in values.items()}
        self.results["energy_spread"] = float(deviation["energy"])
        self.results["energies_spread"] = deviation["energies"]
        self.results["forces_spread"] = np.sqrt((deviation["forces"] ** 2).sum(axis=-1))
        if "stress" in deviation:
            self.results["stress_spread"] = deviation["stress"]
