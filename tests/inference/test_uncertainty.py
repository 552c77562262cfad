"""The uncertainty of one network: its definition, its derivatives, and what reads it."""

import io
import os
import shutil

import ase
import ase.build
import ase.io
import numpy as np
import pytest
from ase.calculators.singlepoint import SinglePointCalculator

import eqfuse
from eqfuse.cli import main
from eqfuse.inference import uncertainty
from eqfuse.inference.network import UNCERTAINTY, Network
from eqfuse.runs.errors import CheckpointError
from eqfuse.runs.files import digest_of
from tests.small_runs import train_on_copper


@pytest.fixture(scope="module")
def run(copper, tmp_path_factory):
    """Return a run of a few steps with its uncertainty."""
    more = ["steps=3", "dtype=float64", "seed=1", "cutoff=3"]
    run = train_on_copper(copper, tmp_path_factory, *more)
    assert main(["uncertainty", str(run)]) == 0
    return run


def features(run, atoms) -> np.ndarray:
    """Return what the energies of atoms are linear in."""
    network = Network(run)
    scale = np.asarray(network.params["params"]["scale"])[0]
    return scale * eqfuse.descriptors(network, atoms)


def arrays_of(run) -> dict:
    """Return what was fitted."""
    with np.load(run / UNCERTAINTY) as arrays:
        return dict(arrays)


def total(run, atoms) -> np.ndarray:
    """Return the features of a structure."""
    return features(run, atoms).sum(axis=0)


def test_the_spread_is_that_of_the_definition(run, copper, tmp_path):
    frames = ase.io.read(copper, ":")
    files = [tmp_path / "train.xyz", tmp_path / "val.xyz"]
    for file, some in zip(files, (frames[:8], frames[8:]), strict=True):
        ase.io.write(file, some, format="extxyz")
    fitted = uncertainty.fit(run, *files)
    assert (fitted.train, fitted.validation) == (8, 4)
    rows = np.stack([total(run, atoms) for atoms in frames])
    gram = rows[:8].T @ rows[:8] / 4**2  # of four atoms
    inverse = np.linalg.inv(gram + fitted.ridge * np.trace(gram) / len(gram) * np.eye(len(gram)))
    rigidity = np.einsum("ai,ij,aj->a", rows, inverse, rows)
    predicted = eqfuse.predict(run, frames)
    errors = [p.energy - a.get_potential_energy() for p, a in zip(predicted, frames, strict=True)]
    expected = np.sqrt(np.mean(np.square(errors[8:]) / rigidity[8:]) * rigidity)
    # eigenvalues that the ridge is small beside lose half of the digits
    np.testing.assert_allclose([p.spread.energy for p in predicted], expected, rtol=1e-6)
    pairs = list(zip(predicted, frames, strict=True))[8:]
    error = np.ravel([np.linalg.norm(p.forces - a.get_forces(), axis=1) for p, a in pairs])
    spread = np.ravel([p.spread.forces for p, _ in pairs])
    assert np.sum(error**2) == pytest.approx(np.sum(spread**2), rel=1e-9)
    assert fitted.forces.error == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-9)
    assert fitted.forces.spread == pytest.approx(np.sqrt(np.mean(spread**2)), rel=1e-9)
    largest = max(p.spread.energies.max() for p, _ in pairs)
    assert fitted.atom == pytest.approx(largest, rel=1e-9)
    assert fitted.max_spread == pytest.approx(2 * largest, rel=0.05)


