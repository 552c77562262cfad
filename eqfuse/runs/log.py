"""What a run prints, and keeps in `log.txt` of its folder, after machine and versions."""

import contextlib
import datetime
import importlib.metadata
import logging
import os
import platform
import sys
import warnings
from pathlib import Path

from eqfuse import __version__

NAME = "log.txt"
_LIBRARIES = ("jax", "jaxlib", "flax", "optax", "numpy", "ase")


def printable(text: str) -> str:
    """Return a text, such as the name of a file, as one line without commands to a terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))


class _Terminal(logging.Handler):
    """Prints what is logged: warnings to stderr, with that word, and the rest to stdout."""

    def emit(self, record):
        stream = sys.stderr if record.levelno >= logging.WARNING else sys.stdout
        print(_text(record), file=stream, flush=True)


def _text(record: logging.LogRecord) -> str:
    warns = record.levelno >= logging.WARNING
    return f"warning: {record.getMessage()}" if warns else record.getMessage()


LOGGER = logging.getLogger("eqfuse")
LOGGER.setLevel(logging.INFO)
LOGGER.propagate = False  # nothing is printed twice where a program has handlers of its own
LOGGER.addHandler(_Terminal())


def say(text: str):
    """Print a text, which the log of a run has too."""
    LOGGER.info("%s", text)


def warn(text):
    """Print a warning as one line, which the report of a run has too."""
    LOGGER.warning("%s", printable(text))


@contextlib.contextmanager
def warnings_printed():
    """Return a context whose warnings are printed as lines when it ends, each once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            yield
        finally:
            for text in dict.fromkeys(str(warning.message) for warning in caught):
                warn(text)


class Log(logging.Handler):
    """Keeps what is logged; as soon as the folder of the run is known, in its file.

    Use it as a context, whose error is kept, too. `warnings` has each of the run once.
    """

    def __init__(self):
        super().__init__()
        self._waiting, self._path, self.warnings = "", None, []

    def __enter__(self):
        LOGGER.addHandler(self)
        return self

    def __exit__(self, kind, error, _):
        LOGGER.removeHandler(self)
        if isinstance(error, Exception):
            self._keep(f"{kind.__name__}: {printable(error)}")

    def emit(self, record):
        if record.levelno >= logging.WARNING and record.getMessage() not in self.warnings:
            self.warnings.append(record.getMessage())
        self._keep(_text(record))

    def begin(self, folder: Path, new: bool):
        """Write what was logged so far to the log of a folder, after the time and the machine."""
        now = datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S")
        rows = {"time": now, **machine()}
        head = "\n".join(f"{name:<11}{text}" for name, text in rows.items())
        before, self._waiting, self._path = self._waiting, "", folder / NAME
        if new or self._path.is_symlink():  # which might be a file elsewhere
            self._path.unlink(missing_ok=True)
        self._keep(f"{head}\n{before}".removesuffix("\n"))

    def _keep(self, text: str):
        """Keep a text; what a terminal takes for commands is escaped."""
        text = "".join(f"{printable(line)}\n" for line in text.split("\n"))
        if self._path is None:
            self._waiting += text
            return
        try:
            with open(self._path, "a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        except OSError as error:
            path, self._path = self._path, None
            warn(f"{path} cannot be written: {error.strerror}")


def machine() -> dict[str, str]:
    """Return the machine, its devices, and the versions of what computes."""
    import jax

    from eqfuse.ops import _host

    kinds = dict.fromkeys(device.device_kind for device in jax.local_devices())
    devices = ", ".join(kind for kind in kinds if kind != "cpu")
    processor = _host.description()[3]
    names = f"{platform.node()}, {os.cpu_count()} cores of {processor}"
    versions = [f"{name} {importlib.metadata.version(name)}" for name in _LIBRARIES]
    return {
        "machine": f"{names}, {devices}" if devices else names,
        "versions": ", ".join(
            [f"eqfuse {__version__}", f"Python {platform.python_version()}", *versions]
        ),
    }
