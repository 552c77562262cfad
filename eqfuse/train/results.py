"""Where the errors of a run go: plots and one page at its end, and callbacks of yours."""

import functools
from pathlib import Path
from shlex import quote
from types import SimpleNamespace

import jax
import numpy as np
import yaml

from eqfuse import __version__, plots
from eqfuse.data import Batcher, Dataset, Sample
from eqfuse.data.checks_of_forces import nothing_learned
from eqfuse.data.checks_of_stress import stress_hint
from eqfuse.data.group_errors import UNITS, error_table
from eqfuse.data.structures import LABELS, TRAINED, count_labelled, counted
from eqfuse.models import Potential, compile_predict
from eqfuse.models import predict as of_graph
from eqfuse.runs import page
from eqfuse.runs.checkpoint import read_checkpoint
from eqfuse.runs.files import RunFolder, write_table, write_whole
from eqfuse.runs.log import printable, say, warn
from eqfuse.train.metrics import predictions
from eqfuse.train.settings.config import Config
from eqfuse.train.terminal import QUANTITIES, duration

MAX_TRAINING = 1000
"""The errors on the training frames are of the first of them, at most so many."""

_MOST_ROWS = 30
_COLUMNS = {
    f"{name}_{kind}_{UNITS[name]}": (f"{QUANTITIES[name][0]} {kind.upper()}", QUANTITIES[name][1])
    for name in TRAINED
    for kind in ("mae", "rmse")
}
"""Of errors.csv: short titles and units."""


def write_results(
    ready, folder: RunFolder, facts: dict[str, str], *, warnings: list[str], ended: bool
) -> list[dict]:
    """Write errors.csv, plots and report.html of a run that has ended an epoch; print the errors.

    What cannot be written is a warning: the training is done. A run that was interrupted, which has
    not `ended`, is evaluated on validation frames only. `facts` are by title, for the page, which
    has the `warnings` of the run, too.
    Returns the rows of errors.csv.
    """
    if not folder.metrics.exists():
        return []
    config, dataset = ready.config, ready.dataset
    sets = {"validation": dataset.val}
    if ended:
        sets = {"training": dataset.train[:MAX_TRAINING], **sets}
        sets |= {"test": dataset.test} if dataset.test else {}
    try:
        _, last, _ = read_checkpoint(folder.path, ("last",))
        stage = last["position"]["second_since"]
        plots.learning_curves(folder.metrics, folder.path / "learning.png", stage)
        params, metadata, _ = read_checkpoint(folder.path, ("best", "last"))
        predicted = _predicted(config, ready.potential, params, sets)
        rows, start = [], 0
        for name, samples in sets.items():
            part = predicted[start : start + len(samples)]
            start += len(samples)
            labelled = [_described(sample, dataset) for sample in samples]
            rows += [{"set": name, **row} for row in error_table(labelled, part)]
            if name != "training":
                target = folder.path / ("parity.png" if name == "validation" else "parity_test.png")
                frames = counted(len(part), f"{name} frame")
                title = f"{folder.path.name}, epoch {metadata['epoch']}: {frames}"
                plots.parity(zip(labelled, part, strict=True), target, title)
            if name == "validation":
                validated = samples, part
                if hint := stress_hint(samples, part):
                    warn(hint)
        if ended:
            title = f"errors of the best network, of epoch {metadata['epoch']}"
            if len(dataset.train) > MAX_TRAINING:
                title += f" (training: the first {MAX_TRAINING} of {len(dataset.train)} frames)"
            own = [r for r in rows if r["set"] == rows[-1]["set"] or r["group"] == "all"]
            say(errors_text(title, own))
            if config.training.forces_weight and (hint := nothing_learned(*validated)):
                warn(hint)
        write_table(folder.path / "errors.csv", rows)
        facts = {**facts, "training time": duration(last["position"]["elapsed"])}
        text = _page(folder.path, metadata, rows, facts, warnings, ended)
        write_whole(folder.path / "report.html", text)
        return rows
    except (OSError, ValueError) as error:
        warn(f"the results cannot be written: {error}")
        return []


def _predicted(config: Config, potential: Potential, params, sets: dict) -> list:
    """Return `predictions` for all samples of some sets, one after the other.

    They have the errors of Hessians, of the rows on which the run is validated, if it has any.
    """
    samples, params = [sample for own in sets.values() for sample in own], jax.device_put(params)
    stress, size = count_labelled(samples, "stress") > 0, config.data.batch_size
    how = {"dtype": config.dtype, "long_range": potential.long_range, "seed": config.seed}
    if config.training.hessian_weight:
        predict = jax.jit(functools.partial(of_graph, potential, stress=stress))
        made = [Batcher(own, size, hessians=True, **how) for own in sets.values()]
        return [found for batcher in made for found in predictions(predict, params, batcher)]
    predict = compile_predict(potential, stress=stress)
    return predictions(predict, params, Batcher(samples, size, **how))


