"""The trained network that a run starts from (`start_from=`), to learn other data."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from ase.data import chemical_symbols

from eqfuse import models
from eqfuse.data import Batcher, Dataset, Structure
from eqfuse.data.references import fit_energies_of_atoms
from eqfuse.models import compile_predict
from eqfuse.train.elements import check_elements, of_elements
from eqfuse.train.run.checkpoint import has_checkpoint, module_of, read_checkpoint
from eqfuse.train.run.resume import RADIAL
from eqfuse.train.settings.networks import PotentialSettings
from eqfuse.train.settings.schema import ConfigError, require
from eqfuse.train.sources import FIT, MoleculeData
from eqfuse.train.tables import check_radial

REFERENCE_TOLERANCE = 1e-3
"""How far the energies of isolated atoms may differ between data of one method, eV."""

OTHER_ENERGIES = 3.0
"""How far energies, relative to atoms, hardly differ between data of one method, eV/atom."""


@dataclasses.dataclass(frozen=True)
class Start:
    """A network with its parameters, and what it was trained with.

    Attributes:
      params: its variables, numpy arrays.
      metadata: of its checkpoint, see `load_run`.
      resumed: whether it is the run itself, which goes on.
      elements: as the setting of that name.
      given: the setting `data.reference_energies`.
      radial: the settings of that kind, by name: how functions of lengths are computed now.
      backend, dtype, batch_size: as the settings of these names.
    """

    params: dict
    metadata: dict
    resumed: bool
    elements: str | None
    given: str | None
    radial: dict
    backend: str | None
    dtype: str
    batch_size: int

    @classmethod
    def read(
        cls,
        start_from: str | None,
        resume: str | None,
        model: PotentialSettings,
        data: MoleculeData,
        elements: str | None,
        backend: str | None,
        dtype: str,
    ) -> "Start | None":
        """Return that of the run `start_from`; of a resumed run, that in its own folder.

        Args:
          start_from, resume, elements, backend, dtype: the settings of these names.
          model, data: of the run.
        Returns:
          The network; None without `start_from`.
        Raises:
          CheckpointError: no readable checkpoint.
        """
        if start_from is None:
            return None
        resumed = resume is not None and has_checkpoint(resume, "last")
        folder, names = (resume, ("last",)) if resumed else (start_from, ("best", "last"))
        params, metadata, _ = read_checkpoint(folder, names)
        return cls(
            params,
            metadata,
            resumed,
            elements=elements,
            given=data.reference_energies,
            radial={name: getattr(model, name) for name in RADIAL},
            backend=backend,
            dtype=dtype,
            batch_size=data.batch_size,
        )

    @property
    def species(self) -> tuple[int, ...]:
        """Return the sorted atomic numbers that the network knows."""
        return tuple(self.metadata["species"])

    def for_elements(self, elements: tuple[int, ...]) -> "Start":
        """Return the network, with `elements=data` for these elements only.

        With `elements=add` it is for its own and these, of which new ones begin as similar ones.

        Raises:
          ConfigError: elements that it does not know, without `elements=add`, or with it and
            without reference energies for them.
        """
        if self.elements == "add":
            elements = tuple(sorted({*elements, *self.species}))
            new = sorted(set(elements) - set(self.species))
            given = self.given is not None
            names = ", ".join(chemical_symbols[z] for z in new)
            need = f"given: a file of atoms, or {FIT}, for {names}, which the network does not know"
            require(given or not new, "data.reference_energies", "null", need)
        else:
            check_elements(elements, self.species)
            if self.elements is None:
                return self
        params, metadata = of_elements(self.params, self.metadata, elements)
        return dataclasses.replace(self, params=params, metadata=metadata)

    def references(self, given: dict[int, float] | None) -> dict[int, float]:
        """Return the reference energies, eV by atomic number: the given, or the network's own.

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

    def other_atoms(self, isolated: list[Structure]) -> list[str]:
        """Return warnings of isolated atoms in the data whose energies are not the network's."""
        references = self.references(None)
        return [
            f"{atom.origin or 'an isolated atom'}: {chemical_symbols[z]} has {atom.energy:.4f} eV, "
            f"and in the network's data {references[z]:.4f} eV, which is used; if these data were "
            "computed otherwise, give data.reference_energies= (a file of atoms, or fit)"
            for atom in isolated
            for z in atom.numbers.tolist()
            if atom.energy is not None
            and z in references
            and abs(atom.energy - references[z]) > REFERENCE_TOLERANCE
        ]

    def other_energies(self, dataset: Dataset) -> list[str]:
        """Return a warning of energies that no data of the network's method would have."""
        before = self.metadata["statistics"]["energy_per_atom"]
        if before is None or not dataset.num_labelled("energy")[0]:
            return []  # a converted network, whose data are not known, or no energies here
        if abs(dataset.energy_per_atom - before) < OTHER_ENERGIES:
            return []
        return [
            f"the energies are {dataset.energy_per_atom:.4g} eV/atom above the references, and "
            f"{before:.4g} eV/atom in the network's data; if these data were computed otherwise, "
            "give data.reference_energies= (a file of atoms, or fit)"
        ]

    @property
    def refits(self) -> bool:
        """Return whether the reference energies are still to be moved to the data."""
        return self.given == FIT and not self.resumed

    def refitted(self, dataset: Dataset) -> dict[int, float]:
        """Return the reference energies, eV, moved by what the network does not predict.

        For data of another method, whose energies differ by some constant for each atom: least
        squares per species of true minus predicted energies of the training samples.

        Raises:
          ConfigError: no training sample has an energy.
        """
        if not dataset.num_labelled("energy")[0]:
            raise ConfigError("data.reference_energies=fit: no training frame has an energy")
        potential, _ = self.potential()
        predict = compile_predict(potential)
        batches = reference_batcher(dataset, self.batch_size, self.dtype).batches(shuffle=False)
        predicted = np.concatenate(
            [
                predict(self.initial_params(), batch.graph).energy[
                    np.asarray(batch.graph.graph_mask)
                ]
                for batch in batches
            ]
        )
        pairs = zip(dataset.train, predicted, strict=True)
        known = [(s, float(e)) for s, e in pairs if s.energy is not None]
        missing = [s.energy - e for s, e in known]
        species = np.array(dataset.species)
        moves = fit_energies_of_atoms((species[s.species] for s, _ in known), missing)
        return {z: e + moves.get(z, 0.0) for z, e in dataset.references.items()}

    def potential(self) -> tuple[models.Potential, dict]:
        """Return the potential, and the settings of its model as plain values.

        Raises:
          ConfigError: tables of radial functions that it cannot have.
        """
        fields = self.metadata["model_fields"] | self.radial
        potential = module_of(self.metadata | {"model_fields": fields}, self.backend)
        check_radial(potential.model, self.metadata["model"])
        return potential, fields

    def initial_params(self) -> dict:
        """Return its variables as JAX arrays, in the dtype of the run."""
        return jax.tree.map(lambda p: jnp.asarray(p, self.dtype), self.params)


def reference_batcher(dataset: Dataset, batch_size: int, dtype: str) -> Batcher:
    """Return batches of the training samples in their order, to predict their energies."""
    return Batcher(dataset.train, batch_size, dtype=dtype)
