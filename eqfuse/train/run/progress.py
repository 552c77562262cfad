"""What a run prints on the terminal: one line per epoch, and a bar where there is a terminal."""

import contextlib
import math
import sys
import threading
import time
import warnings

import rich.console
import rich.progress

_START = {"loss": 10, "E MAE": 8, "E RMSE": 8, "F MAE": 8, "F RMSE": 8}
_COUNT = 6
_STRESS = {"S MAE": 8, "S RMSE": 8}
_END = {"lr": 9, "ms/step": 8, "left": 9}


def duration(seconds: float) -> str:
    """Return seconds as "1h 02m", "3m 04s" or "5s"."""
    seconds = round(seconds)
    if seconds >= 3600:
        return f"{seconds // 3600}h {seconds % 3600 // 60:02d}m"
    return f"{seconds // 60}m {seconds % 60:02d}s" if seconds >= 60 else f"{seconds}s"


def _number(value: float, spec: str) -> str:
    return "-" if math.isnan(value) else format(value, spec)


@contextlib.contextmanager
def warnings_printed():
    """Return a context whose warnings are printed as lines when it ends, each once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            yield
        finally:
            for text in dict.fromkeys(str(warning.message) for warning in caught):
                print(f"warning: {text}", file=sys.stderr, flush=True)


HEARTBEAT = 10.0
"""Longest time without a line where the output is no terminal, s."""


@contextlib.contextmanager
def waiting(what: str):
    """Return a context that prints every 10 s what is waited for."""
    start, done = time.monotonic(), threading.Event()

    def beat():
        while not done.wait(HEARTBEAT):
            print(f"{what} ... {duration(time.monotonic() - start)}", flush=True)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class Progress:
    """Epoch lines for a molecular run; use as a context.

    Lines are plain text, so that they read the same in a file. Errors are those of the validation
    set: energy in meV/atom, forces in meV/Å, stress in meV/Å^3.

    Args:
      steps_per_epoch: for the bar.
      stress: whether there is a stress error to show.
      by: what is counted in the first column: "epoch" or "step".
    """

    def __init__(self, steps_per_epoch: int, stress: bool, by: str = "epoch"):
        self._columns = {by: _COUNT, **_START, **(_STRESS if stress else {}), **_END}
        self._stress, self._by = stress, by
        self._console = rich.console.Console(soft_wrap=True, highlight=False)
        self._steps = steps_per_epoch
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=steps_per_epoch)
        self._epoch = self._done = 0
        self._logged_at = time.monotonic()

    def __enter__(self):
        self._bar.start()
        stress = ", S in meV/Å^3" if self._stress else ""
        self.log(f"validation errors: E in meV/atom, F in meV/Å{stress}")
        self.log(self._aligned(self._columns))
        return self

    def __exit__(self, *_):
        self._bar.stop()

    def log(self, text: str):
        """Print a line."""
        self._console.print(text, markup=False)
        self._logged_at = time.monotonic()

    def heartbeat(self, text: str):
        """Print a line where the output is no terminal and nothing was printed for 10 s."""
        if not self._console.is_terminal and time.monotonic() - self._logged_at >= HEARTBEAT:
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
        stress = ()
        if self._stress:
            names = ("val_stress_mae_mev_per_a3", "val_stress_rmse_mev_per_a3")
            stress = [_number(row[name], ".3f") for name in names]
        values = (
            str(row[self._by]),
            _number(row["train_loss"], ".4g"),
            _number(row["val_energy_mae_mev_per_atom"], ".2f"),
            _number(row["val_energy_rmse_mev_per_atom"], ".2f"),
            _number(row["val_forces_mae_mev_per_a"], ".1f"),
            _number(row["val_forces_rmse_mev_per_a"], ".1f"),
            *stress,
            f"{row['lr']:.1e}",
            _number(row["ms_per_step"], ".1f"),
            duration(left) if math.isfinite(left) else "-",
        )
        self.log(self._aligned(values))

    def _aligned(self, values) -> str:
        widths = self._columns.values()
        return " ".join(value.rjust(width) for value, width in zip(values, widths, strict=True))
