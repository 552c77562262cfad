"""Fine-tuning: networks for some of their elements, frozen parameters, new elements refused."""

import ase
import ase.build
import ase.io
import jax
import numpy as np
import pytest

import eqfuse
from eqfuse.train.main import main
from eqfuse.train.run.checkpoint import read_checkpoint
from tests.small_runs import labelled

NETWORKS = {
    "nequip": ["model.radial_hidden=4", "lmax=1"],
    "allegro": ["model.latent_dim=4", "model.readout_hidden=2", "lmax=1"],
    "mace": [
        "model.radial_hidden=4",
        "lmax=1",
        "model.readout_hidden=2",
        "model.species_linear=true",
        "model.density_normalization=true",
        "model.distance_transform=agnesi",
    ],
}
ONE_STEP = ["data.batch_size=2", "data.val=2", "steps=1"]


def written(path, formulas, seed=0):
    """Write a file of eight distorted molecules."""
    rng, frames = np.random.default_rng(seed), []
    for k in range(8):
        atoms = ase.build.molecule(formulas[k % len(formulas)])
        atoms.positions += rng.normal(scale=0.05, size=atoms.positions.shape)
        frames.append(labelled(atoms))
    ase.io.write(path, frames, format="extxyz")
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return {
        "all": written(folder / "all.xyz", ["CH3OH", "H2O"]),
        "water": written(folder / "water.xyz", ["H2O"], seed=1),
        "ammonia": written(folder / "ammonia.xyz", ["NH3"], seed=2),
    }


@pytest.fixture(scope="module")
def trained(files, tmp_path_factory):
    """Folder of a run on H, C and O with ZBL, by the name of its network."""
    folder, made = tmp_path_factory.mktemp("runs"), set()

    def run(name):
        if name not in made:
            data = ["data=extxyz", f"data.path={files['all']}", *ONE_STEP, "dtype=float64"]
            network = [f"model={name}", "channels=2", "layers=1", "model.num_bessel=4"]
            network += ["model.zbl=true", "cutoff=3", *NETWORKS[name]]
            assert main([*network, *data, f"run={folder / name}"]) == 0
            made.add(name)
        return folder / name

    return run


@pytest.fixture
def base(trained):
    return trained("mace")


def started(base, file, *more):
    return [f"start_from={base}", "data=extxyz", f"data.path={file}", *ONE_STEP, *more]


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_only_the_elements_of_the_data_are_kept(name, trained, files, tmp_path):
    base = trained(name)
    more = ["elements=data", "dtype=float64", "lr=1e-30", "training.min_lr=1e-30"]
    assert main([*started(base, files["water"], *more), f"run={tmp_path / 'run'}"]) == 0
    before, theirs, _ = read_checkpoint(base, ("best",))
    after, ours, _ = read_checkpoint(tmp_path / "run", ("best",))
    assert theirs["species"] == [1, 6, 8]
    assert ours["species"] == [1, 8]
    assert list(ours["reference_energies"]) == ["1", "8"]
    assert ours["potential"]["repulsion"]["atomic_numbers"] == [1, 8]
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(p)) for p in (before, after)]
    assert sizes[1] < sizes[0]
    water = ase.build.molecule("H2O")
    water.positions[1] += [0.1, 0.0, 0.05]
    found = []
    for run in (base, tmp_path / "run"):
        water.calc = eqfuse.Calculator(run, which="best")
        found.append((water.get_potential_energy(), water.get_forces()))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-12)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=0, atol=1e-10)
    assert abs(found[0][1]).max() > 1e-2
    if name == "mace":  # and it is a run that can be resumed
        assert main([f"resume={tmp_path / 'run'}", "steps=2"]) == 0


@pytest.mark.slow
def test_new_elements_are_refused_with_what_to_do(base, files, tmp_path, capsys):
    assert main([*started(base, files["ammonia"]), f"run={tmp_path / 'run'}"]) == 2
    error = capsys.readouterr().err
    assert "the data have N, for which the network of start_from= has no weights" in error
    assert "leave these frames out, start from a network that knows them, or train a new" in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_frozen_parameters_keep_their_values(base, files, tmp_path, optimizer):
    frozen = ["freeze=embedding, radial,layer_0/linear*", f"training.optimizer={optimizer}"]
    more = [*frozen, "lr=0.01", "dtype=float64", "training.ema_decay=0"]
    assert main([*started(base, files["water"], *more), f"run={tmp_path / 'run'}"]) == 0
    before, _, _ = read_checkpoint(base, ("best",))
    after, _, _ = read_checkpoint(tmp_path / "run", ("last",))
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), before, after)["params"]["model"]
    assert not moved["embedding"]
    assert not any(jax.tree.leaves(moved["radial"]))
    assert not any(jax.tree.leaves(moved["layer_0"]["linear_up"]))
    assert moved["layer_0"]["contraction"]
    assert all(jax.tree.leaves(moved["layer_0"]["species_linear"])[:1])
    assert all(jax.tree.leaves(moved["readout_0"]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("freeze=embeding", "training.freeze=embeding fits no parameter; there are"),
        ("freeze=*", "leaves no parameter to train"),
        ("elements=all", "elements=all is unknown"),
    ],
)
def test_impossible_settings_are_refused(base, files, tmp_path, capsys, setting, message):
    assert main([*started(base, files["water"], setting), f"run={tmp_path / 'run'}"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_elements_are_for_networks_to_start_from(files, capsys):
    assert main(["data=extxyz", f"data.path={files['water']}", "elements=data"]) == 2
    assert "left out without start_from=" in capsys.readouterr().err
