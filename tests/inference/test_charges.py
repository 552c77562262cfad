"""Networks with latent charges, wherever they compute."""

import math
import shutil

import ase.build
import ase.io
import jax
import numpy as np
import pytest
from ase.calculators.calculator import PropertyNotImplementedError
from ase.calculators.fd import calculate_numerical_forces, calculate_numerical_stress

import eqfuse
from eqfuse.certify.subjects import Run
from eqfuse.data import DataError
from eqfuse.inference.evaluator import Evaluator
from eqfuse.inference.network import Network
from eqfuse.inference.predict import as_structures
from eqfuse.models.ewald import CONSTANT, LatentEwald
from eqfuse.runs.errors import ConfigError
from eqfuse.train.dispersion import Dispersion
from tests.inference.conftest import slope_of_forces
from tests.lammps.untrained import FIELDS
from tests.models.test_ewald import E2, written_out

# charges of a few tenths of e, as trained networks have
LES = LatentEwald(scale=1.0, charges=2)


@pytest.fixture(scope="session")
def runs(untrained):
    """Return a function of a network to the folder of a run with charges."""
    usual = {"numbers": (11, 17), "layers": 1, "radial": "network", "long_range": LES}
    return lambda model="nequip", **options: untrained(model, **usual | options)


@pytest.fixture
def salt():
    atoms = ase.build.bulk("NaCl", "rocksalt", a=5.6, cubic=True)
    atoms.rattle(0.2, seed=1)
    oblique = atoms.cell.array + np.array([[0, 0.2, 0], [0, 0, 0], [0.3, 0, 0]])
    atoms.set_cell(oblique, scale_atoms=True)
    return atoms


def free(atoms):
    atoms = atoms.copy()
    atoms.pbc, atoms.cell = False, None
    return atoms


def short_and_charges(run, atoms):
    """Return the energy without charges, eV, and the charges of the atoms, by the module alone."""
    network = Network(run)
    listed = Evaluator(network).list(as_structures(atoms))
    edges = listed.pairs.edges
    cell = atoms.cell.array if atoms.pbc.any() else np.zeros((3, 3))
    with jax.enable_x64(True):
        positions = atoms.positions[listed.order]
        vectors = positions[edges.senders] + listed.pairs.images @ cell - positions[edges.receivers]
        operands = vectors, listed.of_nodes[1], edges
        energies, scalars = jax.jit(network.module.potential.apply)(network.params, *operands)
    short = np.asarray(energies).sum() + network.references[listed.species].sum()
    return short, np.asarray(scalars)[listed.number] * LES.scale


def of_charges(charges, atoms) -> float:
    """Return the energy of charges, of a pair and of a wave at a time."""
    total = 0.0
    for q in charges.T:
        self_energy = CONSTANT / (2 * math.pi) ** 1.5 * np.sum(q**2)
        if atoms.pbc.all():
            total += written_out(q, atoms.positions, atoms.cell.array, 1.0, 5.6) - self_energy
            continue
        for i in range(len(atoms)):
            for j in range(i):
                r = atoms.get_distance(i, j)
                total += E2 * q[i] * q[j] * math.erf(r / math.sqrt(2)) / r
    return total


@pytest.mark.parametrize("model", FIELDS)
def test_energy_is_that_of_the_network_and_of_its_charges(runs, salt, model):
    for atoms in (salt, free(salt)):
        short, charges = short_and_charges(runs(model), atoms)
        assert np.ptp(charges) > 0.01
        atoms.calc = eqfuse.Calculator(runs(model))
        expected = short + of_charges(charges, atoms)
        assert atoms.get_potential_energy() == pytest.approx(expected, abs=1e-5)
        assert abs(expected - short) > 0.01


