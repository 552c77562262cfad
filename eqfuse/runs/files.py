"""The files of a run: its networks and checkpoints, its settings, its metrics, its lock.

Networks and checkpoints are in safetensors; all are written whole or not at all. This module does
not import JAX, which takes seconds: the command line reads settings with it.
"""

import contextlib
import csv
import datetime
import errno
import hashlib
import importlib.util
import io
import itertools
import json
import math
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from eqfuse import __version__
from eqfuse.runs.errors import CheckpointError, ConfigError, TrainingFailed
from eqfuse.runs.log import printable

FILES = {
    "best": ("best.safetensors",),
    "last": ("last.safetensors", "previous.safetensors"),
    "stable": ("stable.safetensors",),
}
"""Names of each checkpoint's files, newest first: `previous` is for a disk that damages `last`.

`stable` is that from which a run with `training.schedule=wsd` is made longer.
"""

FRAMES = "frames.traj"
"""In the folder of a run: the frames that `eqfuse.train.fit` was given."""
_BEGUN = {"config.yaml", "log.txt", ".lock", "checkpoints", "replay.traj", FRAMES}
"""What the folder of a run may hold before its first checkpoint."""

FORMAT = 4


def encode(arrays: dict[str, np.ndarray], metadata: dict) -> bytes:
    """Return the content of a safetensors file with metadata, plain values, in its header.

    The shapes of parameters are those that the metadata have from before, if they have them, so
    that an array of another shape is found when it is read.
    """
    own = {"format": FORMAT, "shapes": shapes_of(arrays)}
    metadata = own | metadata | {"arrays_sha256": digest_of(arrays)}
    text = json.dumps(metadata, sort_keys=True)
    return save(arrays, {"eqfuse": text, "sha256": hashlib.sha256(text.encode()).hexdigest()})


def read_file(path: Path, *, only_metadata=False) -> tuple[dict[str, np.ndarray], dict]:
    """Return the arrays of a file by name, and its metadata. Nothing in the file is executed."""
    try:
        require_regular(path)
        with safe_open(path, framework="np", backend="pread") as file:
            metadata = _checked_metadata(path, file.metadata() or {})
            arrays = {} if only_metadata else file.get_tensors()
    except FileNotFoundError as error:
        raise CheckpointError(f"checkpoint {path} is missing") from error
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"checkpoint {path} is damaged: {error}") from error
    if not only_metadata and digest_of(arrays) != metadata["arrays_sha256"]:
        raise CheckpointError(f"checkpoint {path} is damaged: its arrays have changed")
    return arrays, metadata


def _checked_metadata(path: Path, header: dict[str, str]) -> dict:
    if "eqfuse" not in header:
        raise CheckpointError(f"checkpoint {path} is damaged, or not a network of eqfuse")
    text = header["eqfuse"]
    if hashlib.sha256(text.encode()).hexdigest() != header.get("sha256"):
        raise CheckpointError(f"checkpoint {path} is damaged: its metadata have changed")
    metadata = parse_json(text, path)
    if metadata.get("format") != FORMAT:
        own = f"{metadata.get('format')!r:.20}"
        raise CheckpointError(f"checkpoint {path} has format {own}, this version reads {FORMAT}")
    return metadata


def require_regular(*paths: Path):
    """Refuse pipes and devices, for which a reader or writer may wait for ever, by an OSError."""
    for path in filter(os.path.exists, paths):
        mode = os.stat(path).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise OSError(errno.EINVAL, "it is a pipe or a device, and not a file", str(path))


def require_here(path: Path):
    """Refuse a link in the place of a file that grows, by a ConfigError: it may lead anywhere."""
    if path.is_symlink():
        raise ConfigError(f"{path} is a link, which is not written to; put the file in its place")


def read_json(path: Path) -> dict:
    """Return the object of a file of JSON; OSError, or a CheckpointError with its name."""
    require_regular(path)
    try:
        return parse_json(path.read_text(encoding="utf-8"), path)
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error


def parse_json(text: str, path: Path) -> dict:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} is damaged: it holds a {type(found).__name__}")
    return found


def room_of(size: int) -> int:
    """Return what a file may be inflated to, in bytes: nothing here is compressed much further."""
    return 8 * size + 2**20


def read_arrays(file: str | os.PathLike | BinaryIO) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file, or raise an OSError or ValueError of NumPy or zipfile.

    Nothing in it is executed, and it cannot ask for much more memory than it has bytes.
    """
    if not hasattr(file, "read"):
        require_regular(file)
        with open(file, "rb") as opened:
            return read_arrays(opened)
    with np.load(file, allow_pickle=False) as arrays:
        whole = sum(part.file_size for part in arrays.zip.infolist())
        if whole > room_of(packed := file.seek(0, os.SEEK_END)):
            raise ValueError(f"its {packed} bytes would be inflated to {whole}")
        return dict(arrays)


def shapes_of(arrays: dict[str, np.ndarray]) -> dict[str, list[int]]:
    return {n: list(array.shape) for n, array in arrays.items() if n.startswith("params/")}


def digest_of(arrays: dict[str, np.ndarray]) -> str:
    """Return the SHA-256 of the names, dtypes, shapes and bytes of arrays."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def has_checkpoint(folder, name: str) -> bool:
    """Test whether a run has a checkpoint of that name, "best" or "last", damaged or not."""
    path = Path(folder).expanduser() / "checkpoints"
    return any(os.path.lexists(path / file) for file in FILES[name])


