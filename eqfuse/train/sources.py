"""The data of a run, embedded, public or from files: their settings, and how they are read."""

import dataclasses
import glob
import itertools
import math
import os
import re
import sys
from typing import ClassVar

import yaml

from eqfuse.train.settings.schema import (
    POSITIVE,
    Range,
    absolute,
    check_ranges,
    one_of,
    require,
    setting,
)

FIT, AVERAGE = "fit", "average"
"""Values of `data.reference_energies`: see its help."""
_LARGE = 64e6  # bytes of files
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


def _is_missing(path: str) -> bool:
    """Return True for no such file; all else that is wrong with it, its reader says."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        pass
    return False


def _numbers(text: str | None, least: float) -> dict:
    """Return the mapping to finite numbers of at least `least` in a YAML text; {} if it is none."""
    try:
        plain = yaml.safe_load(re.sub(r":(?=\S)", ": ", text or ""))  # {1:-13.6} is Python's
    except yaml.YAMLError:
        return {}
    if not isinstance(plain, dict):
        return {}
    values = plain.values()
    ok = all(type(value) in (int, float) and least <= value < math.inf for value in values)
    return plain if ok else {}


def _atomic_number(element) -> int | None:
    """Return the atomic number of an element by its symbol or number; None if there is none."""
    from ase.data import atomic_numbers  # takes a while to import

    if isinstance(element, int) and 1 <= element <= 118:
        return element
    return atomic_numbers.get(element) if element != "X" else None


@dataclasses.dataclass
class MoleculeData:
    """Structures with energies and forces; embedded unless a subclass reads them elsewhere."""

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

    duplicates: str = setting(
        "warn",
        "copies of frames, also rotated or renumbered: warn of them, drop all but the first, or "
        "error; those of one file never train and validate",
    )

    def __post_init__(self):
        check_ranges(self, "data.")
        one_of("data.duplicates", self.duplicates, ("warn", "drop", "error"))
        self.type_weights()
        self._typed_references()

    @property
    def origin(self) -> str:
        """Return the origin of the structures, for people."""
        return f"{self.name}, embedded"

    @property
    def validation_origin(self) -> str | None:
        """Return the origin of those that validate; None for the same."""
        return None

    @property
    def references_origin(self) -> str | None:
        """Return the origin of the reference energies; None for the structures."""
        return self.reference_energies

    def type_weights(self) -> dict[str, float]:
        """Return the weights of frames by config_type, or refuse the setting."""
        text = self.config_type_weights
        weights = _numbers(text, 0)
        need = "names and finite weights, zero or more, such as '{bulk: 1, surface: 2.5}'"
        require(text is None or weights, "data.config_type_weights", text, need)
        return {str(name): float(weight) for name, weight in weights.items()}

    def check_data(self, dataset, structures, validation) -> list[str]:
        """Return probable faults of the data, for warnings; `data.check=strict` refuses them."""
        return []

    def missing_label(self, name: str) -> str:
        """Return the advice for a label (energy, forces or stress) that no frame has."""
        return f"no {name}"

    def read(self, part: str = "path") -> list | None:
        """Return the structures, in eV and Å, of `data.path`, `val_path` or `test`, or None.

        Public sets are downloaded.
        """
        return import_data().read_embedded(self.name) if part == "path" else None

    def read_reference_energies(self, cutoff: float) -> dict[int, float] | str | None:
        """Return energies of isolated atoms, eV by atomic number, as `Dataset.build` takes them."""
        if self.reference_energies == AVERAGE:
            return AVERAGE
        if typed := self._typed_references():
            return typed
        path, key = self._references_path(), self.reference_key or self._keys().energy
        if path is not None and _is_missing(path):
            raise import_data().DataError(
                f"data.reference_energies: no such file: {path}; give a file of isolated atoms, "
                "energies in eV, '{H: -13.6, 8: -2041.9}', or average"
            )
        if path is None:
            return None
        return import_data().isolated_atom_energies(path, energy_key=key, cutoff=cutoff)

    def _typed_references(self) -> dict[int, float]:
        """Return energies that are given as a mapping, eV by atomic number; {} for none."""
        text = self.reference_energies
        if text is None or not text.startswith("{"):
            return {}
        need = "energies in eV by element, such as '{H: -13.6, 8: -2041.9}'"
        energies = {_atomic_number(z): float(e) for z, e in _numbers(text, -math.inf).items()}
        require(energies and None not in energies, "data.reference_energies", text, need)
        return energies

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


@dataclasses.dataclass
class FileData(MoleculeData):
    """Data from files, or downloaded where `path` is None."""

    format: ClassVar[str | None] = None  # of eqfuse.data.readers.FORMATS; None: by the suffix
    path: str | None = setting(
        None, "a local file to train on; null: download it", convert=absolute
    )
    val_path: str | None = setting(
        None,
        "a file or pattern, of the same format, to validate with; null: frames of data.path "
        "(data.val)",
        convert=absolute,
    )

    check: str = setting(
        "warn",
        "what to do with data that are probably wrong (units, signs, duplicates, outliers, ...): "
        "warn, strict (refuse them) or off",
    )
    store: str = setting(
        "auto",
        "where frames and their neighbour lists are kept: on (on disk, in "
        "~/.cache/eqfuse/store, made once by worker processes), off (in memory), or auto (on disk "
        "for more than 64 MB of files)",
    )
    test: str | None = setting(
        None,
        "a file or pattern, of the same format, whose errors of the best network are evaluated "
        "once, at the end",
        convert=absolute,
    )

    def __post_init__(self):
        one_of("data.check", self.check, ("warn", "strict", "off"))
        one_of("data.store", self.store, ("auto", "on", "off"))
        unset = self.val == MoleculeData.val
        need = "left out: all frames of data.val_path validate"
        require(self.val_path is None or unset, "data.val", self.val, need)
        super().__post_init__()

    @property
    def origin(self) -> str:
        return self.path or f"{self.name}, downloaded"

    @property
    def validation_origin(self) -> str | None:
        return self.val_path

    def check_data(self, dataset, structures, validation) -> list[str]:
        if self.check == "off":
            return []
        from eqfuse.data.checks import find_problems
        from eqfuse.data.structures import counted

        problems = find_problems(dataset, structures, validation)
        if problems and self.check == "strict":
            for problem in problems:
                print(f"problem: {problem}", file=sys.stderr, flush=True)
            raise import_data().DataError(
                f"data.check=strict refuses data with {counted(len(problems), 'problem')}"
            )
        return problems

    def missing_label(self, name: str) -> str:
        from eqfuse.data.readers import missing_label

        if self.path is None:
            return super().missing_label(name)
        return missing_label(matching(self.path)[0], name, self._keys())

    def read(self, part: str = "path") -> list | None:
        """Read the files of a setting; keep their frames on disk where `store` asks for it."""
        path = getattr(self, part)
        if path is None:
            return self._download() if part == "path" else None
        if part == "path":
            self._check_apart()
        files = matching(path)
        if missing := [file for file in files if _is_missing(file)]:
            raise import_data().DataError(f"no such file: {missing[0]}; check data.{part}")
        size = sum(os.path.getsize(file) for file in files if os.path.exists(file))
        if self.store == "on" or (self.store == "auto" and size > _LARGE):
            from eqfuse.data.store import store_structures

            return store_structures(files, format=self.format, keys=self._keys())
        return [structure for file in files for structure in self._read_file(file)]

    def _read_file(self, file) -> list:
        return import_data().read_structures(
            file, format=self.format, keys=self._keys(), require_labels=False
        )

    def _check_apart(self):
        """Refuse a file that trains and validates, or one of these that tests."""
        files = {
            name: {os.path.realpath(file) for file in matching(path)}
            for name in ("path", "val_path", "test")
            if (path := getattr(self, name)) is not None
        }
        for first, second in itertools.combinations(files, 2):
            if both := sorted(files[first] & files[second]):
                raise import_data().DataError(
                    f"{both[0]} is among the files of data.{first} and of data.{second}: what is "
                    "trained on does not validate or test; move it, or change the pattern"
                )


@dataclasses.dataclass
class ExtxyzData(FileData):
    """An extended-xyz file, read by ASE: molecules or periodic cells (eV, Å)."""

    name: str = "extxyz"
    path: str | None = setting(
        None,
        "the file to train on, or several: a.xyz,b.xyz, 'frames/*.xyz'; data=FILE sets it",
        convert=absolute,
    )
    energy_key: str = setting("energy", "name of the energies in the file, eV")
    forces_key: str = setting("forces", "name of the forces in the file, eV/Å")
    stress_key: str = setting("stress", "name of the stresses in the file, eV/Å^3 (optional)")

    def __post_init__(self):
        need = f"the file to train on: data={self.name} data.path=FILE"
        require(self.path is not None, "data.path", "null", need)
        super().__post_init__()


def matching(path: str) -> list[str]:
    """Return the file of this name or, if there is none, those of the patterns (with commas)."""
    if os.path.exists(path):
        return [path]
    if "," in path:
        return [file for part in path.split(",") for file in matching(part)]
    if not any(mark in path for mark in "*?["):
        return [path]
    matches = sorted(file for file in glob.glob(path, recursive=True) if os.path.isfile(file))
    if not matches:
        raise import_data().DataError(
            f"no file matches {path}; check the pattern (data.path, data.val or data.test)"
        )
    return matches


@dataclasses.dataclass
class PublicData(FileData):
    """A public data set: a local file, or downloaded."""

    folder: str | None = setting(
        None, "where downloads are kept; null: ~/.cache/eqfuse", convert=absolute
    )

    def _downloaded(self, file: str):
        return import_data().fetch_public(self.name, file, self.folder)


@dataclasses.dataclass
class ThreeBPAData(PublicData):
    """3BPA: 500 frames of a drug-like molecule at 300 K, with isolated atoms (eV, Å)."""

    name: str = "3bpa"

    @property
    def references_origin(self) -> str | None:
        downloaded = "isolated atoms, downloaded" if self.path is None else None
        return self.reference_energies or downloaded

    def _download(self) -> list:
        return self._read_file(self._downloaded("train_300K.xyz"))

    def _references_path(self):
        if self.path is None and self.reference_energies is None:
            atoms = {"3bpa": "iso_atoms.xyz", "acac": "isolated_atoms.xyz"}
            return self._downloaded(atoms[self.name])
        return super()._references_path()


@dataclasses.dataclass
class AcAcData(ThreeBPAData):
    """Acetylacetone: 500 frames at 300 K, with isolated atoms (eV, Å)."""

    name: str = "acac"


@dataclasses.dataclass
class RMD17Data(PublicData):
    """Revised MD17 (.npz; kcal/mol, converted to eV): a file, or training split 1 of a molecule."""

    format: ClassVar[str | None] = "rmd17"
    name: str = "rmd17"
    molecule: str | None = setting(None, "the molecule to download, if no data.path is given")

    def __post_init__(self):
        if self.path is not None:
            need = "left out: see data.path"
            require(self.molecule is None, "data.molecule", self.molecule, need)
        else:
            from eqfuse.data.readers.public import molecules

            known = molecules(self.name)
            what = f"a file: data={self.name} data.path=FILE, or data.molecule given, one of "
            require(self.molecule is not None, "data.path", "null", what + ", ".join(known))
            one_of("data.molecule", self.molecule, known)
        super().__post_init__()

    @property
    def origin(self) -> str:
        return self.path or f"{self.name} {self.molecule}, downloaded"

    def _download(self) -> list:
        import numpy as np

        frames = None
        if self.name == "rmd17":
            # Frames near each other in time are alike: the authors give splits of 1000 for it.
            split = self._downloaded("index_train_01.csv")
            frames = np.loadtxt(split, dtype=np.int64, ndmin=1)
        file = self._downloaded(f"{self.name}_{self.molecule}.npz")
        return import_data().read_rmd17(file, frames=frames)


@dataclasses.dataclass
class MD22Data(RMD17Data):
    """MD22 (.npz; kcal/mol, converted to eV): a file, or the frames of a molecule."""

    name: str = "md22"


DATA = {
    "ethanol": EthanolData,
    "lif": LithiumFluorideData,
    "extxyz": ExtxyzData,
    "3bpa": ThreeBPAData,
    "acac": AcAcData,
    "rmd17": RMD17Data,
    "md22": MD22Data,
}
"""The settings of each `data=`."""
