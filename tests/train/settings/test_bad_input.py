"""What is wrong with settings or data is said in one line, before anything is made."""

import os
import re

import numpy as np
import pytest

from eqfuse.ops._backend import has_gpu
from eqfuse.runs.checkpoint import Checkpoints, read_checkpoint
from eqfuse.runs.files import RunFolder
from eqfuse.train import read_metadata
from eqfuse.train.arguments import parse
from eqfuse.train.main import main
from eqfuse.train.settings.options import to_yaml
from eqfuse.train.step import Compiled
from tests.small_runs import TINY, refused

LONG = 300 * "x"
WATER, COPPER = ["data=water.xyz"], ["data=copper.xyz"]
CHARGED = [*WATER, "model.long_range=les", "data.charge_key=q"]
NO_VAL = ["data.val=0.1"]  # which may be beside data.val_path
NO_GPU = pytest.mark.skipif(has_gpu(), reason="it runs here")
IMPOSSIBLE = [
    (["data=extxyz", "data.path=."], "is a folder; give a file or a pattern: "),
    ([*WATER, "data.val=20"], "training split is empty: data.val=20 leaves none of 20 frames"),
    ([*WATER, "data.train=18"], "only 20"),
    ([*WATER, "data.test=0.2"], "data.test=0.2 is impossible: it must be a file; data.val=0.2"),
    ([*WATER, "data.isolated_atoms=a.xyz"], "data.reference_energies="),
    (["start_from=7net0", *WATER], r"no published network \(nearest: 7net-0"),
    ([*WATER, "run=file/run"], "cannot be made"),
    ([*WATER, *NO_VAL, "data.val_path=missing.xyz"], "no such file: .*missing.xyz"),
    ([*WATER, "data.reference_energies=missing.xyz"], "no such file: .*missing.xyz"),
    # none of these is opened, which would wait for ever; a pattern passes them over
    (["data=pipe.xyz"], "pipe.xyz is a pipe and not a file"),
    (["data=extxyz", "data.path=p*.xyz"], "no file matches"),
    (["data=extxyz", "data.path=/dev/zero"], "/dev/zero is a device and not a file"),
    ([*COPPER, "cutoff=1e9"], "lower the cutoff"),
    ([*COPPER, "cutoff=200"], r"copper.xyz, frame \d+: 4 atoms in a cell"),
    ([*WATER, "cutoff=1e-9"], "must be a positive number of Å, above 1e-06, got 1e-09"),
    ([*COPPER, "model.radial_knots=3"], "radial_knots must be at least 4"),
    ([*COPPER, "freeze=embeding"], "freeze=embeding matches no parameter"),
    (["data=ethanol", "backend=trito"], "trito"),
    pytest.param(["data=ethanol", "backend=triton"], "JAX has no GPU here", marks=NO_GPU),
    (["data=ethanol", "model.skip=nequip"], "skip must be one of species, linear, none"),
    (
        ["data=ethanol", "model.cutoff_function=xplor"],
        "needs a cutoff_onset between 0 and 5.0 Å, got None",
    ),
    ([*WATER, "precision=bfloat16", "dtype=float64"], "auto or highest with dtype=float64"),
    ([*WATER, "precision=bfloat16", "model=mace", "model.nonlinear=true"], "auto or highest with"),
    ([*WATER, "devices=2"], "devices=2: 1 CPU device found; devices=all uses all"),
    ([*WATER, "devices=0"], "a number of devices"),
    ([*WATER, "devices=distributed"], "JAX_COORDINATOR_ADDRESS"),
    (["resume="], "resume= is impossible: it must be the folder of a run"),
    (["-l=3"], "-l=3 is not a setting; write it as name=value"),
    (["foo"], "foo is not a setting; write it as name=value"),
    (["zzzz=1"], "zzzz is not a setting of this run; --help"),
    (["model=neqip"], "model=neqip is unknown; nearest: nequip"),
    (["model=tetris"], "model=tetris is unknown; choose from: allegro, mace, nequip"),
    (["preset=larg", *WATER], "preset=larg is unknown for model=nequip; nearest: .*large"),
    (["data=extxyz"], "data.path=null is impossible: .* data=extxyz data.path=FILE"),
    (["data=rmd17"], "data=rmd17 is unknown; .* ethanol, extxyz, lif"),
    (["data=lif", "data.path=x"], "data.path=.* left out with data=lif"),
    (["data.path=x.xyz"], "data= is missing: give a file, such as data=FILE"),
    (["start_from=x"], "data= is missing"),
    (["start_from=no/run", *WATER], "no such file or folder: .*no/run"),
    (["resume=none"], "config.yaml cannot be read: No such"),
    (["data.reference_energies=fit", *WATER], "fit is for start_from="),
    (["data=bad.xyz"], "frame 0: unknown element or property 'Qq'"),
    (["resume=x", "layers=3"], "layers cannot be given with resume=.* start_from=x trains"),
    (["resume=x", "data=a.xyz"], "^error: data cannot be given with resume="),
    (["seeds=0", *WATER], "seeds=0 is impossible: it must be a number of runs"),
    (["seeds=two", *WATER], "seeds=two is impossible: it must be a number of runs"),
    (["seeds=2", "resume=x"], "resume= goes on with one run; leave seeds= out"),
    (["seeds=2", "seed=7", *WATER], "seeds=2 trains runs of seed=0 to 1; leave one out"),
    (["layers=-1", *WATER], "model.layers=-1 is impossible: .* greater than zero"),
    (["lr=nan", *WATER], "training.lr=nan is impossible"),
    (["lr=1e-6", *WATER], "training.min_lr=1e-05 is impossible: .* at most lr=1e-06"),
    (["seed=4294967296", *WATER], "seed=4294967296 is impossible: .* less than 2.32"),
    (["training.optimizer=sgd", *WATER], "training.optimizer=sgd is unknown; .*adam"),
    (["data.check=maybe", *WATER], "data.check=maybe is unknown"),
    (["data.val=-0.5", *WATER], "data.val=-0.5 is impossible"),
    (["training.forces_weight=0", "training.energy_weight=0", *WATER], "_weight=0.0 is impossible"),
    (["training=extxyz", *WATER], "training follows from data="),
    (["training.weight_decay=0.1", "training.optimizer=adam", *WATER], "only muon and adamw"),
    (["data.reference_energies={H: x}", *WATER], "{H: x} is impossible: .* in eV by element"),
    (
        ["start_from=x", "data.reference_energies=average", *WATER],
        "reference_energies=average is .* a file of free atoms, their energies, or fit",
    ),
    (["training.second_stage=1", *WATER], "second_stage=1.0 is impossible: .* between 0 and 1"),
    (["model.parity=maybe", *WATER], "model.parity=maybe is impossible: it must be true or false"),
    (["elements=data", *WATER], "elements=data is impossible: .* without start_from="),
    (["data.dispersion=d4", *WATER], r"dispersion=d4 is impossible: it must be d3\(DAMPING\)"),
    (["data.dispersion=d3(bj)", "data.store=on", *WATER], "data.store=on is impossible"),
    (["model.les_sigma=2", *WATER], "les_sigma=2.0 .* left out without model.long_range=les"),
    (["data.charge_key=q", *WATER], "charge_key=q .* no other network reads charges"),
    ([*CHARGED, "model.les_charges=2"], "model.les_charges=2 .* 1 with data.charge_key"),
    (CHARGED, "water.xyz, frame 0: .*'q'"),
    (["model=mace", "model.distance_transform=agnes", *WATER], "=agnes is .*nearest: agnesi"),
    *(
        (settings, f"{LONG}.*File name too long")
        for settings in (
            ["data=ethanol", f"run={LONG}"],
            ["data=extxyz", f"data.path={LONG}"],
            [f"resume={LONG}"],
        )
    ),
    *(
        (settings, r"='a\\x00b' is impossible: it must be without NUL characters")
        for settings in (["resume=a\0b"], [*WATER, "run=a\0b"])
    ),
]


