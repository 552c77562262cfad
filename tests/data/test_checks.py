"""Checks of data: what is planted in real data is reported, and copies are on one side."""

import dataclasses
import functools
import re
import warnings

import ase.io
import ase.units
import numpy as np
import pytest

from eqfuse.data import (
    DataError,
    Dataset,
    Structure,
    isolated_atom_energies,
    read_embedded,
    read_structures,
)
from eqfuse.data.checks import find_problems, undetermined_references, unread_labels
from eqfuse.data.checks_of_labels import energy_differences, springs
from eqfuse.data.copies import kept_together
from eqfuse.data.store import StoredStructures, write_frames
from eqfuse.train.main import main
from tests.small_runs import TINY, prepared, rewritten

CUTOFF = 4.0
HARTREE, BOHR = ase.units.Hartree, ase.units.Bohr
KCAL = ase.units.kcal / ase.units.mol


def problems(frames, validation=None, references=None) -> list[str]:
    given = references or {z: 0.0 for s in frames for z in s.numbers.tolist()}
    dataset = Dataset.build(
        frames, cutoff=CUTOFF, val_size=10, references=given, validation=validation
    )
    return find_problems(dataset, frames, validation)


@pytest.fixture(scope="module")
def ethanol():
    """Return 100 frames of ethanol, in their order."""
    return read_embedded("ethanol")[:100]


@pytest.fixture(scope="module")
def crystal():
    """Return the cells of LiF, which have stress."""
    return read_embedded("lif")


def replaced(frames, number: int, **fields) -> list[Structure]:
    return [dataclasses.replace(s, **fields) if k == number else s for k, s in enumerate(frames)]


def scaled(frames, energy: float, forces: float) -> list[Structure]:
    return [
        dataclasses.replace(s, energy=energy * s.energy, forces=forces * s.forces) for s in frames
    ]


@functools.cache
def read(folder, name: str) -> tuple[list[Structure], dict | None]:
    """Return published frames, and the energies of the isolated atoms, where there are some."""
    file, atoms = {
        "3bpa": ("3bpa/train_300K.xyz", "3bpa/iso_atoms.xyz"),
        "acac": ("acac/train_300K.xyz", "acac/isolated_atoms.xyz"),
        "aspirin": ("rmd17/rmd17_aspirin_train_01.npz", None),
        "ethanol": ("rmd17/rmd17_ethanol_train_01.npz", None),
        "silicon": ("mlearn_si/mlearn_Si_training.extxyz", None),
    }[name]
    return read_structures(folder / file), isolated_atom_energies(folder / atoms) if atoms else None


@pytest.mark.parametrize("name", ["3bpa", "acac", "aspirin", "ethanol"])
def test_clean_published_molecules_have_no_problem(shared_data, name):
    frames, references = read(shared_data, name)
    assert problems(frames[:300], references=references) == []


def test_strained_cells_that_are_rotations_of_others_are_found(shared_data):
    """The strained cells of the published silicon occur along x, y and z; nothing else is amiss."""
    frames, _ = read(shared_data, "silicon")
    [found] = problems(frames)  # no validation frame is a training frame
    assert "frames are copies of others, or what a rotation" in found


RISE, ATOMIC = "energies rise where forces pull", "forces are in eV/Bohr, or all is in atomic units"
IN_HARTREE, IN_KCAL = "forces are probably in Hartree/Å or Hartree/Bohr", "probably in kcal/mol/Å"


