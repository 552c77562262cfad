"""The commands `eqfuse predict`, `eqfuse select` and `eqfuse info`, and the files they write."""

import dataclasses
import math
import os
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import ase
import ase.io
import numpy as np
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io.formats import UnknownFileTypeError, filetype, ioformats
from ase.stress import full_3x3_to_voigt_6_stress

from eqfuse import data, models, ops
from eqfuse.data import Structure
from eqfuse.data.readers import indexed, read_with_atoms, stem
from eqfuse.data.readers.ase_files import as_atoms, keep, writable
from eqfuse.data.structures import LABELS, counted
from eqfuse.inference.network import Network, load_networks
from eqfuse.inference.predict import Predicted, predict
from eqfuse.ops.info import info
from eqfuse.runs import command
from eqfuse.runs.errors import ConfigError
from eqfuse.runs.files import whole
from eqfuse.runs.log import warn, warnings_printed
from eqfuse.runs.schema import BACKEND, DISPERSION, POSITIVE, TYPES, setting, word


@dataclasses.dataclass(kw_only=True)
class ReadSettings:
    """How the file of a command is read, and on which backend its network runs."""

    types: tuple[str, ...] | None = setting(None, TYPES)
    energy_key: str | None = setting(None, "name in the file, eV; null: as in the training")
    forces_key: str | None = setting(None, "name in the file, eV/Å; null: as in the training")
    stress_key: str | None = setting(None, "name in the file, eV/Å^3; null: as in the training")
    backend: str | None = setting(None, BACKEND)


@dataclasses.dataclass(kw_only=True)
class Predict(ReadSettings):
    """Write energies, forces and stress of the frames of a file, as a trained run predicts.

    RUN may be a committee, whose mean and spread are written: a folder that holds runs, or a
    pattern in quotes ('runs/seed*'). OUT is .xyz (extended XYZ), .traj, .db or what else ASE
    writes; without it, FILE-predicted.xyz, here.
    """

    run: str = word("folder of the run, or file of its network")
    file: Path = word("frames, with or without labels")
    out: Path | None = word("file to write", None)
    which: Literal["best", "last"] | None = setting(None, "checkpoint; null: the best there is")
    dtype: Literal["float32", "float64"] | None = setting(None, "null: as trained")
    batch_size: int | None = setting(None, "frames at once; null: 16, fewer large ones", POSITIVE)
    head: str | None = setting(None, "of a network with several")
    dispersion: str | None = setting(None, DISPERSION)


@command.of(Predict)
def run_predict(options: Predict):
    require_backend(options.backend)
    out = options.out or Path(f"{stem(options.file)}-predicted.xyz")
    require_writable(out, options.file)
    kinds = ("which", "dtype", "backend", "head", "dispersion")
    networks = load_networks(options.run, **{name: getattr(options, name) for name in kinds})
    if len(networks) > 1:
        print(f"a committee of {len(networks)} networks: mean and spread")
    keys = label_keys(options, networks[0].metadata["config"]["data"])
    read = read_with_atoms(options.file, keys, options.types)
    structures = [structure for structure, _ in read]
    format = format_of(out, len(structures))
    start = time.perf_counter()
    with warnings_printed():
        predicted = predict(networks, structures, batch_size=options.batch_size)
    seconds = time.perf_counter() - start
    if named := ", ".join(sorted({str(n.dispersion) for n in networks} - {"None"})):
        print(f"with the dispersion {named}, by dftd3 on the CPU")
    frames = with_results(read, predicted, keys, **({"dispersion": named} if named else {}))
    write_atoms(out, frames, format)
    atoms = sum(structure.num_atoms for structure in structures)
    done = f"{counted(len(frames), 'frame')} of {counted(atoms, 'atom')} predicted"
    print(f"{done} in {seconds:.1f} s; they are in {out}")
    if predicted[0].spread is not None:
        worst = max(range(len(frames)), key=lambda k: predicted[k].spread.forces.max())
        spread = predicted[worst].spread.forces
        print(
            f"largest spread of a force: {1e3 * spread.max():.0f} meV/Å, frame "
            f"{_frame_of(structures[worst])}, atom {spread.argmax()}"
        )


def _frame_of(structure: Structure) -> int:
    """Return the number of a structure in the file that it was read from."""
    return int(structure.origin.rpartition(" ")[2])


