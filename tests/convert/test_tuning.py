"""Runs that start from a converted network, and do not forget: replay, elastic weights."""

import dataclasses
import shutil
from types import SimpleNamespace

import ase
import ase.build
import ase.io
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase.calculators.singlepoint import SinglePointCalculator

import eqfuse
from eqfuse.data import DataError, read_structures
from eqfuse.inference.network import Network
from eqfuse.runs.checkpoint import read_checkpoint
from eqfuse.runs.errors import CheckpointError
from eqfuse.runs.files import encode, read_file, require_free
from eqfuse.train.arguments import TUNING_LR, parse
from eqfuse.train.flat import Flat
from eqfuse.train.metrics import Loss
from eqfuse.train.replay import farthest, structures_of, write_frames
from eqfuse.train.start import Start, _fingerprint
from eqfuse.train.tuning import FILE, Tuning, held
from tests.small_runs import rows_of

pytestmark = pytest.mark.usefixtures("x64")


@pytest.fixture(scope="module")
def past(run, water):
    """Return the tuning of a network of H, C and O on H and O, and its own energies."""
    with jax.enable_x64(True):
        given = [f"start_from={run('density')}", f"data={water}", "dtype=float64"]
        start = Start.of(parse([*given, "replay=auto", "replay_frames=6", "replay_weight=0.5"]))
        fields = start.metadata["model_fields"] | {"radial": "network"}  # no tables
        start = dataclasses.replace(start, metadata=start.metadata | {"model_fields": fields})
        own = start.references(None)
        yield Tuning(start.config, [start], frozenset({1, 8}), False), own


@pytest.fixture
def usual(run, water):
    """Return settings of trainings, of which the first is the start."""
    start = f"start_from={run('density')}"
    return [start, f"data={water}", "data.val=2", "data.reference_energies=fit"]


def radial_kernel(params):
    return params["params"]["model"]["radial"]["layer_0"]["Dense_0"]["kernel"]


def predicted(run, structures):
    """Return what the network predicts, in one batch."""
    return eqfuse.predict(Network(run, dtype="float64", radial="network"), structures)


def test_structures_have_the_elements_and_are_not_crushed():
    made = structures_of((6, 14, 29), {29}, 40, seed=3)
    assert {z for atoms in made for z in atoms.numbers} == {6, 14, 29}
    assert sum(29 in atoms.numbers for atoms in made) >= 20
    for s in made:
        atoms = ase.Atoms(s.numbers, s.positions, cell=s.cell, pbc=s.pbc)
        cells = atoms.get_all_distances(mic=True) + 9 * np.eye(len(atoms))
        assert cells.min() > 0.8
    again = structures_of((6, 14, 29), {29}, 40, seed=3)
    assert all((a.positions == b.positions).all() for a, b in zip(made, again, strict=True))
    light = structures_of((1, 6, 8), {1, 8}, 128, seed=1)  # of which one has atoms at 0.17 Å
    assert 120 <= len(light) < 128
    organic = structures_of((1, 6, 8), {1}, 40, seed=0)
    assert sum(not atoms.pbc.any() for atoms in organic) == 20


def test_the_farthest_are_chosen():
    rows = np.array([[0.0], [0.1], [10.0], [9.9], [5.0]])
    assert farthest(rows, 3) == [0, 2, 4]
    assert sorted(farthest(rows, 9)) == [0, 1, 2, 3, 4]


def test_the_network_labels_what_is_made(past, run):
    """Labels count from the network's own reference energies, whatever those of the data are."""
    network, own = past
    frames = network.frames
    assert len(frames) == 6
    found = predicted(run("density"), frames)
    for s, sample, one in zip(frames, network.remembered(), found, strict=True):
        assert s.energy == pytest.approx(one.energy, abs=1e-9)
        np.testing.assert_allclose(s.forces, one.forces, rtol=0, atol=1e-9)
        relative = one.energy - sum(own[z] for z in s.numbers)
        assert sample.energy == pytest.approx(relative, abs=1e-9)
        assert {*sample.weights} == {0.5}


