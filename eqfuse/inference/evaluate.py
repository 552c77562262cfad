"""The command `eqfuse evaluate RUN FILE`: errors of a trained run on a file."""

import contextlib
import dataclasses
from pathlib import Path

import numpy as np
import scipy.stats

from eqfuse import data
from eqfuse import plots as pictures
from eqfuse.data.checks_of_stress import stress_hint
from eqfuse.data.group_errors import error_table
from eqfuse.data.readers import missing_label, read_with_atoms, stem
from eqfuse.data.structures import LABELS, count_labelled, counted
from eqfuse.inference import commands
from eqfuse.inference.network import load_networks
from eqfuse.inference.predict import Predicted, predict
from eqfuse.runs import command
from eqfuse.runs.files import write_table, write_whole
from eqfuse.runs.log import warn, warnings_printed
from eqfuse.runs.schema import setting, word
from eqfuse.train.metrics import Predicted as Relative
from eqfuse.train.results import errors_text

SOURCE = "file.txt"  # names the file that the results of a folder are of


@dataclasses.dataclass(kw_only=True)
class Evaluate(commands.ReadSettings):
    """Print the errors of a trained run on a file, and write them with the predictions.

    RUN may be a committee, whose mean is evaluated, and whose spread is compared with the errors: a
    folder of runs, or a pattern in quotes.
    """

    run: str = word("folder of the run, or file of its network")
    file: Path = word("frames with labels, of which some may be missing")
    out: Path | None = setting(None, "folder to write to; null: RUN/evaluation-FILE")


@command.of(Evaluate)
def main(options: Evaluate):
    commands.require_backend(options.backend)
    networks = load_networks(options.run, backend=options.backend)
    keys = commands.label_keys(options, networks[0].metadata["config"]["data"])
    frames = read_with_atoms(options.file, keys, options.types)
    read = [(structure, atoms) for structure, atoms in frames if not structure.is_isolated_atom]
    structures = [structure for structure, _ in read]
    if not structures:
        raise data.DataError(
            f"{options.file} has isolated atoms only, whose energies are references"
        )
    if left_out := len(frames) - len(structures):
        print(f"isolated atoms, which are references, left out: {left_out}")
    _report_labels(structures, options, keys)
    folder = _folder(options)
    folder.mkdir(parents=True, exist_ok=True)  # before the work, in case that it cannot be made
    try:
        with warnings_printed():
            predicted = predict(networks, structures)
    except data.DataError:
        with contextlib.suppress(OSError):  # of an earlier evaluation: not empty
            folder.rmdir()
        raise
    rows = error_table(structures, predicted)
    write_whole(folder / SOURCE, f"{_source(options)}\n")
    write_table(folder / "errors.csv", rows)
    frames = commands.with_results(read, predicted, keys)
    commands.write_atoms(folder / "predictions.xyz", frames, "extxyz")
    pairs = []  # with energies relative to the reference energies of the run
    for s, p in zip(structures, predicted, strict=True):
        if s.energy is not None:
            s = dataclasses.replace(s, energy=s.energy - (p.energy - p.relative_energy))
        pairs.append((s, Relative(p.relative_energy, p.forces, p.stress)))
    pictures.parity(pairs, folder / "parity.png", counted(len(pairs), "frame"))
    print(errors_text("errors", rows, len(rows)))
    if hint := stress_hint(structures, predicted):
        warn(hint)
    if drawn := _draw_spread(structures, predicted, folder / "spread.png"):
        print(drawn)
    pictures_drawn = "parity.png and spread.png" if drawn else "parity.png"
    print(f"errors.csv, predictions.xyz, {pictures_drawn} are in {folder}")


def _report_labels(structures: list[data.Structure], options, keys: data.Keys):
    """Print how many frames have which label, where some lack one; stress may be in none."""
    counts = {name: count_labelled(structures, name) for name in LABELS}
    total = len(structures)
    for name, count in counts.items():
        named = getattr(options, f"{name}_key") is not None
        if count == 0 and (named or not any(counts.values())):
            missing = missing_label(options.file, name, keys)
            hint = "" if named else "; `eqfuse predict` needs no labels"
            where = f"{options.file}, in none of {counted(total, 'frame')}"
            raise data.DataError(f"{where}: {missing}{hint}")
    for name, count in counts.items():
        if count < total and (count or name != "stress"):
            hint = "" if count else f": {missing_label(options.file, name, keys)}"
            print(f"{name} in {count} of {counted(total, 'frame')}{hint}")


def _source(options) -> str:
    """Return what the results are of: the file, and the network if it is not the folder's."""
    is_folder = Path(options.run).expanduser().is_dir()
    return f"{options.file.resolve()}{'' if is_folder else f', by {options.run}'}"


def _folder(options) -> Path:
    """Return the folder of the results, if it holds none of another file or network."""
    if options.out:
        return options.out
    run = Path(options.run).expanduser()
    above = run if run.is_dir() else run.parent
    folder = above / f"evaluation-{stem(options.file)}"
    source = folder / SOURCE
    before = source.read_text(encoding="utf-8").strip() if source.exists() else ""
    if before and before != (given := _source(options)):
        raise data.DataError(
            f"{folder} holds the results of {before}; give a folder for those of {given} with out="
        )
    return folder


def _draw_spread(structures, predicted: list[Predicted], target: Path) -> str | None:
    """Draw the errors of the forces against the spread; return how they agree."""
    pairs = [
        (p.spread.forces, np.linalg.norm(p.forces - s.forces, axis=1))
        for s, p in zip(structures, predicted, strict=True)
        if p.spread is not None and s.forces is not None
    ]
    if not pairs:
        return None
    spread, error = map(np.concatenate, zip(*pairs, strict=True))
    spread, error = spread[~np.isnan(error)], error[~np.isnan(error)]
    rank = scipy.stats.spearmanr(spread, error).statistic if len(spread) > 1 else np.nan
    pictures.spread(spread, error, target)
    ratio = np.sqrt(np.mean(error**2) / np.mean(spread**2))
    return (
        f"errors of the forces are {ratio:.2g} times the spread (RMS), and their "
        f"rank correlation with it is {rank:.2f}"
    )
