"""The settings of the data as typed dataclasses."""

import dataclasses
from typing import ClassVar

from eqfuse.train.settings.settings import one_of, positive, require, setting


@dataclasses.dataclass
class TetrisData:
    """Eight shapes of four cubes, to be told apart; embedded."""

    name: str = "tetris"
    radius: float | None = setting(
        None,
        "cubes nearer than this see each other, in edges of a cube; null: 1.1, those that share a "
        "face, or the cutoff for allegro, which is strictly local",
    )

    def __post_init__(self):
        one_of("data.name", self.name, ["tetris"])
        positive(self, "data.", "radius")


FIT = "fit"
"""Of `data.reference_energies`: see its help."""


@dataclasses.dataclass
class MoleculeData:
    """Structures with energies and forces; see the fields."""

    name: str = ""
    train: float | None = setting(None, "training frames: fraction below 1, or number; null: rest")
    val: float = setting(0.1, "validation frames: fraction below 1, or number")
    batch_size: int = setting(5, "structures per step")
    reference_energies: str | None = setting(
        None,
        "extxyz file of isolated atoms, energies in eV under the same key; null: frames of the "
        "data with config_type=IsolatedAtom, or, without any, least squares per species; with "
        "start_from=, null: those of that run; fit: these, moved by least squares to the data",
        reads=True,
    )

    def __post_init__(self):
        # The class of a name is looked up by it: another name would read another file.
        one_of("data.name", self.name, [type(self).name])
        positive(self, "data.", "batch_size")
        for name in ("train", "val"):
            value = getattr(self, name)
            fits = value is None or 0 < value < 1 or (value >= 1 and value == int(value))
            require(fits, f"data.{name}", value, "a fraction between 0 and 1 or a whole number")

    @property
    def origin(self) -> str:
        """Return where the structures are from, for people."""
        return f"{self.name}, embedded"

    @property
    def validation_origin(self) -> str | None:
        """Return where the structures to validate with are from; None: from the same."""
        return None

    @property
    def references_origin(self) -> str | None:
        """Return where the reference energies are from, for people; None: from the structures."""
        return self.reference_energies


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
    """From files; see the fields."""

    format: ClassVar[str | None] = None  # of eqfuse.data.readers.FORMATS; None: by the suffix
    val_path: str | None = setting(
        None,
        "a file or pattern, of the same format, to validate with; null: frames of data.path "
        "(data.val)",
        reads=True,
    )

    def __post_init__(self):
        unset = self.val == MoleculeData.val
        need = "left out: all frames of data.val_path validate"
        require(self.val_path is None or unset, "data.val", self.val, need)
        super().__post_init__()

    @property
    def validation_origin(self) -> str | None:
        return self.val_path


@dataclasses.dataclass
class ExtxyzData(FileData):
    """An extended-xyz file, read by ASE: molecules or periodic cells (eV, Å)."""

    name: str = "extxyz"
    path: str | None = setting(
        None,
        "the file to train on, or a pattern for several: 'frames/*.xyz' (required)",
        reads=True,
    )
    energy_key: str = setting("energy", "name of the energies in the file, eV")
    forces_key: str = setting("forces", "name of the forces in the file, eV/Å")
    stress_key: str = setting("stress", "name of the stresses in the file, eV/Å^3 (optional)")

    def __post_init__(self):
        need = f"the file to train on: data={self.name} data.path=FILE"
        require(self.path is not None, "data.path", "null", need)
        super().__post_init__()

    @property
    def origin(self) -> str:
        return self.path


@dataclasses.dataclass
class PublicData(FileData):
    """A public set: a local file, or downloaded."""

    path: str | None = setting(None, "a local file to train on; null: download it", reads=True)
    folder: str | None = setting(
        None, "where downloads are kept; null: ~/.cache/eqfuse", reads=True
    )

    @property
    def origin(self) -> str:
        return self.path or f"{self.name}, downloaded"


@dataclasses.dataclass
class ThreeBPAData(PublicData):
    """3BPA: 500 frames of a drug-like molecule at 300 K, with isolated atoms (eV, Å)."""

    name: str = "3bpa"

    @property
    def references_origin(self) -> str | None:
        downloaded = "isolated atoms, downloaded" if self.path is None else None
        return self.reference_energies or downloaded


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
            require(
                self.molecule is None, "data.molecule", self.molecule, "left out: see data.path"
            )
        else:
            # Imported when it is needed: it takes seconds, which --help does not wait for.
            from eqfuse.data.readers.public import molecules

            known = molecules(self.name)
            what = f"a file: data={self.name} data.path=FILE, or data.molecule given, one of "
            require(self.molecule is not None, "data.path", "null", what + ", ".join(known))
            one_of("data.molecule", self.molecule, known)
        super().__post_init__()

    @property
    def origin(self) -> str:
        return self.path or f"{self.name} {self.molecule}, downloaded"


@dataclasses.dataclass
class MD22Data(RMD17Data):
    """MD22 (.npz; kcal/mol, converted to eV): a file, or the frames of a molecule."""

    name: str = "md22"


DATA = {
    "tetris": TetrisData,
    "ethanol": EthanolData,
    "lif": LithiumFluorideData,
    "extxyz": ExtxyzData,
    "3bpa": ThreeBPAData,
    "acac": AcAcData,
    "rmd17": RMD17Data,
    "md22": MD22Data,
}
