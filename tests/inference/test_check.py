"""`eqfuse check`: a sound network passes, and each check fails for a network that is broken."""

import dataclasses
import lzma
import types
from pathlib import Path

import ase.build
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase.calculators.calculator import Calculator

from eqfuse import cli
from eqfuse.convert import convert
from eqfuse.data import DataError, Structure
from eqfuse.inference import check as checks
from eqfuse.inference import network as loading
from eqfuse.inference.check import drift

CUTOFF = 3.6
METADATA = {
    "potential": {},
    "config": {"dtype": "float64"},
    "species": [29],
    "model_fields": {"cutoff": CUTOFF},
    "reference_energies": {"29": -1.0},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a network with a cutoff for each pair of elements."""
    folder = tmp_path_factory.mktemp("runs")
    package = folder / "a.nequip.zip"
    goldens = Path(__file__).parents[1] / "convert" / "goldens" / "networks"
    package.write_bytes(
        lzma.decompress((goldens / "nequip_pair_cutoffs.nequip.zip.xz").read_bytes())
    )
    convert("nequip", package, folder / "run")
    return folder / "run"


@pytest.fixture
def crystal():
    atoms = ase.build.bulk("Cu", cubic=True)
    return Structure(atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc, origin="crystal")


class Pairs:
    """A potential that compiles fast: an energy of pairs, in a form that saturates.

    Args:
      added: function of (energies, vectors, edges) that returns what is added to the energies.
    """

    model = types.SimpleNamespace(radial="network")

    def __init__(self, added):
        self.added = added

    def apply(self, params, vectors, species, edges):
        of_edges = near(vectors) * (jnp.sum(vectors**2, 1) - 5)
        energies = jnp.tanh(per_atom(of_edges, edges))
        return energies + self.added(energies, vectors, edges)


def per_atom(of_edges, edges):
    return jax.ops.segment_sum(of_edges, edges.receivers, edges.num_nodes)


def near(vectors):
    """Return a smooth function of the lengths, zero at the cutoff and for padding, [n_edges]."""
    squared = jnp.sum(vectors**2, 1)
    return jnp.where(squared > 0, jnp.maximum(1 - squared / CUTOFF**2, 0) ** 3, 0)


def with_axis(energies, vectors, edges):
    """Return energies that prefer a direction."""
    return per_atom(1e-4 * vectors[:, 0] ** 2 * near(vectors), edges)


def with_handedness(energies, vectors, edges):
    """Return a pseudoscalar of the neighbours: the triple product of three sums of vectors."""
    weights = [(near(vectors) * jnp.sum(vectors**2, 1) ** k)[:, None] for k in range(3)]
    x, y, z = (per_atom(w * vectors, edges) for w in weights)
    return 1e-3 * jnp.sum(x * jnp.cross(y, z), axis=1)


def without_slope(energies, vectors, edges):
    """Return zeros whose gradient is not zero: forces that are the slope of no energy."""
    fixed = jax.lax.stop_gradient
    squared = jnp.sum(vectors**2, 1)
    weights = fixed(energies[edges.receivers] * near(vectors))
    return per_atom(weights * (squared - fixed(squared)), edges)


def failed(structures, **options) -> set[str]:
    """Return the names of the checks that fail."""
    options = {"steps": 0, "backends": ()} | options
    return {row.name for row in checks.check("run", structures, **options) if not row.passed}


@pytest.fixture
def potential(monkeypatch):
    """Return a function that replaces all networks by `Pairs`, with something added."""
    for module in (loading, checks):
        monkeypatch.setattr(module, "read_metadata", lambda run, which=None: METADATA)

    def replace(added=lambda *_: 0.0, broken_backend=None):
        def loaded(run, *, which=None, backend=None):
            sound = broken_backend is not None and backend != broken_backend
            return Pairs((lambda *_: 0.0) if sound else added), {}, METADATA

        monkeypatch.setattr(loading, "load_run", loaded)

    return replace


@pytest.fixture
def altered(monkeypatch):
    """Return a function that alters the energies of atoms after they were predicted."""
    right = checks.predict

    def alter(added):
        def predict(network, structures, **options):
            results = right(network, structures, **options)
            return [
                dataclasses.replace(p, energies=p.energies + added(s))
                for p, s in zip(results, structures, strict=True)
            ]

        monkeypatch.setattr(checks, "predict", predict)

    return alter


def test_a_sound_potential_passes(crystal, potential):
    potential()
    rows = list(checks.check("run", [crystal], steps=400, backends=["xla"]))
    assert [row.name for row in rows] == list(checks.CHECKS)
    assert all(row.error is not None and row.passed for row in rows), "\n".join(map(str, rows))
    assert max(row.error for row in rows[:-1]) < 1e-5


def test_a_trained_network_passes(run, capsys):
    assert cli.main(["check", str(run), "--backends"]) == 0
    out = capsys.readouterr().out
    assert "FAILED" not in out
    assert "verdict: passed, 9 checks; not checked: 1" in out


def test_without_a_file_a_crystal_and_a_molecule_are_checked(potential, capsys):
    potential()
    assert cli.main(["check", "run"]) == 0
    out = capsys.readouterr().out
    assert "2 structures" in out
    assert "not checked: give a file" in out


def test_an_energy_that_prefers_a_direction_fails(crystal, potential):
    potential(with_axis)
    assert failed([crystal]) == {"rotation"}


def test_an_energy_with_a_handedness_fails(crystal, potential):
    potential(with_handedness)
    assert failed([crystal]) == {"inversion"}


def test_an_energy_that_depends_on_the_order_of_atoms_fails(crystal, potential, altered):
    potential()
    altered(lambda structure: 1e-6 * np.cos(np.arange(structure.num_atoms)))
    assert failed([crystal]) == {"permutation", "supercell"}


def test_an_energy_that_depends_on_the_number_of_atoms_fails(crystal, potential, altered):
    potential()
    altered(lambda structure: 1e-6 * structure.num_atoms)
    assert failed([crystal]) == {"supercell"}


def test_an_energy_that_depends_on_the_place_of_atoms_fails(crystal, potential, altered):
    potential()
    altered(lambda structure: 1e-6 * structure.positions.mean())
    assert "translation" in failed([crystal])


def test_forces_and_stress_that_are_no_slopes_fail(crystal, potential):
    potential(without_slope)
    assert failed([crystal], steps=100) == {"forces", "stress", "nve"}


def test_a_list_that_ends_before_the_potential_is_zero_fails(crystal, potential, monkeypatch):
    potential()
    shorter = METADATA | {"model_fields": {"cutoff": CUTOFF - 0.2}}
    monkeypatch.setattr(loading, "read_metadata", lambda run, which=None: shorter)
    assert failed([crystal]) == {"cutoff"}


def test_forces_that_jump_at_the_cutoff_fail(crystal, potential):
    def kinked(energies, vectors, edges):
        squared = jnp.sum(vectors**2, 1)
        lengths = jnp.sqrt(jnp.where(squared > 0, squared, CUTOFF**2))
        return per_atom(1e-4 * jnp.maximum(CUTOFF - lengths, 0), edges)

    potential(kinked)
    assert failed([crystal]) == {"cutoff"}


def test_a_backend_that_computes_something_else_fails(crystal, potential):
    potential(lambda energies, *_: 1e-7 * energies, broken_backend="xla")
    assert failed([crystal], backends=["xla"]) == {"backend"}
    assert failed([crystal], backends=["e3nn"]) == set()


def test_float32_that_loses_digits_fails(crystal, potential):
    def rounded(energies, vectors, edges):
        return 0.0 if energies.dtype == jnp.float64 else 1e-3 * energies

    potential(rounded)
    assert failed([crystal]) == {"float32"}


def test_numbers_that_are_not_finite_fail(crystal, potential):
    potential(lambda energies, *_: jnp.nan * energies)
    assert failed([crystal], steps=100) == set(checks.CHECKS) - {"backend"}


def test_a_network_without_inversion_is_not_asked_for_it(crystal, potential, monkeypatch):
    potential(with_handedness)
    so3 = METADATA | {"model_fields": {"cutoff": CUTOFF, "so3": True}}
    monkeypatch.setattr(loading, "read_metadata", lambda run, which=None: so3)
    rows = {row.name: row for row in checks.check("run", [crystal], steps=0, backends=())}
    assert all(row.passed for row in rows.values())
    assert str(rows["inversion"]).endswith("not checked: an SO(3) network has no such symmetry")


class Leaking(Calculator):
    """No forces, and energies that grow by 4e-6 eV with each evaluation."""

    implemented_properties = ("energy", "forces")
    evaluations = 0

    def calculate(self, atoms=None, properties=("energy",), system_changes=()):
        super().calculate(atoms, properties, system_changes)
        self.results = {"energy": 4e-6 * self.evaluations, "forces": np.zeros((len(atoms), 3))}
        self.evaluations += 1


def test_the_drift_is_the_slope_of_the_energy(crystal):
    """It is 4e-6 eV a step of 1 fs for 4 atoms."""
    assert drift(crystal, Leaking(), 100, 300.0) == pytest.approx(1.0, rel=1e-9)


def test_what_cannot_be_checked_is_refused(run, copper, crystal, tmp_path, capsys):
    assert cli.main(["check", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert cli.main(["check", str(run), str(tmp_path / "none.xyz")]) == 2
    assert "none.xyz" in capsys.readouterr().err
    assert cli.main(["check", str(run), "--backends", "xl"]) == 2
    assert "'xl' is unknown" in capsys.readouterr().err
    assert cli.main(["check", str(run), str(copper), "--steps", "50"]) == 2
    assert "at least 100 steps" in capsys.readouterr().err
    with pytest.raises(DataError, match="no structures"):
        next(checks.check(run, []))
    gold = dataclasses.replace(crystal, numbers=np.full(4, 79))
    with pytest.raises(DataError, match="not among the model's species"):
        next(checks.check(run, [gold]))


def test_a_failed_check_is_the_exit_code(copper, potential, capsys):
    potential(without_slope)
    arguments = ["check", "run", str(copper), "--frames", "2", "--steps", "0", "--backends"]
    assert cli.main(arguments) == 1
    text = "verdict: FAILED: forces are the slope of the energy; stress is the slope by strain"
    assert text in capsys.readouterr().out
