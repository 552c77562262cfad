"""Published networks by name, and files of other programs, in the place of a run.

They are found, checked, and described where they are to be fetched.
"""

import dataclasses
import pickle
import re

import ase.build
import ase.io
import numpy as np
import pytest

import eqfuse
from eqfuse.convert import ConvertError, cache
from eqfuse.convert.conversion import READERS
from eqfuse.convert.names import resolved
from eqfuse.convert.registry import find_network, identify, published
from eqfuse.runs.checkpoint import read_metadata
from eqfuse.runs.errors import CheckpointError
from eqfuse.train.arguments import parse
from eqfuse.train.start import Start
from tests.convert.conftest import expected
from tests.convert.test_pickled import write


def test_names_of_folders_come_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cache, "converted_name", lambda name: f"conversion of {name}")
    assert resolved("7Net-0") == "conversion of 7net-0"
    (tmp_path / "7net-0").mkdir()
    assert resolved("7net-0") == "7net-0"


def test_names_are_converted_once(nequix, capfd, monkeypatch):
    atoms = ase.build.bulk("NaCl", "rocksalt", a=5.64)
    atoms.rattle(0.05, seed=0)
    atoms.calc = eqfuse.Calculator("nequix-mp-1")
    energy = atoms.get_potential_energy()
    said = capfd.readouterr().err
    assert f"once, to {nequix}; licence: MIT; cite arXiv:2508.16067" in said
    monkeypatch.setattr(cache, "convert", None)  # it is not called again
    assert resolved("Nequix-MP-1") == nequix
    [predicted] = eqfuse.predict("nequix-mp-1", [atoms])
    assert predicted.energy == pytest.approx(energy, abs=1e-4)
    assert "once" not in capfd.readouterr().err
    assert read_metadata(nequix)["converted"]["file"] == "nequix-mp-1.nqx"


def test_names_that_were_interrupted_are_converted_again(nequix, monkeypatch):
    def interrupted(program, path, folder):
        (folder / "heads").mkdir(parents=True)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cache, "convert", interrupted)
        with pytest.raises(KeyboardInterrupt):
            resolved("nequix-mp-1")
    assert resolved("nequix-mp-1") == nequix
    assert not (nequix / "heads").exists()
    assert read_metadata(nequix)["species"][0] == 1


@pytest.mark.parametrize(
    ("name", "code"), [("predict", 2), ("relax", 1), ("md", 1), ("check", 2), ("evaluate", 2)]
)
def test_names_that_are_to_be_fetched_have_their_command(name, code, home, command):
    file, network = home / "a.xyz", published()["mace-mp-0-medium"]
    ase.io.write(file, ase.build.bulk("Cu"))
    said = command(name, "mace-mp-0-medium", file, code=code).err
    assert f"`curl -L --create-dirs -o {network.copy} {network.url}`" in said
    assert "(no checksum of it is published); licence: MIT" in said
    assert len(said.splitlines()) == 1


def test_names_that_are_misspelt_have_the_nearest(home):
    with pytest.raises(CheckpointError, match=r"no published network \(nearest: 7net-0"):
        eqfuse.Calculator("7net0")