def _described(sample: Sample, dataset: Dataset) -> SimpleNamespace:
    """Return the labels of a sample, its atomic numbers and its head, for `error_table`."""
    labels = {name: getattr(sample, name) for name in (*LABELS, "num_atoms", "config_type")}
    head = None if sample.head is None else list(dataset.heads)[sample.head]
    numbers = np.array(dataset.species)[sample.species]
    return SimpleNamespace(**labels, numbers=numbers, head=head)


def _cells(rows: list[dict]) -> tuple[list[str], list[list[str]]]:
    """Return the heads of the columns of errors that some row has, and the texts of the rows."""
    keys = [key for key in _COLUMNS if any(key in row for row in rows)]
    first = [name for name in ("set", "group", "frames", "atoms") if name in rows[0]]
    texts = [
        [printable(row[name]) for name in first]
        + ["-" if row.get(key) is None else f"{row[key]:.2f}" for key in keys]
        for row in rows
    ]
    return [*first, *(_COLUMNS[key][0] for key in keys)], texts


def errors_text(title: str, rows: list[dict], most: int = _MOST_ROWS) -> str:
    """Return the first rows of an error table, of several sets, for the terminal."""
    heads, cells = _cells(rows[:most])
    shown = [(letter, unit) for letter, unit, _ in QUANTITIES.values() if f"{letter} MAE" in heads]
    lines = [f"{title}: {', '.join(f'{letter} in {unit}' for letter, unit in shown)}"]
    named = heads.index("frames")
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)][:named]
    for row in [heads, *cells]:
        names = [f"{name:<{width}}" for name, width in zip(row, widths, strict=False)]
        lines.append("  ".join(["", *names, " ".join(f"{cell:>8}" for cell in row[named:])]))
    if len(rows) > most:
        lines.append(f"  {len(rows) - most} more are in errors.csv")
    return "\n".join(lines)


_PICTURES = {
    "learning.png": "Errors during the training",
    "parity.png": "Predictions for the validation frames",
    "parity_test.png": "Predictions for the test frames",
}


def _page(
    folder: Path, metadata: dict, rows: list[dict], facts: dict, warnings: list[str], ended: bool
) -> str:
    heads = [own["head"] for own in metadata.get("heads", [])]
    used = folder / "heads" / f"{heads[0]}.safetensors" if heads else folder
    criterion = metadata["config"]["training"].get("best", "loss").replace("_", " ")
    what = (
        f"{metadata['model']} trained by eqfuse {__version__}. The best network is of epoch "
        f"{metadata['epoch']}, step {metadata['step']}, by the lowest {criterion} on the "
        "validation frames."
    )
    if not ended:
        what += " The run was interrupted: the test frames are not evaluated."
    settings = yaml.safe_dump(metadata["config"], sort_keys=False, allow_unicode=True)
    units = dict(_COLUMNS.values())
    titles, lines = _cells(rows)
    titles = [f"{title} {units[title]}" if title in units else title for title in titles]
    kinds = ["bold", *("bold" if line[1] == "all" else "" for line in lines)]
    drawn = {title: folder / file for file, title in _PICTURES.items() if (folder / file).exists()}
    sections = {
        "Errors of the best network": page.table([titles, *lines], kinds, "numbers"),
        **{title: page.picture(title, path.read_bytes()) for title, path in drawn.items()},
        "Data, machine and versions": page.table(facts.items()),
        "Warnings": page.items(warnings or ["There were none."]),
        "Use it": page.lines(
            f"eqfuse predict {quote(str(used))} FILE.xyz OUT.xyz\n"
            f"eqfuse evaluate {quote(str(used))} FILE.xyz\n"
            f"calculator = eqfuse.Calculator({str(used)!r})  # of ASE"
        ),
        "Settings": page.lines(settings),
    }
    return page.page(folder.name, f"<p>{page.in_html(what)}</p>\n", sections)


class Callback:
    """Called as a run goes on; a subclass overrides what it needs.

    `eqfuse.train.fit` takes a list of them. Only the process that writes the folder of
    the run calls them.
    """

    def on_start(self, folder: Path, config: dict):
        """Start, given the folder of the run, and its settings as plain values."""

    def on_epoch(self, row: dict):
        """Take the line of metrics.csv of a validation: of an epoch, or of `validate_every`."""

    def on_end(self, errors: list[dict]):
        """Take the errors of the best network, the rows of errors.csv; [] if interrupted."""