def test_a_file_is_read_with_its_labels_or_labelled(past, run, tmp_path):
    network, _ = past
    methane, gold = ase.build.molecule("CH4"), ase.Atoms("Au2", [[0, 0, 0], [0, 0, 3]])
    path = tmp_path / "past.xyz"
    given = methane.copy()
    given.calc = SinglePointCalculator(given, energy=-7.0, forces=np.ones((5, 3)))
    ase.io.write(path, [gold, given, methane])
    kept, made = network.made(str(path))
    assert kept.energy == pytest.approx(-7.0)
    np.testing.assert_array_equal(kept.forces, 1.0)
    [expected] = predicted(run("density"), methane)
    assert made.energy == pytest.approx(expected.energy)
    ase.io.write(path, gold)
    with pytest.raises(DataError, match="no frame has only elements of the network"):
        network.made(str(path))


@pytest.mark.parametrize(("key", "is_read"), [("REF", True), ("usual", True), ("other", False)])
def test_a_replayed_file_has_the_names_of_the_data_or_the_usual_ones(
    past, tmp_path, capsys, key, is_read
):
    network, _ = past
    own = {"energy_key": "REF_energy", "forces_key": "REF_forces"}
    data = dataclasses.replace(network.config.data, **own)
    network = dataclasses.replace(network, config=dataclasses.replace(network.config, data=data))
    atoms, name = ase.build.molecule("CH4"), "" if key == "usual" else f"{key}_"
    atoms.info[f"{name}energy"], atoms.arrays[f"{name}forces"] = -7.0, np.ones((5, 3))
    ase.io.write(path := tmp_path / "past.xyz", atoms)
    [made] = network.made(str(path))
    assert (made.energy == -7.0) == is_read
    said = capsys.readouterr().err
    assert ("other_energy, other_forces is not read" in said) == (not is_read)


def test_a_resumed_run_has_the_replayed_frames_with_weights_and_hessians(past, tmp_path):
    network, _ = past
    atoms = ase.build.molecule("CH4")
    atoms.calc = SinglePointCalculator(atoms, energy=-7.0, forces=np.ones((5, 3)) / 3)
    atoms.arrays |= {"forces_weight": np.array([1.0, 2, 0, 1, 1]), "hessian": np.eye(15) / 7}
    atoms.arrays["hessian"] = atoms.arrays["hessian"].reshape(5, 45)
    atoms.arrays["hessian"][1] = np.nan
    ase.io.write(path := tmp_path / "past.xyz", atoms)
    config = dataclasses.replace(network.config, replay=str(path), resume=str(tmp_path))
    began, resumed = (Tuning(config, network.starts, network.data, went) for went in (False, True))
    began.keep(SimpleNamespace(path=tmp_path))
    assert resumed.remembered()[0].hessian is not None
    assert _fingerprint(began.remembered()) == _fingerprint(resumed.remembered())


@pytest.mark.slow
def test_moved_is_the_change_of_the_network(past):
    """A shift of 0.1 eV for each atom moves energies by 100 meV/atom, and no force."""
    network, _ = past
    before = network.past.initial_params()
    params = before["params"]
    shifted = {"params": params | {"shift": params["shift"] + 0.1}}
    rows = {row["group"]: row for row in network.moved(before, shifted)}
    kinds = {"crystals with elements of the data", "molecules"}
    assert rows.keys() >= {"all", "element C", *(f"config_type {kind}" for kind in kinds)}
    for group, row in rows.items():
        energy, forces = row["energy_mae_mev_per_atom"], row["forces_mae_mev_per_a"]
        of_element = group.startswith("element")
        assert energy is None if of_element else energy == pytest.approx(100, rel=1e-6)
        assert forces == pytest.approx(0, abs=1e-9)


