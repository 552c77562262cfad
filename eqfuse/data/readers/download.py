"""Files from the network: checked, and gone on with where an earlier attempt ended."""

import dataclasses
import fcntl
import hashlib
import http.client
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path

import rich.progress

from eqfuse import __version__
from eqfuse.data.errors import DataError

ATTEMPTS = 3
TIMEOUT = 30.0
_CHUNK = 1 << 18


@dataclasses.dataclass(frozen=True)
class RemoteFile:
    """A file on the network.

    Attributes:
      name: of the local copy.
      url: http or https.
      checksum: "sha256:..." or "md5:..."; None where none is known. Then that of the first download
        is kept beside the copy, and later uses are checked against it.
    """

    name: str
    url: str
    checksum: str | None = None


def fetch(remote: RemoteFile, folder: Path) -> Path:
    """Return the local copy of a file, downloaded if it is not there yet.

    What has arrived of a download that is interrupted stays, as NAME.part, and the next one goes on
    from its end. Processes that want the same file wait for each other.

    Args:
      remote: the file.
      folder: where the copies are; made if missing.
    Returns:
      Path of a whole, checked file.
    Raises:
      DataError: no network, a folder that cannot be written, or another checksum.
    """
    path = Path(folder) / remote.name
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(_beside(path, ".part"), "ab") as part:
                fcntl.flock(part, fcntl.LOCK_EX)
                if not path.exists():
                    _download(remote, part, path)
    except OSError as error:
        raise DataError(
            f"{path} cannot be written: {error.strerror}; what has arrived is kept"
        ) from error
    try:
        _check(remote, path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    return path


def _download(remote: RemoteFile, part, path: Path):
    for attempt in range(1, ATTEMPTS + 1):
        try:
            _transfer(remote.url, part)
            break
        except (
            http.client.HTTPException,
            urllib.error.URLError,
            ConnectionError,
            TimeoutError,
        ) as error:
            reason = getattr(error, "reason", None) or str(error) or type(error).__name__
            given_up = getattr(error, "code", 500) < 500  # not found and the like will stay so
            if given_up or attempt == ATTEMPTS:
                raise DataError(
                    f"{remote.url} cannot be downloaded: {reason}. Download it where there is a "
                    f"network, and put it at {path} or give data.path=FILE; "
                    f"{part.tell()} bytes have arrived, and are gone on with"
                ) from error
    os.fsync(part.fileno())
    _check(remote, Path(part.name))
    os.replace(part.name, path)


def _transfer(url: str, part):
    """Append what is missing of a file to `part`; begins again if the server cannot go on."""
    start = part.seek(0, os.SEEK_END)
    headers = {"User-Agent": f"eqfuse/{__version__}"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        response = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=TIMEOUT
        )
    except urllib.error.HTTPError as error:
        # "Range not satisfiable": nothing is missing, or the file is not what it was.
        if error.code == 416 and error.headers.get("Content-Range") == f"bytes */{start}":
            return
        if error.code != 416:
            raise
        part.truncate(0)
        raise ConnectionError("the server has another file now") from error
    with response:
        if start and not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            start = 0
            part.truncate(0)
        size = response.headers.get("Content-Length")
        total = start + int(size) if size else None
        _copy(response, part, url, total)
    if total is not None and part.tell() != total:
        raise ConnectionError(f"the connection ended after {part.tell()} of {total} bytes")


def _copy(response, part, url: str, total: int | None):
    name = Path(part.name).name.removesuffix(".part")
    print(f"download   {url}", file=sys.stderr, flush=True)
    with rich.progress.Progress(
        "{task.description}",
        rich.progress.BarColumn(),
        rich.progress.DownloadColumn(),
        rich.progress.TimeRemainingColumn(),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as bar:
        task = bar.add_task(name, total=total, completed=part.tell())
        while chunk := response.read(_CHUNK):
            part.write(chunk)
            bar.advance(task, len(chunk))


def _check(remote: RemoteFile, path: Path):
    """Compare a file with its checksum; a download with another one is removed."""
    recorded = _beside(path.with_name(remote.name), ".sha256")
    expected = remote.checksum
    if expected is None and recorded.exists():
        expected = f"sha256:{recorded.read_text(encoding='utf-8').strip()}"
    if expected is None:
        if path.suffix == ".part":  # no copy of somebody else's, whose folder may be read-only
            recorded.write_text(_digest("sha256", path) + "\n", encoding="utf-8")
        return
    algorithm, _, value = expected.partition(":")
    found = _digest(algorithm, path)
    if found == value:
        return
    where = (
        f"{remote.url} has another {algorithm} than expected"
        if path.suffix == ".part"
        else (f"{path} has another {algorithm} than {remote.url} should have")
    )
    if path.suffix == ".part":
        path.unlink()
    raise DataError(
        f"{where}: {found}, not {value}; it is damaged or has changed. Remove it and try again, "
        "or give a file that you trust by data.path=FILE"
    )


def _digest(algorithm: str, path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
