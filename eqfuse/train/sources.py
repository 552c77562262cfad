"""The data of a run, embedded or from files: their settings, and how they are read."""

import dataclasses
import glob
import math
import os
import re
import sys
from typing import Literal

import yaml

from eqfuse import data
from eqfuse.data.structures import DataError, counted
from eqfuse.runs.log import printable
from eqfuse.runs.schema import POSITIVE, Range, absolute, check_ranges, documented, require, value

SETS = {
    "ethanol": "1000 frames of ethanol at 300 and 500 K (GFN2-xTB; eV, Å); embedded.",
    "lif": "90 cells of LiF at 300 K, strained, with stress (GFN2-xTB; eV, Å); embedded.",
    "extxyz": "Extended-xyz files, or other formats: molecules or periodic cells (eV, Å).",
}
"""The choices of `data=`: what they are."""
FIT, AVERAGE = "fit", "average"
"""Values of `data.reference_energies`: see its help."""
_LARGE = 64e6  # bytes of files
_SIZE = Range(
    lambda value: 0 < value < 1 or (value >= 1 and value == int(value)),
    "a fraction between 0 and 1 or a whole number",
)


def _references(value: str) -> str:
    return value if value in (FIT, AVERAGE) or value.startswith("{") else absolute(value)


@documented
@dataclasses.dataclass
class DataSettings:
    """Structures with energies and forces, of one of `SETS`."""

    name: str = "extxyz"
    path: str | None = value(None, convert=absolute)
    """the file to train on, or several: a.xyz,b.xyz, 'frames/*.xyz'; data=FILE sets it"""
    val_path: str | None = value(None, convert=absolute)
    """a file or pattern, of the same format, to validate with; null: frames of data.path
    (data.val)"""
    test: str | None = value(None, convert=absolute)
    """a file or pattern, of the same format, whose errors of the best network are evaluated once,
    at the end"""
    train: float | None = value(None, _SIZE)
    """training frames: fraction below 1, or number; null: rest"""
    val: float = value(0.1, _SIZE)
    """validation frames: fraction below 1, or number; or a FILE, as data.val_path"""
    batch_size: int = value(5, POSITIVE)
    """structures per step"""
    reference_energies: str | None = value(None, convert=_references)
    """energies of isolated atoms, eV: '{H: -13.6, 8: -2041.9}', a file of them, or average, which
    fits one per element; null: frames with config_type=IsolatedAtom, or average without any; with
    start_from=, null: those of that run, or fit: these, moved to the data by least squares"""
    config_type_weights: str | None = value(None)
    """weights of frames in the loss by their config_type: '{bulk: 1, surface: 2.5}', with Default
    for frames without one; they multiply config_weight of a frame"""
    weight: float = value(1.0, POSITIVE)
    """weight of all frames in the loss, which multiplies the others"""
    duplicates: Literal["warn", "drop", "error"] = value("warn")
    """copies of frames, also rotated or renumbered: warn of them, drop all but the first, or
    error"""
    check: Literal["warn", "strict", "off"] = value("warn")
    """what to do with data that are probably wrong (units, signs, duplicates, outliers, ...);
    strict refuses them"""
    store: Literal["auto", "on", "off"] = value("auto")
    """keep frames and their neighbour lists on disk, in ~/.cache/eqfuse/store; auto: for more than
    64 MB of files"""
    dispersion: str | None = value(None)
    """train on labels less DFT-D3, which predictions of the run add again: d3(bj) (of PBE),
    d3(bj,r2scan), d3(zero), ..., computed by dftd3; null: labels as they are"""
    energy_key: str = value("energy")
    """name of the energies in the file, eV"""
    forces_key: str = value("forces")
    """name of the forces in the file, eV/Å"""
    stress_key: str = value("stress")
    """name of the stresses in the file, eV/Å^3 (optional)"""
    charge_key: str | None = value(None)
    """name of the total charges in the file, e, with model.long_range=les: latent charges of a
    structure are shifted to its total; null: they may add up to anything"""
    types: str | None = value(None)
    """elements of LAMMPS's types 1, 2, ..., such as Si,O, where the files are dumps or data
    files"""

    def __post_init__(self):
        need = f"left out with data={self.name}, which is embedded"
        require(self.name == "extxyz" or self.path is None, "data.path", self.path, need)
        share = os.path.basename(self.test or "")
        if re.fullmatch(r"[\d.]+", share) and not os.path.exists(self.test):
            need = f"a file; data.val={share} validates with a share of the frames"
            require(False, "data.test", share, need)
        need = "left out: all frames of data.val_path validate"
        unset = self.val == DataSettings.val
        require(self.val_path is None or unset, "data.val", self.val, need)
        check_ranges(self, "data.")
        need = "off or auto with data.dispersion: frames are then kept in memory"
        require(self.dispersion is None or self.store != "on", "data.store", "on", need)
        self.subtracted()
        self.type_weights()
        self._typed_references()

    @property
    def origin(self) -> str:
        return self.path or f"{self.name}, embedded"

    @property
    def keys(self):
        return data.Keys(self.energy_key, self.forces_key, self.stress_key, self.charge_key)

    def subtracted(self):
        """Return the `Dispersion` that labels are less, or None; or refuse the setting."""
        if self.dispersion is None:
            return None
        from eqfuse.train.dispersion import Dispersion

        return Dispersion.parse(self.dispersion)

    def type_weights(self) -> dict[str, float]:
        """Return the weights of frames by config_type, or refuse the setting."""
        text = self.config_type_weights
        weights = _numbers(text, 0)
        need = "names and finite weights, zero or more, such as '{bulk: 1, surface: 2.5}'"
        require(text is None or weights, "data.config_type_weights", text, need)
        return {str(name): weight for name, weight in weights.items()}

    def check_data(self, dataset, structures, validation) -> list[str]:
        """Return probable faults, which `data.check=strict` refuses, and what cannot be judged."""
        if self.check == "off" or self.path is None:
            return []
        from eqfuse.data.checks import find_problems
        from eqfuse.data.checks_of_forces import unjudged
        from eqfuse.data.lazy import Joined

        problems = find_problems(dataset, structures, validation)
        if problems and self.check == "strict":
            for problem in problems:
                print(f"problem: {printable(problem)}", file=sys.stderr, flush=True)
            raise DataError(
                f"data.check=strict refuses data with {counted(len(problems), 'problem')}"
            )
        return [*problems, *unjudged(Joined(structures, validation or ()))]

    def missing_label(self, name: str) -> str:
        """Return the advice for a label that no frame has."""
        if name == "hessian":
            return "no column hessian of 9 n_atoms numbers for each atom, see eqfuse.data.Structure"
        from eqfuse.data.readers import missing_label

        path = self.path and matching(self.path)[0]
        return missing_label(path, name, self.keys) if path else f"no {name}"

    def read(self, part: str = "path") -> list | None:
        """Return the structures, in eV and Å, of `data.path`, `val_path` or `test`, or None.

        Their labels are less the dispersion, if there is one. Frames of files are kept on disk
        where `store` asks for it.
        """
        path, dispersion = getattr(self, part), self.subtracted()
        if path is None and part != "path":
            return None
        from eqfuse.data.readers.format import files_of

        files = [] if path is None else matching(path)
        parts = [part for file in files for part in files_of(file)]
        size = sum(os.path.getsize(part) for part in parts if os.path.exists(part))
        large = self.store == "auto" and size > _LARGE and dispersion is None
        how = {"keys": self.keys, "types": self.types}
        if files and (self.store == "on" or large):
            from eqfuse.data.store import store_structures

            return store_structures(files, **how)
        structures = [] if files else data.read_embedded(self.name)
        for file in files:
            structures += data.read_structures(file, **how, require_labels=False)
        return [*map(dispersion.without, structures)] if dispersion else structures

    def read_reference_energies(self, cutoff: float) -> dict[int, float] | str | None:
        """Return energies of isolated atoms, eV by atomic number, as `Dataset.build` takes them."""
        path, typed = self.reference_energies, self._typed_references()
        if typed or path in (None, FIT, AVERAGE):
            return typed or (None if path == FIT else path)
        return data.isolated_atom_energies(path, energy_key=self.energy_key, cutoff=cutoff)

    def _typed_references(self) -> dict[int, float]:
        """Return energies that are given as a mapping, eV by atomic number; {} for none."""
        text = self.reference_energies
        if text is None or not text.startswith("{"):
            return {}
        from ase.data import atomic_numbers  # takes a while to import

        need = "energies in eV by element, such as '{H: -13.6, 8: -2041.9}'"
        known = {n: z for n, z in atomic_numbers.items() if z} | {z: z for z in range(1, 119)}
        energies = {known.get(z): e for z, e in _numbers(text, -math.inf).items()}
        require(energies and None not in energies, "data.reference_energies", text, need)
        return energies


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
        raise DataError(
            f"no file matches {path}; check the pattern (data.path, data.val or data.test)"
        )
    return matches


def _numbers(text: str | None, least: float) -> dict:
    """Return the mapping to finite numbers of at least `least` in a YAML text; {} if it is none."""
    try:
        plain = yaml.safe_load(re.sub(r":(?=\S)", ": ", text or ""))  # {1:-13.6} is Python's
        found = {n: float(v) for n, v in plain.items() if type(v) in (int, float)}
    except (AttributeError, ValueError, OverflowError, RecursionError, yaml.YAMLError):
        return {}
    ok = len(found) == len(plain) and all(least <= value < math.inf for value in found.values())
    return found if ok else {}