@dataclasses.dataclass
class Select:
    """Write the frames of a file with the largest spread of a force, to be labelled."""

    runs: str = word("folder that holds runs, or a pattern; or one run after `eqfuse uncertainty`")
    file: Path = word("frames, with or without labels")
    out: Path | None = word("file to write; without it, FILE-selected.xyz, here", None)
    number: int = setting(50, "of frames", POSITIVE)
    most: float = setting(math.inf, "eV/Å; frames with a larger spread may be unphysical, left out")
    types: tuple[str, ...] | None = setting(None, TYPES)


@command.of(Select)
def run_select(options: Select):
    require_backend()
    out = options.out or Path(f"{stem(options.file)}-selected.xyz")
    require_writable(out, options.file)
    networks = load_networks(options.runs)
    if len(networks) < 2 and networks[0].uncertainty is None:
        raise data.DataError(
            f"{options.runs} is one network, and a spread needs several; train others with "
            f"seeds=4, or fit that of one: eqfuse uncertainty {options.runs}"
        )
    keys = data.Keys(charge=networks[0].charge_key)
    read = read_with_atoms(options.file, keys, options.types)
    structures = [structure for structure, _ in read]
    format = format_of(out, min(options.number, len(read)))
    with warnings_printed():
        predicted = predict(networks, structures)
    spreads = np.array([p.spread.forces.max() for p in predicted])
    order = np.argsort(-spreads, kind="stable")
    numbers = order[spreads[order] <= options.most][: options.number].tolist()
    if not numbers:
        raise data.DataError(f"the spread of all frames is above most={options.most} eV/Å")
    chosen = [read[k] for k in numbers]
    frames = with_results(chosen, [predicted[k] for k in numbers], keys, frame=0)
    for atoms, k in zip(frames, numbers, strict=True):
        atoms.info["frame"] = _frame_of(structures[k])
    write_atoms(out, frames, format)
    print(
        f"{len(frames)} of {counted(len(structures), 'frame')}, with spreads of the forces from "
        f"{1e3 * spreads[numbers[0]]:.0f} to {1e3 * spreads[numbers[-1]]:.0f} meV/Å, are in {out}"
    )


@dataclasses.dataclass
class Info:
    """Print the backends, devices and versions of this machine, or what a run trained."""

    run: str | None = word("the folder of a run, or a file of its network", None)


@command.of(Info)
def run_info(options: Info):
    if options.run is None:
        print(info())
        return
    try:
        network = Network(options.run)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    print(models.summary(network.module.potential, network.params["params"]))
    print(f"  radial   {network.radial}")
    if network.dispersion is not None:
        print(f"  labels were less {network.dispersion}, which predictions add")


def require_backend(name: str | None = None):
    """Refuse a backend that does not run here."""
    try:
        ops.resolve_here(name)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def label_keys(options, trained_on: dict) -> data.Keys:
    """Return the names of the labels in a file, by default those of the training."""
    keys = {}
    for name, usual in data.Keys()._asdict().items():
        given = getattr(options, f"{name}_key", None)
        keys[name] = given or trained_on.get(f"{name}_key", usual)
        if keys[name] != usual:
            print(f"{name} under the key {keys[name]!r}")
    return data.Keys(**keys)


def with_results(
    read: Sequence[tuple[Structure, ase.Atoms]], predicted: Sequence[Predicted], keys, **more
) -> list[ase.Atoms]:
    """Return the atoms of a file with what is predicted for them, and all that the file has.

    Labels are `reference_energy`, `reference_forces` and `reference_stress`; the spread is
    `energy_spread`, `energies_spread`, `forces_spread` and `stress_spread`. Latent charges are
    `latent_charges`. What else the file has under one of these names, or that of a result, gets
    "input_" before it, which is printed.

    Args:
      read: what `read_with_atoms` returns.
      keys: the names of the labels in the file.
      more: what `info` has besides.
    """
    frames, renamed = [], {}
    for (structure, given), one in zip(read, predicted, strict=True):
        atoms, labels = _with_prediction(structure, one), []
        atoms.info |= more
        atoms.cell = given.cell  # also where nothing is periodic
        for name in LABELS:
            if (label := getattr(structure, name)) is not None:
                (atoms.arrays if name == "forces" else atoms.info)[f"reference_{name}"] = label
                labels += [name] if getattr(keys, name) == name else []
        renamed |= keep(atoms, given, labels)
        atoms.calc.atoms = atoms.copy()  # ASE writes no results of other charges or moments
        frames.append(atoms)
    if renamed:
        texts = (f"{name} as {new}" for name, new in renamed.items())
        print(f"of the file, these are kept under other names: {', '.join(texts)}")
    if any(atoms.constraints for atoms in frames):
        print("constraints are kept: ASE's get_forces() shows no forces that they hold")
    return frames


