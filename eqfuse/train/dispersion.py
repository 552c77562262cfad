"""Dispersion beside a network: DFT-D3 by the D3 project's own library, on the host."""

import dataclasses
import re
from typing import NamedTuple

import numpy as np
from ase.geometry import complete_cell
from ase.units import Bohr, Hartree

from eqfuse.data import DataError, Structure
from eqfuse.data.structures import TRAINED
from eqfuse.runs.errors import ConfigError, naming

_DAMPING = {
    "bj": "RationalDampingParam",
    "zero": "ZeroDampingParam",
    "bjm": "ModifiedRationalDampingParam",
    "zerom": "ModifiedZeroDampingParam",
    "op": "OptimizedPowerDampingParam",
    "cso": "CSODampingParam",
}
_LAST = 103  # beyond it, the library ends the process, or gives zero
_STEP = 5e-3  # Å, of differences
_BEYOND = 33.0  # Å; the library's pairs reach 60 Bohr


@dataclasses.dataclass(frozen=True)
class Dispersion:
    """DFT-D3 of two bodies, as `dftd3` (s-dftd3) computes it with its defaults, on the CPU.

    References: Grimme et al. 2010, doi:10.1063/1.3382344; Grimme et al. 2011,
      doi:10.1002/jcc.21759 (bj).
    """

    damping: str
    functional: str

    @classmethod
    def parse(cls, text: str) -> "Dispersion":
        """Return what a text such as "d3(bj)" (for PBE) or "d3(bj,r2scan)" asks for.

        Raises:
          ConfigError: another text, a functional that `dftd3` does not know, or no `dftd3`.
        """
        match = re.fullmatch(r"d3\((\w+)(?:,\s*([\w+.-]+))?\)", text.lower())
        if match is None or match[1] not in _DAMPING:
            raise ConfigError(
                f"dispersion={text} is impossible: it must be d3(DAMPING) or "
                f"d3(DAMPING,FUNCTIONAL), of the damping {', '.join(_DAMPING)}; without a "
                "functional it is pbe"
            )
        made = cls(match[1], match[2] or "pbe")
        made._parameters()
        return made

    @classmethod
    def of_run(cls, metadata: dict, given: str | bool | None = None) -> "Dispersion | None":
        """Return what is added to a network: what is given, or its own; None for nothing.

        "none" or False is nothing, and True is of PBE.

        A network that was trained with `data.dispersion` has that, since its labels were without.
        """
        own = metadata["config"].get("data", {}).get("dispersion")
        text = {None: own, True: "d3(bj)", False: None}.get(given, given)
        return None if text in (None, "none") else cls.parse(text)

    def __str__(self) -> str:
        return f"d3({self.damping},{self.functional})"

    def _parameters(self):
        try:
            from dftd3 import interface
        except ImportError as error:
            raise ConfigError(
                f"dispersion={self} needs dftd3: pip install 'eqfuse[dispersion]'"
            ) from error
        try:
            return getattr(interface, _DAMPING[self.damping])(method=self.functional)
        except RuntimeError as error:
            raise ConfigError(f"dispersion={self} is impossible: {error}") from error

    def of(self, structure) -> "Added":
        """Return the dispersion of a structure.

        Args:
          structure: with numbers, positions, cell and pbc, such as `eqfuse.data.Structure`.
        Raises:
          DataError: atoms of which `dftd3` has no parameters, or that it cannot compute.
        """
        found = self._computed(structure, "get_dispersion", grad=True)
        energy, forces = float(found["energy"]) * Hartree, found["gradient"] * (-Hartree / Bohr)
        if not (np.isfinite(energy) and np.isfinite(forces).all()):
            raise DataError(f"dispersion={self} gives an energy or force that is not finite")
        return Added(energy, forces, found["virial"] * Hartree)

    def energies_of_atoms(self, structure) -> np.ndarray:
        """Return the halves of the energies of all pairs, [n_atoms] eV; their sum is the energy."""
        found = self._computed(structure, "get_pairwise_dispersion")
        return found["additive pairwise energy"].sum(axis=1) * Hartree

    def _computed(self, structure, name: str, **options) -> dict:
        """Return what a method of the library's model gives, in atomic units."""
        from dftd3.interface import DispersionModel

        if max(structure.numbers) > _LAST:
            raise DataError(f"dispersion={self}: D3 has no parameters beyond the element {_LAST}")
        positions, pbc = np.asarray(structure.positions), np.array(structure.pbc, bool)
        periodic = ()
        if pbc.any():
            cell = _without_images(positions, structure.cell, pbc)
            periodic = cell / Bohr, np.ones(3, bool)
        try:
            model = DispersionModel(structure.numbers, positions / Bohr, *periodic)
            return getattr(model, name)(self._parameters(), **options)
        except RuntimeError as error:
            raise DataError(f"dispersion={self} cannot be computed: {error}") from error

    def without(self, structure: Structure) -> Structure:
        """Return a structure with labels of energy and derivatives that are less the dispersion."""
        labels = {name: getattr(structure, name) for name in TRAINED}
        if structure.is_isolated_atom or all(label is None for label in labels.values()):
            return structure
        with naming(structure.origin or "a frame"):
            found = self.of(structure)
        parts = {"energy": found.energy, "forces": found.forces}
        if structure.stress is not None:
            parts["stress"] = found.strain / structure.volume
        if structure.hessian is not None:
            parts["hessian"] = self.hessian(structure)
        less = {n: labels[n] - part for n, part in parts.items() if labels[n] is not None}
        return Structure.unchecked(**vars(structure) | less)

    def hessian(self, structure) -> np.ndarray:
        """Return the second derivatives, [n_atoms, 3, n_atoms, 3] eV/Å^2, of a structure.

        They are central differences of the forces, with an error of 1e-6 eV/Å^2 or less.
        """
        positions = np.array(structure.positions, np.float64)
        fields = {n: getattr(structure, n) for n in ("numbers", "cell", "pbc")}

        def forces(move):
            moved = positions + move.reshape(positions.shape)
            return self.of(Structure.unchecked(positions=moved, **fields)).forces.ravel()

        moves = _STEP * np.eye(positions.size)
        rows = np.stack([forces(-move) - forces(move) for move in moves]) / (2 * _STEP)
        return ((rows + rows.T) / 2).reshape(2 * positions.shape)


class Added(NamedTuple):
    energy: float  # eV
    forces: np.ndarray  # [n_atoms, 3] eV/Å
    strain: np.ndarray  # [3, 3] eV, the derivative by strain


def _without_images(positions, cell, pbc) -> np.ndarray:
    """Return a cell for `dftd3`, Å, with images beyond its reach where there are none.

    It computes other numbers where it is told that some directions are not periodic.
    """
    cell = complete_cell(np.where(pbc[:, None], cell, 0.0))  # with orthogonal vectors of 1 Å
    widths = np.ptp(positions @ np.linalg.inv(cell), axis=0) + _BEYOND
    return np.where(pbc[:, None], cell, widths[:, None] * cell)
