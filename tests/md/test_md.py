import os
import shutil
import signal

import ase.build
import ase.io
import jax
import numpy as np
import pytest
from ase import units
from ase.constraints import FixAtoms
from ase.md.verlet import VelocityVerlet

import eqfuse
from eqfuse import md
from eqfuse.data import DataError, padding
from eqfuse.inference import Sizes
from eqfuse.md import simulation
from eqfuse.md.simulation import read_checkpoint
from eqfuse.md.steps import Room, Stepper
from eqfuse.md.structures import Member
from eqfuse.runs.errors import CheckpointError, ConfigError, Interrupted, TrainingFailed
from eqfuse.runs.files import locked
from tests.md.conftest import BAD, table
from tests.small_runs import copper_cell


@pytest.fixture
def crystal():
    return copper_cell()


@pytest.fixture
def molecule():
    atoms = ase.Atoms("Cu4", ase.build.bulk("Cu", cubic=True).positions)
    atoms.rattle(0.1, seed=1)
    return atoms


@pytest.fixture
def steppers(monkeypatch):
    """Return what takes the steps of the simulations, as they are begun."""
    made, begin = [], Stepper.__init__

    def noted(self, *args):
        made.append(self)
        begin(self, *args)

    monkeypatch.setattr(Stepper, "__init__", noted)
    return made


