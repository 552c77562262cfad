"""Downloads against a server on this machine: resumed, checked, and refused clearly."""

import errno
import hashlib
import http.server
import re
import threading

import numpy as np
import pytest

from eqfuse.data import DataError, fetch_public
from eqfuse.data.readers import download, public
from eqfuse.data.readers.download import RemoteFile, fetch

CONTENT = np.random.default_rng(0).bytes(1_000_000)
SHA256 = "sha256:" + hashlib.sha256(CONTENT).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """Serves CONTENT at every address but /missing.

    Attributes:
      cuts: bytes after which the next responses break off.
      ranges: whether it can begin in the middle.
      asked: the Range headers of the requests.
    """

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.cuts, self.ranges, self.asked, self.content = [], True, [], CONTENT

    def url(self, path="/file"):
        return f"http://127.0.0.1:{self.server_address[1]}{path}"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        wanted = self.headers.get("Range")
        self.server.asked.append(wanted)
        if self.path == "/missing":
            self.send_error(404)
            return
        content, start = self.server.content, 0
        if wanted and self.server.ranges:
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        end = start + self.server.cuts.pop(0) if self.server.cuts else len(content)
        self.wfile.write(content[start:end])

    def log_message(self, *_):
        pass


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
    assert server.asked == [None]
    assert [p.name for p in path.parent.iterdir()] == ["file.bin"]


def test_what_breaks_off_is_gone_on_with(server, tmp_path):
    server.cuts = [300_000, 200_000]
    path = fetch(RemoteFile("file.bin", server.url(), SHA256), tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.asked == [None, "bytes=300000-", "bytes=500000-"]


def test_a_later_call_goes_on_too(server, tmp_path):
    server.cuts = [1000] * download.ATTEMPTS
    remote = RemoteFile("file.bin", server.url(), SHA256)
    with pytest.raises(DataError, match="3000 bytes have arrived") as info:
        fetch(remote, tmp_path)
    assert "data.path=FILE" in str(info.value)
    assert fetch(remote, tmp_path).read_bytes() == CONTENT
    assert server.asked[-1] == "bytes=3000-"


def test_a_whole_part_is_kept(server, tmp_path):
    """The process ended between the last byte and the new name."""
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    assert fetch(RemoteFile("file.bin", server.url(), SHA256), tmp_path).read_bytes() == CONTENT
    assert server.asked == ["bytes=1000000-"]


def test_a_part_longer_than_the_file_is_begun_again(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT + b"more")
    assert fetch(RemoteFile("file.bin", server.url(), SHA256), tmp_path).read_bytes() == CONTENT


def test_a_server_that_cannot_go_on_sends_all(server, tmp_path):
    server.cuts, server.ranges = [300_000], False
    assert fetch(RemoteFile("file.bin", server.url(), SHA256), tmp_path).read_bytes() == CONTENT


def test_another_checksum_is_refused_and_tried_again(server, tmp_path):
    remote = RemoteFile("file.bin", server.url(), SHA256)
    server.content = CONTENT[:-1] + b"\0"
    with pytest.raises(DataError, match="another sha256") as info:
        fetch(remote, tmp_path)
    assert SHA256.removeprefix("sha256:") in str(info.value)
    assert list(tmp_path.iterdir()) == []
    server.content = CONTENT
    assert fetch(remote, tmp_path).read_bytes() == CONTENT


def test_a_copy_that_changes_is_refused(server, tmp_path):
    """With a checksum, and without one, where that of the download counts."""
    for name, checksum in (("known", "md5:" + hashlib.md5(CONTENT).hexdigest()), ("unknown", None)):
        remote = RemoteFile(name, server.url(), checksum)
        path = fetch(remote, tmp_path)
        fetch(remote, tmp_path)
        path.write_bytes(CONTENT[:-1] + b"\0")
        with pytest.raises(DataError, match=f"{path} has another"):
            fetch(remote, tmp_path)
        assert path.exists(), "a file that may be the user's own is not removed"


def test_no_network(server, tmp_path):
    url = server.url()
    server.shutdown()
    server.server_close()
    with pytest.raises(DataError) as info:
        fetch(RemoteFile("file.bin", url, SHA256), tmp_path)
    for part in (url, "cannot be downloaded", "refused", str(tmp_path / "file.bin"), "data.path"):
        assert part in str(info.value)


def test_not_found_is_not_tried_again(server, tmp_path):
    with pytest.raises(DataError, match="Not Found"):
        fetch(RemoteFile("file.bin", server.url("/missing"), SHA256), tmp_path)
    assert server.asked == [None]


def test_a_full_disk(server, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(download, "_copy", full)
    with pytest.raises(DataError, match=r"cannot be written.*No space left"):
        fetch(RemoteFile("file.bin", server.url(), SHA256), tmp_path)


def test_two_at_once_download_once(server, tmp_path):
    remote, found = RemoteFile("file.bin", server.url(), SHA256), []
    threads = [
        threading.Thread(target=lambda: found.append(fetch(remote, tmp_path))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert server.asked == [None]


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


def test_checksums_are_those_of_the_published_files(shared_data):
    """Check those files that are here."""
    for name in ("3bpa", "acac"):
        for file in ("train_300K.xyz", "iso_atoms.xyz", "isolated_atoms.xyz"):
            path = shared_data / name / file
            if path.exists():
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                assert public.PUBLIC[name][file].checksum == f"sha256:{digest}"


def test_a_copy_in_a_folder_that_cannot_be_written_is_read(tmp_path, monkeypatch):
    """Put there by somebody else: nothing is recorded beside it."""
    (tmp_path / "file").write_bytes(CONTENT)
    monkeypatch.setattr(download.Path, "write_text", None)
    assert fetch(RemoteFile("file", "http://127.0.0.1:1/file"), tmp_path) == tmp_path / "file"


def test_a_copy_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "file").mkdir()
    with pytest.raises(DataError, match="file cannot be read: Is a directory"):
        fetch(RemoteFile("file", "http://127.0.0.1:1/file", SHA256), tmp_path)