@pytest.mark.parametrize("periodic", [True, False])
def test_derivatives_are_differences_of_energies(runs, salt, periodic):
    atoms = salt if periodic else free(salt)
    atoms.calc = eqfuse.Calculator(runs())
    forces = calculate_numerical_forces(atoms, eps=1e-4, iatoms=[0, 5])
    np.testing.assert_allclose(atoms.get_forces()[[0, 5]], forces, atol=1e-6)
    if periodic:
        stress = calculate_numerical_stress(atoms, eps=1e-5)
        np.testing.assert_allclose(atoms.get_stress(), stress, atol=1e-7)
    with pytest.raises(PropertyNotImplementedError):
        atoms.get_stresses()
    hessian = eqfuse.hessian(atoms)
    np.testing.assert_allclose(hessian[3, 1], slope_of_forces(atoms, 3, 1), atol=1e-5)
    np.testing.assert_allclose(hessian[3, 1, 0], hessian[0, :, 3, 1], atol=1e-8)


def test_predictions_side_by_side_are_those_alone(runs, salt):
    """Cells and a molecule of several sizes in one batch, in float32 as well."""
    other = salt.copy()[:5]
    other.set_cell(1.3 * salt.cell.array)
    several = [salt, free(salt), other]
    for atoms in several:
        atoms.calc = eqfuse.Calculator(runs())
        atoms.get_forces()
    for dtype, tolerance in (("float64", 1e-9), ("float32", 2e-4)):
        found = eqfuse.predict(runs(), several, dtype=dtype)
        for atoms, predicted in zip(several, found, strict=True):
            assert predicted.energy == pytest.approx(atoms.calc.results["energy"], abs=tolerance)
            np.testing.assert_allclose(predicted.forces, atoms.get_forces(), atol=tolerance)


def test_cell_that_grows_gets_more_waves(runs, salt):
    """The calculator keeps its list while the cell grows by more than the room of its waves."""
    salt.calc = eqfuse.Calculator(runs(), skin=3.0)
    salt.get_potential_energy()
    listed, waves = salt.calc._evaluator.listed, salt.calc._evaluator.listed.sizes.reach.waves
    salt.set_cell(1.2 * salt.cell.array, scale_atoms=True)
    found, fresh = salt.get_potential_energy(), salt.copy()
    assert salt.calc._evaluator.listed is listed
    assert listed.sizes.reach.waves > waves
    fresh.calc = eqfuse.Calculator(runs())
    assert found == pytest.approx(fresh.get_potential_energy(), abs=1e-9)


def test_total_charge_is_read_from_the_atoms(runs, salt):
    """The energy of a far charge of -1 besides the atoms' own is linear in their total charge."""
    run = runs(long_range=LatentEwald(charge_key="q"))
    atoms = free(salt)
    atoms.calc = eqfuse.Calculator(run)
    with pytest.raises(DataError, match=r"total charge is read from 'q' .* there is none"):
        atoms.get_potential_energy()
    energies = []
    for charge in (-1, 0, 1):
        atoms.info["q"] = charge
        energies.append(atoms.get_potential_energy())
    # shifted by Q / n each: a parabola, whose curvature is that of uniform charges
    d = atoms.get_all_distances() + np.eye(8)
    potential = np.vectorize(math.erf)(d / math.sqrt(2)) / d - np.diag([math.erf(2**-0.5)] * 8)
    curvature = E2 * potential.sum() / 64
    assert np.diff(energies, 2)[0] == pytest.approx(curvature, rel=1e-6)
    [predicted] = eqfuse.predict(run, atoms)
    assert predicted.energy == pytest.approx(energies[-1])
    two = [run, runs(long_range=LatentEwald(charge_key="q"), seed=5)]
    atoms.calc = eqfuse.Committee(two)
    for charge in (1, -1):
        atoms.info["q"] = charge
        members = [eqfuse.predict(one, atoms)[0].energy for one in two]
        assert atoms.get_potential_energy() == pytest.approx(np.mean(members))


