"""What has no number is an error, and never a number that depends on earlier calls."""

import itertools

import ase
import ase.build
import jax
import numpy as np
import pytest

import eqfuse
from eqfuse.data import DataError


@pytest.fixture
def run(untrained):
    return untrained()


def pair(distance, periodic=False):
    """Return two atoms, across the boundary of the cell if it is periodic."""
    atoms = ase.Atoms("Cu2", [[0, 0, 0], [distance, 0, 0]])
    if periodic:
        atoms.set_cell([8.0, 8.0, 8.0])
        atoms.pbc, atoms.positions[1, 0] = True, distance - 8
    return atoms


def of_hessian(run):
    calculator = eqfuse.Calculator(run)

    def compute(atoms):
        atoms.calc = calculator
        return float(np.abs(eqfuse.hessian(atoms)).sum())

    return compute


def of_jax_md(run):
    """jax-md has no errors: the energy is NaN; its list is that of the structure before."""
    space = pytest.importorskip("jax_md.space")
    from eqfuse.jax_md import neighbor_list

    make, energy_fn = neighbor_list(space.free()[0], np.full(3, 20.0), run, numbers=[29, 29])
    neighbors = make.allocate(pair(0.4).positions)
    both = jax.jit(jax.value_and_grad(energy_fn))

    def compute(atoms):
        energy, gradient = both(atoms.positions, neighbors)
        if np.isnan(energy):
            assert np.isnan(gradient).any()
            raise DataError("atoms 0 and 1 are at the same place (NaN)")
        return float(energy)

    return compute


USERS = {
    "calculator": lambda run: eqfuse.Calculator(run).get_potential_energy,
    "predict": lambda run: lambda atoms: eqfuse.predict(run, atoms)[0].energy,
    "hessian": of_hessian,
    "jax_md": of_jax_md,
}
CASES = [(name, periodic) for name in USERS for periodic in (False, True)]
CASES.remove(("jax_md", True))  # whose box is that of free atoms


@pytest.mark.parametrize(("user", "periodic"), CASES)
def test_atoms_at_one_place_are_refused_whatever_was_computed_before(run, user, periodic):
    messages = []
    with jax.enable_x64(True):
        fresh, used = USERS[user](run), USERS[user](run)
        used(pair(0.4, periodic))
        for compute, distance in itertools.product((fresh, used), (0.0, 1e-9)):
            with pytest.raises(DataError, match="are at the same place") as error:
                compute(pair(distance, periodic))
            messages.append(str(error.value).partition("(")[0].removeprefix("atoms 0: "))
        assert set(messages) == {"atoms 0 and 1 are at the same place "}
        near = pair(0.4, periodic)
        assert used(near) == pytest.approx(fresh(near), rel=1e-6)


def test_a_prediction_that_is_not_finite_names_frame_and_atom(run, monkeypatch):
    network = eqfuse.inference.Network(run)
    with jax.enable_x64(True):
        network.params = jax.tree.map(lambda x: np.nan * x, network.params)
    frames = [ase.build.bulk("Cu", cubic=True) for _ in range(2)]
    with pytest.raises(DataError, match=r"atoms 0: the network gives .* atom 0 that is not finite"):
        eqfuse.predict(network, frames)
