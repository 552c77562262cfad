"""A distillation that is killed, at any moment, ends with the numbers of one that was not."""

import signal
import subprocess
import time

import ase.build
import ase.io
import jax
import numpy as np
import pytest

from eqfuse.distill.rounds import KINDS
from eqfuse.runs import Frames, read_table
from eqfuse.runs.checkpoint import read_checkpoint
from tests.child import start_python
from tests.distill.conftest import TEACHER

TINY = """batch=16 new=4 atoms=4 trajectories=2 minutes=1e6 temperature=300..600 properties=none
picoseconds=0.1 training_steps=4 forces=1e-9 labels=56"""
STUDENT = "student=channels=2 layers=1 training.validate_every=2"


def begin(*arguments):
    return start_python("-m", "eqfuse", "distill", *arguments, stdout=subprocess.DEVNULL)


def labels_of(folder) -> dict[str, list]:
    """Return places, positions, energies and forces of frames, in their order of rounds."""

    def row(a):
        energy, forces = a.get_potential_energy(), a.get_forces()
        return a.info["place"], a.positions.tobytes(), energy, forces.tobytes()

    kept = {name: Frames(folder / "distill" / f"{name}.traj").frames for name in KINDS}
    return {name: sorted(map(row, frames)) for name, frames in kept.items()}


def rounds_of(folder) -> list[dict]:
    rows = read_table(folder / "distill" / "rounds.csv", [])
    return [{k: v for k, v in row.items() if "minutes" not in k} for row in rows]


@pytest.mark.slow
def test_ends_with_the_numbers_of_one_that_was_not(tmp_path):
    ase.io.write(tmp_path / "start.xyz", ase.build.bulk("Cu", cubic=True))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    given = TEACHER, tmp_path / "start.xyz", *TINY.split(), STUDENT
    began = time.monotonic()
    assert begin(*given, f"run={whole}").wait() == 0
    seconds = time.monotonic() - began
    rng = np.random.default_rng(time.time_ns())  # other moments in every run of the test
    process, kills = begin(*given, f"run={killed}"), 0
    for _ in range(4):
        while process.poll() is None and not (killed / "distill" / "settings.json").exists():
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, seconds))
        kills += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        process = begin(f"resume={killed}", TEACHER)
    assert process.wait() == 0
    assert kills
    assert labels_of(whole)["labels"]
    assert labels_of(killed) == labels_of(whole)
    assert rounds_of(killed) == rounds_of(whole)
    parameters = [read_checkpoint(folder, ("best",))[0] for folder in (whole, killed)]
    jax.tree.map(np.testing.assert_array_equal, *parameters)
