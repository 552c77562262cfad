"""The output of a run: a report before it compiles anything, a line per epoch, and a bar."""

import importlib.util
import math
import re
import textwrap
import time
from collections.abc import Sequence

import jax
import rich.console
import rich.progress
from ase.data import chemical_symbols

from eqfuse import models, ops
from eqfuse.data import Dataset
from eqfuse.data.group_errors import UNITS
from eqfuse.data.readers.rmd17 import units_named
from eqfuse.data.structures import TRAINED, counted
from eqfuse.runs.files import RunFolder
from eqfuse.runs.log import printable, say
from eqfuse.train.parallel import Devices
from eqfuse.train.settings.config import Config
from eqfuse.train.sources import AVERAGE, FIT, matching


def report(config: Config, dataset: Dataset, folder: RunFolder, devices: Devices) -> dict:
    """Return what there is to say of a training before it begins, by title."""
    start, count = config.start_from, devices.count
    found = {name: own.data.subtracted() for name, own in config.of_heads().items()}
    less = ", ".join(f"{d}" + (f" of {name}" if name else "") for name, d in found.items() if d)
    platform, how, rms = jax.devices()[0].platform, config.dtype, f"{dataset.force_rms:.4f} eV/Å"
    if outliers := len(dataset.force_outliers):
        rms += (
            f", without {counted(outliers, 'training frame')} of much larger forces (all are "
            "trained on; training.loss=huber or universal gives them less weight)"
        )
    trained = set().union(*map(elements_of, dataset.heads.values() or [dataset]))
    species = " ".join(chemical_symbols[z] for z in dataset.species if z in trained)
    if others := len(dataset.species) - len(trained):
        species += f" of the data; the network knows {others} more"
    if jax.config.jax_default_matmul_precision == ops.TF32X3:
        how += ", matmuls in three products of TF32"
    if config.precision == "bfloat16":
        how += ", weights of edges in bfloat16 while training"
    rows = {
        "start": start and f"the network of {start}",
        **_of_data(config, dataset),
        "species": species,
        "force RMS": rms if dataset.num_labelled("forces")[0] else None,
        **_labels(config.training, dataset),
        "dispersion": less and f"labels are less {less}; predictions of the run add it",
        "neighbours": f"{dataset.mean_neighbors:.1f} per atom within {dataset.cutoff} Å",
        "backend": f"{ops.resolve(config.backend)} on {platform}; {how}",
        "devices": f"{count}, each with its part of every batch" if count > 1 else None,
        "run": str(folder.path),
    }
    return {name: text for name, text in rows.items() if text}


def _of_data(config: Config, dataset: Dataset) -> dict[str, str]:
    """Return where the data and reference energies are from, of each head if there are several."""
    configs, rows = config.of_heads(), {}
    for name, own in (dataset.heads or {None: dataset}).items():
        settings = configs[name].data if name in configs else None
        frames = _frames(settings and settings.val_path, own)
        trained = sorted(elements_of(own)) or dataset.species
        numbers = (f"{chemical_symbols[z]} {own.references[z]:.4f}" for z in trained)
        references = f"{', '.join(numbers)} eV"
        if settings is None:  # the network's past
            rows[f"head {name}"] = f"see replay; {frames}; references {references}"
            continue
        files = settings.origin if settings.path is None else _files(settings.path)
        references += f" ({_references_origin(configs[name], own)})"
        if name is None:
            return {"data": files, "frames": frames, "references": references}
        rows[f"head {name}"] = f"{files}; {frames}; references {references}"
    return rows


def elements_of(dataset: Dataset) -> set[int]:
    """Return the atomic numbers of the training frames; a network may know others."""
    return {dataset.species[k] for s in dataset.train for k in {*s.species.tolist()}}


def lines(rows: dict[str, str]) -> str:
    """Return rows of a report as text; those of many elements in several lines."""
    texts = [f"{name:<10} {printable(text)}" for name, text in rows.items()]
    for k, name in enumerate(rows):
        if name in ("species", "references") and len(texts[k]) > 100:  # not names of files
            text = re.sub(r"(?<=[a-zA-Z]) (?=-?\d)", "\0", texts[k])  # elements with their energies
            text = textwrap.fill(text, 100, subsequent_indent=11 * " ", break_on_hyphens=False)
            texts[k] = text.replace("\0", " ")
    return "\n".join(texts)


def parameters(module, params) -> str:
    """Return the name of a network and the number of its parameters."""
    name, *_, size = models.summary(module, params).splitlines()
    return f"{name}, {size.strip()}"


def _files(path: str) -> str:
    files = matching(path)
    if npz := [file for file in files if file.endswith(".npz")]:
        path += f" (from {units_named(npz[0])} to eV and Å)"
        files = [path] if len(files) == 1 else files
    return path if files == [path] else f"{path}: {len(files)} files"