def _with_prediction(structure: Structure, predicted: Predicted) -> ase.Atoms:
    """Return a structure with what is predicted for it."""
    atoms = as_atoms(structure)
    results = {"energy": predicted.energy}
    results |= {"energies": predicted.energies, "forces": predicted.forces}
    if predicted.stress is not None:
        results["stress"] = full_3x3_to_voigt_6_stress(predicted.stress)
    if predicted.spread is not None:
        for name, value in predicted.spread.results().items():
            kept = atoms.info if name.startswith(("energy_", "stress_")) else atoms.arrays
            kept[name] = value
    if predicted.charges is not None:
        one = predicted.charges.shape[1] == 1
        atoms.arrays["latent_charges"] = predicted.charges[:, 0] if one else predicted.charges
    atoms.calc = SinglePointCalculator(atoms, **results)
    return atoms


def require_writable(out: Path, source: str | os.PathLike):
    """Raise a DataError where no file `out` can be made, or where it is the one that is read."""
    if out.exists() and not out.is_file():
        what = "a folder" if out.is_dir() else "a device or a pipe"
        raise data.DataError(f"{out} is {what}; give the name of a file")
    source = Path(indexed(source)[0])
    if out.exists() and source.exists() and out.samefile(source):
        raise data.DataError(f"{out} is the file that is read; give another name to write to")
    if not out.parent.is_dir():
        raise data.DataError(f"there is no folder {out.parent}; make it first")


def format_of(path: str | os.PathLike, frames: int) -> str:
    """Return ASE's name of the format that a file's suffix stands for.

    It raises a DataError for one that ASE cannot write, or that holds one frame, for several.
    """
    path = Path(path)
    if path.suffix in (".xyz", ".extxyz"):
        return "extxyz"
    try:
        format = filetype(str(path), read=False)
    except UnknownFileTypeError:  # a name without a suffix
        format = None
    if format not in ioformats:
        raise data.DataError(f"{path}: ASE writes no such format; end its name with .xyz")
    known = ioformats[format]
    if not known.can_write or (known.single and frames > 1):
        what = "holds one frame" if known.can_write else "cannot be written"
        raise data.DataError(
            f"{path}: ASE's format {format} {what}, and there are {frames} frames; end its name "
            f"with {_HOLD}"
        )
    labelled = ase.Atoms("H")
    labelled.calc = SinglePointCalculator(labelled, energy=0.5, forces=np.ones((1, 3)))
    if lost := _lost(labelled, path, format):
        raise data.DataError(
            f"{path}: files of ASE's format {format} hold no {' and no '.join(sorted(lost))}; end "
            f"its name with {_HOLD}"
        )
    return format


_HOLD = ".xyz, .traj, .db or .json"
"""Names of files that hold results."""


def _lost(atoms: ase.Atoms, path: Path, format: str) -> set[str]:
    """Return the names of what atoms have and a file of a format has not, once it is read again."""

    def names(atoms) -> set[str]:
        results = atoms.calc.results if atoms.calc is not None else {}
        constraints = ["constraints"] if atoms.constraints else []
        return {*atoms.info, *atoms.arrays, *results, *constraints}

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        copy = Path(folder) / path.name
        try:
            ase.io.write(copy, atoms, format=format)
            return names(atoms) - names(ase.io.read(copy, format=format))
        except Exception:  # ASE's writers and readers raise many types
            return {"energy", "forces"}


def write_atoms(path: str | os.PathLike, frames: Sequence[ase.Atoms], format: str) -> None:
    """Write frames to a file, which is complete or not there; warn of what the format drops."""
    path = Path(path)
    if format == "extxyz":
        frames = [*map(writable, frames)]
    with whole(path, path.with_name(f".{path.stem}.partial{path.suffix}")) as part:
        ase.io.write(part, frames, format=format)
    if format == "extxyz":
        held = {type(one).__name__ for atoms in frames for one in atoms.constraints}
        if lost := ", ".join(sorted(held - {"FixAtoms", "FixCartesian"})):
            warn(f"{path}: extended XYZ drops the constraints {lost}; files named .traj hold them")
        return
    kinds = {(*atoms.info, None, *atoms.arrays): atoms for atoms in frames}
    if lost := set[str]().union(*(_lost(atoms, path, format) for atoms in kinds.values())):
        names = ", ".join(sorted(lost))
        warn(f"{path}: ASE's format {format} drops {names}; files named .xyz hold them")
