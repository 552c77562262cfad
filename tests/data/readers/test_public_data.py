"""`data=3bpa` and the like, with files that another test downloads."""

import hashlib

import ase.build
import ase.io
import numpy as np
import pytest
from ase import units

from eqfuse.data.readers import public
from eqfuse.data.readers.public import RemoteFile
from eqfuse.train import load_run
from eqfuse.train.main import main
from tests.small_runs import TINY

KCAL = units.kcal / units.mol


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """Make a file of a public set, as it is after its download; there is no network."""

    def put(name, file, write):
        path = tmp_path / name / file
        path.parent.mkdir(exist_ok=True)
        write(path)
        checksum = "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
        remote = RemoteFile(file, "http://127.0.0.1:9/nowhere", checksum)
        monkeypatch.setitem(public.PUBLIC[name], file, remote)

    return put


def train(tmp_path, *arguments):
    return main(
        [*TINY, "steps=1", f"data.folder={tmp_path}", f"run={tmp_path / 'run'}", *arguments]
    )


@pytest.mark.slow
def test_3bpa_with_its_isolated_atoms(offline, water, tmp_path, capsys):
    offline("3bpa", "train_300K.xyz", lambda path: path.write_bytes(water.read_bytes()))
    atoms = [ase.Atoms("H"), ase.Atoms("O")]
    for atom, energy in zip(atoms, (-13.6, -2041.0), strict=True):
        atom.info["energy"] = energy
    offline("3bpa", "iso_atoms.xyz", lambda path: ase.io.write(path, atoms, format="extxyz"))
    assert train(tmp_path, "data=3bpa") == 0
    assert "H -13.6000, O -2041.0000 eV (isolated atoms, downloaded)" in capsys.readouterr().out
    assert load_run(tmp_path / "run")[2]["reference_energies"] == {"1": -13.6, "8": -2041.0}


@pytest.mark.slow
def test_rmd17_takes_the_frames_of_its_split(offline, tmp_path, rng, capsys):
    coords = ase.build.molecule("H2O").positions + rng.normal(scale=0.05, size=(30, 3, 3))
    arrays = {"nuclear_charges": [8, 1, 1], "coords": coords, "forces": rng.normal(size=(30, 3, 3))}
    offline(
        "rmd17",
        "rmd17_ethanol.npz",
        lambda path: np.savez(path, energies=np.arange(30.0), **arrays),
    )
    split = [3, 28, 5, 0, 17, 9, 11, 2, 23, 21]
    offline("rmd17", "index_train_01.csv", lambda path: np.savetxt(path, split, fmt="%d"))
    assert train(tmp_path, "data=rmd17", "data.molecule=ethanol") == 0
    assert "6 training, 4 validation" in capsys.readouterr().out
    from eqfuse.train.settings.options import parse

    settings = parse(["data=rmd17", "data.molecule=ethanol", f"data.folder={tmp_path}"]).data
    energies = [s.energy for s in settings.read()]
    np.testing.assert_allclose(energies, KCAL * np.array(split), rtol=1e-12)


@pytest.mark.slow
def test_md22_is_read_in_its_own_layout(offline, tmp_path, rng, capsys):
    coords = ase.build.molecule("H2O").positions + rng.normal(scale=0.05, size=(10, 3, 3))
    forces = rng.normal(size=(10, 3, 3))
    offline(
        "md22",
        "md22_DHA.npz",
        lambda path: np.savez(
            path, z=np.array([8, 1, 1], np.uint8), R=coords, E=np.ones((10, 1)), F=forces
        ),
    )
    assert train(tmp_path, "data=md22", "data.molecule=DHA") == 0
    rms = np.sqrt((forces**2).mean()) * KCAL
    assert load_run(tmp_path / "run")[2]["statistics"]["force_rms"] == pytest.approx(rms, rel=0.3)


def test_no_network_is_said_in_one_line(tmp_path, monkeypatch, capsys):
    remote = RemoteFile("train_300K.xyz", "http://127.0.0.1:9/nowhere", "sha256:00")
    monkeypatch.setitem(public.PUBLIC["acac"], "train_300K.xyz", remote)
    assert train(tmp_path, "data=acac") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: http://127.0.0.1:9/nowhere cannot be downloaded")
    assert "data.path=FILE" in error
    assert not (tmp_path / "run").exists()