def test_stiffness_is_of_the_square_of_what_the_past_depends_on(past, water):
    """Stiffnesses of two parameters, for the energy of a frame, are as its slopes squared."""
    network, _ = past
    before = network.past.initial_params()
    layout = Flat.of(before)
    [frame] = network.labelled(read_structures(water)[:1], before)
    loss = Loss(energy=1.0, forces=0.0, stress=0.0, force_scale=1.0)
    found = network.stiffness([frame], layout, loss)
    params = layout.flatten(before)
    first, second = np.argsort(found)[[-1, -20]]

    def slope(number, step=1e-5):
        ends = [
            network.labelled([frame], layout.unflatten(params.at[number].add(move)))[0].energy
            for move in (step, -step)
        ]
        return (ends[0] - ends[1]) / (2 * step)

    # differences of second order: relative errors of about 1e-8
    expected = (slope(first) / slope(second)) ** 2
    assert found[first] / found[second] == pytest.approx(expected, rel=1e-5)
    twice = network.stiffness([frame], layout, dataclasses.replace(loss, force_scale=0.5))
    np.testing.assert_allclose(twice, 4 * found, rtol=1e-12)


def test_parameters_are_held_where_they_were():
    """The gradient is that of the penalty, also after steps, and in the state that is kept."""
    before, stiff, weight = jnp.array([1.0, 2.0, 3.0]), jnp.array([0.5, 0.0, 2.0]), 30.0
    transformation = held(weight, stiff)
    state, now = transformation.init(before), jnp.array([1.5, 7.0, 2.0])
    penalty = jax.grad(lambda p: weight * (stiff * (p - before) ** 2).sum())
    found, state = transformation.update(jnp.ones(3), state, now)
    np.testing.assert_allclose(found, 1 + penalty(now), rtol=1e-12)
    other = held(weight, jnp.zeros(3))  # a resumed run, which has the state of before
    again, _ = other.update(jnp.ones(3), state, now)
    np.testing.assert_array_equal(found, again)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["replay=auto", "replay=auto elastic=30"])
def test_a_run_is_resumed_exactly(run, usual, tmp_path, command, way):
    """What the start was is needed again: replayed, and parameters held there."""
    given = [*usual, *way.split(), "replay_frames=4", "lr=0.01", "data.batch_size=2"]
    given += ["training.second_stage=null", "training.schedule=constant"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    out = command("train", *given, "steps=6", f"run={whole}").out
    assert "replay     4 frames of weight 1, made for its elements and labelled by it" in out
    assert "moved elsewhere" in out
    assert (whole / "moved.csv").read_text(encoding="utf-8").startswith("set,group,frames")
    command("train", *given, "steps=3", f"run={parts}")
    command("train", f"resume={parts}", "steps=6")
    (ours, _, _), (theirs, _, _) = (read_checkpoint(f, ("last",)) for f in (parts, whole))
    before, _, _ = read_checkpoint(run("density"), ("best",))
    assert abs(radial_kernel(ours) - radial_kernel(before)).max() > 1e-4
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.mark.slow
def test_a_run_is_resumed_with_the_network_and_frames_that_it_began_with(
    run, usual, tmp_path, command
):
    """Other ones are refused; and one that ended before its first checkpoint begins again."""
    base, folder = shutil.copytree(run("density"), tmp_path / "base"), tmp_path / "run"
    given = f"start_from={base}", "steps=2", "elements=data", f"run={folder}"
    command("train", *usual[1:], *given, "replay=auto", "replay_frames=2", "elastic=30")
    frames = read_structures(folder / FILE)
    before, metadata, _ = read_checkpoint(folder, ("last",))
    write_frames(folder / FILE, frames[:1])
    error = command("train", f"resume={folder}", "steps=3", code=2).err
    assert "replay.traj is not as it was when the run" in error
    write_frames(folder / FILE, frames)
    best = base / "checkpoints" / "best.safetensors"
    arrays, of_base = read_file(best)
    content = best.read_bytes()
    best.write_bytes(encode({name: 1.01 * array for name, array in arrays.items()}, of_base))
    error = command("train", f"resume={folder}", "steps=3", code=2).err
    assert f"{base} is another one than the run in {folder}" in error
    best.write_bytes(content)
    for entry in folder.iterdir():
        if entry.name not in ("config.yaml", "log.txt", ".lock"):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    (folder / f"{FILE}.part").write_bytes(b"a part")
    require_free(folder)  # run= is taken again, too
    assert "from the beginning" in command("train", f"resume={folder}").out
    after, of_again, _ = read_checkpoint(folder, ("last",))
    jax.tree.map(np.testing.assert_array_equal, before, after)
    assert of_again["started_from"] == metadata["started_from"]
    assert [s.energy for s in read_structures(folder / FILE)] == [s.energy for s in frames]


@pytest.mark.slow
def test_elastic_weights_are_the_default_where_the_network_knows_more(usual, tmp_path, command):
    given = [*usual, "steps=2", "lr=0.01", "training.second_stage=null", "replay_frames=2"]
    found = []
    for way in ([], ["elastic=0"], ["elements=data"]):
        folder = tmp_path / str(way)
        out = command("train", *given, *way, f"run={folder}").out
        assert ("elastic    weight 30" in out) == (way == [])
        found.append(jax.tree.leaves(read_checkpoint(folder, ("last",))[0]))
    held, free, _ = found
    assert not all(np.array_equal(a, b) for a, b in zip(held, free, strict=True))


@pytest.mark.parametrize("needs", [{}, {"replay": "auto"}])
def test_a_resumed_run_whose_start_is_gone_warns_unless_it_needs_it(
    run, water, tmp_path, capsys, needs
):
    config = parse([f"start_from={run('density')}", f"data={water}"])
    gone = dataclasses.replace(config, start_from=str(tmp_path / "gone"), **needs)
    start = dataclasses.replace(Start.of(config), resumed=True, config=gone)
    if needs:
        with pytest.raises(CheckpointError, match="gone has no checkpoint"):
            Tuning.of(gone, None, [start])
        return
    assert Tuning.of(gone, None, [start]) is None
    assert "what moves elsewhere will not be known: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("replay=auto", "a new network has no past"),
        ("elastic=30", "a new network has no past"),
        ("elastic=-1 start_from=RUN", "elastic=-1.0 is impossible"),
    ],
)
def test_tuning_for_another_run_is_refused(run, water, command, given, text):
    given = given.replace("RUN", str(run("density"))).split()
    assert text in command("train", f"data={water}", *given, code=2).err