def _frames(origin: str | None, dataset: Dataset) -> str:
    atoms = [sample.num_atoms for sample in dataset.train]
    parts = [
        f"{len(dataset.train)} training",
        f"{len(dataset.val)} validation" + (f" ({_files(origin)})" if origin else ""),
        *([f"{len(dataset.test)} test"] if dataset.test else []),
        f"{min(atoms)} to {max(atoms)} atoms",
    ]
    if len(dataset.isolated_atoms):
        parts.append(f"isolated atoms besides: {len(dataset.isolated_atoms)}")
    return ", ".join(parts)


def _references_origin(config: Config, dataset: Dataset) -> str:
    given = config.data.reference_energies
    if given not in (None, FIT, AVERAGE):
        return given
    if config.start_from is not None:
        moved = ", moved to the data by least squares" if given == FIT else ""
        return f"those of {config.start_from}{moved}"
    if not dataset.references_fitted:
        return "isolated atoms of the data"
    return "least squares" if dataset.num_labelled("energy")[0] else "no energies to fit them to"


def _labels(training, dataset: Dataset) -> dict[str, str]:
    rows, of = {}, (len(dataset.train), len(dataset.val))
    for name, title in zip(TRAINED, ("energies", "forces", "stress", "Hessians"), strict=True):
        counts = dataset.num_labelled(name)
        if not any(counts) if name not in ("energy", "forces") else counts == of:
            continue
        weight = getattr(training, f"{name}_weight")
        used = f"weight {weight}" if weight else f"not trained on (training.{name}_weight=0)"
        validation = counted(of[1], "validation frame")
        rows[title] = f"in {counts[0]} of {of[0]} training and {counts[1]} of {validation}, {used}"
    return rows


QUANTITIES = {
    "energy": ("E", "meV/atom", ".2f"),
    "forces": ("F", "meV/Å", ".1f"),
    "stress": ("S", "meV/Å^3", ".3f"),
    "hessian": ("H", "meV/Å^2", ".1f"),
}
"""Letter, unit and format of what is printed of a validation."""


def duration(seconds: float) -> str:
    """Return seconds as "1h 02m", "3m 04s" or "5s"."""
    seconds = round(seconds)
    if seconds >= 3600:
        return f"{seconds // 3600}h {seconds % 3600 // 60:02d}m"
    return f"{seconds // 60}m {seconds % 60:02d}s" if seconds >= 60 else f"{seconds}s"


HEARTBEAT = 10.0
"""Longest time without a line where the output is no terminal, s."""


class Progress:
    """A line for each validation and a bar for the steps; use as a context.

    Lines are plain text, so that they read the same in a file.
    """

    def __init__(self, steps_per_epoch: int, quantities: Sequence[str], by: str = "epoch"):
        errors = [(*QUANTITIES[name], name) for name in quantities]
        # title, width, name in metrics.csv and format
        self._columns = [("loss", 10, "train_loss", ".4g")]
        for letter, _, spec, name in errors:
            for kind in ("mae", "rmse"):
                column = f"val_{name}_{kind}_{UNITS[name]}"
                self._columns.append((f"{letter} {kind.upper()}", 8, column, spec))
        self._columns += [("lr", 9, "lr", ".1e"), ("ms/step", 8, "ms_per_step", ".1f")]
        self._units = ", ".join(f"{letter} in {unit}" for letter, unit, *_ in errors)
        self._by, self._steps = by, steps_per_epoch  # by epoch, or by step
        self._console = rich.console.Console(soft_wrap=True, highlight=False)
        # in a notebook rich draws by ipywidgets
        widgets = self._console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None
        self._has_bar = self._console.is_terminal or widgets
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not self._has_bar,
        )
        self._task = self._bar.add_task("", total=steps_per_epoch)
        self._epoch = self._done = 0
        self._logged_at = time.monotonic()

    def __enter__(self):
        self._bar.start()
        self.log(f"validation errors: {self._units}")
        titles = " ".join(title.rjust(width) for title, width, *_ in self._columns)
        self.log(f"{self._by:>6} {titles} {'left':>9}")
        return self

    def __exit__(self, *_):
        self._bar.stop()

    def log(self, text: str):
        say(text)
        self._logged_at = time.monotonic()

    def heartbeat(self, text: str):
        """Print a line where the output is no terminal and nothing was printed for 10 s."""
        if not self._has_bar and time.monotonic() - self._logged_at >= HEARTBEAT:
            self.log(f"       {text}")

    def start_epoch(self, epoch: int, done: int = 0):
        self._epoch, self._done = epoch, done
        self._bar.reset(self._task, description=f"epoch {epoch}", total=self._steps, completed=done)

    def step(self, loss: float):
        """Show that a batch is done, of this loss."""
        self._done += 1
        self._bar.advance(self._task)
        self.heartbeat(f"epoch {self._epoch}, batch {self._done} of {self._steps}, loss {loss:.4g}")

    def end_epoch(self, row: dict, left: float):
        """Print the line of a validation, of metrics.csv, and the estimated time left, s."""
        numbers = (
            ("-" if math.isnan(row[name]) else format(row[name], spec)).rjust(width)
            for _, width, name, spec in self._columns
        )
        rest = duration(left) if math.isfinite(left) else "-"
        self.log(f"{row[self._by]:>6} {' '.join(numbers)} {rest:>9}")
