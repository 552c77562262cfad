"""The data of a run from files and embedded: their settings, and how they are read."""

import dataclasses
import math
import os

import yaml

from eqfuse.train.settings.schema import (
    POSITIVE,
    Range,
    absolute,
    check_ranges,
    require,
    setting,
)

FIT, AVERAGE = "fit", "average"
"""Values of `data.reference_energies`: see its help."""
_SIZE = Range(
    lambda value: 0 < value < 1 or (value >= 1 and value == int(value)),
    "a fraction between 0 and 1 or a whole number",
)


def import_data():
    """Import `eqfuse.data` when data are read: it imports JAX, which takes seconds."""
    from eqfuse import data

    return data


def _references(value: str) -> str:
    return value if value in (FIT, AVERAGE) or value.startswith("{") else absolute(value)


def is_missing(path: str) -> bool:
    """Return whether there is no such file; all else that is wrong with it, its reader says."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False
    return False


def _is_weight(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _is_energy(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _atomic_number(element) -> int | None:
    """Return the atomic number of an element by its symbol or number; None if there is none."""
    from ase.data import atomic_numbers  # takes a while to import

    if isinstance(element, int) and 1 <= element <= 118:
        return element
    return atomic_numbers.get(element) if element != "X" else None


@dataclasses.dataclass
class MoleculeData:
    """Structures with energies and forces; embedded unless a subclass reads them elsewhere.

    Attributes:
      origin: where the structures are from, for people.
      validation_origin: where those that validate are from; None: from the same.
      references_origin: where the reference energies are from; None: from the structures.
    """

    name: str = ""
    train: float | None = setting(
        None, "training frames: fraction below 1, or number; null: rest", _SIZE
    )
    val: float = setting(
        0.1, "validation frames: fraction below 1, or number; or a FILE, as data.val_path", _SIZE
    )
    batch_size: int = setting(5, "structures per step", POSITIVE)
    reference_energies: str | None = setting(
        None,
        "energies of isolated atoms, eV: '{H: -13.6, 8: -2041.9}', an extxyz file of them, or "
        "average, which fits one per element by least squares; null: frames of the data with "
        "config_type=IsolatedAtom, or average without any; with start_from=, null: those of that "
        "run, or fit: these, moved to the data by least squares",
        convert=_references,
    )
    reference_key: str | None = setting(
        None, "name of the energies in the file of isolated atoms; null: data.energy_key"
    )
    config_type_weights: str | None = setting(
        None,
        "weights of frames in the loss by their config_type: '{bulk: 1, surface: 2.5}', with "
        "Default for frames without one; they multiply config_weight of a frame",
    )

    def __post_init__(self):
        check_ranges(self, "data.")
        self.type_weights()
        self._typed_references()

    @property
    def origin(self) -> str:
        return f"{self.name}, embedded"

    @property
    def validation_origin(self) -> str | None:
        return None

    @property
    def references_origin(self) -> str | None:
        return self.reference_energies

    def type_weights(self) -> dict[str, float]:
        """Return the weights of frames by config_type.

        Raises:
          ConfigError: a setting that is no mapping from names to weights.
        """
        text = self.config_type_weights
        if text is None:
            return {}
        try:
            weights = yaml.safe_load(text)
        except yaml.YAMLError:
            weights = None
        ok = isinstance(weights, dict) and all(map(_is_weight, weights.values()))
        need = "names and finite weights, zero or more, such as '{bulk: 1, surface: 2.5}'"
        require(ok, "data.config_type_weights", text, need)
        return {str(name): float(weight) for name, weight in weights.items()}

    def check_data(self, dataset, structures, validation) -> list[str]:
        """Return what is probably wrong with the data, for warnings; nothing with embedded ones.

        Args:
          dataset, structures, validation: see `eqfuse.data.checks.find_problems`.
        Raises:
          data.DataError: `data.check=strict`, and something is; it is printed.
        """
        return []

    def missing_label(self, name: str) -> str:
        """Return what to do about a label (energy, forces or stress) that no frame has."""
        return f"no {name}"

    def read(self) -> list:
        """Return the training structures, in eV and Å; public sets are downloaded.

        Raises:
          data.DataError: a file that cannot be read or downloaded, or that is to validate.
        """
        return import_data().read_embedded(self.name)

    def read_validation(self) -> list | None:
        """Return the structures of `data.val_path`; None without one."""
        return None

    def read_test(self) -> list | None:
        """Return the structures of `data.test`; None without one."""
        return None

    def read_reference_energies(self) -> dict[int, float] | str | None:
        """Return energies of isolated atoms, eV by atomic number, as `Dataset.build` takes them.

        Raises:
          data.DataError: a file that cannot be read or downloaded.
        """
        if self.reference_energies == AVERAGE:
            return AVERAGE
        if (typed := self._typed_references()) is not None:
            return typed
        path, key = self._references_path(), self.reference_key or self._keys().energy
        if path is not None and is_missing(path):
            raise import_data().DataError(
                f"data.reference_energies: no such file: {path}; give a file of isolated atoms, "
                "energies in eV, '{H: -13.6, 8: -2041.9}', or average"
            )
        return None if path is None else import_data().isolated_atom_energies(path, energy_key=key)

    def _typed_references(self) -> dict[int, float] | None:
        """Return energies that are given as a mapping, eV by atomic number.

        Raises:
          ConfigError: it is none from elements to energies.
        """
        text = self.reference_energies
        if text is None or not text.startswith("{"):
            return None
        need = "energies in eV by element, such as '{H: -13.6, 8: -2041.9}'"
        try:
            plain = yaml.safe_load(text)
        except yaml.YAMLError:
            plain = None
        ok = isinstance(plain, dict) and plain and all(map(_is_energy, plain.values()))
        numbers = [_atomic_number(element) for element in plain] if ok else [None]
        require(None not in numbers, "data.reference_energies", text, need)
        return dict(zip(numbers, map(float, plain.values()), strict=True))

    def _keys(self):
        keys = import_data().Keys()._asdict()
        return import_data().Keys(
            *(getattr(self, f"{name}_key", key) for name, key in keys.items())
        )

    def _references_path(self):
        return None if self.reference_energies in (FIT, AVERAGE) else self.reference_energies


@dataclasses.dataclass
class EthanolData(MoleculeData):
    """1000 frames of ethanol at 300 and 500 K (GFN2-xTB; eV, Å); embedded."""

    name: str = "ethanol"


@dataclasses.dataclass
class LithiumFluorideData(MoleculeData):
    """90 cells of LiF at 300 K, strained, with stress (GFN2-xTB; eV, Å); embedded."""

    name: str = "lif"
