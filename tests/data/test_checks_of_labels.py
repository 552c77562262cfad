"""Labels that do not belong to their positions: each kind of fault is named, right data are not."""

import dataclasses
import re
from types import SimpleNamespace

import ase.build
import ase.io
import ase.units
import numpy as np
import pytest
from ase import Atoms
from ase.calculators.emt import EMT

from eqfuse.data import Dataset, Structure, read_embedded
from eqfuse.data.checks import find_problems, wrong_references
from eqfuse.data.checks_of_forces import nothing_learned, unjudged
from eqfuse.data.checks_of_labels import hessians
from eqfuse.data.readers.ase_files import of_atoms
from eqfuse.data.remarks import APERIODIC, remarks_of, unread
from tests.fuzz.labels import FAULTS, PUBLISHED, RIGHT, labelled, made, planted, reported
from tests.inference.conftest import slope_of_forces
from tests.small_runs import prepared, rewritten, write_displaced

# Sources of a fault: the embedded molecule, and one in cells that are not symmetric.
SOURCE = {"transposed lattice": "copper, sheared cells"}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named(fault):
    frames = made(SOURCE.get(fault, "ethanol"), 0, 30)
    assert reported(frames) == []
    [found] = reported(planted(fault, frames, np.random.default_rng(0)))
    assert FAULTS[fault][1] in found


@pytest.mark.parametrize("source", ["lif", "copper, two atoms", "copper, dimers", "gold, cluster"])
@pytest.mark.parametrize("count", [1, 12, 25])
def test_right_data_are_left_in_silence(source, count):
    assert reported(made(source, 0, count)) == []


def boxed(frames, length: float) -> list[Structure]:
    box = {"cell": length * np.eye(3), "pbc": (True,) * 3}
    return [dataclasses.replace(s, **box) for s in frames]


@pytest.mark.parametrize("fault", [name for name in FAULTS if name.startswith("forces")])
def test_torques_show_faults_in_few_frames_of_molecules(fault):
    """Also in a box, without a name for the fault, which 22 frames have."""
    frames = made("acetaldehyde", 0, 22)
    for count, size in ((1, 30), (3, 30), (22, 30), (3, None)):
        right = boxed(frames[:count], size) if size else frames[:count]
        assert reported(right) == []
        wrong = planted(fault, right, np.random.default_rng(2))
        if count == 1 and "next" in fault:
            assert wrong is None
            continue
        [found], few = reported(wrong), count < 8
        assert (FAULTS[fault][1] in found) == (not few)
        assert found.startswith("forces would turn isolated molecules in") == few


def test_torques_of_what_is_not_alone_or_not_free_say_nothing():
    """Images of the atoms turn them, and a field or fixed atoms move them."""
    rng = np.random.default_rng(0)
    wrong = planted("forces of rotated frames", made("acetaldehyde", 0, 3), rng)
    pushed = [dataclasses.replace(s, forces=s.forces + np.eye(3)[0]) for s in wrong]
    remarked = [dataclasses.replace(s, remarks=(APERIODIC,)) for s in wrong]
    for frames in (boxed(wrong, 9.0), pushed, remarked):
        assert [text for text in reported(frames) if "turn isolated" in text] == []


@pytest.mark.parametrize(("source", "least", "most"), [("lif", 12, 12), ("copper, dimers", 25, 45)])
def test_too_few_frames_are_said_and_how_many_would_do(source, least, most):
    frames = made(source, 0, 50)
    [text] = unjudged(frames[:7])
    assert text.startswith("labels could not be judged: 7 frames with forces are too few to see")
    needed = int(re.search(r"about (\d+) frames like these would do", text)[1])
    assert least <= needed <= most
    assert [*unjudged(frames[: least - 1])] != []
    assert [*unjudged(frames[:most])] == []
    # dimers are no crystals: torques show it
    for count, number in ((7, source == "copper, dimers"), (most, 1)):
        wrong = planted("forces of rotated frames", frames[:count], np.random.default_rng(0))
        assert len(reported(wrong)) == number


