"""The data of a run from files: their settings, and how they are read."""

import dataclasses
import glob
import itertools
import os
import sys
from typing import ClassVar

from eqfuse.train.settings.schema import absolute, one_of, require, setting
from eqfuse.train.sources import MoleculeData, import_data, is_missing

_LARGE = 64e6  # bytes of files


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

    def read(self) -> list:
        if self.path is None:
            return self._download()
        self._check_apart()
        return self._read_all("path")

    def read_validation(self) -> list | None:
        return None if self.val_path is None else self._read_all("val_path")

    def read_test(self) -> list | None:
        return None if self.test is None else self._read_all("test")

    def _read_all(self, name: str):
        """Read the files of a setting."""
        files = matching(getattr(self, name))
        if missing := [file for file in files if is_missing(file)]:
            raise import_data().DataError(f"no such file: {missing[0]}; check data.{name}")
        if self._stores(files):
            from eqfuse.data.store import store_structures

            return store_structures(files, format=self.format, keys=self._keys())
        return [structure for file in files for structure in self._read_file(file)]

    def _stores(self, files: list[str]) -> bool:
        """Return whether the frames of files are kept on disk instead of in memory."""
        if self.store != "auto":
            return self.store == "on"
        return sum(os.path.getsize(file) for file in files if os.path.exists(file)) > _LARGE

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
    """Return the file of this name or, if there is none, the files that it matches as a pattern.

    Args:
      path: `*` and `?` stand for letters of a name, `**` for folders within folders; several with
        commas between them.
    Returns:
      names, sorted for each pattern.
    Raises:
      data.DataError: a pattern that no file matches.
    """
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


def described(origin: str) -> str:
    """Return where structures are from, with the number of files if it is a pattern."""
    from eqfuse.data.structures import counted

    files = matching(origin)
    return origin if files == [origin] else f"{origin}: {counted(len(files), 'file')}"
