"""The end of a run: errors of the best network, plots, and all of it on one page."""

import csv
import sys
from collections.abc import Sequence
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

from eqfuse import plots
from eqfuse.data import Batcher, Dataset, Sample
from eqfuse.data.error_table import error_table
from eqfuse.data.structures import LABELS, count_labelled, counted
from eqfuse.models import Potential, compile_predict
from eqfuse.train.run.checkpoint import read_checkpoint, read_metadata
from eqfuse.train.run.page import page
from eqfuse.train.run.runs import RunFolder, read_log

MAX_TRAINING = 1000
"""The errors on the training frames are of the first of them, at most so many."""

_HEADS = ("set", "group", "frames", "atoms", "E MAE", "E RMSE", "F MAE", "F RMSE")
_MOST_ROWS = 30


def evaluated_samples(dataset: Dataset, ended: bool) -> dict[str, tuple[Sample, ...]]:
    """Return the samples of each set that the best network is evaluated on.

    Args:
      dataset: of the run.
      ended: whether the run is at its end; validation only where it was interrupted.
    """
    if not ended:
        return {"validation": dataset.val}
    sets = {"training": dataset.train[:MAX_TRAINING], "validation": dataset.val}
    return sets | ({"test": dataset.test} if dataset.test else {})


def evaluation_batcher(sets: dict[str, tuple[Sample, ...]], batch_size: int, dtype) -> Batcher:
    """Return batches of all sets, one behind the other, for one device."""
    return Batcher([s for samples in sets.values() for s in samples], batch_size, dtype=dtype)


def write_results(
    folder: RunFolder,
    potential: Potential,
    dataset: Dataset,
    *,
    batch_size: int,
    dtype: str,
    ended: bool,
) -> list[dict]:
    """Write errors.csv, plots and report.html of a run that has ended an epoch; print the errors.

    What cannot be written is a warning: the training is done.

    Args:
      folder: of the run.
      potential: its network.
      dataset: with the test samples, if any.
      batch_size, dtype: of the batches.
      ended: see `evaluated_samples`.
    Returns:
      the rows of errors.csv, see `error_table`, each with its set; [] where there are none.
    """
    if not folder.metrics.exists():
        return []
    try:
        read_log(folder.metrics)
        stage = read_metadata(folder.path, which="last")["position"]["second_since"]
        plots.learning_curves(folder.metrics, folder.path / "learning.png", stage)
        params, metadata, _ = read_checkpoint(folder.path, ("best", "last"))
        sets = evaluated_samples(dataset, ended)
        batcher = evaluation_batcher(sets, batch_size, dtype)
        predicted = _predictions(potential, jax.tree.map(jnp.asarray, params), batcher)
        rows, start = [], 0
        for name, samples in sets.items():
            part = predicted[start : start + len(samples)]
            start += len(samples)
            labelled = [_with_numbers(sample, dataset.species) for sample in samples]
            rows += [{"set": name, **row} for row in error_table(labelled, part)]
            if name != "training":
                target = folder.path / ("parity.png" if name == "validation" else "parity_test.png")
                frames = counted(len(part), f"{name} frame")
                title = f"{folder.path.name}, epoch {metadata['epoch']}: {frames}"
                plots.parity(**_pairs(samples, part), target=target, title=title)
        if ended:
            print(_table(rows, metadata["epoch"], len(dataset.train)), flush=True)
        _write_csv(folder.path / "errors.csv", rows)
        text = page(folder.path, metadata, rows, ended)
        (folder.path / "report.html").write_text(text, encoding="utf-8")
        return rows
    except (OSError, ValueError) as error:
        print(f"warning: the results cannot be written: {error}", file=sys.stderr)
        return []


def _predictions(potential: Potential, params, batcher: Batcher) -> list[SimpleNamespace]:
    """Return energy (eV, relative to the references), forces and stress of each sample."""
    stress = count_labelled(batcher.samples, "stress") > 0
    compiled, predicted = compile_predict(potential, stress=stress), []
    batches = batcher.batches(shuffle=False)
    for batch, group in zip(batches, batcher.groups(shuffle=False), strict=True):
        prediction, first = jax.device_get(compiled(params, batch.graph)), 0
        for k, number in enumerate(group):
            last = first + batcher.samples[number].num_atoms
            predicted.append(
                SimpleNamespace(
                    energy=float(prediction.energy[k]),
                    forces=np.asarray(prediction.forces[first:last], np.float64),
                    stress=np.asarray(prediction.stress[k], np.float64) if stress else None,
                )
            )
            first = last
    return predicted


def _with_numbers(sample: Sample, species: Sequence[int]) -> SimpleNamespace:
    """Return the labels of a sample with its atomic numbers, for `error_table`."""
    labels = {name: getattr(sample, name) for name in (*LABELS, "num_atoms", "config_type")}
    return SimpleNamespace(**labels, numbers=np.array(species)[sample.species])


def _pairs(samples: Sequence[Sample], predicted: Sequence[SimpleNamespace]) -> dict:
    """Return for each label the (reference, predicted) values where the reference is known.

    Returns:
      energies per atom [n] eV/atom, forces [n_atoms, 3] eV/Å, stress [n, 3, 3] eV/Å^3; () for a
      label that no sample has.
    """
    pairs = {}
    for name in LABELS:
        known = [(s, p) for s, p in zip(samples, predicted, strict=True) if _has(s, name)]
        if name == "energy":
            values = [(s.energy / s.num_atoms, p.energy / s.num_atoms) for s, p in known]
            pairs["energies"] = tuple(map(np.array, zip(*values, strict=True)))
            continue
        values = [(getattr(s, name), getattr(p, name)) for s, p in known]
        join = np.concatenate if name == "forces" else np.stack
        pairs[name] = tuple(map(join, zip(*values, strict=True)))
    return pairs


def _has(sample: Sample, name: str) -> bool:
    return getattr(sample, name) is not None


def _write_csv(path, rows: list[dict]):
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def _table(rows: list[dict], epoch: int, num_training: int) -> str:
    """Return the errors for the terminal: of all sets, and of the groups of the last one."""
    last = rows[-1]["set"]
    shown = [row for row in rows if row["set"] == last or row["group"] == "all"]
    stress = any("stress_mae_mev_per_a3" in row for row in rows)
    lines = [_HEADS + (("S MAE", "S RMSE") if stress else ())]
    for row in shown[:_MOST_ROWS]:
        errors = [v for k, v in row.items() if "_mae_" in k or "_rmse_" in k]
        numbers = ["-" if error is None else f"{error:.2f}" for error in errors]
        lines.append((row["set"], row["group"], str(row["frames"]), str(row["atoms"]), *numbers))
    width = max(len(line[1]) for line in lines)
    texts = [
        f"  {name:<10}  {group:<{width}}  " + " ".join(f"{number:>8}" for number in numbers)
        for name, group, *numbers in lines
    ]
    head = f"errors of the best network, of epoch {epoch}: E in meV/atom, F in meV/Å"
    head += ", S in meV/Å^3" if stress else ""
    if num_training > MAX_TRAINING:
        head += f" (training: the first {MAX_TRAINING} of {num_training} frames)"
    if len(shown) > _MOST_ROWS:
        texts.append(f"  {len(shown) - _MOST_ROWS} more are in errors.csv")
    return "\n".join([head, *texts])