@pytest.mark.parametrize("name", ["lif", "3bpa", "acac", "aspirin", "ethanol", "silicon"])
@pytest.mark.parametrize(
    ("energy", "forces", "of_bonds", "of_energies"),
    [
        (1, 1, None, None),
        (1, -1, "sign is probably wrong", RISE),
        (1, BOHR, None, ATOMIC),
        (1 / HARTREE, 1 / HARTREE, IN_HARTREE, None),
        (1 / HARTREE, BOHR / HARTREE, IN_HARTREE, ATOMIC),
        (1, BOHR / HARTREE, IN_HARTREE, "forces are in Hartree/Bohr, and energies in eV"),
        (1 / HARTREE, 1, None, "energies are in Hartree, and forces in eV/Å"),
        (1 / KCAL, 1 / KCAL, IN_KCAL, None),
        (1, 1 / KCAL, IN_KCAL, "forces are in kcal/mol/Å, and energies in eV"),
    ],
)
def test_signs_and_units_are_seen(request, crystal, name, energy, forces, of_bonds, of_energies):
    """In published frames, and in embedded ones of LiF."""
    if name == "lif":  # units of soft bonds are not known
        frames, of_bonds = crystal, of_bonds if forces == -1 else None
    else:
        frames, _ = read(request.getfixturevalue("shared_data"), name)
    if name == "silicon":  # 23 times its stiffness is that of some bonds; its cells all differ
        of_bonds, of_energies = None if of_bonds == IN_KCAL else of_bonds, None
    for check, expected in ((springs, of_bonds), (energy_differences, of_energies)):
        found = list(check(scaled(frames, energy, forces)))
        assert len(found) == (expected is not None)
        assert not found or expected in found[0]


def test_one_huge_force_hides_no_sign(ethanol):
    frames = scaled(ethanol, 1, -1)
    frames = replaced(frames, 5, forces=put(frames[5].forces, (4, 1), 500))
    [problem] = springs(frames)
    assert "sign is probably wrong" in problem


def test_energies_per_atom_are_seen(crystal):
    [problem] = energy_differences(scaled(crystal, 1 / crystal[0].num_atoms, 1))
    assert "energies are per atom" in problem


def test_unread_labels(ethanol):
    """Labels of some frames under another key, and energies that forces do not belong to."""
    unread = {"energy": "REF_energy", "forces": "REF_forces"}
    mixed = [
        dataclasses.replace(s, energy=None, forces=None, unread=unread) if k % 2 else s
        for k, s in enumerate(ethanol)
    ]
    for text, name in zip(unread_labels(mixed), unread, strict=True):
        start = f"no {name} {'is' if name == 'energy' else 'are'} read in 50 of 100 frames, which"
        assert text.startswith(f"{start} have REF_{name} where")
    assert not list(unread_labels(mixed[1::2]))  # refused elsewhere, for all have none
    [found] = unread_labels(replaced(ethanol, 3, unread={"free_energy": "free_energy"}))
    assert "not free_energy in 1 of 100 frames" in found
    assert "data.energy_key=free_energy" in found


def put(array, at, value):
    array = array.copy()
    array[at] = value
    return array


CLOSE = r"1 frame has atoms nearer than 0.5 Å; .* are 0.300 Å apart \(structure 5, atoms 0 and 3\)"
NET = "forces do not add up to zero in 1 of 100 frames; .* structure 5:"


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("forces", lambda s: 0 * s.forces, [r"exactly zero in 1 of 100 frames \(structure 5\)"]),
        ("stress", lambda s: 0 * s.stress, [r"exactly zero in 1 of 90 frames \(structure 5\)"]),
        (
            "positions",
            lambda s: put(s.positions, 3, s.positions[0] + [0, 0, 0.3]),
            [CLOSE, "would turn isolated"],
        ),
        (
            "forces",
            lambda s: put(s.forces, (4, 1), 500),
            ["explain 0%", "1 frame has forces above .* atom 4 of structure 5", NET],
        ),
        ("energy", lambda s: s.energy + 40.0, ["1 frame has energies more than .* structure 5"]),
        ("forces", lambda s: put(s.forces, slice(2, None), 0), [NET]),
    ],
    ids=["no forces", "no stress", "close", "large force", "energy", "fixed atoms"],
)
def test_a_fault_of_one_frame_names_it(ethanol, crystal, name, change, expected):
    frames = crystal if name == "stress" else ethanol
    found = problems(replaced(frames, 5, **{name: change(frames[5])}))
    for text, pattern in zip(found, expected, strict=True):
        assert re.search(pattern, text)


def test_forces_that_are_zero_by_symmetry_are_no_problem(ethanol, crystal):
    """As in a perfect crystal, here one of silicon's structure in two cells."""
    assert problems(ethanol) == []
    cell = 5.43 * (np.ones((3, 3)) - np.eye(3)) / 2
    silicon = [
        Structure(
            [14, 14], [[0, 0, 0], [a / 4] * 3], a / 5.43 * cell, True, -10.0, np.zeros((2, 3))
        )
        for a in (5.3, 5.43)
    ]
    assert problems([*crystal, *silicon]) == []