@pytest.mark.parametrize(
    "name", ["missing.model", "x/missing.nequip.zip", "a.safetensors", "./x/run", "runs/7net-0"]
)
def test_files_that_are_not_there_are_files(name, home):
    with pytest.raises(CheckpointError, match=f"^no such file or folder: {name}$"):
        eqfuse.Calculator(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.ckpt", "of a checkpoint, `nequip-package build FILE.ckpt"),
        ("a.nequip.pt2", "is no package of nequip"),
        ("a.pth", "no checkpoint of SevenNet: .* by `eqfuse convert PROGRAM FILE RUN`"),
    ],
)
def test_files_of_other_kinds_have_what_to_give(name, message, home):
    """Those of nequip were called damaged checkpoints of eqfuse."""
    write(home / name, pickle.dumps({"model": 1}))
    with pytest.raises(CheckpointError, match=message):
        eqfuse.Calculator(home / name)


@pytest.mark.parametrize("door", [eqfuse.Calculator, lambda name: eqfuse.predict(name, [])])
def test_an_empty_name_is_no_folder(door, home, monkeypatch):
    """Such as that of a shell variable that is not set: not what is in the folder of the user."""
    (home / "one" / "checkpoints").mkdir(parents=True)
    monkeypatch.chdir(home)
    for name in ("", " "):
        with pytest.raises(CheckpointError, match="the name of the network is empty"):
            door(name)


def test_sevennets_own_names_are_known(monkeypatch):
    monkeypatch.setattr(cache, "converted_name", lambda name: name)
    for ours, theirs in (
        ("7net-0", ("SevenNet-0", "7net-0_11july2024", "SevenNet-0_11Jul2024")),
        ("7net-0_22may2024", ("sevennet-0_22May2024",)),
        ("7net-mf-ompa", ("SevenNet-MF-ompa",)),
        ("7net-omni-i12", ("sevennet-omni-i12",)),
    ):
        assert [resolved(name) for name in theirs] == [ours] * len(theirs)
    with pytest.raises(CheckpointError, match="7net-0_22may2024, which is another network"):
        resolved("7net-0_22may2025")


def test_files_are_converted_once(home, model_file, capfd):
    """A file of mace in the place of a run has the energy that mace gives."""
    name = "small"
    arrays = expected(name)
    atoms = ase.Atoms(arrays["molecule_numbers"], arrays["molecule_positions"])
    for times in (1, 0):
        atoms.calc = eqfuse.Calculator(model_file(name), dtype="float64")
        assert capfd.readouterr().err.count("converted  ") == times
    np.testing.assert_allclose(atoms.get_potential_energy(), arrays["molecule_energy"], rtol=1e-9)


def test_names_start_a_training(nequix):
    started = parse(["data=ethanol", "start_from=Nequix-MP-1"])
    assert started.start_from == str(nequix)
    assert started.model.name == "nequip"
    assert Start.of(started).metadata["converted"]["program"] == "nequix"


def test_every_network_can_be_had_and_is_described():
    for network in published().values():
        assert network.program in READERS
        assert network.licence
        assert re.match(r"doi:10\.|arXiv:\d", network.citation)
        assert bool(network.in_wheel) != bool(network.url)
        assert not network.in_wheel or network.sha256  # what is downloaded is checked
    copies = [network.copy for network in published().values()]
    assert len(set(copies)) == len(copies)


def test_an_unknown_name_lists_those_of_the_program(home):
    with pytest.raises(ConvertError, match=r"these are 7net-0, .*7net-omni-i12$"):
        find_network("7net-9", "sevennet")
    with pytest.raises(ConvertError, match="no network of mace that is known here"):
        find_network("7net-0", "mace")


@pytest.mark.parametrize("name", ["7net-0", "nequix-mp-1", "mace-off23-small"])
def test_a_file_of_another_checksum_is_refused(name, home):
    network = published()[name]
    package = network.places()[0] != network.copy and network.places()[0].exists()
    if package:
        pytest.skip(f"{network.package['name']} is installed, whose file comes first")
    network.copy.parent.mkdir(parents=True)
    network.copy.write_bytes(b"another")
    with pytest.raises(ConvertError, match=r"has not the checksum .*: it is damaged"):
        find_network(name.upper(), network.program)


@pytest.mark.usefixtures("nequix")
def test_a_network_is_converted_by_its_name(home, shared_data, command):
    """It is taken from where its program keeps it, and recognised in any file."""
    path = shared_data / "networks" / "nequix-mp-1.nqx"
    printed = command("convert", "nequix-mp-1", home / "run").out
    assert "published  as nequix-mp-1; licence: MIT; cite arXiv:2508.16067" in printed
    network, data = published()["nequix-mp-1"], path.read_bytes()
    git = "2aec85155316fc1751db47d9885175d75d156236"
    by_git = dataclasses.replace(network, sha256=None, git=git)
    assert by_git.matches(data)
    assert not by_git.matches(data[:-1])
    assert identify(path) is network


def test_the_list_names_each(command):
    out = command("convert", "list").out
    assert [line.split()[0] for line in out.splitlines()] == list(published())
