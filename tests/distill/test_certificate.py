"""The certificate: errors as they are, and properties beside those of the teacher."""

import json
from types import SimpleNamespace

import ase.build
import ase.io
import numpy as np
import pytest
from ase.calculators.emt import EMT

from eqfuse.certify.properties import relaxed
from eqfuse.distill import certificate
from eqfuse.distill.teacher import labelled
from eqfuse.inference import predict
from tests.distill.calculators import Failing
from tests.small_runs import copper_cell


@pytest.fixture(scope="module")
def frames():
    found = []
    for k, kind in enumerate(("dynamics", "dynamics", "strained")):
        atoms = copper_cell(scale=0.1, seed=k)
        atoms.info["config_type"] = kind
        if kind == "dynamics":
            atoms.info["temperature_k"] = 300.0 * (k + 1)
        found.append(labelled(atoms, EMT()))
    return found


def test_errors_are_by_kind_and_temperature(frames, student):
    predicted = predict(student, frames)
    rows = {row["group"]: row for row in certificate.errors_by_group(frames, predicted)}
    counts = {"all": 3, "config_type dynamics": 2, "config_type strained": 1, "element Cu": 3}
    counts |= {"300 K": 1, "600 K": 1}
    assert {name: row["frames"] for name, row in rows.items()} == counts
    errors = predicted[1].forces - frames[1].get_forces()
    assert rows["600 K"]["forces_rmse_mev_per_a"] == pytest.approx(1e3 * (errors**2).mean() ** 0.5)
    error = predicted[1].energy - frames[1].get_potential_energy()
    assert rows["600 K"]["energy_rmse_mev_per_atom"] == pytest.approx(1e3 * abs(error) / 4)
    errors = predicted[1].stress - frames[1].get_stress(voigt=False)
    assert rows["600 K"]["stress_rmse_mev_per_a3"] == pytest.approx(1e3 * (errors**2).mean() ** 0.5)


def test_certificate_says_the_training_data(frames):
    found = certificate.coverage(frames)
    assert found["elements"] == ["Cu"]
    assert found["kinds"] == ["dynamics", "strained"]
    assert found["temperature_k"] == [300.0, 600.0]
    assert found["volume_a3_per_atom"] == pytest.approx([3.61**3 / 4] * 2)
    density = 63.546 / 6.02214076e23 / (3.61**3 / 4 * 1e-24)  # g/cm^3
    assert found["density_g_per_cm3"] == pytest.approx([density] * 2)
    forces = [np.linalg.norm(a.get_forces(), axis=1).max() for a in frames]
    assert found["largest_force_ev_per_a"] == pytest.approx([min(forces), max(forces)])


def test_frames_that_are_wrong_unseen_are_counted(frames):
    """The first is right, the second is wrong, and of the third the spread is large."""
    errors = (0.01, 0.2, 0.2), (0.1, 0.1, 9.0)
    predicted = [
        SimpleNamespace(
            forces=frame.get_forces() + error,
            spread=SimpleNamespace(energies=np.array([0, spread])),
        )
        for frame, error, spread in zip(frames, *errors, strict=True)
    ]
    found = certificate.unseen(frames, predicted, 150.0, 1.0)
    assert json.dumps(found) == "1"
    assert certificate.unseen(frames, predicted, 1e3, 1.0) == 0


def test_properties_that_a_calculator_cannot_compute_are_named():
    """It fails in the smaller cells of the equation of state."""
    given = ase.build.bulk("Cu"), Failing(volume=11.4), ("volume",)
    why = {"stopped near its minimum": "RuntimeError: no convergence"}
    assert certificate._of_minimum(*given) == (why, {})


MATERIALS = {
    "crystal": ase.build.bulk("Cu"),
    "molecule": ase.Atoms("Cu3", [(0, 0, 0), (2.3, 0, 0), (1, 2, 0)]),
    "slab": ase.build.fcc111("Cu", (1, 1, 3), vacuum=8.0),
}
MATERIALS["slab"].info.clear()


@pytest.mark.slow
@pytest.mark.parametrize("kind", MATERIALS)
def test_certificate_of_a_run(begin, tmp_path, kind):
    """Whose student is not trained: its checks pass, and its properties are not its teacher's."""
    ase.io.write(tmp_path / "given.xyz", MATERIALS[kind])
    given = {"minutes": 1e-9, "properties": ("volume", "elastic", "phonons", "dynamics")}
    given["start"] = tmp_path / "given.xyz"
    folder = begin(certified=True, picoseconds=0.05, **given).run()
    known = json.loads((folder / "certificate.json").read_text())
    page = (folder / "certificate.html").read_text()
    own, crystal = known["properties"], kind == "crystal"
    assert own["teacher"].keys() == own["student"].keys()
    assert ("bulk modulus, GPa" in own["teacher"]) == crystal
    assert "highest frequency at Gamma, THz" in own["teacher"]
    assert ("density at 0 GPa, g/cm³" in own["teacher"]) == crystal
    assert not [row for row in known["checks"] if row["verdict"] == "FAILED"]
    assert "nve" in {row["check"] for row in known["checks"]}
    assert known["errors"][0]["frames"] == known["frames"]["new"] + known["frames"]["last"]
    assert known["speed"]["teacher_s"] > 0
    assert known["unseen"]["of"] == known["frames"]["last"] >= known["unseen"]["frames"]
    assert page.count("data:image/png;base64") == 2 + len(known["curves"])
    assert len(known["curves"]) == {"crystal": 7, "molecule": 2, "slab": 2}[kind]
    limit = f"is above {known['spread_limit_ev']:g} eV"
    for text in ("that it was not trained on", "What it was trained on", limit):
        assert text in page
    if crystal:
        minimum = relaxed(ase.build.bulk("Cu"), EMT(), cell=True)
        assert own["teacher"]["volume, Å³/atom"] == pytest.approx(minimum.get_volume(), rel=1e-3)
