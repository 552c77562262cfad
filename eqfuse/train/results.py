"""Where the errors of a run go: plots and one page at its end, TensorBoard, callbacks of yours."""

import html
import math
import os
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import yaml

from eqfuse import __version__, plots
from eqfuse.data import Batcher, Dataset, Sample
from eqfuse.data.checks_of_forces import nothing_learned
from eqfuse.data.checks_of_stress import stress_hint
from eqfuse.data.error_table import UNITS, error_table
from eqfuse.data.structures import LABELS, count_labelled, counted
from eqfuse.models import Potential, compile_predict
from eqfuse.runs.checkpoint import read_checkpoint
from eqfuse.runs.errors import ConfigError
from eqfuse.runs.files import RunFolder, write_table, write_whole
from eqfuse.runs.log import printable, say, warn
from eqfuse.runs.page import in_html, page, picture, table_row
from eqfuse.runs.schema import one_of
from eqfuse.train.metrics import Predicted, predictions
from eqfuse.train.settings.config import Config
from eqfuse.train.terminal import QUANTITIES, duration

MAX_TRAINING = 1000
"""The errors on the training frames are of the first of them, at most so many."""

_MOST_ROWS = 30
_COLUMNS = {
    f"{name}_{kind}_{UNITS[name]}": (f"{QUANTITIES[name][0]} {kind.upper()}", QUANTITIES[name][1])
    for name in LABELS
    for kind in ("mae", "rmse")
}
"""Of errors.csv: short titles and units."""


def write_results(
    folder: RunFolder,
    config: Config,
    potential: Potential,
    dataset: Dataset,
    facts: dict[str, str],
    *,
    warnings: list[str],
    ended: bool,
) -> list[dict]:
    """Write errors.csv, plots and report.html of a run that has ended an epoch; print the errors.

    What cannot be written is a warning: the training is done. A run that was interrupted, which has
    not `ended`, is evaluated on validation frames only. `facts` are by title, for the page, which
    has the `warnings` of the run, too.
    Returns the rows of errors.csv.
    """
    if not folder.metrics.exists():
        return []
    sets = {"validation": dataset.val}
    if ended:
        sets = {"training": dataset.train[:MAX_TRAINING], **sets}
        sets |= {"test": dataset.test} if dataset.test else {}
    try:
        _, last, _ = read_checkpoint(folder.path, ("last",))
        stage = last["position"]["second_since"]
        plots.learning_curves(folder.metrics, folder.path / "learning.png", stage)
        params, metadata, _ = read_checkpoint(folder.path, ("best", "last"))
        samples = [sample for own in sets.values() for sample in own]
        batcher = Batcher(samples, config.data.batch_size, dtype=config.dtype)
        predicted = _predicted(potential, jax.device_put(params), batcher)
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
                plots.parity(zip(samples, part, strict=True), target, title)
            if name == "validation":
                validated = samples, part
                if hint := stress_hint(samples, part):
                    warn(hint)
        if ended:
            say(_table(rows, metadata["epoch"], len(dataset.train)))
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


_HINTED = 50  # validation frames


def hint_of_stress(potential: Potential, params, batcher: Batcher) -> str | None:
    """Return how the stress of some samples fits a network better, see `stress_hint`."""
    few = Batcher(batcher.samples[:_HINTED], batcher.batch_size, dtype=batcher.dtype)
    return stress_hint(few.samples, _predicted(potential, params, few))


def _predicted(potential: Potential, params, batcher: Batcher) -> list[Predicted]:
    stress = count_labelled(batcher.samples, "stress") > 0
    return predictions(compile_predict(potential, stress=stress), params, batcher)


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


def error_lines(rows: list[dict]) -> tuple[str, list[str]]:
    """Return the units of the errors of some rows, and the lines of their table in a terminal."""
    heads, rows = _cells(rows)
    units = "E in meV/atom, F in meV/Å" + (", S in meV/Å^3" if "S MAE" in heads else "")
    named, lines = heads.index("frames"), []
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)][:named]
    for row in [heads, *rows]:
        names = [f"{name:<{width}}" for name, width in zip(row, widths, strict=False)]
        lines.append("  ".join(["", *names, " ".join(f"{cell:>8}" for cell in row[named:])]))
    return units, lines


