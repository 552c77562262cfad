"""Several structures, and replicas, in one batch of dynamics."""

import ase.io
import numpy as np
import pytest

import eqfuse
from eqfuse import md
from eqfuse.data import DataError
from eqfuse.md.simulation import read_checkpoint
from eqfuse.runs.errors import ConfigError, TrainingFailed
from tests.md.conftest import table
from tests.small_runs import copper_cell


@pytest.fixture
def frames():
    """Return cells of four and eight atoms."""
    return [copper_cell((2, 1, 1)), copper_cell(seed=1)]


@pytest.mark.parametrize(
    "ensemble",
    ["npt", *(pytest.param(name, marks=pytest.mark.slow) for name in ("nve", "nose-hoover"))],
)
def test_structures_of_a_batch_move_as_alone(ensemble, run, frames, tmp_path):
    """Their own velocities, noise and cells; lists are made for all when one needs it."""
    source, whole = tmp_path / "start.xyz", tmp_path / "all"
    ase.io.write(source, frames)
    frames = ase.io.read(source, ":")  # as rounded in the file
    settings = {"ensemble": ensemble, "skin": 0.1, "temperature": 900.0, "steps": 20}
    settings |= {"save_every": 10, "compressibility": 1.0, "log_every": 10}
    ends = md.run(run, source, frames="all", replicas=2, run=str(whole), **settings)
    assert [len(atoms) for atoms in ends] == [8, 8, 4, 4]
    for k in [2] if ensemble == "npt" else range(4):
        folder = tmp_path / f"alone{k}"
        end = md.run(run, frames[k // 2], seed=k, run=str(folder), **settings)
        for name in ("positions", "cell", "potential_energy"):
            found, expected = (getattr(atoms, f"get_{name}")() for atoms in (ends[k], end))
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
        rows = table(whole / str(k))
        for name, values in table(folder).items():
            np.testing.assert_allclose(rows[name], values, rtol=1e-9, atol=1e-9, err_msg=name)
        moves = ase.io.read(whole / str(k) / "trajectory.xyz", ":")
        assert [frame.info["step"] for frame in moves] == [0, 10, 20]
        np.testing.assert_allclose(moves[-1].positions, end.positions, rtol=0, atol=1e-7)
    assert np.abs(ends[0].positions - ends[1].positions).max() > 0.05


def test_batch_refuses_structures_that_differ(run, frames, tmp_path):
    free, moving, apart = (frames[1].copy() for _ in range(3))
    free.pbc, free.cell = False, None
    moving.set_velocities(np.full((4, 3), 0.01))
    apart.positions[1] = apart.positions[0] + 0.1
    for start, changes, error, message in (
        ([frames[0], free], {}, DataError, "0 and 1 are not periodic in the same directions"),
        ([frames[0], apart], {}, DataError, "structure 1: atoms 0 and 1 overlap"),
        (moving, {"replicas": 2}, ConfigError, "replicas=2 would all be the same"),
        (frames[1], {"replicas": 2, "temperature": 0.0}, ConfigError, "give a temperature"),
    ):
        with pytest.raises(error, match=message):
            md.run(run, start, run=str(tmp_path / "md"), **changes)
        assert not (tmp_path / "md").exists()


def test_a_limit_names_the_structure_that_passed_it(run, frames, tmp_path):
    """All end with their last good frame."""
    for atoms in frames:
        atoms.set_velocities(np.full((len(atoms), 3), 1e-9))
    settings = {"ensemble": "langevin", "temperature": 5000.0, "max_temperature": 40.0}
    with pytest.raises(TrainingFailed, match=r"structure [01]: a temperature .* is above max_tem"):
        md.run(run, frames, run=str(tmp_path / "md"), **settings)
    step = read_checkpoint(tmp_path / "md")[1]["step"]
    for k in ("0", "1"):
        last = ase.io.read(tmp_path / "md" / k / "trajectory.xyz")
        assert last.info["step"] == step > 0
        assert last.get_temperature() < 40
        forces = eqfuse.Calculator(run).get_forces(last)
        np.testing.assert_allclose(last.get_forces(), forces, rtol=0, atol=1e-6)
