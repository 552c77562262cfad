"""Training with latent charges, and what the run computes then."""

import ase.io
import jax
import numpy as np
import pytest
from ase.calculators.singlepoint import SinglePointCalculator

import eqfuse
from eqfuse.convert.converted import ConvertError
from eqfuse.convert.export import export_mace
from eqfuse.data import Batcher, Keys, read_structures
from eqfuse.data.samples import prepare_samples
from eqfuse.models import predict
from eqfuse.train import load_run
from eqfuse.train.main import main
from tests.small_runs import TINY, errors_of, prepared, refused, rewritten

LES = ["model.long_range=les", "model.les_sigma=1.2"]


@pytest.fixture(scope="module")
def ions(tmp_path_factory):
    """Return a file of 12 frames, of cells and of clusters, of point charges with a repulsion."""
    rng, frames = np.random.default_rng(0), []
    for k in range(12):
        numbers = [11, 17] * 3 if k % 3 else [11, 17] * 2 + [11]
        grid = rng.permutation(8)[: len(numbers)]
        positions = 2.8 * np.stack(np.unravel_index(grid, (2, 2, 2)), axis=1)
        positions = positions + rng.normal(size=positions.shape) * 0.2
        cell = 6.5 * np.eye(3) if k % 2 else None
        atoms = ase.Atoms(numbers, positions, cell=cell, pbc=cell is not None)
        d = positions[:, None] - positions
        r = np.linalg.norm(d, axis=2) + np.eye(len(d))
        pairs = 1e2 * (np.exp(-2 * r) - np.eye(len(d)) * np.exp(-2))
        forces = np.sum(2 * pairs[..., None] * d / r[..., None], axis=1)
        atoms.calc = SinglePointCalculator(atoms, energy=pairs.sum() / 2, forces=forces)
        atoms.info["q"] = int(np.sum(np.where(atoms.numbers == 11, 1, -1)))
        frames.append(atoms)
    ase.io.write(path := tmp_path_factory.mktemp("data") / "ions.xyz", frames)
    return path


@pytest.fixture(scope="module")
def trained(ions, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "ions"
    more = [*LES, "data.charge_key=q", "dtype=float64", "epochs=2", f"data.test={ions}"]
    small = ["model=mace", *TINY, "cutoff=3.6", "model.correlation=1", "model.radial=network"]
    small += ["data.batch_size=8"]  # one batch, of which the step is compiled once
    assert main([*small, f"data={ions}", *more, f"run={folder}"]) == 0
    return folder


def test_run_predicts_what_its_training_reported(trained, ions):
    """Errors of predictions, with lists and sums of their own, are those of the table of errors."""
    frames, found = read_structures(ions), eqfuse.predict(trained, str(ions))
    errors = np.concatenate([p.forces - s.forces for p, s in zip(found, frames, strict=True)])
    expected = float(errors_of(trained)["test", "all"]["forces_mae_mev_per_a"])
    assert 1e3 * np.abs(errors).mean() == pytest.approx(expected)


def test_charges_have_the_settings_of_the_run_and_are_trained_on_energies(trained, ions):
    potential, params, metadata = load_run(trained)
    les = potential.long_range
    assert (les.sigma, les.charges, les.charge_key, les.hard) == (1.2, 1, "q", False)
    assert metadata["model_fields"]["irreps_out"] == "2x0e"
    samples = prepare_samples(read_structures(ions, keys=Keys(charge="q")), 3.6, (11, 17), None)
    [batch] = Batcher(samples, 12, dtype="float64", long_range=les).batches()
    assert sorted(set(batch.graph.charges[:12])) == [0, 1]

    def total(params):
        return predict(potential, params, batch.graph).energy[:12].sum()

    with jax.enable_x64(True):
        gradient = jax.jit(jax.grad(total))(params)["params"]["model"]["readout_0"]["linear_out"]
    [of_readout] = gradient.values()
    # of the energy, and of the charges
    assert (np.abs(of_readout).max(axis=0) > 1e-4).tolist() == [True, True]


def test_other_programs_are_not_given_charges(trained, tmp_path):
    with pytest.raises(ConvertError, match=r"latent charges \(model.long_range\)"):
        export_mace(trained, tmp_path / "network.npz")


def test_start_from_needs_the_same_charges(trained, ions, capsys):
    text = refused([f"start_from={trained}", f"data={ions}", "data.val=4"], capsys)
    assert "the network of start_from= reads total charges; give data.charge_key=q" in text


def test_slab_in_the_data_is_refused(ions, tmp_path):
    def change(number, atoms):
        atoms.pbc = [True, True, False] if number == 5 else atoms.pbc

    path = rewritten(ions, tmp_path / "slab.xyz", change)
    with pytest.raises(eqfuse.data.DataError, match=r"frame 5: latent charges are summed over all"):
        prepared("model=nequip", f"data={path}", *LES)
