"""A network as a model of torch-sim. Skipped without torch-sim."""

import numpy as np
import pytest

import eqfuse
import eqfuse.torch_sim
from tests.small_runs import copper_cell

torch = pytest.importorskip("torch")
torch_sim = pytest.importorskip("torch_sim")


@pytest.mark.parametrize("dispersion", [None, "d3(bj)"])
def test_a_state_has_the_results_of_the_calculator(dispersion, run):
    """At first, after moves within the skin, and after moves for which lists are made anew."""
    if dispersion is not None:
        pytest.importorskip("dftd3")
    model = eqfuse.torch_sim.model(run, dispersion=dispersion)
    frames = [copper_cell(), copper_cell((2, 1, 1), seed=1)]
    rng, lists = np.random.default_rng(0), []
    for scale in (0.0, 0.01, 0.2):
        for atoms in frames:
            atoms.positions += rng.normal(scale=scale, size=atoms.positions.shape)
        state = torch_sim.io.atoms_to_state(frames, model.device, model.dtype)
        results, first = model(state), 0
        lists.append(model._evaluator.listed)
        for k, atoms in enumerate(frames):
            own = slice(first, first := first + len(atoms))
            atoms.calc = eqfuse.Calculator(run, dispersion=dispersion)
            energy = results["energy"][k].item()
            assert energy == pytest.approx(atoms.get_potential_energy(), abs=1e-9)
            forces, stress = results["forces"][own].numpy(), results["stress"][k].numpy()
            np.testing.assert_allclose(forces, atoms.get_forces(), rtol=0, atol=1e-9)
            expected = atoms.get_stress(voigt=False)
            np.testing.assert_allclose(stress, expected, rtol=0, atol=1e-10)
            assert np.abs(forces).max() > 1e-3
    assert lists[0] is lists[1]
    assert lists[1] is not lists[2]
