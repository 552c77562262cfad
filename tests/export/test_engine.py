"""`engine.py` of an exported folder: what it refuses, and why."""

import platform

import numpy as np
import pytest

from eqfuse.export import engine
from eqfuse.export.folder import with_checksum


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("format 3", "format 4", "made by a later version of eqfuse .format 4, and this engine.py"),
        ("for openmm", "for pjrt", "is for pjrt; write one with eqfuse export for=openmm"),
        ("processor ", "processor not-", "are for a processor not-.*export the network on such"),
        ("kernel", "kernel", "k.so cannot be read; is the folder whole"),
        ("library k.so", "", "5 atoms and 0 edges, and the largest program holds 4 and 8"),
    ],
)
def test_engine_py_says_what_it_cannot_run(tmp_path, old, new, expected):
    manifest = "format 3\nfor openmm\ncutoff 4.0\ndtype float64\nelement Al 13 -1.0\n"
    manifest += f"program 4 0 8 p\nprocessor {platform.machine()}\nlibrary k.so\nkernel k"
    assert old in manifest
    lines = [line for line in manifest.replace(old, new).split("\n") if line]
    manifest = with_checksum("\n".join([*lines, ""]))
    (tmp_path / "manifest.txt").write_text(manifest)
    with pytest.raises(ValueError, match=expected):
        engine.Engine(tmp_path).compute([13] * 5, 10.0 * np.arange(15).reshape(5, 3))


def test_engine_py_checks_its_arguments_and_takes_pbc_of_ints(tmp_path):
    manifest = (
        "format 3\nfor openmm\ncutoff 4.0\ndtype float64\nelement Al 13 -1.0\nprogram 1 0 1 p\n"
    )
    (tmp_path / "manifest.txt").write_text(with_checksum(manifest))
    one, cell = engine.Engine(tmp_path), np.diag([3.0, 0.0, 3.5])
    for numbers, positions, more, expected in (
        ([13] * 2, np.zeros((3, 3)), (), r"2 numbers need positions \[2, 3\], got \(3, 3\)"),
        ([13], [[0, 0, 0]], (None, True), "a vector .3. is needed for each periodic direction"),
        ([13], [[0, 0, 0]], (cell, (1, 1, 0)), "a vector .3. is needed for each periodic"),
        ([13], [[0, 0, 0]], (np.eye(2), True), "a vector .3. is needed for each periodic"),
        ([13], [[0, np.nan, 0]], (), "not finite"),
        # two neighbours at 3 Å and two at 3.5 Å; those at sqrt(3^2 + 3.5^2) = 4.6 Å are too far
        ([13], [[0, 0, 0]], (cell, (1, 0, 1)), "1 atoms and 4 edges"),
    ):
        with pytest.raises(ValueError, match=expected):
            one.compute(numbers, positions, *more)
