"""Files with random damage are read, or refused with a DataError; nothing else happens."""

import functools
import os
import time
import zlib

import h5py
import numpy as np
import pytest
from ase.io.formats import open_with_compression

from eqfuse.data import DataError, isolated_atom_energies, read_structures
from tests.data.readers import test_ase_files
from tests.data.readers.test_doors import WRITERS, elements, made_set
from tests.fuzz.damage import CHANGES

ROUNDS = 60
WORDS = [b"nan", b"-inf", b"1e999", b"0", b"-1", b"119", b"X", b'"', b"[", b"=", b"T", b"Lattice="]


@pytest.fixture(params=[0, pytest.param(None, marks=pytest.mark.slow)], ids=["old", "new"])
def rng(request):
    """Return random numbers: the same in every run, and, in the nightly one, others."""
    seed = int(time.time()) if request.param is None else request.param
    print("seed", seed)  # of what fails
    return np.random.default_rng(seed)


def with_other_word(rng, content: bytes) -> bytes:
    words = content.split(b" ")
    words[rng.integers(len(words))] = WORDS[rng.integers(len(WORDS))]
    return b" ".join(words)


def without_part(rng, content: bytes) -> bytes:
    start = int(rng.integers(len(content)))
    return content[:start] + content[start + int(rng.integers(1, 40)) :]


DAMAGES = [*CHANGES.values(), with_other_word, without_part]


@pytest.mark.parametrize(
    "writer", [w for w in WRITERS if "lmdb" not in w.name], ids=lambda writer: writer.name
)
def test_damaged_files_are_read_or_refused(writer, tmp_path, rng):
    """Those of LMDB may end the process."""
    frames = made_set(rng, writer.kinds.split()[-1])[:1]
    writer.write(path := tmp_path / writer.name, frames, rng)
    how = {"require_labels": False, "types": elements(frames) if writer.types else None}
    assert len(read_structures(path, **how)) == 1
    content, refusals = path.read_bytes(), 0
    target = path.with_name(f"damaged_{path.name}")
    for _ in range(ROUNDS):
        target.write_bytes(DAMAGES[rng.integers(len(DAMAGES))](rng, content))
        try:
            structures = read_structures(target, **how)
        except DataError as error:
            assert str(target) in str(error)  # noqa: PT017 - it may also not be raised
            refusals += 1
        else:
            assert all(np.isfinite(s.positions).all() for s in structures)
    assert refusals > 0


@pytest.mark.parametrize("read", [read_structures, isolated_atom_energies])
@pytest.mark.parametrize(
    "suffix", ["", ".xyz", ".xyz.gz", ".npz", ".h5", ".lmdb", ".traj", ".db", ".json", ".cif"]
)
def test_pipes_and_devices_are_never_opened(read, suffix, tmp_path):
    """Opening the one waits for a writer, and reading the other does not end."""
    path = tmp_path / f"frames{suffix}"
    with pytest.raises(DataError, match=f"no such file: .*frames{suffix}"):
        read(path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(path)
        with pytest.raises(DataError, match=rf"frames{suffix} is a pipe and not a file; write"):
            read(path)
        path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(DataError, match=rf"frames{suffix} is a device and not a file; write"):
        read(path)


def test_comment_lines_of_megabytes_are_refused(tmp_path):
    path = tmp_path / "frames.xyz"
    header = "Properties=species:S:1:pos:R:3:forces:R:3 energy=-1.0"
    path.write_text(f"\n1\n{header} {'a ' * 3_000_000}\nH 0 0 0 1 2 3\n")
    message = r"frames.xyz, frame 0 \(line 2\): a comment line of 60000\d\d characters, and at most"
    with pytest.raises(DataError, match=message):
        read_structures(path)


def write_packed(path):
    with open_with_compression(str(path), "wb") as file:
        file.write(b"1\n\nH 0 0 0\n" * 10**6)


def write_hdf5(path, **how):
    with h5py.File(path, "w") as file:
        group = file.create_group("config_batch_0/config_0")
        group["atomic_numbers"], group["cell"] = [1], "None"
        group.create_dataset("positions", (10**6, 3), "f8", **how)


def write_link(path):
    with h5py.File(path, "w") as file:
        file["config_batch_0"] = h5py.ExternalLink(str(path.with_name("pipe")), "/")


BOMBS = {
    **dict.fromkeys(("a.xyz.gz", "a.xyz.bz2", "a.xyz.xz", "a.cif.gz"), write_packed),
    "a.lmdb": lambda path: test_ase_files.write(path, {"1": zlib.compress(b" " * 10**7)}),
    "a.h5": functools.partial(write_hdf5, chunks=(1000, 3), compression="gzip"),
    "raw.h5": functools.partial(write_hdf5, external=[("/dev/zero", 0, 24 * 10**6)]),
    "link.h5": write_link,
}


@pytest.mark.parametrize("name", BOMBS)
def test_files_that_would_fill_the_memory_or_name_others_are_refused(name, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    BOMBS[name](tmp_path / name)
    match = "in another file" if name in ("raw.h5", "link.h5") else "inflated to far more than its"
    with pytest.raises(DataError, match=match):
        read_structures(tmp_path / name, require_labels=False)
