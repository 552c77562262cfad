"""A disk that is full ends a run with one line, and loses nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from eqfuse.train import CheckpointError, load_run
from eqfuse.train.main import main
from tests.small_runs import TINY
from tests.train.run.test_resume import assert_same

ROOT = Path(__file__).parents[3]


def test_a_checkpoint_that_fails_at_any_byte_leaves_the_one_before(tmp_path):
    program = Path(__file__).with_name("full_disk_program.py")
    result = subprocess.run(
        [sys.executable, program, tmp_path],
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert "full disk ok" in result.stdout


@pytest.fixture
def disk(tmp_path):
    """Mount a small disk; give its path, and a function that changes its size in kB."""
    path = tmp_path / "disk"
    path.mkdir()

    def mount(*options):
        command = ["mount", "-t", "tmpfs", *options, "tmpfs", str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    result = mount("-o", "size=4k")
    if result.returncode:
        pytest.skip(f"a disk of its own needs root: {result.stderr.strip()}")
    yield path, lambda kilobytes: mount("-o", f"remount,size={kilobytes}k")
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.slow
def test_a_run_on_a_full_disk_goes_on_when_there_is_room(disk, water, tmp_path, capsys):
    folder, resize = disk
    settings = ["data=extxyz", f"data.path={water}", *TINY, "training.checkpoint_seconds=0"]
    settings.append("epochs=2")
    assert main([*settings, f"run={tmp_path / 'whole'}"]) == 0
    run = folder / "run"

    def fails(arguments, part, code=1):
        capsys.readouterr()
        assert main(arguments) == code
        error = capsys.readouterr().err
        assert [line for line in error.splitlines() if line.startswith("error:")][-1:] == [
            error.splitlines()[-1]
        ]
        assert part in error

    (folder / "filler").write_bytes(b"0" * 4096)
    fails([*settings, f"run={run}"], "No space left on device", code=2)
    assert not run.exists()

    resize(8)  # room for the settings, not for a checkpoint
    fails([*settings, f"run={run}"], "kB, cannot be written")
    with pytest.raises(CheckpointError, match="no checkpoint"):
        load_run(run)
    for size in (24, 32, 44):
        resize(size)
        if main([f"resume={run}"]) == 0:
            break
        assert "kB, cannot be written" in capsys.readouterr().err
        load_run(run)
    else:
        resize(10_000)
        assert main([f"resume={run}"]) == 0
    assert_same(tmp_path / "whole", run)
