"""Reference energies, and that float32 labels survive all-electron totals."""

import numpy as np
import pytest

from eqfuse.data import (
    Batcher,
    DataError,
    Dataset,
    Structure,
    fit_reference_energies,
    isolated_atom_energies,
    read_structures,
)
from eqfuse.data.references import energies_of_atoms, subtract

ATOM = "1\nProperties=species:S:1:pos:R:3 energy={energy}\n{symbol} 0 0 0\n"


def hydrocarbon(carbons, hydrogens, energy):
    n = carbons + hydrogens
    numbers = [6] * carbons + [1] * hydrogens
    return Structure(
        numbers, np.arange(3.0 * n).reshape(n, 3), energy=energy, forces=np.zeros((n, 3))
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2\nProperties=species:S:1:pos:R:3 energy=-1\nH 0 0 0\nH 0 0 1\n", "has 2 atoms"),
        (ATOM.format(symbol="H", energy=-2.0), "a second energy for H"),
        ("1\nProperties=species:S:1:pos:R:3\nC 0 0 0\n", "no energy under the key 'energy'"),
    ],
)
def test_isolated_atom_energies(tmp_path, text, message):
    path = tmp_path / "atoms.xyz"
    energies = (("N", -9.0), ("H", -1.0), ("C", -1029.5))
    atoms = "".join(ATOM.format(symbol=symbol, energy=energy) for symbol, energy in energies)
    path.write_text(atoms)
    found = isolated_atom_energies(path)
    assert [*found.items()] == [(1, -1.0), (6, -1029.5), (7, -9.0)]
    path.write_text(atoms + text)
    with pytest.raises(DataError, match=rf"frame 3\b.*{message}"):
        isolated_atom_energies(path)


def test_fit_recovers_exact_energies():
    exact, counts = {1: -13.6, 6: -1029.5}, [(1, 4), (2, 6), (2, 4), (6, 6)]
    structures = [hydrocarbon(c, h, c * exact[6] + h * exact[1]) for c, h in counts]
    # Condition number of the counts is about 5: a few roundings of energies near 6e3 eV.
    assert fit_reference_energies(structures) == pytest.approx(exact, abs=1e-10)


def test_fit_of_one_composition_has_minimum_norm_and_zero_mean_residual():
    structures = [hydrocarbon(1, 4, energy) for energy in (-1100.0, -1101.0, -1105.0)]
    fitted = fit_reference_energies(structures)
    assert np.mean([subtract(s, fitted) for s in structures]) == pytest.approx(0, abs=1e-9)
    # Of all solutions of c + 4 h = -1102, that with the smallest norm is along (1, 4).
    assert fitted[1] == pytest.approx(4 * fitted[6], rel=1e-12)


@pytest.mark.parametrize("kind", ["isolated atoms", "fit"])
def test_float32_labels_of_3bpa_keep_a_microelectronvolt_per_atom(shared_data, kind):
    structures = read_structures(shared_data / "3bpa" / "train_300K.xyz")[::5]
    isolated = isolated_atom_energies(shared_data / "3bpa" / "iso_atoms.xyz")
    references = isolated if kind == "isolated atoms" else None
    data = Dataset.build(structures, cutoff=3.0, references=references)
    batches = Batcher(data.train, 50, dtype=np.float32).batches(shuffle=False)
    labels = np.concatenate([b.labels.energy[b.graph.graph_mask] for b in batches])
    assert labels.dtype == np.float32
    chosen = [structures[i] for i in data.train_indices]
    totals = np.array([s.energy for s in chosen])
    sums = np.array([sum(data.references[z] for z in s.numbers.tolist()) for s in chosen])
    error = np.abs(labels.astype(np.float64) - (totals - sums)) / 27
    assert error.max() < 1e-6
    # The cast before the subtraction would miss that by two orders of magnitude.
    late = totals.astype(np.float32) - sums.astype(np.float32)
    assert np.abs(late - (totals - sums)).max() / 27 > 1e-5


def atom(number, energy):
    return Structure([number], np.zeros((1, 3)), energy=energy, config_type="IsolatedAtom")


@pytest.fixture
def molecules():
    return [hydrocarbon(c, h, -6.0 * c - h) for c, h in [(1, 4), (2, 6), (2, 4), (6, 6), (3, 8)]]


