"""Download files and check them, by pooch."""

import logging
import os
import sys
from pathlib import Path
from typing import NamedTuple

from eqfuse.data.errors import DataError


class RemoteFile(NamedTuple):
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

    Args:
      remote: the file.
      folder: where the copies are; made if missing.
    Returns:
      Path of a whole, checked file.
    Raises:
      DataError: no network, a folder that cannot be written, or another checksum.
    """
    import pooch  # imported here, since it takes 0.3 s and most runs download nothing

    path = Path(folder) / remote.name
    try:
        if not path.exists():
            _download(remote, path)
        recorded = _record_of(path)
        expected = remote.checksum or (recorded.exists() and recorded.read_text("utf-8").strip())
        matches = not expected or pooch.hashes.hash_matches(path, expected)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    if not matches:
        raise DataError(
            f"{path} does not have the checksum {expected}: it is damaged or has changed. Remove "
            "it and try again, or give a file that you trust by data.path=FILE"
        )
    return path


def _download(remote: RemoteFile, path: Path):
    import pooch
    import requests

    pooch.get_logger().setLevel(logging.ERROR)
    print(f"download   {remote.url}", file=sys.stderr, flush=True)
    client = pooch.create(
        path.parent,
        base_url="",
        registry={remote.name: remote.checksum},
        urls={remote.name: remote.url},
        retry_if_failed=2,
    )
    try:
        downloader = pooch.HTTPDownloader(progressbar=sys.stderr.isatty())
        client.fetch(remote.name, downloader=downloader)
        if remote.checksum is None:
            record = f"sha256:{pooch.file_hash(path)}\n"
            _record_of(path).write_text(record, encoding="utf-8")
    except requests.RequestException as error:
        raise DataError(
            f"{remote.url} cannot be downloaded: {error}. Download it where there is a network, "
            f"and put it at {path} or give data.path=FILE"
        ) from error
    except ValueError as error:
        raise DataError(
            f"{remote.url} does not have the checksum {remote.checksum}: the download was damaged "
            "or the file has changed. Try again, or give a file that you trust by data.path=FILE"
        ) from error
    except OSError as error:
        raise DataError(f"{path} cannot be written: {os.strerror(error.errno)}") from error


def _record_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")
