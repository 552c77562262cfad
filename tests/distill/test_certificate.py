"""The certificate: errors as they are, and properties beside those of the teacher."""

import json

import ase.build
import ase.io
import numpy as np
import pytest
from ase.calculators.emt import EMT

from eqfuse.distill import certificate
from eqfuse.distill.properties import elastic_constants, relaxed
from eqfuse.distill.teacher import labelled
from eqfuse.inference import predict


@pytest.fixture(scope="module")
def frames():
    rng, found = np.random.default_rng(0), []
    for k, kind in enumerate(("dynamics", "dynamics", "strained")):
        atoms = ase.build.bulk("Cu", cubic=True)
        atoms.positions += rng.normal(scale=0.1, size=(4, 3))
        atoms.info["config_type"] = kind
        if kind == "dynamics":
            atoms.info["temperature_k"] = 300.0 * (k + 1)
        found.append(labelled(atoms, EMT()))
    return found


def test_errors_are_by_kind_and_temperature(frames, student):
    predicted = predict(student, frames)
    rows = {row["group"]: row for row in certificate.errors_by_group(frames, predicted)}
    assert {name: row["frames"] for name, row in rows.items()} == {
        "all": 3,
        "dynamics": 2,
        "strained": 1,
        "300 K": 1,
        "600 K": 1,
    }
    errors = predicted[1].forces - frames[1].get_forces()
    assert rows["600 K"]["forces_mev_per_a"] == pytest.approx(1e3 * (errors**2).mean() ** 0.5)
    error = predicted[1].energy - frames[1].get_potential_energy()
    assert rows["600 K"]["energy_mev_per_atom"] == pytest.approx(1e3 * abs(error) / 4)
    errors = predicted[1].stress - frames[1].get_stress(voigt=False)
    assert rows["600 K"]["stress_mev_per_a3"] == pytest.approx(1e3 * (errors**2).mean() ** 0.5)


def test_what_it_was_trained_on_is_said(frames):
    found = certificate.coverage(frames)
    assert found["elements"] == ["Cu"]
    assert found["kinds"] == ["dynamics", "strained"]
    assert found["temperature_k"] == [300.0, 600.0]
    assert found["volume_a3_per_atom"] == pytest.approx([3.61**3 / 4] * 2)
    forces = [np.linalg.norm(a.get_forces(), axis=1).max() for a in frames]
    assert found["largest_force_ev_per_a"] == pytest.approx([min(forces), max(forces)])


def test_each_property_is_that_of_its_own_calculator():
    copper = ase.build.bulk("Cu")
    other = ase.build.bulk("Cu", a=3.8)
    found = certificate.compared(copper, {"teacher": EMT(), "student": Twice()}, ("elastic",))
    expected = elastic_constants(relaxed(other, EMT(), cell=True))
    np.testing.assert_allclose(found["elastic"]["teacher"], expected, atol=0.5)  # GPa
    np.testing.assert_allclose(found["elastic"]["student"], 2 * expected, atol=1.0)


class Twice(EMT):
    """EMT with twice the energies."""

    def calculate(self, *given, **named):
        super().calculate(*given, **named)
        self.results = {name: 2 * value for name, value in self.results.items()}


def test_large_structures_have_no_elastic_constants():
    large = ase.build.bulk("Cu", cubic=True).repeat(2)
    found = certificate.compared(large, {}, ("elastic", "phonons"))
    assert found == dict.fromkeys(
        ("elastic", "phonons"), "not computed: more than 24 atoms in START"
    )


def test_molecule_has_frequencies_and_no_elastic_constants():
    pair = ase.Atoms("Cu2", [(0, 0, 0), (0, 0, 2.3)])
    found = certificate.compared(pair, {"teacher": EMT()}, ("volume", "elastic", "phonons"))
    assert [*found] == ["phonons"]
    assert len(found["phonons"]["teacher"]["Gamma"]) == 6


@pytest.mark.slow
@pytest.mark.parametrize("molecule", [False, True])
def test_certificate_of_a_run(begin, tmp_path, molecule):
    """Whose student is not trained: its checks pass, and its properties are not its teacher's."""
    given = {"minutes": 1e-9, "properties": ("volume", "elastic", "phonons", "dynamics")}
    if molecule:
        ase.io.write(tmp_path / "three.xyz", ase.Atoms("Cu3", [(0, 0, 0), (2.3, 0, 0), (1, 2, 0)]))
        given["start"] = tmp_path / "three.xyz"
    folder = begin(certified=True, picoseconds=0.05, **given).run()
    known = json.loads((folder / "certificate.json").read_text())
    page = (folder / "certificate.html").read_text()
    assert {*known["properties"]} == {"phonons", "dynamics"} | (
        set() if molecule else {"volume", "elastic"}
    )
    assert not [row for row in known["checks"] if row["verdict"] == "FAILED"]
    assert known["errors"][0]["frames"] == known["new"] == 4
    assert known["speed"]["factor"] > 0
    assert page.count("data:image/png;base64") == (3 if molecule else 4)
    for text in ("Errors on new trajectories", "What it was trained on", "max_spread="):
        assert text in page
    if not molecule:
        volume = known["properties"]["volume"]["teacher"]["volume"]
        expected = relaxed(ase.build.bulk("Cu"), EMT(), cell=True).get_volume()
        assert volume == pytest.approx(expected, rel=1e-3)
        assert "density, g/cm³" in page