def test_frames_without_spread_do_not_decide_its_factor(run, copper, tmp_path, monkeypatch):
    """Two far atoms have none, and a perfect crystal that of rounding, where errors are not."""
    totals = uncertainty._totals

    def without_features_of_molecules(network, structures):  # as Allegro has it
        return totals(network, structures) * [[s.pbc.any()] for s in structures]

    monkeypatch.setattr(uncertainty, "_totals", without_features_of_molecules)
    run = shutil.copytree(run, tmp_path / "run")
    frames = ase.io.read(copper, ":")
    far = ase.Atoms("Cu2", [[0, 0, 0], [20, 0, 0]])
    crystal = ase.build.bulk("Cu", cubic=True)
    energy = frames[0].get_potential_energy()
    for atoms, forces in ((far, 1e-3), (crystal, 1e-6)):
        forces = np.full((len(atoms), 3), forces)
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
    file, found = tmp_path / "val.xyz", []
    for more in ([], [far], [crystal]):
        ase.io.write(file, frames[8:] + more, format="extxyz")
        fitted = uncertainty.fit(run, None, file)
        [predicted] = eqfuse.predict(run, frames[0])
        found.append((predicted.spread.energy, np.linalg.norm(predicted.spread.forces)))
        assert np.isfinite(fitted.energy).all()
    ratios = np.array(found) / found[0]
    assert (abs(np.log2(ratios)) < 1).all(), ratios


def test_spreads_of_derivatives_are_those_of_the_features(run, copper):
    atoms, step = ase.io.read(copper, 3), 1e-5
    [predicted] = eqfuse.predict(run, atoms)
    root, factor = (arrays_of(run)[name] for name in ("root", "forces"))
    own = np.linalg.norm(features(run, atoms) @ root, axis=1)
    np.testing.assert_allclose(predicted.spread.energies, own, rtol=1e-9)

    def slope(change):
        plus, minus = atoms.copy(), atoms.copy()
        change(plus, step), change(minus, -step)
        return factor * np.linalg.norm((total(run, plus) - total(run, minus)) @ root) / (2 * step)

    def strained(one, by):
        strain = np.eye(3)
        strain[0, 1] = strain[1, 0] = by / 2
        one.set_cell(one.cell @ strain, scale_atoms=True)

    moves = [
        lambda one, by, e=e: one.translate([e * by * (k == 1) for k in range(4)]) for e in np.eye(3)
    ]
    expected = np.linalg.norm([slope(move) for move in moves])
    assert predicted.spread.forces[1] == pytest.approx(expected, rel=1e-6)
    expected = slope(strained) / atoms.get_volume()
    assert predicted.spread.stress[0, 1] == pytest.approx(expected, rel=1e-6)


def test_calculators_commands_and_dynamics_have_the_spread(run, copper, tmp_path, command):
    atoms, out = ase.io.read(copper, 0), tmp_path / "out.xyz"
    [predicted] = eqfuse.predict(run, atoms)
    atoms.calc = eqfuse.Calculator(run, spread=True)
    atoms.get_potential_energy()
    for name, value in predicted.spread.results().items():
        np.testing.assert_allclose(atoms.calc.results[name], value, rtol=1e-9)
    atoms.positions[0, 0] += 0.4
    atoms.get_forces()
    [moved] = eqfuse.predict(run, [atoms, atoms])[1:]
    assert atoms.calc.results["energy_spread"] == pytest.approx(moved.spread.energy, rel=1e-9)
    assert atoms.calc.results["energy_spread"] != pytest.approx(predicted.spread.energy, rel=1e-3)
    assert "largest spread of a force" in command("predict", run, copper, out).out
    written = ase.io.read(out, 0)
    assert written.info["energy_spread"] == pytest.approx(predicted.spread.energy, rel=1e-6)
    np.testing.assert_allclose(written.arrays["forces_spread"], predicted.spread.forces, atol=1e-8)
    command("select", run, copper, out, "--number", 2)
    assert len(ase.io.read(out, ":")) == 2
    largest = predicted.spread.energies.max()
    simulate = "md", run, copper, "steps=5", "frames=all", f"run={tmp_path / 'md'}"
    shown = f"structure 0: a spread of {largest:.4g} eV of an atom's energy is above max_spread"
    # not even the first step
    assert shown in command(*simulate, f"max_spread={largest / 1e3}", code=2).err