def test_frames_are_selected_with_their_total_charges(runs, salt, tmp_path, command):
    committee, atoms = tmp_path / "committee", free(salt)
    for seed in range(2):
        run = runs(long_range=LatentEwald(charge_key="q"), seed=seed)
        shutil.copytree(run, committee / f"seed={seed}")
    atoms.info["q"] = 1
    ase.io.write(tmp_path / "in.xyz", atoms)
    command("select", committee, tmp_path / "in.xyz", tmp_path / "out.xyz")
    [expected] = eqfuse.predict(committee, atoms)
    found = ase.io.read(tmp_path / "out.xyz").get_potential_energy()
    assert found == pytest.approx(expected.energy, abs=1e-8)


def test_slabs_are_refused(runs, salt):
    salt.pbc = [True, True, False]
    salt.calc = eqfuse.Calculator(runs())
    with pytest.raises(DataError, match="a slab or a wire a cell with vacuum"):
        salt.get_potential_energy()


def test_programs_of_near_atoms_refuse_charges(runs):
    network = Network(runs())
    with pytest.raises(ConfigError, match="eqfuse in LAMMPS has no sums of latent charges"):
        network.require("eqfuse in LAMMPS")


def test_latent_charges_are_written(runs, salt, tmp_path, command):
    source, out = tmp_path / "in.xyz", tmp_path / "out.xyz"
    ase.io.write(source, [salt, free(salt)], format="extxyz")
    command("predict", runs(), source, out)
    for atoms, place in zip(ase.io.read(out, ":"), (salt, free(salt)), strict=True):
        _, charges = short_and_charges(runs(), place)
        np.testing.assert_allclose(atoms.arrays["latent_charges"], charges, atol=1e-7)


def test_born_charges_are_derivatives_of_the_dipole(runs, salt):
    """Each step of a cluster gives its dipole; a cell around it changes nothing."""
    run = runs(long_range=LatentEwald(scale=0.5, charge_key="q"))
    atoms = free(salt)
    atoms.info["q"] = 1

    def dipole(k, axis, step):
        moved = atoms.copy()
        moved.positions[k, axis] += step
        [predicted] = eqfuse.predict(run, moved)
        return predicted.charges[:, 0] @ moved.positions

    born = eqfuse.born_charges(run, atoms)
    found = (dipole(3, 1, 1e-4) - dipole(3, 1, -1e-4)) / 2e-4
    np.testing.assert_allclose(born[3, :, 1], found, atol=1e-6)
    np.testing.assert_allclose(born.sum(axis=0), np.eye(3), atol=1e-9)
    wide = atoms.copy()
    wide.info["q"], wide.pbc = 1, True
    wide.set_cell([[25.0, 0, 0], [3, 26, 0], [0, -2, 27]])
    wide.positions += 13.0
    wide.wrap()
    wide.calc = eqfuse.Calculator(run)
    np.testing.assert_allclose(eqfuse.born_charges(wide, dielectric=4.0), 2 * born, atol=1e-9)
    with pytest.raises(ConfigError, match="several latent charges of each atom"):
        eqfuse.born_charges(runs(), atoms)


def test_check_knows_that_charges_reach_far(runs, salt):
    """It asks no run with charges whether far fragments are apart, and computes what is neutral."""
    subject = Run(runs(long_range=LatentEwald(scale=0.5, charge_key="q")))
    assert not subject.is_local
    [found], [again] = subject.compute([free(salt)]), subject.in_turn([free(salt)])
    assert found.error is None
    assert found.energy == pytest.approx(again.energy)


def test_dispersion_is_added_to_charges(runs, salt):
    pytest.importorskip("dftd3")
    parts = [Dispersion.parse("d3(bj)").of(salt).energy]
    for options in ({}, {"dispersion": "d3(bj)"}):
        salt.calc = eqfuse.Calculator(runs(), **options)
        parts.append(salt.get_potential_energy())
    assert parts[2] == pytest.approx(parts[0] + parts[1])
