"""Public data sets: downloads from a server on this machine."""

import errno
import hashlib
import http.server
import re
import threading
import types

import numpy as np
import pooch
import pytest

from eqfuse.data import DataError, fetch_public
from eqfuse.data.readers import public
from eqfuse.data.readers.public import RemoteFile, fetch

CONTENT = np.random.default_rng(0).bytes(1_000_000)
SHA256 = "sha256:" + hashlib.sha256(CONTENT).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """Serves CONTENT at every address but /missing.

    Attributes:
      cuts: bytes after which the next responses break off.
      asked: the paths of the requests.
    """

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.cuts, self.asked, self.content = [], [], CONTENT

    def url(self, path="/file"):
        return f"http://127.0.0.1:{self.server_address[1]}{path}"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        if self.path == "/missing":
            self.send_error(404)
            return
        content = self.server.content
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: self.server.cuts.pop(0) if self.server.cuts else None])

    def log_message(self, *_):
        pass


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    """Try downloads that fail again at once, and not after seconds."""
    monkeypatch.setattr(pooch.core, "time", types.SimpleNamespace(sleep=lambda _: None))


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_file_is_downloaded_once(server, tmp_path):
    remote = RemoteFile("file.bin", server.url(), SHA256)
    path = fetch(remote, tmp_path / "new" / "folder")
    assert path.read_bytes() == CONTENT
    assert fetch(remote, path.parent) == path
    assert server.asked == ["/file"]
    assert [p.name for p in path.parent.iterdir()] == ["file.bin"]


def test_a_download_that_breaks_off_is_tried_again(server, tmp_path):
    server.cuts = [300_000, 200_000]
    path = fetch(RemoteFile("file.bin", server.url(), SHA256), tmp_path)
    assert path.read_bytes() == CONTENT
    assert len(server.asked) == 3
    assert [p.name for p in tmp_path.iterdir()] == ["file.bin"]


def test_another_checksum_is_refused_and_tried_again(server, tmp_path):
    remote = RemoteFile("file.bin", server.url(), SHA256)
    server.content = CONTENT[:-1] + b"\0"
    with pytest.raises(DataError, match="does not have the checksum") as info:
        fetch(remote, tmp_path)
    assert SHA256.removeprefix("sha256:") in str(info.value)
    assert list(tmp_path.iterdir()) == []
    server.content = CONTENT
    assert fetch(remote, tmp_path).read_bytes() == CONTENT


def test_a_copy_that_changes_is_refused(server, tmp_path):
    remote = RemoteFile("known", server.url(), "md5:" + hashlib.md5(CONTENT).hexdigest())
    path = fetch(remote, tmp_path)
    path.write_bytes(CONTENT[:-1] + b"\0")
    with pytest.raises(DataError, match=f"{path}, of .* does not have the checksum"):
        fetch(remote, tmp_path)
    assert path.exists(), "a file that may be the user's own is not removed"
    path = fetch(RemoteFile("unknown", server.url()), tmp_path)
    assert path.read_bytes() == CONTENT


def test_a_full_disk(server, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", full)
    with pytest.raises(DataError, match=r"cannot be read or written.*No space left"):
        fetch(RemoteFile("file.bin", server.url(), SHA256), tmp_path)


def test_public_files(server, tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"test_600K\.xyz"):
        fetch_public("3bpa", "test_500K.xyz")
    with pytest.raises(DataError, match="acac"):
        fetch_public("4bpa", "train_300K.xyz")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    remote = RemoteFile("train_300K.xyz", server.url(), SHA256)
    monkeypatch.setitem(public.PUBLIC["3bpa"], "train_300K.xyz", remote)
    assert fetch_public("3bpa", "train_300K.xyz") == tmp_path / "eqfuse" / "3bpa" / "train_300K.xyz"
    for files in public.PUBLIC.values():
        for name, file in files.items():
            assert file.name == name
            assert file.checksum is None or re.fullmatch(
                r"sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}", file.checksum
            )
