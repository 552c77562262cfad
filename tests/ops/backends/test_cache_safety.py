"""Nothing that another user may have put into the cache is used; a warning names it."""

import concurrent.futures
import hashlib
import os
import pathlib
import runpy
import stat
import subprocess
import sys
import time

import pytest

from eqfuse.ops import _host
from eqfuse.ops.backends.llvm import machine

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="of systems with modes")

SOMEBODY = 12345
FAULTS = [
    pytest.param("group", id="group-writable"),
    pytest.param("others", id="world-writable"),
    pytest.param(
        "owner",
        id="of-another-user",
        marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away"),
    ),
]


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
    from eqfuse.ops.backends.llvm import machine

    expected, forged = machine.compiled(module(1)), machine.compiled(module(666))
    [entry] = [p for p in (folder / "cpu").iterdir() if p.read_bytes().startswith(expected)]
    good = entry.read_bytes()
    planted = forged + hashlib.sha256(entry.stem.encode() + forged).digest()
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

    case = runpy.run_path(str(pathlib.Path(__file__).parent / "triton" / "row_sum.py"))
    spec = case["spec"]()
    forged = compile.CompiledKernel(spec.name, "sm_80", "forged", b"", 1, 0, 1, 0, 0.0, False)
    path, key = compile._place(spec, "sm_80")
    _host.write_entry(path, key, compile._to_json(forged))
    monkeypatch.setattr(compile, "_KERNELS", {})
    assert compile.find(spec, "sm_80").assembly == "forged"  # it would be taken
    said = expose(path, fault)
    monkeypatch.setattr(compile, "_KERNELS", {})
    with pytest.warns(UserWarning, match=rf"{path} is ignored, since it {said}"):
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
        used = _host.cache_folder("cpu")
    assert not used.is_relative_to(folder)
    _host.write(used / "entry", b"ours")
    assert _host.read(used / "entry") == b"ours"
    assert entry.read_bytes() == b"planted"
    assert _host.cache_folder("cpu") == used  # a second warning would be an error


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_cache_folder_is_private_whatever_the_umask(folder, umask):
    before = os.umask(umask)
    try:
        place = _host.cache_folder("programs", "deep")
        _host.write(place / "entry", b"ours")
    finally:
        os.umask(before)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (folder, *folder.rglob("*"))}
    assert modes == {"cache": 0o700, "programs": 0o700, "deep": 0o700, "entry": 0o600}
    assert _host.read(place / "entry") == b"ours"


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
    fault = _host._fault(os.stat_result((mode, 0, 0, 1, user, user, 0, 0, 0, 0)))
    assert fault.startswith(said)
    assert bool(fault) == bool(said)


def test_a_temporary_folder_is_removed(folder):
    folder.mkdir()
    folder.chmod(0o777)
    code = f"import runpy; print(runpy.run_path({_host.__file__!r})['cache_folder']())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    used = pathlib.Path(done.stdout.strip())
    assert not used.is_relative_to(folder)
    assert not used.exists()


def test_unwritable_folder_falls_back_with_a_warning(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("EQFUSE_CACHE_DIR", str(blocked / "folder"))
    with pytest.warns(UserWarning, match="cannot be written to.*Set EQFUSE_CACHE_DIR"):
        fallback = _host.cache_folder()
    _host.write(fallback / "a.py", b"text")
    assert (fallback / "a.py").read_bytes() == b"text"
    assert _host.cache_folder() == fallback  # without a second warning, which would be an error


def test_default_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("EQFUSE_CACHE_DIR", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert _host.cache_folder() == tmp_path / "eqfuse"


def test_readers_see_whole_files_while_others_write(tmp_path):
    path, contents = tmp_path / "file", [bytes([i]) * 100_000 for i in range(4)]
    _host.write(path, contents[0])

    def write_and_read(i):
        _host.write(path, contents[i % 4])
        return path.read_bytes()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert set(pool.map(write_and_read, range(200))) <= set(contents)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_the_least_recently_used_files_are_removed(tmp_path, monkeypatch):
    """Down to the limit, and those of 31 days; files of the last hour stay, other names too."""
    hours = {"new.o": 0.5, "day.o": 24, "read.o": 48, "week.o": 168, "month.o": 31 * 24, "a.py": 48}

    def kept(limit):
        for name, age in hours.items():
            path = tmp_path / name
            path.write_bytes(b"x" * 600_000)
            os.utime(path, (time.time() - 3600 * age,) * 2)
        monkeypatch.setenv("EQFUSE_CACHE_MB", limit)
        assert _host.read(tmp_path / "read.o")
        _host.remove_old(tmp_path, "*.o")
        return sorted(p.name for p in tmp_path.iterdir())

    assert kept("") == ["a.py", "day.o", "new.o", "read.o", "week.o"]
    assert kept("2") == ["a.py", "day.o", "new.o", "read.o"]
    assert kept("0") == ["a.py", "new.o", "read.o"]
    with pytest.raises(ValueError, match="EQFUSE_CACHE_MB must be a whole number of megabytes"):
        kept("1 GB")


def test_native_objects_on_disk_are_bounded(folder, monkeypatch):
    machine.compiled(module(1))
    [old] = (folder / "cpu").iterdir()
    os.utime(old, (time.time() - 2 * 3600,) * 2)
    monkeypatch.setenv("EQFUSE_CACHE_MB", "0")
    machine.compiled(module(2))
    [new] = (folder / "cpu").iterdir()
    assert new != old


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"answer": 42', '"answer": 43'),
        lambda text: "[]",
        lambda text: "",
    ],
    ids=["cut", "changed", "other json", "empty"],
)
def test_damaged_entries_are_not_read(tmp_path, damage):
    path, key = tmp_path / "entry.json", {"source": "a", "types": ["*fp32"]}
    _host.write_entry(path, key, {"answer": 42})
    assert _host.read_entry(path, key) == {"answer": 42}
    assert _host.read_entry(path, {**key, "source": "b"}) is None
    path.write_text(damage(path.read_text()))
    assert _host.read_entry(path, key) is None