def build(structures, **options):
    return Dataset.build(structures, cutoff=12.0, **{"val_size": 1, **options})


def test_isolated_atoms_among_the_structures_are_the_references(molecules):
    structures = [atom(6, -5.0), *molecules, atom(1, -0.5)]
    data = build(structures, val_size=2)
    assert data.references == {1: -0.5, 6: -5.0}
    assert not data.references_fitted
    assert data.isolated_atoms.tolist() == [0, 6]
    both = np.concatenate([data.train_indices, data.val_indices])
    assert sorted(both.tolist()) == [1, 2, 3, 4, 5]
    for index, sample in zip(data.train_indices, data.train, strict=True):
        hydrogens, carbons = np.bincount(structures[index].numbers)[[1, 6]]
        assert sample.energy == pytest.approx(-carbons - 0.5 * hydrogens)


def test_references_that_are_given_come_before_isolated_atoms(molecules):
    given = {1: -1.0, 6: -6.0}
    atoms = [atom(6, -5.0), atom(6, -5.1), atom(1, None)]  # which contradict each other
    data = build([*atoms, *molecules], references=given)
    assert data.references == given
    assert not data.references_fitted
    assert len(data.train) + len(data.val) == 5


@pytest.mark.parametrize(
    ("atoms", "message"),
    [
        ([atom(6, -5.0)], r"structure \d: no reference energy for H"),
        ([atom(6, -5.0), atom(1, -0.5), atom(6, -5.1)], "structure 2: a second energy for C"),
        ([atom(6, None)], "structure 0: an isolated atom without an energy"),
    ],
)
def test_isolated_atoms_must_be_one_of_each_element(molecules, atoms, message):
    with pytest.raises(DataError, match=message):
        build([*atoms, *molecules])


def test_isolated_atoms_of_the_validation_structures(molecules):
    """They are references too, and may not contradict the others."""
    carbon, hydrogen = atom(6, -5.0), atom(1, -0.5)
    structures, validation = [carbon, *molecules[:4]], [hydrogen, molecules[4]]
    data = build(structures, validation=validation)
    assert data.references == {1: -0.5, 6: -5.0}
    assert data.val_indices.tolist() == [1]
    for frames, given, message in (
        (structures, [*validation, atom(6, -5.1)], "ion structure 2: a second energy for C"),
        ([carbon, hydrogen], None, r"no structure but isolated atoms \(2\)"),
        (molecules, [carbon, hydrogen], r"no validation structure but isolated atoms \(2\)"),
    ):
        with pytest.raises(DataError, match=message):
            build(frames, validation=given)


def test_element_of_validation_structures_only_is_warned_of(molecules):
    water = Structure([8, 1], np.eye(2, 3), energy=-3.0, forces=np.zeros((2, 3)))
    with pytest.warns(UserWarning, match="no training structure has O"):
        build(molecules, validation=[water], references={1: -1.0, 6: -6.0, 8: -2.0})


def test_isolated_atom_needs_no_forces(tmp_path):
    path = tmp_path / "atoms.xyz"
    text = ATOM.format(symbol="C", energy="-1029.5 config_type=IsolatedAtom")
    for spelling in ("IsolatedAtom", "isolated_atom"):  # of MACE and GAP
        path.write_text(text.replace("IsolatedAtom", spelling))
        (carbon,) = read_structures(path)
        assert carbon.is_isolated_atom
        assert carbon.energy == -1029.5
    for old, new, missing in (("energy", "other", "energy"), ("IsolatedAtom", "Atom", "forces")):
        path.write_text(text.replace(old, new))
        with pytest.raises(DataError, match=f"none of 1 frame: no {missing}"):
            read_structures(path)


def test_energies_of_an_atom_that_differ_by_rounding_are_one():
    first, near, other = (
        Structure([1], np.zeros((1, 3)), energy=-13.6 + more, origin=f"atom {more}")
        for more in (0, 5e-7, 2e-6)
    )
    assert energies_of_atoms([first, near]) == {1: -13.6}
    with pytest.raises(DataError, match="atom 2e-06: a second energy for H"):
        energies_of_atoms([first, other])