def moved(structure: Structure, rng) -> Structure:
    """Return a structure rotated, shifted, and with atoms in another order."""
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    order = rng.permutation(structure.num_atoms)
    positions = (structure.positions @ turn + 7.0)[order]
    forces = (structure.forces @ turn)[order]
    return dataclasses.replace(
        structure, numbers=structure.numbers[order], positions=positions, forces=forces
    )


def test_copies(ethanol, rng):
    """Also where they are rotated and in another file, with numbers that are rounded."""
    copy = moved(ethanol[20], rng)
    copy = dataclasses.replace(copy, positions=copy.positions.round(5), origin="other.xyz, frame 0")
    [problem] = problems(ethanol[:60], validation=[*ethanol[60:], copy])
    assert "1 validation frame is a training frame, too" in problem
    assert "structure 20 and other.xyz, frame 0" in problem
    again = dataclasses.replace(moved(ethanol[3], rng), energy=ethanol[3].energy + 0.1)
    first, second = problems([*ethanol[:60], again], validation=ethanol[60:])
    assert "1 frame is a copy of others" in first
    assert "1 pair of the same structures has energies that differ, by up to 0.0111" in second


def test_frames_of_another_total_charge_are_no_copies(ethanol):
    """Nor are their energies of two levels."""
    ions = [dataclasses.replace(s, energy=s.energy + 9.5, charge=1.0) for s in ethanol[:40]]
    frames = [s for both in zip(ethanol[:40], ions, strict=True) for s in both]
    assert problems(frames) == []
    dataset = build(frames, val_size=4, duplicates="drop")
    assert (len(dataset.train), len(dataset.val)) == (76, 4)


def test_test_frames_that_are_trained_on_or_validate(ethanol, rng):
    """The third frame is a copy of a training frame, the fifth of a validation frame."""
    frames = [*ethanol[60:62], moved(ethanol[0], rng), ethanol[62], moved(ethanol[50], rng)]
    frames = [dataclasses.replace(s, origin=f"test {k}") for k, s in enumerate(frames)]
    parts = ethanol[:50], ethanol[50:60]
    dataset = build(parts[0], validation=parts[1]).with_test(frames)
    trained_on, validates = find_problems(dataset, *parts)
    for problem, kind, both in (
        (trained_on, "training", "structure 0 and test 2"),
        (validates, "validation", "validation structure 0 and test 4"),
    ):
        assert f"1 test frame is a {kind} frame, too, so that errors of test are too" in problem
        assert both in problem


def test_reference_energies_that_are_not_determined(ethanol):
    dataset = Dataset.build(ethanol, cutoff=CUTOFF)
    [problem] = find_problems(dataset, ethanol)
    assert "does not determine the reference energies of H -45" in problem
    many = dataclasses.replace(  # of a network that knows more elements
        dataset, species=(1, 6, 8, 26), references={**dataset.references, 26: -7.0}
    )
    [problem] = undetermined_references(many, ethanol)
    assert "Fe" not in problem
    molecules = [
        Structure(atoms.numbers, atoms.positions, energy=energy, origin=name)
        for name, energy in (("H2O", -138.0), ("CH4", -113.0))
        for atoms in [ase.build.molecule(name)]
    ]
    frames = [*ethanol, *molecules * 3]
    dataset = Dataset.build(frames, cutoff=CUTOFF, validation=ethanol[:1])
    assert not [p for p in find_problems(dataset, frames) if "reference" in p]


def test_problems_are_warnings_or_refused(water, tmp_path, capsys):
    """As `data.check` says; a refusal is exit code 2 and leaves no run."""

    def change(number, atoms):
        atoms.calc.results["forces"] *= number != 3

    given = f"data={rewritten(water, tmp_path / 'zero.xyz', change)}"
    prepared(given, "data.check=off")
    assert capsys.readouterr().err == ""
    prepared(given)
    message = f"warning: forces are exactly zero in 1 of 20 frames ({tmp_path}"
    assert message in capsys.readouterr().err
    assert main([given, *TINY, "data.check=strict", f"run={tmp_path / 'run'}"]) == 2
    *problems, error = capsys.readouterr().err.splitlines()
    assert problems[0].startswith("problem: forces are exactly zero")
    assert error.startswith(f"error: data.check=strict refuses data with {len(problems)} problems")
    assert not (tmp_path / "run").exists()


