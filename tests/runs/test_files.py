"""Files of a run are whole or not there, errors name them, and names forge no warnings."""

import contextlib
import hashlib
import os
import resource

import ase.build
import matplotlib.figure
import numpy as np
import pytest
from safetensors.numpy import save

from eqfuse import plots
from eqfuse.data import Structure
from eqfuse.inference.commands import write_atoms
from eqfuse.runs import page
from eqfuse.runs.errors import CheckpointError, ConfigError
from eqfuse.runs.files import RunFolder, read_file, read_json, write_table, write_whole
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


def test_a_pipe_or_a_device_is_not_replaced_by_a_file(tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")
    with pytest.raises(OSError, match=r"it is a pipe or a device, and not a file: '.*pipe'"):
        write_whole(pipe, "text")
    assert pipe.is_fifo()


def test_a_link_is_not_written_to(tmp_path, capsys):
    other = tmp_path / "other.txt"
    other.write_text("of somebody else")
    (run := tmp_path / "run").mkdir()
    (run / "log.txt").symlink_to(other)
    with Log() as log:
        log.begin(run, new=False)
    assert (run / "log.txt").read_text().startswith("time ")
    (run / "metrics.csv").symlink_to(other)
    with pytest.raises(ConfigError, match=r"run/metrics\.csv is a link, which is not written to"):
        RunFolder(run, None)
    assert other.read_text() == "of somebody else"


CELL = ase.build.bulk("Cu", cubic=True) * (3, 3, 3)
LABELLED = Structure(CELL.numbers, CELL.positions, CELL.cell.array, True, 0.0, 0 * CELL.positions)
WRITERS = {
    "text": lambda path: write_whole(path, "a" * 9000),
    "table": lambda path: write_table(path, [{"number": k} for k in range(9000)]),
    "frames": lambda path: write_atoms(path, [CELL], "extxyz"),
    "replay": lambda path: write_frames(path, [LABELLED]),
    "picture": lambda path: plots._save(matplotlib.figure.Figure(), path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_names_the_file_and_leaves_no_part(name, tmp_path):
    path = tmp_path / "file.out"
    with small_disk(1000), pytest.raises(OSError, match=str(path)):
        WRITERS[name](path)
    assert not list(tmp_path.iterdir())
    WRITERS[name](path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.out"]


def test_texts_of_a_table_are_no_commands(tmp_path):
    rows = [{"a": "=cmd|' /C calc'!A0", "b": "x\x1b[2Jy", "c": -1.5}, {"a": "-2.5", "b": "@a"}]
    write_table(tmp_path / "a.csv", rows)
    lines = (tmp_path / "a.csv").read_text().splitlines()
    assert lines == ["a,b,c", "'=cmd|' /C calc'!A0,x\\x1b[2Jy,-1.5", "-2.5,'@a,"]


def test_page_folds_long_cells():
    references = ", ".join(f"E{k} -1.0000" for k in range(89))
    table = page.table([("references", references), ("species", "H O")])
    fold = f"<td><details><summary>{references[:60]} ...</summary>{references}</details></td>"
    assert fold in table
    assert table.count("<details>") == 1
    assert "<td>H O</td>" in table


@pytest.mark.parametrize(
    "name", ["metrics.csv", ".lock", "log.txt", "checkpoints/last.safetensors"]
)
def test_a_pipe_in_a_folder_is_refused_and_not_waited_for(name, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    os.mkfifo(tmp_path / name)
    with pytest.raises(OSError, match="pipe or a device"):
        RunFolder(tmp_path, None)
    with pytest.raises(CheckpointError, match="pipe or a device"):
        read_file(tmp_path / name)
    with pytest.raises(OSError, match="pipe or a device"):
        read_json(tmp_path / name)


@pytest.mark.parametrize("text", ["[1, 2", "[1, 2]", "[" * 10**5, "{}", '{"format": [4]}'])
def test_signed_metadata_that_are_none_are_refused(text, tmp_path):
    path, digest = tmp_path / "a.safetensors", hashlib.sha256(text.encode())
    path.write_bytes(save({"x": np.ones(1)}, {"eqfuse": text, "sha256": digest.hexdigest()}))
    with pytest.raises(CheckpointError, match=r"a\.safetensors (is damaged|has format)"):
        read_file(path)


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
