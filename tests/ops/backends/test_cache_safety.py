"""Nothing that another user may have put into the cache is used; a warning names it."""

import concurrent.futures
import errno
import hashlib
import json
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import time

import pytest

from eqfuse.ops import _kept
from eqfuse.ops._kept import Kept
from eqfuse.ops.backends.llvm import machine

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="of systems with modes")

SOMEBODY = 12345
AS_ROOT = pytest.mark.skipif(getattr(os, "geteuid", int)() != 0, reason="only root gives files")
FAULTS = ["group", "others", pytest.param("owner", marks=AS_ROOT)]


def expose(path: pathlib.Path, fault: str) -> str:
    """Let others change a file or folder; return what a warning says of it."""
    if fault == "owner":
        os.chown(path, SOMEBODY, -1)
        return f"belongs to user {SOMEBODY}"
    path.chmod(path.stat().st_mode | (stat.S_IWGRP if fault == "group" else stat.S_IWOTH))
    return "can be written by others"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the cache folder, not made yet."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("EQFUSE_CACHE_DIR", str(folder))
    return folder


def module(number: int) -> str:
    return f"define i64 @f() {{\n  ret i64 {number}\n}}\n"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_native_object_is_not_linked(folder, fault):
    expected, forged = machine.compiled(module(1)), machine.compiled(module(666))
    [entry] = [p for p in (folder / "cpu").iterdir() if p.read_bytes().endswith(expected)]
    good = entry.read_bytes()
    planted = hashlib.sha256(entry.name.encode() + forged).digest() + forged
    entry.write_bytes(planted)
    assert machine.compiled(module(1)) == forged  # it is a forgery that would be taken
    said = expose(entry, fault)
    with pytest.warns(UserWarning, match=rf"{entry} is ignored, since it {said}"):
        assert machine.compiled(module(1)) == expected
    assert entry.read_bytes() == good
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_triton_kernel_is_not_loaded(folder, monkeypatch, fault):
    pytest.importorskip("triton")
    from eqfuse.ops.backends.triton import compile
    from tests.ops.backends.triton import row_sum

    spec = row_sum.spec()
    forged = compile.CompiledKernel(spec.name, "sm_80", "forged", b"", 1, 0, 1, 0, 0.0)
    kept = compile._kept(spec, "sm_80")
    kept.write(json.dumps({**vars(forged), "binary": ""}).encode())
    monkeypatch.setattr(compile, "_KERNELS", {})
    assert compile.find(spec, "sm_80").assembly == "forged"  # it would be taken
    said = expose(kept.path, fault)
    monkeypatch.setattr(compile, "_KERNELS", {})
    with pytest.warns(UserWarning, match=rf"{kept.path} is ignored, since it {said}"):
        kernel = compile.compile_kernel(spec, "sm_80")
    assert ".visible .entry" in kernel.assembly
    monkeypatch.setattr(compile, "_KERNELS", {})
    assert compile.find(spec, "sm_80").assembly == kernel.assembly


