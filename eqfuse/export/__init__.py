"""Trained networks as programs: one for JAX, or folders that other engines run without Python."""

from eqfuse.export.folder import export_folder
from eqfuse.export.program import export

__all__ = ["export", "export_folder"]
