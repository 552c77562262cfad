"""What networks predict for one structure, and how the members of a committee differ."""

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Spread:
    """Standard deviations (of n - 1) over the members of a committee.

    Attributes:
      energy: eV, of the total energy.
      energies: [n_atoms] eV, of the energies of the atoms.
      forces: [n_atoms] eV/Å, of the force vectors: the root of the summed variances of x, y, z.
      stress: [3, 3] eV/Å^3; None where stress is not predicted.
    """

    energy: float
    energies: np.ndarray
    forces: np.ndarray
    stress: np.ndarray | None


@dataclasses.dataclass(frozen=True, eq=False)
class Predicted:
    """What a network predicts for one structure, or the mean of a committee.

    Attributes:
      energies: [n_atoms] eV, parts of the energy, with the reference energy of each atom.
      relative_energy: eV, without the reference energies.
      forces: [n_atoms, 3] eV/Å.
      stress: [3, 3] eV/Å^3, positive under tension; None without a cell, or if not asked for.
      spread: of the committee; None for a single network.
    """

    energies: np.ndarray
    relative_energy: float
    forces: np.ndarray
    stress: np.ndarray | None
    spread: Spread | None = None

    @property
    def energy(self) -> float:
        """Return the total energy, eV, with the reference energies."""
        return float(self.energies.sum())


def mean_of(members: Sequence[Predicted]) -> Predicted:
    """Return the mean and the spread of the predictions of a committee for one structure.

    Args:
      members: what each network predicts; a single one is returned as it is.
    """
    if len(members) == 1:
        return members[0]

    def stacked(name: str) -> np.ndarray:
        return np.array([getattr(member, name) for member in members])

    energies, forces = stacked("energies"), stacked("forces")
    stress = None if any(m.stress is None for m in members) else stacked("stress")
    return Predicted(
        energies=energies.mean(axis=0),
        relative_energy=float(stacked("relative_energy").mean()),
        forces=forces.mean(axis=0),
        stress=None if stress is None else stress.mean(axis=0),
        spread=Spread(
            energy=float(stacked("energy").std(ddof=1)),
            energies=energies.std(axis=0, ddof=1),
            forces=np.sqrt(forces.var(axis=0, ddof=1).sum(axis=-1)),
            stress=None if stress is None else stress.std(axis=0, ddof=1),
        ),
    )