def heads_of(run) -> list[str]:
    """Return the heads of a network with several, of which each has a file."""
    folder = os.path.join(os.path.expanduser(run), "heads")
    names = os.listdir(folder) if os.path.isdir(folder) else ()  # False for what is no name
    return sorted(n.removesuffix(".safetensors") for n in names if n.endswith(".safetensors"))


def require_one_head(run):
    """Refuse a network with several heads, of which none was chosen."""
    if heads := heads_of(run):
        raise CheckpointError(
            f"{run} has the heads {', '.join(heads)}: choose one by head=NAME or, where a command "
            f"has no head=, by its file, {head_file(run, heads[0])}"
        )


def head_file(run, head: str | None) -> str | Path:
    """Return the file of a head of a run; the run itself for None."""
    if head is None:
        return run
    if head not in (known := heads_of(run)):
        names = f"its heads are {', '.join(known)}" if known else "it has one, without a name"
        raise CheckpointError(f"{run} has no head {head!r}; {names}")
    return Path(run).expanduser() / "heads" / f"{head}.safetensors"


def write_whole(path: Path, content: str | bytes, previous: Path | None = None):
    """Write a file so that it is whole, the old or the new one, also after a power loss.

    `previous` is the new name of the file that is replaced, which goes without one.
    """
    path = Path(path)
    with whole(path, path.with_name(path.name + ".part")) as part:
        with open(part, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        if previous is not None and path.exists():
            os.replace(path, previous)
    sync_folder(path.parent)


@contextlib.contextmanager
def whole(path: Path, part: Path):
    """Return a context in which `part` is written, which is `path` after it, or is removed.

    An OSError, such as that of a full disk or of a pipe in its place, has the name of the file.
    """
    try:
        require_regular(path)
        part.unlink(missing_ok=True)
        yield part
        os.replace(part, path)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def sync_folder(path: Path):
    """Wait until the entries of a folder would survive a power loss, or raise OSError."""
    if os.name == "nt":  # Windows opens no folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems sync no folders: their server does.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def set_aside(path: Path) -> Path:
    """Rename a damaged file or folder to `<name>.damaged`, `<name>.damaged.2` and so on."""
    free, count = path.with_name(f"{path.name}.damaged"), 1
    while os.path.lexists(free):
        count += 1
        free = path.with_name(f"{path.name}.damaged.{count}")
    return path.rename(free)


def write_table(path: Path, rows: list[dict], *, signed: bool = False):
    """Write the rows of a table as CSV, with all columns that some row has.

    A text has no commands to a terminal, and begins with ' where a spreadsheet would compute it.
    With `signed`, each row has a checksum.
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    rows = [{name: _cell(row.get(name)) for name in columns} for row in rows]
    if signed:
        rows = [row | {_SIGNED: _row_digest(row)} for row in rows]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns + [_SIGNED] * signed)
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue())


_SIGNED = "sha256"


def _row_digest(row: dict) -> str:
    texts = [f"{name}={'' if value is None else value}" for name, value in row.items()]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def read_table(path: Path, numbers: Sequence[str] = (), *, signed: bool = False) -> list[dict]:
    """Return the rows of a table, [] if there is none; CheckpointError if it is damaged.

    It has the columns `numbers`; with `signed`, rows are as `write_table` signed them.
    """
    try:
        require_regular(path)
        content = path.read_text(encoding="utf-8") if os.path.lexists(path) else ""
        rows = [*csv.DictReader(io.StringIO(content, newline=""), strict=True)]
        for row in rows:
            is_whole = row.pop(_SIGNED, None) == _row_digest(row) or not signed
            if not is_whole or not all(math.isfinite(float(row[name] or 0)) for name in numbers):
                raise ValueError("a row has changed")
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise CheckpointError(f"{path} is damaged ({error})") from error
    return rows


def _cell(value):
    if not isinstance(value, str):
        return value
    with contextlib.suppress(ValueError):
        float(value)
        return value
    return ("'" if value[:1] in ("=", "+", "-", "@") else "") + printable(value)


class RunFolder:
    """A folder with `config.yaml`, a growing `metrics.csv` and `checkpoints/`, locked while open.

    Without `run` it is a new one in runs/, named by the time and `name`; without `settings`, the
    text of config.yaml, it is that of a run to go on with. A folder is never overwritten, but for
    that of a run that ended before its first checkpoint. Another process makes and writes it where
    this one does not (`writes`).
    """

    def __init__(
        self, run: str | Path | None, settings: str | None, name: str = "run", writes: bool = True
    ):
        self._lock = None
        self.path = Path(run or "the folder of the run")
        if writes:
            require_locks()
        if writes and settings is not None:
            self.path = made(run, name)
        self.checkpoints, self.metrics = self.path / "checkpoints", self.path / "metrics.csv"
        if not writes:
            return
        require_regular(*self.path.glob("*"), *self.checkpoints.glob("*"))
        require_here(self.metrics)
        self._lock = locked(self.path)
        if settings is None:
            return
        try:
            write_whole(self.path / "config.yaml", f"# eqfuse {__version__}\n{settings}")
        except OSError as error:
            self.close()
            shutil.rmtree(self.path, ignore_errors=True)
            raise _cannot_be_made(self.path, error) from error

    def close(self):
        if self._lock is not None:
            self._lock.close()

    def forget_after(self, step: int):
        """Remove the lines of metrics.csv after a step, which a resumed run writes again.

        Lines that are damaged go too: it is a log.
        """
        if self._lock is None or not os.path.lexists(self.metrics):
            return
        with self._log_errors():
            content = self.metrics.read_text(encoding="utf-8", errors="replace")
            lines = csv.DictReader(io.StringIO(content, newline=""))
            rows = [line for line in lines if _step_of(line) <= step]
            if rows:
                write_table(self.metrics, rows)
            else:
                self.metrics.unlink()

    def log(self, row: dict):
        """Append one line to metrics.csv, after one of columns if it is the first."""
        if self._lock is None:
            return
        with self._log_errors(), open(self.metrics, "a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(row))
            if file.tell() == 0:
                writer.writeheader()
            writer.writerow(row)
            file.flush()
            os.fsync(file.fileno())

    @contextlib.contextmanager
    def _log_errors(self):
        """Return a context in which what the disk refuses ends the training with a line."""
        try:
            yield
        except OSError as error:
            intact = ": the last checkpoint is intact" if has_checkpoint(self.path, "last") else ""
            raise TrainingFailed(
                f"{self.metrics} cannot be written: {error.strerror}; free or repair the disk and "
                f"go on with resume={self.path}{intact}"
            ) from error


def _step_of(line: dict) -> float:
    """Return the step of a line of numbers, and infinity for a line that is none."""
    try:
        numbers = {name: float(text) for name, text in line.items()}
        return int(line["step"]) if numbers["epoch"].is_integer() else math.inf
    except (KeyError, TypeError, ValueError):
        return math.inf


def require_locks():
    """Refuse to write the folder of a run where the system has no locks of files, as on Windows."""
    if importlib.util.find_spec("fcntl") is None:
        raise ConfigError(
            "networks are trained and converted on Linux and macOS; on Windows do so in WSL, and "
            "compute with the network here"
        )


def require_free(run: str | Path | None):
    """Refuse the folder of a new run that exists, unless it holds no network; see `RunFolder`."""
    if run is None:
        return
    path = Path(os.path.expanduser(run))
    try:
        path.lstat()
        if path.is_dir() and _is_free(path):
            return
    except FileNotFoundError:
        return
    except OSError as error:
        raise _cannot_be_made(path, error) from error
    resumable = any((path / name).exists() for name in ("config.yaml", "settings.txt"))
    what = f"go on with it by resume={path}" if resumable else "remove it"
    raise ConfigError(
        f"run={path} exists already and is not overwritten; {what}, or name another folder"
    )


def _is_free(path: Path) -> bool:
    """Test whether a folder holds nothing, or what a run left that ended before its checkpoint."""
    begun = {entry.name.removesuffix(".part") for entry in path.iterdir()} <= _BEGUN
    return begun and not any(has_checkpoint(path, name) for name in FILES)


def made(run: str | Path | None, name: str) -> Path:
    """Make the folder of a new run, in runs/ if it is None; refuse one as `require_free` does."""
    require_free(run)
    stamp = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    for count in itertools.count(1):  # other runs of this second have lower numbers
        ending = "" if count == 1 else f"_{count}"
        path = Path(os.path.expanduser(run or f"runs/{stamp}_{name}{ending}"))
        try:
            path.mkdir(parents=True, exist_ok=run is not None)
            return path
        except OSError as error:
            if run is not None or not isinstance(error, FileExistsError):
                raise _cannot_be_made(path, error) from error


def _cannot_be_made(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"run={path} cannot be made: {error.strerror}")


def locked(folder: Path, does: str = "trains"):
    """Return an open file by which a folder is this process's alone until it is closed."""
    try:
        file = open(folder / ".lock", "a", encoding="utf-8")  # noqa: SIM115 - while the run lasts
    except OSError as error:
        raise ConfigError(f"the run in {folder} cannot be written to: {error.strerror}") from error
    with contextlib.suppress(ImportError, OSError):  # of Windows, and of disks without locks
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            text = f"another process {does} in {folder}; wait until it has ended"
            raise ConfigError(text) from error
    return file