def test_too_few_frames_are_a_warning_and_strict_goes_on(tmp_path, capsys):
    write_displaced(tmp_path / "few.xyz", ase.build.molecule("H2O"), 6, seed=0)
    given = [f"data={tmp_path / 'few.xyz'}", "data.reference_energies={H: 0, O: 0}"]
    for check, count in (("strict", 1), ("warn", 1), ("off", 0)):
        prepared(*given, f"data.check={check}")
        said = capsys.readouterr().err
        assert said.count("warning: labels could not be judged: 6 frames with forces") == count


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda s, rng: {"forces": None}, None),
        (lambda s, rng: {"energy": None}, None),
        (lambda s, rng: {"forces": 1e-12 * rng.normal(size=(9, 3))}, None),  # of rounding
        (
            lambda s, rng: {"forces": rng.normal(size=(9, 3))},
            "forces do not fit the positions: pairs of atoms explain 0% of them",
        ),
        (
            lambda s, rng: {"forces": s.forces[[0, 1, 5, 3, 4, 2, 6, 7, 8]]},
            "(atom 2 has those of atom 5, atom 5 has those of atom 2)",
        ),
    ],
    ids=["no forces", "no energies", "rounding", "of nothing", "exchanged atoms"],
)
def test_forces_of_nothing_or_of_other_atoms(rng, change, expected):
    frames = made("ethanol", 0, 40)
    found = reported([dataclasses.replace(s, **change(s, rng)) for s in frames])
    assert len(found) == (expected is not None)
    assert not found or expected in found[0]


@pytest.mark.slow
def test_most_faults_are_named_in_all_kinds_of_data():
    """In sets of 40 frames, 316 of 354 faults are named; in sets of 16 frames, 274 of 362."""
    slow = ("silicon", "morse", "mlearn")
    named = planted_there = 0
    for source in (*RIGHT, *PUBLISHED):
        frames = [] if source.startswith(slow) else made(source, 0, 24)
        assert reported(frames) == [], source
        for fault, (_, text) in FAULTS.items():
            wrong = planted(fault, frames, np.random.default_rng(0))
            if wrong is not None:
                planted_there += 1
                named += any(text in found for found in reported(wrong))
    assert planted_there > 250
    assert named > 0.75 * planted_there


def dataset(frames, references):
    return Dataset.build(frames, cutoff=3.0, val_size=2, references=references)


@pytest.mark.parametrize(
    ("references", "energies", "message"),
    [
        (1.0, 1.0, None),
        (1 / ase.units.Hartree, 1.0, "the reference energies are probably in Hartree"),
        (1.0, 1 / ase.units.Hartree, "the energies of the frames are probably in Hartree"),
        (0.1, 1.0, "they are of different codes, methods or pseudopotentials"),
        (0.0, 1.0, None),  # as some do who subtract none
        (None, 1.0, None),  # fitted
    ],
)
def test_reference_energies_of_another_unit_or_code(references, energies, message):
    """Methane and water with all-electron energies, -3.6 and -3.2 eV/atom from their atoms."""
    atoms, rng = {1: -13.6, 6: -1029.5, 8: -2042.0}, np.random.default_rng(0)
    frames = []
    for name, binding in [("CH4", -3.6), ("H2O", -3.2)] * 4:
        one = ase.build.molecule(name)
        one.positions += 0.02 * rng.normal(size=one.positions.shape)
        total = sum(atoms[z] for z in one.numbers) + binding * len(one)
        frames.append(Structure(one.numbers, one.positions, energy=energies * total))
    given = None if references is None else {z: references * e for z, e in atoms.items()}
    made_of = dataset(frames, given)
    found = list(wrong_references(made_of, made_of.train))
    assert len(found) == (message is not None)
    assert all(message in text for text in found)


@pytest.fixture(scope="module")
def stiff() -> list[Structure]:
    """Return frames with the Hessians of EMT, by differences."""
    rng, frames = np.random.default_rng(0), []
    for _ in range(3):
        atoms = ase.build.molecule("CH3OH")
        atoms.positions += 0.05 * rng.normal(size=atoms.positions.shape)
        frame = labelled(atoms, EMT())
        rows = [[slope_of_forces(atoms, a, i) for i in range(3)] for a in range(len(atoms))]
        hessian = (np.array(rows) + np.transpose(rows, (2, 3, 0, 1))) / 2
        frames.append(dataclasses.replace(frame, hessian=hessian))
    return frames


def exchange(h):  # C and one of its H
    order = [2, 1, 0, 3, 4, 5]
    return h[order][:, :, order]


TURN = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]