@pytest.mark.slow
def test_dynamics_warn_once_where_the_spread_is_beyond_the_limit(run, copper, tmp_path, command):
    """The limit is that of the fit, and is twice the spread of validation frames."""
    other, arrays = shutil.copytree(run, tmp_path / "other"), arrays_of(run)
    assert float(arrays["limit"]) > 0
    simulate = "md", other, copper, "frames=all", "save_every=2", "steps=6", "timestep=0.01"
    largest = eqfuse.predict(run, ase.io.read(copper, 0))[0].spread.energies.max()
    for factor, count in ((0.5, 1), (100.0, 0)):
        own = {n: arrays[n] for n in ("root", "forces")} | {"limit": np.array(factor * largest)}
        np.savez(other / UNCERTAINTY, **own, network=arrays["network"], sha256=digest_of(own))
        shown = command(*simulate, f"run={tmp_path / str(count)}").err
        assert shown.count("warning: step 0: the spread of the energy of an atom") == count
        assert shown.count("the spread of the energy") == count
    assert not shown


def saved(**arrays) -> bytes:
    np.savez(file := io.BytesIO(), **arrays)
    return file.getvalue()


def test_an_uncertainty_that_is_damaged_is_refused(run, copper, tmp_path):
    """Also where its digest is right."""
    file = shutil.copytree(run, tmp_path / "other") / UNCERTAINTY
    arrays, atoms = arrays_of(run), ase.io.read(copper, 0)
    root, own = arrays["root"], {name: arrays[name] for name in ("root", "forces", "limit")}
    unsigned = [{"root": one} for one in (root[0], root[:-1], np.pad(root, (0, 1)), root * np.nan)]
    unsigned.append({"forces": np.array([1.0, 2.0])})
    signed = [{"root": root}, own | {"root": root[0]}, own | {"root": root[:-1]}]
    signed += [own | {"limit": np.array("1")}, own | {"forces": np.array(np.nan)}]
    for content in (
        b"nothing",
        file.read_bytes().replace(b"root.npy", b"rood.npy"),
        *(saved(**arrays | changes) for changes in unsigned),
        *(saved(network=arrays["network"], sha256=digest_of(one), **one) for one in signed),
    ):
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"uncertainty\.npz is damaged.*fit it again"):
            eqfuse.predict(file.parent, atoms)
    np.savez_compressed(file, **arrays | {"root": np.zeros((2**10, 2**10))})
    with pytest.raises(CheckpointError, match="bytes would be inflated to 8"):
        Network(file.parent)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(CheckpointError, match="it is a pipe or a device"):
        Network(file.parent)


def test_uncertainty_refuses_what_was_not_fitted(run, copper, tmp_path, command):
    other, atoms = shutil.copytree(run, tmp_path / "other"), ase.io.read(copper, ":2")
    (other / UNCERTAINTY).unlink()
    assert eqfuse.predict(other, atoms[0])[0].spread is None
    with pytest.raises(CheckpointError, match="before `eqfuse uncertainty RUN` has fitted it"):
        eqfuse.Calculator(other, spread=True)
    np.savez(other / UNCERTAINTY, **arrays_of(run) | {"network": np.array("another")})
    with pytest.warns(UserWarning, match="was fitted to another network, and is not used"):
        assert Network(other).uncertainty is None
    ase.io.write(tmp_path / "few.xyz", atoms)
    error = command("uncertainty", run, "--val", tmp_path / "few.xyz", code=2).err
    assert "needs at least 4 validation frames with an energy" in error
    error = command("uncertainty", run / "checkpoints" / "best.safetensors", code=2).err
    assert "is not the folder of a run" in error


def test_uncertainty_of_a_converted_network_needs_frames(untrained):
    """It said to train the network further."""
    with pytest.raises(CheckpointError, match="was converted, and has no data: give train= and"):
        uncertainty.fit(untrained(), train="copper.xyz")
