"""Files of a run are whole or not there, errors name them, and names forge no warnings."""

import contextlib
import resource

import ase.build
import matplotlib.figure
import numpy as np
import pytest

from eqfuse import plots
from eqfuse.inference.commands import write_atoms
from eqfuse.runs.files import write_table, write_whole
from eqfuse.runs.log import Log, say, warn
from eqfuse.train.replay import write_frames
from eqfuse.train.terminal import lines


@contextlib.contextmanager
def small_disk(size: int):
    """Let no file grow beyond a size, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


CELL = ase.build.bulk("Cu", cubic=True) * (3, 3, 3)
WRITERS = {
    "text": lambda path: write_whole(path, "a" * 9000),
    "table": lambda path: write_table(path, [{"number": k} for k in range(9000)]),
    "frames": lambda path: write_atoms(path, [CELL], "extxyz"),
    "replay": lambda path: write_frames(path, [_labelled()]),
    "picture": lambda path: plots._save(matplotlib.figure.Figure(), path),
}


def _labelled():
    from eqfuse.data import Structure

    forces = np.zeros((len(CELL), 3))
    arrays = {"cell": CELL.cell.array, "energy": 0.0, "forces": forces}
    return Structure(CELL.numbers, CELL.positions, pbc=True, **arrays)


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_names_the_file_and_leaves_no_part(name, tmp_path):
    path = tmp_path / "file.out"
    with small_disk(1000), pytest.raises(OSError, match=str(path)):
        WRITERS[name](path)
    assert not list(tmp_path.iterdir())
    WRITERS[name](path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.out"]


def test_names_of_files_forge_no_warnings_and_no_commands_in_the_log(tmp_path, capsys):
    name = "a\nwarning: forged\n\x1b[2Jb.xyz"
    with Log() as log:
        log.begin(tmp_path, new=True)
        warn(f"{name} has no forces")
        say(lines({"data": name}))
        say("\x1b[31mred")
    shown = r"a\nwarning: forged\n\x1b[2Jb.xyz"
    assert log.warnings == [f"{shown} has no forces"]
    text = (tmp_path / "log.txt").read_text()
    assert f"data       {shown}\n" in text
    assert "\x1b" not in text
    assert capsys.readouterr().err.startswith(f"warning: {shown} has no forces\n")
