"""The settings of the data as typed dataclasses."""

import dataclasses

from eqfuse.training.settings import one_of, positive, require, setting


@dataclasses.dataclass
class TetrisData:
    """Eight shapes of four cubes, to be told apart; embedded."""

    name: str = "tetris"

    def __post_init__(self):
        one_of("data.name", self.name, ["tetris"])


@dataclasses.dataclass
class MoleculeData:
    """Structures with energies and forces; see the fields."""

    name: str = ""
    train: float | None = setting(None, "training frames: fraction below 1, or number; null: rest")
    val: float = setting(0.1, "validation frames: fraction below 1, or number")
    batch_size: int = setting(5, "structures per step")
    reference_energies: str | None = setting(
        None, "extxyz file of isolated atoms (energies in eV); null: least squares per species"
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
        """Where the structures are from, for people."""
        return f"{self.name}, embedded"


@dataclasses.dataclass
class EthanolData(MoleculeData):
    """1000 frames of ethanol at 300 and 500 K (GFN2-xTB; eV, Å); embedded."""

    name: str = "ethanol"


@dataclasses.dataclass
class LithiumFluorideData(MoleculeData):
    """90 cells of LiF at 300 K, strained, with stress (GFN2-xTB; eV, Å); embedded."""

    name: str = "lif"


@dataclasses.dataclass
class ExtxyzData(MoleculeData):
    """An extended-xyz file, read by ASE: molecules or periodic cells (eV, Å)."""

    name: str = "extxyz"
    path: str | None = setting(None, "the file to train on (required)")
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
class RMD17Data(MoleculeData):
    """A file of the revised MD17 set (.npz; kcal/mol, converted to eV)."""

    name: str = "rmd17"
    path: str | None = setting(None, "the file to train on (required)")

    def __post_init__(self):
        need = f"the file to train on: data={self.name} data.path=FILE"
        require(self.path is not None, "data.path", "null", need)
        super().__post_init__()

    @property
    def origin(self) -> str:
        return self.path


DATA = {
    "tetris": TetrisData,
    "ethanol": EthanolData,
    "lif": LithiumFluorideData,
    "extxyz": ExtxyzData,
    "rmd17": RMD17Data,
}