@pytest.mark.parametrize(("kind", "small"), [("crystal", True), ("molecule", False)])
def test_every_step_is_that_of_ase(kind, small, run, tmp_path, request, steppers, monkeypatch):
    """Hot steps with a thin skin, so that many lists are made; also in too small arrays."""
    if small:
        begin = Stepper.begin

        def shrunk(self, *args):
            begin(self, *args)
            grid = self.room.grid._replace(occupancy=1)
            sizes = Sizes(pairs=self.room.sizes.pairs // 2, edges=self.room.sizes.edges // 2)
            self._use(Room(grid, sizes))

        monkeypatch.setattr(Stepper, "begin", shrunk)
    atoms = request.getfixturevalue(kind)
    atoms.set_velocities(np.random.default_rng(0).normal(scale=0.02, size=(4, 3)))
    reference, frames, add = atoms.copy(), {}, Member.add_frame
    reference.calc = eqfuse.Calculator(run, skin=0.0)
    verlet = VelocityVerlet(reference, 2.0 * units.fs)

    def kept(self, state):
        frames[int(state.step)] = self.frame(state).copy()
        add(self, state)

    monkeypatch.setattr(Member, "add_frame", kept)
    settings = {"steps": 100, "timestep": 2.0, "skin": 0.1, "save_every": 10, "log_every": 1}
    md.run(run, atoms, run=str(tmp_path / "md"), **settings)
    assert steppers[0].num_lists > 5
    assert (steppers[0].num_programs > 2) == small
    rows = table(tmp_path / "md")
    assert rows["step"].tolist() == list(range(101))
    for step in range(101):
        assert rows["total_ev"][step] == pytest.approx(reference.get_total_energy(), abs=1e-9)
        if step % 10 == 0:
            for name in ("positions", "velocities"):
                found, expected = (getattr(a, f"get_{name}")() for a in (frames[step], reference))
                np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
        verlet.run(1)
    assert np.abs(frames[100].positions - atoms.positions).max() > 0.2


@pytest.mark.parametrize(
    ("ensemble", "copies"),
    [
        ("npt", 1),
        pytest.param("langevin", 2, marks=pytest.mark.slow),
        pytest.param("nose-hoover", 1, marks=pytest.mark.slow),
    ],
)
def test_a_resumed_run_has_the_same_numbers(ensemble, copies, run, crystal, tmp_path, command):
    """Resume one structure, or a batch of two sizes, each with a folder of its own."""
    start = [crystal, crystal.repeat((2, 1, 1))][:copies]
    name = "trajectory.xyz" if copies > 1 else "trajectory.xyz.gz"
    settings = {"ensemble": ensemble, "skin": 0.1, "temperature": 600, "save_every": 7}
    settings |= {"trajectory": name.removeprefix("trajectory.")}
    md.run(run, start, steps=60, run=str(tmp_path / "whole"), **settings)
    md.run(run, start, steps=33, run=str(tmp_path / "parts"), **settings)
    places = ["."] if copies == 1 else ["0", "1"]
    with open(tmp_path / "parts" / places[-1] / name, "a") as file:
        file.write("a line after the checkpoint\n")
    shutil.move(tmp_path / "parts", tmp_path / "moved")
    command("md", f"resume={tmp_path / 'moved'}", "steps=60")
    whole, parts = (read_checkpoint(tmp_path / name)[0] for name in ("whole", "moved"))
    assert whole.keys() == parts.keys()
    for key in whole.keys() - {"distances"}:  # the moved one has a frame more
        np.testing.assert_array_equal(whole[key], parts[key], err_msg=key)
    for k, place in enumerate(places):
        before, after = (table(tmp_path / folder / place) for folder in ("whole", "moved"))
        kept = np.isin(after["step"], before["step"])
        np.testing.assert_array_equal(after["total_ev"][kept], before["total_ev"])
        frames = ase.io.read(tmp_path / "moved" / place / name, ":")
        steps = [0, 7, 14, 21, 28, 33, 35, 42, 49, 56, 60]
        assert [frame.info["step"] for frame in frames] == steps
        expected = whole["state.velocities"][k][: len(start[k])]
        np.testing.assert_allclose(frames[-1].get_velocities(), expected, rtol=0, atol=1e-7)


def test_a_resumed_run_has_the_sizes_of_the_arrays(run, crystal, tmp_path, steppers, monkeypatch):
    """They are larger here than a new simulation would choose."""
    chosen, folder = ("grid", "pairs", "edges"), tmp_path / "md"
    with monkeypatch.context() as patch:
        patch.setattr(padding, "room_for_edges", lambda count: count + 96)
        patch.setattr(padding, "room_for_pairs", lambda count: count + 160)
        patch.setattr(padding, "room_in_boxes", lambda most, atoms: most + 3)
        md.run(run, crystal, steps=5, save_every=5, run=str(folder))
    before = read_checkpoint(folder)[1]
    md.resume(folder, 10)
    after = read_checkpoint(folder)[1]
    assert after["step"] == 10
    assert [after[name] for name in chosen] == [before[name] for name in chosen]
    fresh, resumed = steppers
    assert resumed.room == fresh.room
    assert resumed.num_programs == 1
    other = simulation._Simulation(run, [crystal], simulation.Settings())._stepper
    with jax.enable_x64(True):
        other.begin([crystal.positions], [crystal.cell.array])
    assert other.room.grid != fresh.room.grid
    assert other.room.sizes.pairs < fresh.room.sizes.pairs
    assert other.room.sizes.edges < fresh.room.sizes.edges


def test_simulations_of_other_numbers_share_their_program(run, crystal, tmp_path, steppers):
    """Which takes the numbers of each: the second one is stopped by its limit."""
    md.run(run, crystal, steps=1, temperature=10.0, run=str(tmp_path / "cold"))
    with pytest.raises(DataError, match="is above max_force=1e-09"):
        md.run(run, crystal, steps=1, max_force=1e-9, run=str(tmp_path / "stopped"))
    first, second = steppers
    assert first._advance is second._advance
    assert len(first._advance) == 1


def test_a_signal_leaves_what_can_be_resumed(run, crystal, tmp_path, monkeypatch, command):
    record, read = simulation._Simulation._record, simulation.read_checkpoint

    def interrupted(self, rows, first, count):
        record(self, rows, first, count)
        if first + count > 20:
            os.kill(os.getpid(), signal.SIGTERM)

    def of_another_network(folder):
        arrays, metadata = read(folder)
        return arrays, metadata | {"digest": "0"}

    settings = {"steps": 50, "save_every": 10}
    md.run(run, crystal, run=str(tmp_path / "whole"), **settings)
    with monkeypatch.context() as patch:
        patch.setattr(simulation._Simulation, "_record", interrupted)
        with pytest.raises(Interrupted, match="stopped at step 20"):
            md.run(run, crystal, run=str(tmp_path / "parts"), **settings)
    md.resume(tmp_path / "parts")
    for name in ("trajectory.xyz", "thermo.csv"):
        assert (tmp_path / "whole" / name).read_text() == (tmp_path / "parts" / name).read_text()
    error = command("md", f"resume={tmp_path / 'parts'}", "steps=10", code=2).err
    assert "already at step 50" in error
    monkeypatch.setattr(simulation, "read_checkpoint", of_another_network)
    with pytest.raises(CheckpointError, match="holds another network"):
        md.resume(tmp_path / "parts", 60)


def test_a_stopped_simulation_is_resumed_on_its_grid(run, crystal, tmp_path, monkeypatch):
    """The last good frame, which a stop adds off the grid, is not in the resumed trajectory."""
    record, settings = simulation._Simulation._record, {"steps": 30, "save_every": 8}

    def stopped(self, rows, first, count):
        record(self, rows, first, count)
        if self._step % 8:
            self._stop("by a test")

    md.run(run, crystal, run=str(tmp_path / "whole"), **settings)
    with monkeypatch.context() as patch:
        patch.setattr(simulation._Simulation, "_record", stopped)
        with pytest.raises(TrainingFailed, match="by a test"):
            md.run(run, crystal, run=str(tmp_path / "parts"), **settings)
    whole, parts = (tmp_path / name / "trajectory.xyz" for name in ("whole", "parts"))
    assert len(ase.io.read(parts, ":")) == len(ase.io.read(whole, ":")) + 1
    md.resume(tmp_path / "parts", 32)
    md.resume(tmp_path / "whole", 32)
    assert parts.read_text() == whole.read_text()


@pytest.mark.slow
def test_energy_is_conserved_and_float32_follows(run, crystal, tmp_path):
    """The drift in 400 steps of 1 fs is a small part of what kinetic energy moves."""
    for dtype in ("float64", "float32"):
        folder = tmp_path / dtype
        atoms = crystal * (2, 1, 1)
        md.run(run, atoms, steps=400, timestep=1.0, dtype=dtype, run=str(folder))
        rows = table(folder)
        assert np.ptp(rows["kinetic_ev"]) > 1e-2
        assert np.ptp(rows["total_ev"]) / 8 < 1e-6


@pytest.mark.parametrize(
    ("limits", "error", "message"),
    [
        ({"max_temperature": 1.0}, DataError, "no step can be taken"),
        ({"timestep": 1000.0, "max_force": 10.0}, TrainingFailed, "above max_|not finite"),
    ],
)
def test_a_limit_stops(run, crystal, tmp_path, limits, error, message):
    with pytest.raises(error, match=message):
        md.run(run, crystal, run=str(tmp_path / "md"), **limits)
    assert (tmp_path / "md").exists() == (error is TrainingFailed)


@pytest.mark.slow
def test_pressure_is_reached_at_constant_pressure(trained, crystal, tmp_path):
    """Its mean over 16 ps, of a network that was trained until it resists compression."""
    settings = {"temperature": 300.0, "timestep": 2.0, "friction": 20.0, "save_every": 500}
    atoms = crystal * (2, 1, 1)
    means = []
    for pressure in (0.0, 5.0):
        folder = tmp_path / str(pressure)
        own = {"pressure": pressure, "pressure_time": 100.0, "compressibility": 0.02}
        md.run(trained, atoms, ensemble="npt", steps=8000, run=str(folder), **settings, **own)
        rows = table(folder)
        assert np.isnan(rows["conserved_ev"]).all()
        means.append((rows["pressure_gpa"][100:].mean(), rows["volume_a3"][100:].mean()))
        last = ase.io.read(folder / "trajectory.xyz")
        assert last.get_volume() == pytest.approx(rows["volume_a3"][-1], rel=1e-6)
    (free, large), (pressed, small) = means
    assert free == pytest.approx(0.0, abs=0.5)
    assert pressed == pytest.approx(5.0, abs=0.5)
    assert small < large


def test_the_picture_has_the_radial_distribution(run, tmp_path, pictures):
    """The perfect crystal has 12 neighbours in the first shell, and none nearer."""
    atoms = ase.build.bulk("Cu", cubic=True)
    md.run(run, atoms, temperature=0, steps=1, run=str(tmp_path / "md"))
    assert (tmp_path / "md" / "thermo.png").stat().st_size > 10_000
    radius, g = np.loadtxt(tmp_path / "md" / "distances.csv", delimiter=",", skiprows=1).T
    shells = 4 / 3 * np.pi * ((radius + 0.025) ** 3 - (radius - 0.025) ** 3)
    neighbours = np.cumsum(g * shells) * len(atoms) / atoms.get_volume()
    assert neighbours[radius < 2.5][-1] == 0
    assert neighbours[radius < 3.0][-1] == pytest.approx(12, rel=1e-3)
    assert neighbours[radius < 4.0][-1] == pytest.approx(18, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *BAD,
        (lambda a: a.set_constraint(FixAtoms([0])), "constraints"),
        (lambda a: a.set_pbc((True, True, False)), "npt needs a cell"),
    ],
)
def test_bad_structures_are_refused_before_anything_is_written(
    run, crystal, tmp_path, change, message
):
    change(crystal)
    with pytest.raises(DataError, match=message):
        md.run(run, crystal, run=str(tmp_path / "md"), ensemble="npt")
    assert not (tmp_path / "md").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing", "nowhere", "temprature=300"], "nearest: temperature"),
        (["nothing", "nowhere", "ensemble=npe"], "ensemble=npe is unknown"),
        (["nothing", "nowhere", "ensemble=nvt"], "must be langevin (with friction and noise) or"),
        (["nothing", "nowhere", "--ensemble", "nvt-x"], "must be langevin (with friction and"),
        (["nothing", "nowhere", "ensemble=npt", "temperature=0"], "above zero"),
        (["nothing", "nowhere", "equilibrate=5", "temperature=0"], "above zero"),
        (["nothing"], "are needed"),
    ],
)
def test_settings_are_checked(arguments, message, command):
    assert message in command("md", *arguments, code=2).err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ensemble": "nvt"}, "ensemble=nvt is unknown; nearest: nve, npt"),
        ({"ensemble": 5}, "ensemble=5 is unknown"),
        ({"trajectory": "gz"}, "trajectory=gz is unknown"),
        ({"steps": 5.5}, "steps=5.5 is impossible: it must be a whole number"),
    ],
)
def test_settings_from_python_are_checked(given, message):
    assert md.Settings(steps=20.0, trajectory="xyz.gz").steps == 20
    with pytest.raises(ConfigError, match=message):
        md.Settings(**given)


