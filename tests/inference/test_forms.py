"""What public functions are given: structures in every form."""

import ase.build
import ase.db
import ase.io
import numpy as np
import pytest

import eqfuse
from eqfuse import md
from eqfuse.data import DataError
from eqfuse.data.readers import indexed
from eqfuse.distill import rounds
from eqfuse.inference.uncertainty import fit


@pytest.fixture(scope="module")
def two():
    """Return a crystal, and one that is stretched."""
    crystal = ase.build.bulk("Cu", cubic=True)
    crystal.rattle(0.05, seed=1)
    other = crystal.copy()
    other.set_cell(1.02 * crystal.cell.array, scale_atoms=True)
    return [crystal, other]


def _database(frames, folder):
    with ase.db.connect(folder / "two.db") as database:
        for atoms in frames:
            database.write(atoms)
    return database.select()


def _written(frames, folder, name: str):
    ase.io.write(folder / name, frames)
    return folder / name


SEVERAL = {
    "list": lambda two, folder: two,
    "tuple": lambda two, folder: tuple(two),
    "generator": lambda two, folder: (atoms for atoms in two),
    "iread": lambda two, folder: ase.io.iread(_written(two, folder, "two.xyz")),
    "trajectory": lambda two, folder: ase.io.Trajectory(_written(two, folder, "two.traj")),
    "rows": _database,
    "path": lambda two, folder: _written(two, folder, "two.xyz"),
    "files": lambda two, folder: (
        [str(_written([a], folder, f"{len(a)}.xyz")) for a in two[:1]]
        + [_written(two[1:], folder, "other.xyz")]
    ),
    "index": lambda two, folder: f"{_written([*two, two[0]], folder, 'three.xyz')}@:2",
    "structures": lambda two, folder: [eqfuse.data.of_atoms(atoms) for atoms in two],
}
ONE = {
    "atoms": lambda one, folder: one,
    "structure": lambda one, folder: eqfuse.data.of_atoms(one),
}


def _of_dynamics(run, given, folder):
    settings = {"steps": 1, "temperature": 0, "frames": "all", "run": str(folder / "md")}
    last = md.run(run, given, **settings)
    frames = [last] if isinstance(last, ase.Atoms) else last
    energies = [atoms.get_potential_energy() for atoms in frames]
    return energies[0] if isinstance(last, ase.Atoms) else energies


# each returns numbers of a structure, or a list of them, in the form of the function's own results
FUNCTIONS = {
    "predict": lambda run, given, _: [p.energy for p in eqfuse.predict(run, given)],
    "relax": lambda run, given, _: [o.first_energy for o in md.relax(run, given, steps=1)],
    "run": _of_dynamics,
    "descriptors": lambda run, given, _: eqfuse.descriptors(run, given),
    "hessian": lambda run, given, _: eqfuse.hessian(run, given),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_takes_every_form(name, trained, two, tmp_path):
    call = FUNCTIONS[name]
    expected = [call(trained, atoms, tmp_path / f"{k}") for k, atoms in _in(two, tmp_path)]
    in_list = isinstance(expected[0], list)
    assert not np.allclose(*expected)
    for form, make in (SEVERAL | ONE).items():
        (folder := tmp_path / form).mkdir()
        given = make(two if form in SEVERAL else two[0], folder)
        found = call(trained, given, folder)
        if hasattr(given, "close"):
            given.close()
        if form in SEVERAL:
            wanted = [e[0] for e in expected] if in_list else expected
            assert len(found) == 2, form
        else:
            wanted = expected[0]
            assert isinstance(found, list) == in_list, form
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5, err_msg=form)
    for wrong in ([], {"a": two[0]}, [two], 3):
        with pytest.raises((DataError, TypeError), match=r"structures"):
            call(trained, wrong, tmp_path)
    with pytest.raises(TypeError, match=r"(a network|run) must be"):
        call(3, two[0], tmp_path)


def _in(frames, folder):
    for k, atoms in enumerate(frames):
        (folder / f"{k}").mkdir()
        yield k, atoms


@pytest.mark.parametrize(
    ("index", "expected"),
    [("0", [0]), ("-1", [3]), ("2", [2]), (":", [0, 1, 2, 3]), ("1::2", [1, 3]), ("-2:", [2, 3])],
)
def test_an_index_chooses_frames_and_keeps_their_numbers(index, expected, tmp_path):
    file = tmp_path / "four.xyz"
    ase.io.write(file, [ase.Atoms("H", [(float(k), 0, 0)]) for k in range(4)])
    for given in (file, tmp_path / "at@four.xyz"):
        if given != file:
            file.rename(given)
        read = eqfuse.data.read_structures(f"{given}@{index}", require_labels=False)
        assert [s.positions[0, 0] for s in read] == expected
        assert [s.origin for s in read] == [f"{given}, frame {k}" for k in expected]
    assert indexed(given) == (given, slice(None))
    for wrong in ("x", "", "1:2:0", "1:2:3:4", ":x", "natoms>2"):
        with pytest.raises(DataError, match="is no index of frames"):
            eqfuse.data.read_structures(f"{given}@{wrong}")
    with pytest.raises(DataError, match="has no frames"):
        eqfuse.data.read_structures(f"{given}@4")


def test_frames_of_a_fit_may_be_atoms(trained, copper):
    """Their labels are those that a file of them has."""
    frames = ase.io.read(copper, ":")
    of_file, of_atoms = fit(trained, copper, copper), fit(trained, iter(frames), (*frames,))
    assert of_atoms == of_file
    fitted = trained / "uncertainty.npz"
    fitted.unlink()


def test_a_start_of_distillation_may_have_an_index(two, tmp_path):
    file = _written(two, tmp_path, "two.xyz")
    [start] = rounds.read_frames(f"{file}@1")
    np.testing.assert_allclose(start.cell.array, two[1].cell.array)