def _table(rows: list[dict], epoch: int, num_training: int) -> str:
    """Return the errors for the terminal: of all sets, and of the groups of the last one."""
    last = rows[-1]["set"]
    shown = [row for row in rows if row["set"] == last or row["group"] == "all"]
    units, lines = error_lines(shown[:_MOST_ROWS])
    head = f"errors of the best network, of epoch {epoch}: {units}"
    if num_training > MAX_TRAINING:
        head += f" (training: the first {MAX_TRAINING} of {num_training} frames)"
    if len(shown) > _MOST_ROWS:
        lines.append(f"  {len(shown) - _MOST_ROWS} more are in errors.csv")
    return "\n".join([head, *lines])


_PICTURES = {
    "learning.png": "Errors during the training",
    "parity.png": "Predictions for the validation frames",
    "parity_test.png": "Predictions for the test frames",
}


def _page(
    folder: Path, metadata: dict, rows: list[dict], facts: dict, warnings: list[str], ended: bool
) -> str:
    """Return the page of a run as HTML, in one file that needs nothing else."""
    heads = [own["head"] for own in metadata.get("heads", [])]
    used = folder / "heads" / f"{heads[0]}.safetensors" if heads else folder
    name, run = in_html(folder.name), in_html(used)
    what = "" if ended else " The run was interrupted: the test frames are not evaluated."
    pictures = ""
    for file, title in _PICTURES.items():
        if (path := folder / file).exists():
            pictures += picture(title, path.read_bytes())
    units = dict(_COLUMNS.values())
    heads, lines = _cells(rows)
    heads = [f"{head} {units[head]}" if head in units else head for head in heads]
    errors = [table_row(line, "bold" if line[1] == "all" else "") for line in lines]
    warned = "".join(f"<li>{in_html(text)}</li>\n" for text in warnings)
    settings = yaml.safe_dump(metadata["config"], sort_keys=False, allow_unicode=True)
    texts = {
        **{name: in_html(metadata[name]) for name in ("model", "epoch", "step")},
        "version": __version__,
        "criterion": metadata["config"]["training"].get("best", "loss").replace("_", " "),
        "name": name,
        "what": what,
        "errors": "".join([table_row(heads, "bold"), *errors]),
        "pictures": pictures,
        "facts": "".join(map(table_row, facts.items())),
        "warnings": f"<ul>{warned}</ul>" if warned else "<p>There were none.</p>",
        "run": run,
        "quoted": in_html(repr(str(used))),
        "settings": html.escape(settings),
    }
    return page(Path(__file__).with_name("report.html"), **texts)


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


class TensorBoard(Callback):
    """Writes the metrics of every validation, by step, to FOLDER/tensorboard."""

    def on_start(self, folder: Path, config: dict):
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"))
        self._writer.add_text("settings", str(config))

    def on_epoch(self, row: dict):
        for name, value in _numbers(row).items():
            self._writer.add_scalar(name, value, row["step"])
        self._writer.flush()

    def on_end(self, errors: list[dict]):
        for row in errors:
            for name, value in _numbers(row).items():
                self._writer.add_scalar(f"{row['set']} {row['group']}/{name}", value, 0)
        self._writer.close()


class WandB(Callback):
    """Logs to Weights & Biases: project eqfuse, unless WANDB_PROJECT names another."""

    def on_start(self, folder: Path, config: dict):
        import wandb

        project = os.environ.get("WANDB_PROJECT", "eqfuse")
        self._run = wandb.init(project=project, name=folder.name, dir=str(folder), config=config)

    def on_epoch(self, row: dict):
        self._run.log(_numbers(row))

    def on_end(self, errors: list[dict]):
        for row in errors:
            group = f"{row['set']}/{row['group']}"
            self._run.summary.update({f"{group}/{n}": v for n, v in _numbers(row).items()})
        self._run.finish()


LOGGERS = {"tensorboard": (TensorBoard, "tensorboardX"), "wandb": (WandB, "wandb")}
"""By name: the callback, and the package that it needs."""


def loggers(names: str | None) -> list[Callback]:
    """Return the callbacks of the setting `loggers`: names with commas between them, or None."""
    made = []
    for name in [] if names is None else names.split(","):
        one_of("loggers", name, LOGGERS)
        kind, package = LOGGERS[name]
        try:
            __import__(package)
        except ImportError as error:
            raise ConfigError(
                f"loggers={name} needs {package}: pip install eqfuse[loggers]"
            ) from error
        made.append(kind())
    return made


def _numbers(row: dict) -> dict[str, float]:
    return {k: v for k, v in row.items() if isinstance(v, int | float) and math.isfinite(v)}
