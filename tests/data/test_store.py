"""Structures and neighbour lists on disk: the same frames, samples and runs as in memory."""

import dataclasses
import errno
import os

import ase.build
import ase.io
import jax
import numpy as np
import pytest

from eqfuse.data import Batcher, DataError, Dataset, read_embedded, read_structures, store
from eqfuse.data.checks import find_problems
from eqfuse.data.lazy import chosen
from eqfuse.data.samples import prepare_samples
from eqfuse.data.store import StoredSamples, samples_of, store_structures, write_lists
from eqfuse.data.structures import weighted_by_type
from eqfuse.train import sources
from tests.data.readers.test_ase_files import encoded, write
from tests.fuzz.damage import CHANGES
from tests.small_runs import labelled, prepared, rewritten


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Paths of molecules, some without labels, and of crystals with stress and an isolated atom."""
    rng = np.random.default_rng(3)
    molecules, crystals = [], []
    for k in range(8):
        atoms = ase.build.molecule("CH3OH" if k % 2 else "H2O")
        cell = ase.build.bulk("Cu", cubic=True)
        for one in (atoms, cell):
            one.positions += rng.normal(scale=0.05, size=one.positions.shape)
        atoms = labelled(atoms)
        for name in {3: ("energy",), 4: ("forces",), 5: ("energy", "forces")}.get(k, ()):
            del atoms.calc.results[name]
        molecules.append(atoms)
        crystals.append(labelled(cell, ("energy", "forces", "stress")))
        if k % 3:
            hessian = rng.normal(size=(4, 3, 4, 3)).round(8)
            hessian[:k] = np.nan
            crystals[-1].arrays["hessian"] = hessian.reshape(4, 36)
    molecules[1].info |= {"config_energy_weight": 2.0, "config_type": "wet"}
    crystals.append(ase.Atoms("Cu", info={"config_type": "IsolatedAtom", "energy": 3.0}))
    crystals.append(labelled(ase.build.bulk("Cu", cubic=True) * (5, 5, 6)))  # sorted in space
    folder = tmp_path_factory.mktemp("frames")
    paths = [folder / "molecules.xyz", folder / "crystals.xyz"]
    for path, frames in zip(paths, (molecules, crystals), strict=True):
        ase.io.write(path, frames)
    return paths


@pytest.fixture
def in_memory(files):
    return [s for file in files for s in read_structures(file, require_labels=False)]


def assert_all_same(ones, others):
    """Compare the fields of structures or samples, values and dtypes."""
    for one, other in zip(ones, others, strict=True):
        assert type(one) is type(other)
        for field in dataclasses.fields(one):
            a, b = getattr(one, field.name), getattr(other, field.name)
            if isinstance(a, np.ndarray):
                np.testing.assert_array_equal(a, b, err_msg=field.name)
                assert a.dtype == b.dtype or field.name == "order", field.name
            else:
                assert a == b, field.name


REFERENCES = {1: -1.0, 6: -2.0, 8: -3.0, 29: -4.0}
SPECIES = tuple(REFERENCES)


@pytest.mark.parametrize("by_type", [{}, {"wet": 3.0, "Default": 0.0, "IsolatedAtom": 0.0}])
def test_structures_and_samples_are_those_in_memory(files, in_memory, tmp_path, by_type):
    """Also with weights of types; one that is zero drops labels, but of an isolated atom."""
    stored = weighted_by_type(store_structures(files, folder=tmp_path), by_type)
    expected = weighted_by_type(in_memory, by_type)
    assert len(stored) == 18
    assert_all_same(stored, expected)
    if by_type:
        assert expected[1].weights.energy == 6
        assert expected[0].forces is None
    for given in (None, REFERENCES):
        samples = samples_of(stored, 4.0, SPECIES, given)
        assert isinstance(samples, StoredSamples)
        others = prepare_samples(expected, 4.0, SPECIES, given)
        assert_all_same(samples, others)
    batches = [next(Batcher(some, 18).batches()) for some in (samples, others)]
    assert batches[0].labels.weights is not None
    jax.tree.map(np.testing.assert_array_equal, *batches)
    numbers = [3, 17, 0]
    some = samples_of(chosen(stored, numbers), 4.0, SPECIES, given)
    others = prepare_samples([expected[k] for k in numbers], 4.0, SPECIES, given)
    assert_all_same(some, others)
    assert not np.array_equal(others[1].order, np.arange(600))


def test_batches_and_statistics_are_those_in_memory(files, in_memory, tmp_path):
    stored = store_structures(files, folder=tmp_path)
    ours, theirs = (
        Dataset.build(frames, cutoff=4.0, val_size=3, references=REFERENCES)
        for frames in (stored, in_memory)
    )
    for name in ("force_rms", "mean_neighbors", "energy_per_atom", "species", "references"):
        assert getattr(ours, name) == getattr(theirs, name)
    np.testing.assert_array_equal(ours.train_indices, theirs.train_indices)
    batches = [list(Batcher(one.train, 4).batches(epoch=2)) for one in (ours, theirs)]
    jax.tree.map(np.testing.assert_array_equal, *batches)
    assert find_problems(ours, stored) == find_problems(theirs, in_memory)
    moved = {z: energy + 1 for z, energy in REFERENCES.items()}
    ours, theirs = ours.with_references(moved, stored), theirs.with_references(moved, in_memory)
    assert_all_same(ours.val, theirs.val)


def test_files_are_read_once_and_again_when_they_change(files, tmp_path, monkeypatch):
    path, folder = tmp_path / "frames.xyz", tmp_path / "store"
    path.write_bytes(files[0].read_bytes())

    def stored(cutoff=4.0):
        frames = store_structures([path], folder=folder)
        samples_of(frames, cutoff, (1, 6, 8), None)
        return frames.folder

    first = stored()
    with monkeypatch.context() as patch:
        for name in ("iterate_structures", "write_lists"):
            patch.setattr(store, name, None)
        assert stored() == first
        with pytest.raises(TypeError):
            stored(cutoff=5.0)
        path.write_bytes(path.read_bytes().replace(b"0.1", b"0.2", 1))
        with pytest.raises(TypeError):
            stored()
    assert stored() != first
    assert len(list(folder.glob("[!.]*"))) == 2


@pytest.mark.parametrize("given", ["frames.xyz@:1", "set.aselmdb"])
def test_changes_of_what_an_index_or_a_folder_names(tmp_path, monkeypatch, given):
    """Which are kept on disk by their size, as files are."""
    monkeypatch.setenv("EQFUSE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sources, "_LARGE", 0)
    (tmp_path / "set.aselmdb").mkdir()
    atoms, found = labelled(ase.build.molecule("H2O")), []
    for energy in (1.0, 2.0):
        atoms.calc.results["energy"] = energy
        ase.io.write(tmp_path / "frames.xyz", atoms)
        write(tmp_path / "set.aselmdb" / "a.aselmdb", {"1": encoded(atoms)})
        frames = sources.DataSettings(path=str(tmp_path / given)).read()
        assert isinstance(frames, store.StoredStructures)
        found += [frame.energy for frame in frames]
    assert found == [1.0, 2.0]


def test_nothing_is_kept_of_files_that_are_refused(files, tmp_path):
    bad, folder = tmp_path / "bad.xyz", tmp_path / "store"
    for text, message in (
        (files[0].read_text() + "nonsense", r"bad\.xyz, frame 8"),
        ("", r"bad\.xyz has no frames"),
        (None, "no such file"),
    ):
        bad.unlink() if text is None else bad.write_text(text)
        with pytest.raises(DataError, match=message):
            store_structures([files[1], bad], folder=folder)
    assert not list(folder.glob("[!.]*"))

    def change(number, atoms):
        atoms.positions[1] = atoms.positions[int(number != 2)]

    stored = store_structures([rewritten(files[0], bad, change)], folder=folder)
    with pytest.raises(DataError, match=r"bad\.xyz, frame 2: atoms 0 and 1 are at the same place"):
        samples_of(stored, 4.0, (1, 6, 8), None)
    assert not list(stored.folder.glob("lists*"))
    assert not list(stored.folder.glob(".partial*"))
    with pytest.raises(DataError, match="C not among the model's species"):
        samples_of(store_structures(files, folder=tmp_path), 4.0, (1, 8, 29), None)


def test_damaged_frames_name_the_folder(files, tmp_path, rng):
    """Each flipped bit is found when the frame is read; files that are cut off or gone at once."""

    def read():
        stored = store_structures(files, folder=tmp_path)
        return [*samples_of(stored, 4.0, (1, 6, 8, 29), None)]

    read()
    found = [path for path in tmp_path.glob("[!.]*/**/[!.]*") if path.is_file()]
    assert len(found) == 4
    for path in found:
        content = path.read_bytes()
        damaged = [content[:-1], content[:32], b"", None]
        damaged += [CHANGES["one bit flipped in"](rng, content) for _ in range(10)]
        for one in damaged:
            path.unlink() if one is None else path.write_bytes(one)
            with pytest.raises(DataError, match=f"{path.parent} are damaged .*remove this folder"):
                read()
            path.write_bytes(content)
    assert len(read()) == 18


def test_a_full_disk_names_the_folder(files, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store, "write_frames", full)
    with pytest.raises(DataError, match=f"cannot be stored in {tmp_path}.*: No space left"):
        store_structures(files, folder=tmp_path)
    assert not list(tmp_path.glob("[!.]*"))


@pytest.mark.slow
def test_worker_processes_make_the_same_lists(tmp_path, files):
    """More structures than one piece of work has keep their order."""
    frames = read_embedded("ethanol")
    path = tmp_path / "ethanol.xyz"
    ase.io.write(path, [ase.Atoms(s.numbers, s.positions) for s in frames], format="extxyz")
    stored = store_structures([path], folder=tmp_path / "store")
    for workers in (1, 2):
        (tmp_path / str(workers)).mkdir()
        write_lists(tmp_path / str(workers), stored, 5.0, workers)
    for file in (tmp_path / "1").iterdir():
        assert file.read_bytes() == (tmp_path / "2" / file.name).read_bytes()
    assert (tmp_path / "1" / "lists").stat().st_size > 1e5


def test_the_data_of_a_run_are_the_same_with_frames_on_disk(copper, tmp_path, monkeypatch):
    monkeypatch.setenv("EQFUSE_CACHE_DIR", str(tmp_path))
    on, off = (
        prepared(f"data={copper}", "cutoff=3", f"data.store={where}")[0] for where in ("on", "off")
    )
    assert isinstance(on.train, StoredSamples)
    assert_all_same(on.train, off.train)
    assert_all_same(on.val, off.val)
    assert on.references == off.references
    assert len(list((tmp_path / "store").glob("[!.]*"))) == 1
