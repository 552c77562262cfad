"""Public data sets, and the settings of all data by their names."""

import dataclasses
from typing import ClassVar

from eqfuse.train.settings.schema import absolute, one_of, require, setting
from eqfuse.train.sources import (
    EthanolData,
    ExtxyzData,
    FileData,
    LithiumFluorideData,
    import_data,
)


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