def test_a_text_is_no_number():
    with pytest.raises(ConfigError, match="steps='4' is impossible: it must be finite and greater"):
        md.Settings(steps="4")


def test_files_that_are_or_are_not_there_are_refused(run, crystal, tmp_path, command):
    command("md", run, tmp_path / "no.xyz", code=2)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "settings.txt").touch()
    with pytest.raises(ConfigError, match=r"by resume=.*full, or name another folder"):
        md.run(run, crystal, run=str(tmp_path / "full"), steps=1)


def test_a_simulation_may_be_in_the_home_of_one_process(run, crystal, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    md.run(run, crystal, run="~/here", steps=1)
    assert md.resume("~/here", steps=2).info["step"] == 2
    with locked(tmp_path / "here"), pytest.raises(ConfigError, match="another process simulates"):
        md.resume("~/here", steps=3)
    assert (tmp_path / "here").is_dir()
    assert not (tmp_path / "~").exists()


def test_md_prints_its_folder_and_speed(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(simulation, "_SECONDS_BETWEEN_LINES", 0)
    given = {"ensemble": "npt", "steps": 30, "save_every": 10, "run": str(tmp_path / "npt")}
    md.run(run, ase.build.bulk("Cu", cubic=True), **given)
    first, *lines, last = capsys.readouterr().out.splitlines()
    assert first == f"trajectory, thermo.csv and checkpoint are written to {tmp_path / 'npt'}"
    written = (tmp_path / "npt" / "settings.txt").read_text().splitlines()
    assert {"ensemble=npt", "types=null", "steps=30"} <= {*written}
    assert last == f"done; trajectory, thermo.csv and thermo.png are in {tmp_path / 'npt'}"
    volume, pressure = (table(tmp_path / "npt")[n][-1] for n in ("volume_a3", "pressure_gpa"))
    assert f"V {volume:.2f} Å^3  p {pressure:.3g} GPa" in lines[-1]
    assert " steps/s" in lines[-1]
    assert all(line.endswith("s left") for line in lines[1:-1])


@pytest.mark.slow
def test_equilibration_begins_a_simulation_at_its_temperature(run, crystal, tmp_path, capsys):
    """Nothing of it is written; a resumed simulation does not do it again."""
    settings = {"temperature": 50, "timestep": 4.0, "steps": 10, "log_every": 1}
    settings |= {"replicas": 16, "seed": 3, "run": str(tmp_path / "md")}
    last = md.run(run, crystal, equilibrate=150, **settings)
    assert "equilibrate: 150 steps of langevin, with a friction of 10/ps" in capsys.readouterr().out
    folders = sorted(path for path in (tmp_path / "md").iterdir() if path.is_dir())
    rows = [table(folder) for folder in folders]
    assert [row["step"][0] for row in rows] == [0] * 16
    first = np.array([row["temperature_k"][0] for row in rows])
    # 9 degrees of freedom: of 16 of them, the mean has a deviation of 50 sqrt(2 / 9 / 16) K
    assert abs(first.mean() - 50) < 4 * 50 * np.sqrt(2 / 9 / 16)
    assert np.ptp(first) > 10  # drawn ones have 50 K
    for atoms in last:
        np.testing.assert_allclose(atoms.get_momenta().sum(axis=0), 0, atol=1e-10)
    assert np.ptp([atoms.positions[0] for atoms in last], axis=0).min() > 0.01
    md.resume(tmp_path / "md", steps=20)
    assert "equilibrate" not in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"go on with it by resume=.*, or name another folder"):
        md.run(run, crystal, equilibrate=150, **settings)


def test_equilibration_has_other_noise_than_the_steps_after_it(run, crystal, tmp_path):
    how = {"ensemble": "langevin", "friction": 20.0, "timestep": 4.0, "temperature": 300}
    how |= {"steps": 150, "save_every": 150, "run": str(tmp_path / "md")}
    last = md.run(run, crystal, equilibrate=150, **how)
    first = ase.io.read(tmp_path / "md" / "trajectory.xyz", 0)
    one, other = (atoms.get_velocities().ravel() for atoms in (first, last))
    assert one @ other < 0.8 * np.sqrt(one @ one * (other @ other))  # 1 of the same noise


@pytest.mark.parametrize("value", [np.int64(1), np.uint8(1), np.array(1), 1.0])
def test_numbers_of_numpy_are_settings(value, run, crystal, tmp_path):
    how = {"seed": value, "steps": value, "temperature": np.float32(300), "dispersion": False}
    md.run(run, crystal, run=str(tmp_path / "md"), **how)
    assert md.resume(tmp_path / "md", steps=2).info["step"] == 2


@pytest.mark.parametrize("rest", [True, False])
def test_a_start_in_a_minimum_says_what_becomes_of_the_temperature(
    run, tmp_path, capsys, monkeypatch, rest
):
    monkeypatch.setattr(simulation, "_AT_REST", 1e-6)  # the network of three epochs is flat
    atoms = copper_cell(scale=0.0 if rest else 0.1)
    md.run(run, atoms, steps=1, run=str(tmp_path / "nve"))
    assert ("temperature will be about 150 K" in capsys.readouterr().out) == rest


def test_one_atom_has_the_temperature_and_a_slab_its_stress(run, tmp_path):
    free = [ase.Atoms("Cu"), ase.Atoms("Cu2", [[0, 0, 0], [2.5, 0, 0]])]
    md.run(run, free, steps=1, run=str(tmp_path / "free"))
    one, pair = (table(tmp_path / "free" / k) for k in "01")
    md.run(run, ase.build.bulk("Cu"), steps=1, run=str(tmp_path / "one"))
    for row in (one, table(tmp_path / "one")):
        assert row["temperature_k"][0] == pytest.approx(300)
    assert np.isnan(pair["pressure_gpa"][0])
    slab = ase.build.fcc111("Cu", (1, 1, 3), vacuum=6.0)
    slab.rattle(0.05, seed=0)
    slab.cell[2, 2] = 16.0
    md.run(run, slab, steps=1, run=str(tmp_path / "slab"))
    row = {name: values[0] for name, values in table(tmp_path / "slab").items()}
    slab.calc = eqfuse.Calculator(run)
    kinetic = 2 * row["kinetic_ev"] / (3 * slab.get_volume())
    expected = kinetic - slab.get_stress(voigt=False).trace() / 3
    assert row["pressure_gpa"] * units.GPa == pytest.approx(expected, rel=1e-6)


def test_a_crystal_without_a_cell_is_said(run, tmp_path, capsys):
    crystal = ase.build.bulk("Cu", cubic=True).repeat(2)
    for atoms in (crystal, ase.Atoms(crystal.numbers, crystal.positions)):
        simulation._Simulation(run, [atoms], simulation.Settings(run=str(tmp_path / "run")))
    [warning] = capsys.readouterr().err.splitlines()
    assert warning.startswith("warning: atoms 0 is not periodic, and the network was trained on")
