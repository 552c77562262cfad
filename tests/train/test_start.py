"""A run that starts from the network of another one, on other data and for other elements."""

import shutil

import ase.build
import ase.io
import jax
import numpy as np
import pytest

from eqfuse.convert import convert
from eqfuse.runs.checkpoint import read_checkpoint
from eqfuse.runs.errors import ConfigError
from eqfuse.train.arguments import parse
from eqfuse.train.main import main
from eqfuse.train.start import Start, of_elements
from tests.convert.conftest import GOLDENS, unpacked
from tests.small_runs import TINY, prepared, refused, rewritten, rows_of, write_displaced


@pytest.fixture(scope="module")
def base(water, tmp_path_factory):
    """Folder of a run that was trained on water."""
    folder = tmp_path_factory.mktemp("runs") / "base"
    assert main([*TINY, f"data={water}", "epochs=30", "lr=0.05", f"run={folder}"]) == 0
    return folder


@pytest.fixture(scope="module")
def energies(base):
    """Return the reference energies of the run, eV."""
    return read_checkpoint(base, ("best",))[1]["reference_energies"]


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """Path of 12 pairs of water molecules: more neighbours, other energies."""
    pair, other = ase.build.molecule("H2O"), ase.build.molecule("H2O")
    other.positions += [0.0, 3.0, 0.5]
    return write_displaced(tmp_path_factory.mktemp("data") / "pairs.xyz", pair + other, 12, seed=7)


@pytest.fixture(scope="module")
def settings(base, others):
    return [f"start_from={base}", f"data={others}", "data.val=4"]


def tuned(*settings):
    """Return the dataset of a run that starts from a network, and its report."""
    return prepared(*settings, tiny=())


def test_reference_energies_that_are_given_win(settings, tmp_path):
    atoms = [ase.Atoms("O", info={"energy": -3.0}), ase.Atoms("H", info={"energy": -1.0})]
    ase.io.write(tmp_path / "both.xyz", atoms)
    ase.io.write(tmp_path / "one.xyz", atoms[:1])
    with pytest.raises(ConfigError, match="no energy of H"):
        tuned(*settings, f"data.reference_energies={tmp_path / 'one.xyz'}")
    dataset, _ = tuned(*settings, f"data.reference_energies={tmp_path / 'both.xyz'}")
    assert dataset.references == {1: -1.0, 8: -3.0}


def test_reference_energies_are_moved_to_data_of_another_method(
    base, energies, water, tmp_path, capsys
):
    """Where atoms have other energies; without it the network's are used, and far off."""

    def change(_, atoms):
        atoms.calc.results["energy"] -= 2041.0 + 2 * 13.6

    moved = rewritten(water, tmp_path / "moved.xyz", change)
    settings = [f"start_from={base}", f"data={moved}", "data.val=4"]
    dataset, text = tuned(*settings, "data.reference_energies=fit")
    assert "moved to the data by least squares" in " ".join(text.split())  # it may be wrapped
    oxygen, hydrogen = (dataset.references[z] - energies[str(z)] for z in (8, 1))
    assert oxygen + 2 * hydrogen == pytest.approx(-2068.2, abs=1)
    capsys.readouterr()
    tuned(*settings)
    assert "warning: the energies are -689.4 eV/atom above the refer" in capsys.readouterr().err


def test_a_tuned_network_begins_at_the_learning_rate_that_is_asked_for(base, water, tmp_path):
    """Its validation before the first step is none after which an exponential one falls."""
    rate = ["training.schedule=exponential", "training.factor=0.5", "training.warmup_steps=0"]
    settings = [f"start_from={base}", f"data={water}", "data.val=4", "elastic=0", "epochs=1", *rate]
    assert main([*settings, "lr=0.004", f"run={tmp_path / 'run'}"]) == 0
    assert [float(row["lr"]) for row in rows_of(tmp_path / "run")] == [0.004, 0.004]


def test_isolated_atoms_of_other_energies_are_a_warning(
    settings, energies, others, tmp_path, capsys
):
    hydrogen, kind = energies["1"], {"config_type": "IsolatedAtom"}
    atoms = [
        ase.Atoms(symbol, info={**kind, "energy": energy})
        for symbol, energy in (("H", hydrogen + 0.5), ("O", energies["8"]))
    ]
    path = tmp_path / "with_atoms.xyz"
    ase.io.write(path, [*ase.io.read(others, ":"), *atoms])
    dataset, _ = tuned(*settings, f"data.path={path}")
    [warning] = capsys.readouterr().err.splitlines()
    assert f"frame 12: H has {hydrogen + 0.5:.4f} eV" in warning
    assert f"{hydrogen:.4f} eV, which is used" in warning
    assert dataset.references == {int(z): e for z, e in energies.items()}


