"""Dispersion that a network has not: DFT-D3 by the D3 project's own library, on the host."""

import dataclasses
import re

import numpy as np
from ase.units import Bohr, Hartree

from eqfuse.data import DataError
from eqfuse.inference.evaluator import Results
from eqfuse.train.settings.schema import ConfigError

_DAMPING = {
    "bj": "RationalDampingParam",
    "zero": "ZeroDampingParam",
    "bjm": "ModifiedRationalDampingParam",
    "zerom": "ModifiedZeroDampingParam",
    "op": "OptimizedPowerDampingParam",
    "cso": "CSODampingParam",
}
_LAST = 103  # beyond it, the library ends the process, or gives zero


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

    def of(self, structure) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return energies of the atoms (eV), forces (eV/Å) and the strain derivative (eV).

        The energy of a pair is given to its atoms in halves.

        Args:
          structure: with numbers, positions, cell and pbc; see `eqfuse.inference.evaluator.Placed`.
        Returns:
          [n_atoms], [n_atoms, 3] and [3, 3].
        Raises:
          DataError: atoms of which `dftd3` has no parameters, or that it cannot compute.
        """
        from dftd3.interface import DispersionModel

        if max(structure.numbers) > _LAST:
            raise DataError(f"dispersion={self}: D3 has no parameters beyond the element {_LAST}")
        parameters = self._parameters()
        places = np.asarray(structure.positions) / Bohr, np.asarray(structure.cell) / Bohr
        try:
            model = DispersionModel(structure.numbers, *places, np.asarray(structure.pbc))
            found = model.get_dispersion(parameters, grad=True)
            pairs = model.get_pairwise_dispersion(parameters)["additive pairwise energy"]
        except RuntimeError as error:
            raise DataError(f"dispersion={self} cannot be computed: {error}") from error
        energies = pairs.sum(axis=1)
        periodic = np.any(structure.pbc)
        strain = found["virial"] * Hartree if periodic else np.zeros((3, 3))
        return energies * Hartree, -found["gradient"] * (Hartree / Bohr), strain

    def added(self, results: Results, structures) -> Results:
        """Return the results of structures with their dispersion."""
        energies, forces, strain = zip(*map(self.of, structures), strict=True)
        return results._replace(
            energies=results.energies + np.concatenate(energies),
            forces=results.forces + np.concatenate(forces),
            strain=results.strain + np.stack(strain),
        )
