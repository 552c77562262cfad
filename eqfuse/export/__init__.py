"""Trained networks as folders that LAMMPS, and other programs in C++, run without Python."""

from eqfuse.export.folder import export_folder

__all__ = ["export_folder"]
