"""A run compiles as many programs as it says beforehand."""

import re

import ase.build
import ase.io
import jax
import numpy as np
import pytest

from eqfuse.train.main import main
from tests.small_runs import TINY, labelled

PROGRAMS = ("step", "errors", "init", "sequenced")
"""Programs of training, validation, parameters; the last predict, at either end of a run."""


@pytest.fixture
def mixed(tmp_path):
    """Molecules of several sizes, small and large cells, some with stress, in one file."""
    rng = np.random.default_rng(0)
    frames = []
    for k in range(24):
        if k % 3:
            atoms = ase.build.molecule(("H2O", "CH3OH", "C2H6")[k % 4 % 3])
        else:
            atoms = ase.build.bulk("Cu", cubic=True).repeat((1, 1, 1 + k % 2))
        atoms.positions += rng.normal(scale=0.03, size=atoms.positions.shape)
        stress = ("stress",) if k % 6 == 0 else ()
        frames.append(labelled(atoms, ("energy", "forces", *stress)))
    ase.io.write(tmp_path / "mixed.xyz", frames, format="extxyz")
    return tmp_path / "mixed.xyz"


@pytest.fixture
def compiled():
    """Names of the programs that XLA has compiled."""
    names, active = [], True

    def listen(event, duration, fun_name="", **_):
        if active and event == "/jax/core/compile/backend_compile_duration":
            names.append(re.sub(r"^jit\((.*)\)$", r"\1", fun_name))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    active = False  # there is no public way to take a listener away


@pytest.mark.slow
def test_as_many_programs_as_the_run_says(mixed, tmp_path, capsys, compiled):
    """Molecules and crystals of several sizes: several shapes, and stress where it is known."""
    settings = ["data=extxyz", f"data.path={mixed}", "data.batch_size=3", "data.val=4"]
    settings += ["training.stress_weight=1", "epochs=3"]
    first, second = tmp_path / "first", tmp_path / "second"
    start = [f"start_from={first}", "data.reference_energies=fit"]
    for more in (
        [*TINY, "cutoff=3", f"run={first}"],
        [*start[:1], f"run={second}"],
        [*start, f"run={tmp_path / 'third'}"],
    ):
        compiled.clear()
        assert main([*settings, *more]) == 0
        out = capsys.readouterr().out
        said = re.search(r"programs +(\d+) .* (\d+) for the .* (\d+) to train, (\d+) to", out)
        found = [compiled.count(name) for name in PROGRAMS]
        assert found[0] > 1, "the case is meant to have several shapes"
        total, first, training, validation = map(int, said.groups())
        assert [training, validation, total] == [*found[:2], sum(found)]
        last = int(re.search(r"(\d+) for the errors at the end", out)[1])
        assert first + last == found[2] + found[3]
        assert re.search(r"3 to 8 atoms", out)