@pytest.mark.parametrize(("settings", "part"), IMPOSSIBLE, ids=lambda value: ascii(value)[:60])
def test_settings_refused_are_one_line_and_make_no_run(
    settings, part, request, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    for name in ("water", "copper"):
        (tmp_path / f"{name}.xyz").symlink_to(request.getfixturevalue(name))
    (tmp_path / "file").touch()
    (tmp_path / "bad.xyz").write_text("1\n\nQq 0 0 0\n")
    os.mkfifo(tmp_path / "pipe.xyz")
    before = sorted(tmp_path.rglob("*"))
    of_run = settings[0].partition("=")[0] in ("resume", "start_from")
    error = refused([*([] if of_run else [*TINY, "run=run"]), *settings], capsys)
    assert re.search(part, error)
    assert sorted(tmp_path.rglob("*")) == before


def test_folder_of_a_failed_run_is_free(water, tmp_path, monkeypatch, capsys):
    settings = [f"data={water}", f"run={tmp_path / 'run'}", *TINY, "steps=1"]
    with monkeypatch.context() as patch:
        patch.setattr(Compiled, "initial", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            main(settings)
    assert (tmp_path / "run" / "config.yaml").exists()
    assert main([*settings, "seed=1"]) == 0
    assert read_metadata(tmp_path / "run")["config"]["seed"] == 1
    capsys.readouterr()
    assert "exists already and is not overwritten; go on with it by" in refused(settings, capsys)


BOMB = "[&a0 [1], " + ", ".join(f"&a{k + 1} [*a{k}, *a{k}]" for k in range(60)) + "]"


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("layers: 1", "layers: 0x" + "f" * 5000, "layers is impossible: a whole number of 20000"),
        ("layers: 1", "layers: [1]", "model.layers is impossible: a list, and not one value"),
        ("layers: 1", "layers: " + "[" * 3000, "recursion"),
        ("layers: 1", "layers: " + "9" * 5000, "cannot be read"),
        ("layers: 1", "layers: 1.0", "model.layers=1.0 is impossible: it must be a whole number"),
        ("batch_size: 4", "batch_size: four", "data.batch_size=four is impossible"),
        ("epochs: null", "epochs: six", "epochs=six is impossible: it must be a whole number or"),
        ("epochs: null", "epoch: 6", "epoch is not a setting of this run; nearest: epochs"),
        ("run: null", "run: [", "cannot be read"),
        ("run: null", 'run: "a\\0b"', "without NUL characters"),
        ("name: nequip", "name: [1]", "model is impossible: a list"),
        ("name: nequip", f"name: {BOMB}", "model is impossible: a list"),
        ("heads: {}", f"heads: {{a: {BOMB}}}", "heads.a.name is impossible: a list"),
        ("preset: null", "preset: {a: 1}", "preset is impossible: a dict"),
        ("run: null", "1: 2", "1 is not a setting"),
        ("run: null", "#" * 2**20, "bytes, of 1048576 at most"),
        ("reference_energies: null", "reference_energies: '{1: 0x" + "f" * 400 + "}'", "energies="),
        ("reference_energies: null", f"reference_energies: '{{{'[' * 1500}'", "energies="),
    ],
)
def test_a_config_that_was_edited_by_hand(tmp_path, capsys, before, after, message):
    """It is checked as what is typed is."""
    text = to_yaml(parse(["data=ethanol", *TINY]))
    assert before in text
    (tmp_path / "config.yaml").write_text(text.replace(before, after, 1), encoding="utf-8")
    error = refused([f"resume={tmp_path}"], capsys)
    assert error.startswith(f"error: {tmp_path / 'config.yaml'}")
    assert message in error
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize("name", ["sweep[1]", "a[64,32]b/run", "back\\slash"])
def test_a_run_folder_may_have_any_name(tmp_path, name):
    folder = RunFolder(tmp_path / name, "seed: 0\n")
    folder.close()
    metadata = {"config": {}, "model": "nequip", "model_fields": {}, "potential": {}}
    checkpoints = Checkpoints(folder.checkpoints, metadata)
    checkpoints.offer("last", 3, lambda: {"w": np.zeros(3)}, {"epoch": 1})
    assert read_checkpoint(tmp_path / name, ("last",))[1]["epoch"] == 1


def test_runs_of_the_same_second_get_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [RunFolder(None, "seed: 0\n") for _ in range(3)]
    for folder in folders:
        folder.close()
        assert (folder.path / "config.yaml").exists()
    assert len({folder.path for folder in folders}) == 3