@pytest.mark.parametrize(
    ("given", "optimizer", "lr"),
    [
        ([], "adam", TUNING_LR["adam"]),
        (["training.optimizer=muon"], "muon", TUNING_LR["muon"]),
        (["replay=auto"], "adam", 0.2 * TUNING_LR["adam"]),
        (["replay=none"], "adam", TUNING_LR["adam"]),
        (["lr=0.02"], "adam", 0.02),
        (["lr=0.02", "training.optimizer=muon"], "muon", 0.02),
    ],
)
def test_steps_are_small_unless_others_are_asked_for(run, water, given, optimizer, lr):
    training = parse([f"start_from={run('two_heads')}", f"data={water}", *given]).training
    assert (training.optimizer, training.lr) == (optimizer, lr)
    assert lr >= training.min_lr


@pytest.mark.slow
def test_it_learns_with_fewer_elements_and_frozen_parameters(run, usual, tmp_path, command):
    folder, given = tmp_path / "run", [f"start_from={run('two_heads')}", *usual[1:]]
    more = "elements=data", "freeze=radial", "epochs=6", "data.batch_size=2"
    assert "H O" in command("train", *given, *more, f"run={folder}").out
    before, theirs, _ = read_checkpoint(run("two_heads"), ("best",))
    after, ours, _ = read_checkpoint(folder, ("last",))
    assert theirs["species"] == [1, 6, 8]
    assert ours["species"] == [1, 8]
    # the weights of the file are of float64, and the run computes in float32
    expected = radial_kernel(before).astype(np.float32)
    np.testing.assert_array_equal(radial_kernel(after), expected)
    losses = [float(row["val_loss"]) for row in rows_of(folder)]
    assert len(losses) == 7
    assert min(losses[1:]) < losses[0]


def test_there_is_no_training_to_go_on_with(run, command):
    folder = run("two_heads")
    (line,) = command("train", f"resume={folder}", code=2).err.splitlines()
    assert "holds a network and no training to go on with" in line
    assert f"start_from={folder}" in line