REFERENCES = {1: 0.0, 6: 0.0, 8: 0.0}


@pytest.fixture
def frames(rng):
    """Return 12 frames of ethanol, and 4 copies of some, which are rotated and renumbered."""
    ethanol = read_embedded("ethanol")[:12]
    return [*ethanol, *(moved(ethanol[k], rng) for k in (0, 0, 3, 7))]


def build(frames, **options) -> Dataset:
    return Dataset.build(frames, cutoff=4.0, references=REFERENCES, **options)


def firsts(dataset: Dataset, part: str) -> set[int]:
    """Return the numbers of the first copies of the frames of a set."""
    original = {12: 0, 13: 0, 14: 3, 15: 7}
    return {original.get(k, k) for k in getattr(dataset, f"{part}_indices").tolist()}


@pytest.mark.parametrize("stored", [False, True])
def test_copies_never_straddle_the_split(frames, tmp_path, stored):
    if stored:
        write_frames(tmp_path, {"ethanol.xyz": frames})
        frames = StoredStructures(tmp_path)
    for seed in range(10):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            dataset = build(frames, val_size=4, seed=seed)
        fewer = f"{len(dataset.val)} frames validate, not 4"
        assert any(fewer in str(w.message) for w in said) == (len(dataset.val) < 4)
        assert not firsts(dataset, "train") & firsts(dataset, "val")
        assert len(dataset.train) + len(dataset.val) == 16
        assert 1 <= len(dataset.val) <= 4
        for part in ("train", "val"):
            for sample, k in zip(
                *(getattr(dataset, part + i) for i in ("", "_indices")), strict=True
            ):
                np.testing.assert_array_equal(sample.in_structure(sample.forces), frames[k].forces)
                assert sample.energy == frames[k].energy
        with pytest.warns(UserWarning, match="left out: 4 frames are copies of others: "):
            dropped = build(frames, val_size=4, seed=seed, duplicates="drop")
        numbers = [*dropped.train_indices, *dropped.val_indices]
        assert len(numbers) == len(firsts(dropped, "train") | firsts(dropped, "val")) == 12
        assert firsts(dropped, "val") == firsts(dataset, "val")
    with pytest.raises(DataError, match=r"4 frames are copies of others .*duplicates=error"):
        build(frames, duplicates="error")


def test_copies_in_files_to_validate_or_test_with_are_left_out(frames):
    unique, copies = frames[:10], [*frames[10:12], frames[12], frames[14]]
    assert len(build(unique, validation=copies).val) == 4  # named by the checks
    with pytest.warns(UserWarning, match="left out: 2 frames are copies"):
        dataset = build(unique, validation=copies, duplicates="drop")
    assert dataset.val_indices.tolist() == [0, 1]
    with pytest.warns(UserWarning, match="left out: 2 frames are copies"):
        dataset = dataset.with_test([frames[15], frames[11]], "drop")
    assert len(dataset.train) == 10
    assert not dataset.test
    with pytest.raises(DataError, match="is a copy of others"):
        dataset.with_test([frames[15]], "error")


def test_copies_alone_cannot_validate(frames):
    with pytest.warns(UserWarning, match="left out"), pytest.raises(DataError, match="give others"):
        build(frames[:10], validation=frames[12:15], duplicates="drop")


@pytest.mark.parametrize(
    ("first", "validates"),
    [
        ([0, 1, 2, 3, 4], [3, 4]),  # no copies
        ([0, 1, 2, 0, 4], [4]),  # a copy of a training frame trains
        ([0, 1, 2, 0, 1], [0, 3]),  # as many as before validate
        ([0, 0, 0, 0, 1], [4]),
        ([0, 0, 0, 3, 3], [3, 4]),  # copies of each other only
        ([0, 0, 0, 0, 0], [3, 4]),  # nothing else to do
        ([0, 1, 1, 0, 1], [0, 3]),
    ],
)
def test_validation_frames(first, validates):
    found = kept_together(np.array(first), 3)
    assert np.flatnonzero(found).tolist() == validates
