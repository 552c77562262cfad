"""The trained network that a run starts from (`start_from=FOLDER`), to learn other data."""

import dataclasses

from ase.data import chemical_symbols

from eqfuse import models
from eqfuse.data import Structure
from eqfuse.training.checkpoint import has_checkpoint, module_of, read_checkpoint
from eqfuse.training.config import Config, ConfigError

REFERENCE_TOLERANCE = 1e-3
"""How far the energies of isolated atoms may differ between data of one kind, eV."""


@dataclasses.dataclass(frozen=True)
class Start:
    """A network with its parameters, and what it was trained with.

    Attributes:
      params: its variables, numpy arrays.
      metadata: of its checkpoint, see `load_run`.
    """

    params: dict
    metadata: dict

    @classmethod
    def of(cls, config: Config) -> "Start | None":
        """That of the run that is named, or None; of a resumed run, that in its own folder.

        Raises:
          CheckpointError: no readable checkpoint.
        """
        if config.start_from is None:
            return None
        folder, names = config.start_from, ("best", "last")
        if config.resume is not None and has_checkpoint(config.resume, "last"):
            folder, names = config.resume, ("last",)
        params, metadata, _ = read_checkpoint(folder, names)
        return cls(params, metadata)

    @property
    def species(self) -> tuple[int, ...]:
        """Sorted atomic numbers that the network knows."""
        return tuple(self.metadata["species"])

    def references(self, given: dict[int, float] | None) -> dict[int, float]:
        """Reference energies, eV by atomic number: the network's own, or others that are given.

        Raises:
          ConfigError: elements that the network knows and those given do not have.
        """
        if given is None:
            return {int(z): e for z, e in self.metadata["reference_energies"].items()}
        if missing := sorted(set(self.species) - set(given)):
            raise ConfigError(
                "data.reference_energies has no energy of "
                f"{', '.join(chemical_symbols[z] for z in missing)}, which the network of "
                "start_from= knows; add it"
            )
        return given

    def other_atoms(self, isolated: list[Structure], references: dict[int, float]) -> list[str]:
        """Warnings of isolated atoms in the data whose energies are not the references, eV."""
        return [
            f"{atom.origin or 'an isolated atom'}: {chemical_symbols[z]} has {atom.energy:.4f} eV, "
            f"and in the network's data {references[z]:.4f} eV, which is used; if these data were "
            "computed otherwise, give data.reference_energies= too"
            for atom in isolated
            for z in atom.numbers.tolist()
            if atom.energy is not None
            and z in references
            and abs(atom.energy - references[z]) > REFERENCE_TOLERANCE
        ]

    def potential(self, backend: str | None) -> tuple[models.Potential, dict]:
        """The potential, and the settings of its model as plain values."""
        return module_of(self.metadata, backend), self.metadata["model_fields"]
