"""The log of a run: what it prints, in `log.txt` of its folder, after machine and versions."""

import contextvars
import datetime
import functools
import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path

from eqfuse import __version__

NAME = "log.txt"
_LIBRARIES = ("jax", "jaxlib", "flax", "optax", "numpy", "ase")
_current = contextvars.ContextVar("log", default=None)


class Log:
    """Keeps what is printed; as soon as the folder of the run is known, in its file."""

    def __init__(self):
        self._waiting, self._path = [], None

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
        """Keep a text, besides printing it."""
        if self._path is None:
            self._waiting.append(text)
            return
        try:
            with open(self._path, "a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        except OSError as error:
            self._waiting, path, self._path = [], self._path, None
            print(f"warning: {path} cannot be written: {error.strerror}", file=sys.__stderr__)


class _Kept:
    """A stream that keeps in a log what is written to it."""

    def __init__(self, stream, log: Log):
        self.stream, self._log = stream, log

    def write(self, text: str) -> int:
        self._log.keep(text)
        return self.stream.write(text)

    def __getattr__(self, name: str):
        return getattr(self.stream, name)


def logged(run: Callable) -> Callable:
    """Return a function that keeps what it prints, and its error, in the log of its run."""

    @functools.wraps(run)
    def kept(*args, **kwargs):
        log, streams = Log(), (sys.stdout, sys.stderr)
        token = _current.set(log)
        sys.stdout, sys.stderr = (_Kept(stream, log) for stream in streams)
        try:
            return run(*args, **kwargs)
        except Exception as error:
            log.keep(f"{type(error).__name__}: {error}\n")
            raise
        finally:
            sys.stdout, sys.stderr = streams
            _current.reset(token)

    return kept


def begin(folder: Path, new: bool):
    """Begin the log of a run in its folder, a new one or that which is there, if it has one."""
    if _current.get() is not None:
        _current.get().begin(folder, new)


def keep(text: str):
    """Keep a line that is printed elsewhere."""
    if _current.get() is not None:
        _current.get().keep(f"{text}\n")


def plain(stream):
    """Return the stream of which another keeps what is written."""
    return getattr(stream, "stream", stream)


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