def test_a_fit_that_the_frames_do_not_determine_is_a_warning(settings, capsys):
    dataset, _ = tuned(*settings, "data.reference_energies=fit")
    values = f"H {dataset.references[1]:.1f}, O {dataset.references[8]:.1f} eV"
    message = f"the fit does not determine the reference energies of {values}"
    assert message in capsys.readouterr().err


def test_report_of_a_tuned_network_has_the_elements_of_the_data(settings, tmp_path):
    path = write_displaced(tmp_path / "hydrogen.xyz", ase.build.molecule("H2"), 12, seed=3)
    dataset, text = tuned(*settings, f"data.path={path}")
    assert dataset.species == (1, 8)
    assert "species    H of the data; the network knows 1 more\n" in text
    [line] = [line for line in text.splitlines() if line.startswith("references")]
    assert f"H {dataset.references[1]:.4f} eV" in line
    assert " O " not in line


@pytest.mark.parametrize(("length", "within"), [(4.5, True), (9.0, False)])
def test_isolated_atoms_with_images_within_the_cutoff_are_named(
    water, tmp_path, capsys, length, within
):
    """In a file of atoms, and among the frames."""
    info = {"config_type": "IsolatedAtom", "energy": -1.0}
    hydrogen, oxygen = (ase.Atoms(s, info=info, cell=[length] * 3, pbc=True) for s in "HO")
    hydrogen.pbc = False
    ase.io.write(atoms := tmp_path / "atoms.xyz", [hydrogen, oxygen])
    ase.io.write(every := tmp_path / "all.xyz", [*ase.io.read(water, ":"), hydrogen, oxygen])
    for given in ([f"data={water}", f"data.reference_energies={atoms}"], [f"data={every}"]):
        prepared(*given)
        lines = [line for line in capsys.readouterr().err.splitlines() if "images" in line]
        assert len(lines) == within
        assert all("xyz, frame " in line and "cutoff of 5.0 Å" in line for line in lines)


def test_start_from_bad_run_is_refused(settings, base, copper, tmp_path, capsys):
    for name in ("channels=3", "model=nequip", "preset=large"):
        error = refused([*settings, name], capsys)
        assert f"{name.partition('=')[0]} cannot be given" in error
    elements = refused([settings[0], f"data={copper}"], capsys)
    assert "the data have Cu, for which the network of start_from= has no weights" in elements
    empty = shutil.copytree(base, tmp_path / "empty", ignore=lambda *_: ["checkpoints"])
    error = refused([f"start_from={empty}", *settings[1:]], capsys)
    assert "empty has no checkpoint (best or last)" in error


def test_a_file_of_a_network_starts_a_run_as_its_folder_does(base, settings, tmp_path):
    file = shutil.copy(base / "checkpoints" / "best.safetensors", tmp_path / "water.safetensors")
    configs = [parse([f"start_from={start}", *settings[1:]]) for start in (base, file)]
    assert [config.model.channels for config in configs] == [2, 2]  # of the run, not by default
    folder, alone = map(Start.of, configs)
    jax.tree.map(np.testing.assert_array_equal, folder.initial_params(), alone.initial_params())
    assert folder.potential == alone.potential


def test_a_network_for_fewer_elements_has_their_weights_and_radii(tmp_path):
    """A network of mace with ZBL and Agnesi's transform, of H, C and O."""
    convert("mace", unpacked(GOLDENS / "density.model.xz", tmp_path), tmp_path / "run")
    params, metadata, _ = read_checkpoint(tmp_path / "run", ("best",))
    fewer, theirs = of_elements(params, metadata, (1, 8))
    old, new = (tree["params"]["model"]["embedding"] for tree in (params, fewer))
    np.testing.assert_array_equal(new, old[[0, 2]])
    assert theirs["species"] == theirs["model_fields"]["atomic_numbers"] == [1, 8]
    radii = (m["model_fields"]["covalent_radii"] for m in (metadata, theirs))
    (hydrogen, _, oxygen), found = radii
    assert found == [hydrogen, oxygen]
    assert theirs["potential"]["repulsion"]["atomic_numbers"] == (1, 8)
    assert {*theirs["reference_energies"]} == {"1", "8"}
