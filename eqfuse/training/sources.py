"""Where the structures of a run come from."""

from eqfuse import data
from eqfuse.training.data_config import MoleculeData


def read_structures(settings: MoleculeData) -> list[data.Structure]:
    """The structures that `data=` names, in eV and Å.

    Raises:
      data.DataError: a file that cannot be read.
    """
    if settings.name == "extxyz":
        return data.read_extxyz(
            settings.path,
            energy_key=settings.energy_key,
            forces_key=settings.forces_key,
            stress_key=settings.stress_key,
        )
    if settings.name == "rmd17":
        return data.read_rmd17(settings.path)
    return data.read_embedded(settings.name)
