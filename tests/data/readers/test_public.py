"""Public data sets: downloads from a server on this machine, and `data=3bpa` and the like."""

import errno
import hashlib
import http.server
import re
import threading
import types

import ase.build
import ase.io
import numpy as np
import pooch
import pytest
from ase import units

from eqfuse.data import DataError, fetch_public
from eqfuse.data.readers import public
from eqfuse.data.readers.public import RemoteFile, fetch
from eqfuse.train.datasets import load_dataset
from eqfuse.train.main import main
from eqfuse.train.settings.options import parse
from tests.small_runs import TINY

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


KCAL = units.kcal / units.mol


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """Make a file of a public set, as it is after its download; there is no network."""

    def put(name, file, write):
        path = tmp_path / name / file
        path.parent.mkdir(exist_ok=True)
        write(path)
        checksum = "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
        remote = RemoteFile(file, "http://127.0.0.1:9/nowhere", checksum)
        monkeypatch.setitem(public.PUBLIC[name], file, remote)

    return put


def loaded(tmp_path, *arguments):
    """Return the data set of a run with these settings."""
    config = parse([*TINY, f"data.folder={tmp_path}", *arguments])
    return load_dataset(config)[0]


def test_3bpa_with_its_isolated_atoms(offline, water, tmp_path):
    offline("3bpa", "train_300K.xyz", lambda path: path.write_bytes(water.read_bytes()))
    atoms = [ase.Atoms("H"), ase.Atoms("O")]
    for atom, energy in zip(atoms, (-13.6, -2041.0), strict=True):
        atom.info["energy"] = energy
    offline("3bpa", "iso_atoms.xyz", lambda path: ase.io.write(path, atoms, format="extxyz"))
    assert parse(["data=3bpa"]).data.references_origin == "isolated atoms, downloaded"
    assert loaded(tmp_path, "data=3bpa").references == {1: -13.6, 8: -2041.0}


def test_rmd17_takes_the_frames_of_its_split(offline, tmp_path, rng):
    coords = ase.build.molecule("H2O").positions + rng.normal(scale=0.05, size=(30, 3, 3))
    arrays = {"nuclear_charges": [8, 1, 1], "coords": coords, "forces": rng.normal(size=(30, 3, 3))}
    offline(
        "rmd17",
        "rmd17_ethanol.npz",
        lambda path: np.savez(path, energies=np.arange(30.0), **arrays),
    )
    split = [3, 28, 5, 0, 17, 9, 11, 2, 23, 21]
    offline("rmd17", "index_train_01.csv", lambda path: np.savetxt(path, split, fmt="%d"))
    arguments = ["data=rmd17", "data.molecule=ethanol"]
    dataset = loaded(tmp_path, *arguments)
    assert (len(dataset.train), len(dataset.val)) == (6, 4)
    settings = parse([*arguments, f"data.folder={tmp_path}"]).data
    energies = [s.energy for s in settings.read()]
    np.testing.assert_allclose(energies, KCAL * np.array(split), rtol=1e-12)


def test_md22_is_read_in_its_own_layout(offline, tmp_path, rng):
    coords = ase.build.molecule("H2O").positions + rng.normal(scale=0.05, size=(10, 3, 3))
    forces = rng.normal(size=(10, 3, 3))
    offline(
        "md22",
        "md22_DHA.npz",
        lambda path: np.savez(
            path, z=np.array([8, 1, 1], np.uint8), R=coords, E=np.ones((10, 1)), F=forces
        ),
    )
    dataset = loaded(tmp_path, "data=md22", "data.molecule=DHA")
    expected = forces[dataset.train_indices] * KCAL
    assert dataset.force_rms == pytest.approx(np.sqrt((expected**2).mean()), rel=1e-12)


def test_no_network_is_said_in_one_line(tmp_path, monkeypatch, capsys):
    remote = RemoteFile("train_300K.xyz", "http://127.0.0.1:9/nowhere", "sha256:00")
    monkeypatch.setitem(public.PUBLIC["acac"], "train_300K.xyz", remote)
    assert main([*TINY, "data=acac", f"data.folder={tmp_path}", f"run={tmp_path / 'run'}"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: http://127.0.0.1:9/nowhere cannot be downloaded")
    for part in ("refused", str(tmp_path / "acac" / "train_300K.xyz"), "data.path=FILE"):
        assert part in error
    assert not (tmp_path / "run").exists()