@pytest.mark.parametrize("name", [".", "cpu"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_folder_of_others_is_not_used(folder, fault, name):
    (folder / name).mkdir(parents=True)
    entry = folder / name / "entry"
    entry.write_bytes(b"planted")
    said = expose(folder / name, fault)
    with pytest.warns(UserWarning, match=rf"{folder / name} is ignored, since it {said}.*Set EQF"):
        used = _kept.cache_folder("cpu")
    assert not used.is_relative_to(folder)
    kept = Kept("cpu", "key")
    kept.write(b"ours")
    assert kept.path.parent == used
    assert kept.read() == b"ours"
    assert entry.read_bytes() == b"planted"
    assert _kept.cache_folder("cpu") == used  # a second warning would be an error


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_cache_folder_is_private_whatever_the_umask(folder, umask):
    before = os.umask(umask)
    try:
        place = _kept.cache_folder("programs", "deep")
        (kept := Kept(place, name="entry")).write(b"ours")
        Kept(place, name="made").made(pathlib.Path.mkdir)
    finally:
        os.umask(before)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (folder, *folder.rglob("[!.]*"))}
    folders = dict.fromkeys(("cache", "programs", "deep", "made"), 0o700)
    assert modes == folders | {"entry": 0o600}
    assert kept.read() == b"ours"


@pytest.mark.parametrize(
    ("owner", "mode", "said"),
    [
        ("me", 0o100644, ""),
        ("root", 0o100644, ""),
        ("somebody", 0o100600, "belongs to user"),
        ("me", 0o100664, "can be written"),
        ("me", 0o100602, "can be written"),
        ("root", 0o041777, "can be written"),
    ],
)
def test_cache_trusts_private_folders_only(monkeypatch, owner, mode, said):
    """For a user who is not root, whoever runs this."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    user = {"me": 1000, "root": 0, "somebody": SOMEBODY}[owner]
    fault = _kept._fault(os.stat_result((mode, 0, 0, 1, user, user, 0, 0, 0, 0)))
    assert fault.startswith(said)
    assert bool(fault) == bool(said)


def test_a_temporary_folder_is_removed(folder):
    folder.mkdir()
    folder.chmod(0o777)
    code = f"import runpy; print(runpy.run_path({_kept.__file__!r})['cache_folder']())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    used = pathlib.Path(done.stdout.strip())
    assert not used.is_relative_to(folder)
    assert not used.exists()


def test_unwritable_folder_falls_back_with_a_warning(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("EQFUSE_CACHE_DIR", str(blocked / "folder"))
    with pytest.warns(UserWarning, match="cannot be written to.*Set EQFUSE_CACHE_DIR"):
        fallback = _kept.cache_folder()
    assert list(fallback.iterdir()) == []
    assert _kept.cache_folder() == fallback  # without a second warning, which would be an error


def test_default_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("EQFUSE_CACHE_DIR", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert _kept.cache_folder() == tmp_path / "eqfuse"


def test_readers_see_whole_files_while_others_write(tmp_path):
    kept, contents = Kept(tmp_path, name="file"), [bytes([i]) * 100_000 for i in range(4)]
    kept.write(contents[0])

    def write_and_read(i):
        kept.write(contents[i % 4])
        return kept.read()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert set(pool.map(write_and_read, range(200))) <= set(contents)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def make(path: pathlib.Path, kind: str):
    """Write a file or a folder, and count how often."""
    path.mkdir() if kind == "folder" else path.touch()
    with open(path / "file" if kind == "folder" else path, "a", encoding="utf-8") as file:
        file.write("made")
    time.sleep(0.01)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_an_entry_is_made_once(tmp_path, kind):
    """By one of several threads or processes; what was interrupted or is of others, again."""
    kept, times = Kept(tmp_path / "new", "key", f".{kind}"), []

    def count(path):
        times.append(path)
        make(path, kind)

    def interrupt(path):
        make(path, kind)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept.made(interrupt)
    assert not [p for p in kept.path.parent.iterdir() if not p.name.endswith(".lock")]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: kept.made(count), range(20))) == {kept.path}
    assert len(times) == 1
    assert kept.path.is_dir() == (kind == "folder")
    expose(kept.path, "others")
    with pytest.warns(UserWarning, match="can be written by others .*, and is removed"):
        kept.made(count)
    assert len(times) == 2


@pytest.mark.parametrize("fails", ["mkdtemp", "write_bytes", "replace", "TemporaryDirectory"])
def test_a_full_disk_stops_nothing_but_what_asks_for_a_file(folder, monkeypatch, fails):
    """In any step; the last one is a disk so full that there are no temporary folders either."""

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    kept = Kept("cpu", "key")
    owner = {"write_bytes": pathlib.Path, "replace": os}.get(fails, tempfile)
    if fails == "TemporaryDirectory":
        monkeypatch.setattr(pathlib.Path, "mkdir", full)
    monkeypatch.setattr(owner, fails, full)
    assert kept.read() is None
    kept.write(b"content")
    assert kept.read() is None
    assert not [p for p in folder.rglob("*") if p.is_file()]
    with pytest.raises(OSError, match="No space left"):
        kept.made(lambda path: path.write_bytes(b"content"))


def test_the_least_recently_used_files_are_removed(tmp_path, monkeypatch):
    """Down to the limit, and those of 31 days; files of the last hour stay, other names too."""
    hours = {"new.o": 0.5, "day.o": 24, "read.o": 48, "week.o": 168, "month.o": 31 * 24, "a.py": 48}

    read = Kept(tmp_path, name="read.o")

    def kept(limit):
        for name, age in hours.items():
            path = tmp_path / name
            path.write_bytes(b"x" * 600_000)
            if path == read.path:
                read.write(path.read_bytes())
            os.utime(path, (time.time() - 3600 * age,) * 2)
        monkeypatch.setenv("EQFUSE_CACHE_MB", limit)
        assert read.read() == b"x" * 600_000
        _kept.remove_old(tmp_path, "*.o")
        return sorted(p.name for p in tmp_path.iterdir())

    assert kept("") == ["a.py", "day.o", "new.o", "read.o", "week.o"]
    assert kept("2") == ["a.py", "day.o", "new.o", "read.o"]
    assert kept("0") == ["a.py", "new.o", "read.o"]
    with pytest.raises(ValueError, match="EQFUSE_CACHE_MB must be a whole number of megabytes"):
        kept("1 GB")


def test_native_objects_on_disk_are_rebuilt_and_bounded(folder, monkeypatch):
    code = machine.compiled(module(1))
    [old] = (folder / "cpu").iterdir()
    good = old.read_bytes()
    old.write_bytes(good[:-8] + bytes(8))
    assert (machine.compiled(module(1)), old.read_bytes()) == (code, good)
    os.utime(old, (time.time() - 2 * 3600,) * 2)
    monkeypatch.setenv("EQFUSE_CACHE_MB", "0")
    machine.compiled(module(2))
    [new] = (folder / "cpu").iterdir()
    assert new != old


@pytest.mark.parametrize(
    "damage",
    [lambda c: b"", lambda c: c[:40], lambda c: c[:-1] + b"3", lambda c: c[:-5] + b"5" + c[-4:]],
    ids=["empty", "cut", "changed at the end", "changed inside"],
)
def test_damaged_entries_and_those_of_other_keys_are_not_read(folder, damage):
    kept, other = (Kept("cpu", {"source": s, "types": ("*fp32",)}, ".o") for s in "ab")
    kept.write(b"the answer is 42")
    assert kept.read() == b"the answer is 42"
    assert other.read() is None
    other.path.write_bytes(kept.path.read_bytes())  # under the name of another key
    assert other.read() is None
    kept.path.write_bytes(damage(kept.path.read_bytes()))
    assert kept.read() is None
