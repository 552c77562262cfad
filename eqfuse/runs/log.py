"""The log of a run: what it prints, in `log.txt` of its folder, after machine and versions."""

import datetime
import html
import importlib.metadata
import os
import platform
import sys
from pathlib import Path

from eqfuse import __version__

NAME = "log.txt"
_LIBRARIES = ("jax", "jaxlib", "flax", "optax", "numpy", "ase")


def printable(text: str) -> str:
    """Return a text, such as the name of a file, as one line without commands to a terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))


def in_html(text: str) -> str:
    """Return a text as a page shows it, in one line."""
    return html.escape(printable(text))


def warn(text):
    """Print a warning as one line, which the report of a run has too."""
    print(f"warning: {printable(text)}", file=sys.stderr, flush=True)


class Log:
    """Keeps what is printed; as soon as the folder of the run is known, in its file.

    Use it as a context: what is printed in it is kept, and its error.
    """

    def __init__(self):
        self._waiting, self._path = [], None

    def __enter__(self):
        self._streams = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = (Kept(stream, self) for stream in self._streams)
        return self

    def __exit__(self, kind, error, _):
        sys.stdout, sys.stderr = self._streams
        if isinstance(error, Exception):
            self.keep(f"{kind.__name__}: {printable(error)}\n")

    def begin(self, folder: Path, new: bool):
        """Write what was printed so far to the log of a folder, after the time and the machine."""
        now = datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S")
        rows = {"time": now, **machine()}
        head = "".join(f"{name:<11}{text}\n" for name, text in rows.items())
        before, self._waiting, self._path = self._waiting, [], folder / NAME
        if new:
            self._path.unlink(missing_ok=True)
        self.keep("".join([head, *before]))

    def keep(self, text: str):
        """Keep a text, besides printing it; what a terminal takes for commands is escaped."""
        text = "\n".join(map(printable, text.split("\n")))
        if self._path is None:
            self._waiting.append(text)
            return
        try:
            with open(self._path, "a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        except OSError as error:
            self._waiting, path, self._path = [], self._path, None
            print(f"warning: {path} cannot be written: {error.strerror}", file=sys.__stderr__)


class Kept:
    """A stream that keeps in a log what is written to it."""

    def __init__(self, stream, log: Log):
        self.stream, self.keep = stream, log.keep

    def write(self, text: str) -> int:
        self.keep(text)
        return self.stream.write(text)

    def __getattr__(self, name: str):
        return getattr(self.stream, name)


def warnings_of(folder: Path) -> list[str]:
    """Return the warnings in the log of a run, each once."""
    try:
        lines = (folder / NAME).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = [line.removeprefix("warning: ") for line in lines if line.startswith("warning: ")]
    return list(dict.fromkeys(found))


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
