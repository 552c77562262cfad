"""What has no number is an error, and never a number that depends on earlier calls."""

import ase
import ase.build
import ase.io
import jax
import numpy as np
import pytest

import eqfuse
from eqfuse import cli
from eqfuse.data import DataError
from eqfuse.train import CheckpointError
from eqfuse.train.run import files
from tests.lammps.untrained import untrained_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return untrained_run(tmp_path_factory.mktemp("runs"))


def pair(distance):
    atoms = ase.build.bulk("Cu", cubic=True).repeat(2)[:2]
    atoms.pbc = False
    atoms.set_cell(None)
    atoms.positions = [[0, 0, 0], [distance, 0, 0]]
    return atoms


def test_atoms_at_one_place_are_refused_whatever_was_computed_before(run):
    fresh, used = eqfuse.Calculator(run), eqfuse.Calculator(run)
    used.get_potential_energy(pair(0.2))
    messages = []
    for calculator in (fresh, used):
        for distance in (0.0, 1e-9):
            with pytest.raises(DataError, match="are at the same place") as error:
                calculator.get_potential_energy(pair(distance))
            messages.append(str(error.value).partition("(")[0])
    assert set(messages) == {"atoms 0 and 1 are at the same place "}
    near = pair(0.2)
    assert used.get_potential_energy(near) == pytest.approx(fresh.get_potential_energy(near))


def test_weights_that_are_not_finite_are_refused(run, tmp_path, capsys):
    [file] = run.glob("**/best.safetensors")
    arrays, metadata = files.read_file(file)
    metadata = {k: v for k, v in metadata.items() if k not in ("format", "arrays_sha256")}
    name = next(name for name in arrays if arrays[name].ndim == 2)
    arrays[name] = np.full_like(arrays[name], np.nan)
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(files.encode(arrays, metadata))
    with pytest.raises(CheckpointError, match=f"{name.partition('/')[2]} is not finite"):
        eqfuse.Calculator(broken)
    structure, out = tmp_path / "copper.xyz", tmp_path / "out.xyz"
    ase.io.write(structure, ase.build.bulk("Cu", cubic=True))
    assert cli.main(["predict", str(broken), str(structure), str(out)]) == 2
    assert "not finite" in capsys.readouterr().err
    assert not out.exists()


def test_a_prediction_that_is_not_finite_names_frame_and_atom(run, monkeypatch):
    network = eqfuse.inference.Network(run)
    with jax.enable_x64(True):
        network.params = jax.tree.map(lambda x: np.nan * x, network.params)
    frames = [ase.build.bulk("Cu", cubic=True) for _ in range(2)]
    with pytest.raises(DataError, match=r"atoms 0: the network gives .* atom 0 that is not finite"):
        eqfuse.predict(network, frames)