@pytest.mark.parametrize("forces", [True, False])
@pytest.mark.parametrize(
    ("change", "message", "without_forces"),
    [
        (lambda h: h, None, None),
        (lambda h: h / 97.1736, "in Hartree/Bohr^2 (times 97.174)", "in Hartree/Bohr^2"),
        (lambda h: h / 0.0433641, "in kcal/mol/Å^2 (times 0.043364)", "or N/m"),
        (lambda h: h / 0.0624151, "in N/m (times 0.062415)", "or N/m"),
        (
            lambda h: np.tril(h.reshape(18, 18)).reshape(h.shape),
            "not symmetric in 3 of 3",
            "not symmetric in 3 of 3",
        ),
        (lambda h: h[::-1][:, :, ::-1], "of another order of atoms", "of another order of atoms"),
        (exchange, "do not turn with the positions and forces", None),
        (
            lambda h: np.einsum("ki,aibj,lj->akbl", TURN, h, TURN),
            "do not turn with the positions and forces",
            None,  # blocks are as large as they were
        ),
    ],
)
def test_hessians_of_another_unit_order_or_frame(stiff, change, message, without_forces, forces):
    given = {} if forces else {"forces": None}
    found = [*hessians([dataclasses.replace(s, hessian=change(s.hessian), **given) for s in stiff])]
    expected = message if forces else without_forces
    assert bool(found) == (expected is not None)
    assert expected is None or any(expected in text for text in found)


def test_remarks_name_what_no_network_reads():
    plain, atoms = ase.build.molecule("H2O"), ase.build.molecule("OH")
    plain.info |= {"charge": 0, "spin": 1, "multiplicity": 1}
    plain.set_initial_charges([0, 0, 0])
    assert remarks_of(plain) == ()
    assert unread([]) == ""
    atoms.info |= {"charge": -1, "spin_multiplicity": 2}
    atoms.set_initial_charges([-1, 0])
    atoms.set_initial_magnetic_moments([0, 1.0])
    expected = ("charge", "spin", "initial charges", "initial magnetic moments")
    assert remarks_of(atoms) == of_atoms(atoms).remarks == expected
    assert unread([*expected, "charge"]).startswith(f"{', '.join(expected)} of the atoms are")
    assert "charge of the atoms is not read: no network here depends on it," in unread(["charge"])


@pytest.mark.parametrize("count", [0, 3])
def test_charges_of_frames_are_said_once_before_the_training(water, tmp_path, capsys, count):
    def change(number, atoms):
        atoms.info |= {"charge": 1} if number < count else {}

    prepared(f"data={rewritten(water, tmp_path / 'charged.xyz', change)}")
    said = capsys.readouterr().err.count("warning: charge of the atoms is not read")
    assert said == (count > 0)


def test_crystals_without_periodic_directions_are_named(rng):
    """By the reader, and before the training."""
    crystal = ase.build.bulk("Cu", cubic=True).repeat(2)
    right, molecule = crystal.copy(), ase.build.molecule("C6H6", vacuum=1.5)
    bare, slab = Atoms(crystal.numbers, crystal.positions), ase.build.fcc111("Cu", (2, 2, 3), 5)
    for other in (right, molecule, bare, slab):
        assert remarks_of(other) == ()
    frames = [crystal.copy() for _ in range(6)]
    for k, atoms in enumerate(frames):
        atoms.positions += 0.05 * rng.normal(size=atoms.positions.shape)
        atoms.calc = EMT()
        atoms.get_forces()
        atoms.pbc = k > 2
    read = [of_atoms(atoms, origin=f"frame {k}") for k, atoms in enumerate(frames)]
    assert [s.remarks for s in read] == 3 * [(APERIODIC,)] + 3 * [()]
    [text] = [text for text in find_problems(dataset(read, None), read) if "pbc" in text]
    assert text.startswith("3 frames have a lattice and pbc F F F (frame 0), and the images")


@pytest.mark.parametrize(("error", "said"), [(0.2, False), (0.85, False), (0.95, True)])
def test_nothing_is_learned_where_errors_are_as_large_as_forces(rng, error, said):
    frames = read_embedded("ethanol")[:4]
    forces = np.array([s.forces for s in frames])
    noise = rng.choice([-1, 1], size=forces.shape) * error * np.sqrt(np.mean(forces**2))
    predicted = [SimpleNamespace(forces=f) for f in forces + noise]
    found = nothing_learned(frames, predicted)
    assert bool(found) == said
    for kind in ("of the next frame", "of other atoms", "of the opposite sign", "in Bohr"):
        assert not said or kind in found
    assert nothing_learned([dataclasses.replace(s, forces=None) for s in frames], predicted) is None
