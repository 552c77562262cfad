import dataclasses
import os
import re
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml

from eqfuse.data import Dataset, Shape, Structure, collate
from eqfuse.models import MODELS
from eqfuse.runs.errors import ConfigError
from eqfuse.runs.schema import described
from eqfuse.train import Interrupted, TrainingFailed, fit
from eqfuse.train.arguments import parse as parsed
from eqfuse.train.main import main
from eqfuse.train.molecule import build_potential
from eqfuse.train.settings.config import MODELS as NETWORKS
from eqfuse.train.settings.config import PotentialSettings, known
from eqfuse.train.settings.options import (
    OTHER_NAMES,
    PARAMETERS,
    PRESETS,
    SHORTHANDS,
    from_plain,
    help_text,
    presets,
    read_yaml,
    to_yaml,
)
from eqfuse.train.sources import SETS, DataSettings, matching
from tests.ops import tiers

MOLECULE = ["data=extxyz", "data.path=x.xyz"]


def parse(arguments):
    """Return the configuration of a run, on ethanol where the arguments have no data."""
    has = any(a.startswith(("data", "config=", "resume=", "start_from=")) for a in arguments)
    return parsed(arguments if has else [*arguments, "data=ethanol"])


@pytest.mark.parametrize("path", ["/a b/c.xyz", "a=b;c.xyz", "it's.xyz", "x(1).xyz", "ü:1.xyz"])
def test_file_names_may_hold_any_character(path):
    assert parse(["data=extxyz", f"data.path={path}"]).data.path == os.path.abspath(path)


def test_commas_are_between_files_unless_there_is_a_file_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a=b,c.xyz", "d.xyz", "e.xyz"):
        (tmp_path / name).write_text("")
    assert parse(["data=a=b,c.xyz"]).data.path == f"{tmp_path}/a=b,c.xyz"
    several = parse(["data=d.xyz,*e.xyz"]).data.path
    assert several == f"{tmp_path}/d.xyz,{tmp_path}/*e.xyz"
    assert matching(several) == [f"{tmp_path}/d.xyz", f"{tmp_path}/e.xyz"]


def test_files_stand_for_names_and_numbers(tmp_path, monkeypatch):
    """One without a suffix is a file if there is no set of data of its name."""
    config = parse(["data=a.xyz", "data.val=b.xyz"])
    assert (config.data.name, config.data.path) == ("extxyz", os.path.abspath("a.xyz"))
    assert (config.data.val, config.data.val_path) == (DataSettings.val, os.path.abspath("b.xyz"))
    assert parse(["data=a.xyz", "data.val=20"]).data.val == 20
    with pytest.raises(ConfigError, match=r"data.val=0\.0\.1 is impossible"):
        parse(["data=a.xyz", "data.val=0.0.1"])
    monkeypatch.chdir(tmp_path)
    for name in ("frames", "ethanol"):
        (tmp_path / name).touch()
    assert parse(["data=frames"]).data.path == str(tmp_path / "frames")
    assert parse(["data=ethanol"]).data.name == "ethanol"
    with pytest.raises(ConfigError, match="frames is a file, and not a setting; write data=frames"):
        parse(["frames"])


def test_a_configuration_file_is_where_another_run_starts(tmp_path):
    first = parse(["model=mace", "preset=small", "lr=0.003", "data=a.xyz", "run=r", "data.val=7"])
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(first))
    again = parse([f"config={file}"])
    assert again == dataclasses.replace(first, run=None)
    assert parse([f"config={tmp_path}"]) == again  # the folder of a run
    changed = parse(["layers=1", f"config={file}"])
    assert (changed.model.layers, changed.model.channels, changed.training.lr) == (1, 128, 0.003)
    assert parse([f"config={file}", "preset=large"]).model.hidden_lmax == 2
    other = parse([f"config={file}", "data=ethanol"])
    assert (other.data.name, other.data.val, other.training.lr) == ("ethanol", 0.1, 0.003)
    assert parse([f"config={file}", "model=nequip", "preset=small"]).model.channels == 32


def test_own_settings_in_a_file(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("model: mace\nlayers: 3\ntraining.lr: 1e-3\ndata: {name: ethanol, val: 5}\n")
    config = parse([f"config={file}"])
    assert (config.model.name, config.model.layers, config.training.lr) == ("mace", 3, 0.001)
    assert (config.data.name, config.data.val) == ("ethanol", 5)
    file.write_text("{layer: 3, data: ethanol}")
    with pytest.raises(ConfigError, match="layer is not a setting of this run; nearest: layers"):
        parse([f"config={file}"])
    file.write_text("- layers")
    with pytest.raises(ConfigError, match="it is not the configuration of a run"):
        parse([f"config={file}"])
    with pytest.raises(ConfigError, match="No such file"):
        parse([f"config={tmp_path}/none.yaml"])


def written(file: str) -> list[str]:
    """Return the options of mace, or the fields of the YAML of nequip, old and new."""
    return (Path(__file__).parent / file).read_text(encoding="utf-8").split()


def test_names_of_mace_and_nequip_are_answered_with_ours():
    names = {"r_max": "cutoff=", "E0s": "data.reference_energies=", "train_file": "data=FILE"}
    for name, ours in names.items():
        for typed in (f"{name}=1", f"--{name}=1", f"--{name}", f"model.{name}=1"):
            with pytest.raises(ConfigError, match=f"{name} is a name of mace or nequip; .* {ours}"):
                parse([typed, *MOLECULE])
    for name in written("nequip_fields.txt"):
        answer = rf" here: |nearest: (model|data|training)\.{name}"
        with pytest.raises(ConfigError, match=answer):
            parse([f"{name}=1", "model=mace", *MOLECULE])


def test_options_for_names_of_mace_and_nequip_exist():
    ours = {*SHORTHANDS, "model", "data", "seeds", "config"}
    for model in NETWORKS:
        ours |= known(model).keys()
    for name, text in OTHER_NAMES.items():
        mentioned = set(re.findall(r"([a-z_.]+)=", text)) - {"variable"}
        assert mentioned <= ours, name
    options = written("mace_options.txt")
    assert len(options) == 179
    assert [option for option in options if option not in OTHER_NAMES] == []


@pytest.mark.parametrize(
    "preset",
    tiers.slow_unless(["nequip small"], *(f"{m} {p}" for m in PRESETS for p in PRESETS[m])),
)
def test_presets_name_their_parameters(preset):
    model, name = preset.split()
    config = parse([f"model={model}", f"preset={name}", "data=ethanol"])
    atoms = Structure([1, 6, 8], 1.5 * np.eye(3), energy=0.0, forces=np.zeros((3, 3)))
    dataset = Dataset.build([atoms, atoms], cutoff=config.model.cutoff, val_size=1)
    potential, _ = build_potential(config.model, dataset, "xla")
    graph = collate([dataset.train[0]], Shape(4, 8, 2), "float32").graph
    arguments = graph.vectors, graph.species, graph.edges
    shapes = jax.eval_shape(potential.init, jax.random.key(0), *arguments)
    count = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    assert count == PARAMETERS[model][name]
    assert f" {count:,} parameters" in presets()[f"model={model} preset={name}"]


def test_settings_with_dashes_are_those_without():
    plain = ["layers=3", "data.batch_size=2", "model.trainable_scale_shift=true", *MOLECULE]
    dashed = ["--layers", "3", "--data.batch-size=2", "--model.trainable-scale-shift", *MOLECULE]
    assert parse(dashed) == parse(plain)
    assert parse(["--model", "mace", "--verbose", *MOLECULE]).verbose
    assert parsed(["--heads.my-head", "a.xyz"]).heads["my-head"]["name"] == "extxyz"


def test_all_unknown_names_are_answered_at_once(capsys):
    assert main(["data=a.xyz", "r_max=5", "max_ell=3", "chanels=4", "patience=3"]) == 2
    error = capsys.readouterr().err
    for part in ("cutoff=", "model.lmax=", "nearest: channels", "training.early_stopping="):
        assert part in error
    assert main(["--r_max=5", "--train_file", "a.xyz", "--seed", "1"]) == 2
    error = capsys.readouterr().err
    for part in ("here: cutoff=", "here: data=FILE"):
        assert part in error


@pytest.mark.parametrize(("model", "name"), [(m, p) for m in PRESETS for p in PRESETS[m]])
def test_a_preset_is_taken_whole(model, name):
    config = parse([f"model={model}", f"preset={name}", *MOLECULE])
    typed = [f"{key}={yaml.safe_dump(v).split()[0]}" for key, v in PRESETS[model][name].items()]
    assert config.preset == name
    assert dataclasses.replace(config, preset=None) == parse([f"model={model}", *typed, *MOLECULE])


def test_settings_beside_a_preset_win_over_it():
    for arguments in (["preset=large", "layers=2"], ["model.layers=2", "preset=large"]):
        config = parse(arguments)
        assert (config.model.layers, config.model.channels, config.model.lmax) == (2, 64, 3)
    assert parse(["preset=large", "preset=null"]).model.lmax == parse([]).model.lmax
    files = ["data=extxyz", "data.path=a.xyz", "data.val_path=b.xyz"]  # no part of the first
    config = parse(["model=mace", "preset=3bpa", *files])
    assert (config.data.val, config.training.energy_weight) == (DataSettings.val, 0.729)


def test_help_names_every_setting():
    text = help_text()
    for model in NETWORKS:
        for name, field in known(model).items():
            assert described(field)[0].strip(), name
            assert f"  {name} " in text
    for choice in [f"model={name}" for name in NETWORKS] + [f"data={name}" for name in SETS]:
        assert f"  {choice} " in text
    for short, full in SHORTHANDS.items():
        assert f"{short} = {full}" in text


@pytest.mark.parametrize("name", ["nequip", "allegro", "mace"])
def test_settings_of_a_network_are_the_fields_of_its_module(name):
    """They are read from its source, without an import of JAX."""
    fields = {f.name: f for f in dataclasses.fields(MODELS[name])}
    for setting in dataclasses.fields(NETWORKS[name]):
        if setting.name not in ("name", *(f.name for f in dataclasses.fields(PotentialSettings))):
            field = fields[setting.name]
            assert (setting.type, setting.default) == (field.type, field.default), setting.name
            assert setting.metadata["help"][:1].strip(), setting.name


@pytest.mark.parametrize(
    "name",
    ["2024_06_01", "1e3", "true", "str(3)", "a\\ b", "a,b", "c\\", "0x1", "${", "${oc.env:HOME}"],
)
def test_a_text_is_what_was_typed(tmp_path, name):
    config = parse([f"run={name}", *MOLECULE, f"data.energy_key={name}"])
    assert (config.run, config.data.energy_key) == (name, name)
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    path = tmp_path / "config.yaml"
    assert from_plain(read_yaml(path), path) == config
    assert parse(["run=null"]).run is None
    assert parse(["run=it is"]).run == "it is"


def test_paths_that_are_read_are_whole(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    given = {"data": "extxyz", "data.path": "~/a*.xyz", "data.val_path": "b.xyz", "run": "~/first"}
    given |= {"data.reference_energies": "../c.xyz", "start_from": "runs/base"}
    config = from_plain(given, "mine.yaml")
    data, home = config.data, f"{tmp_path}/home"
    assert (data.path, data.val_path) == (f"{home}/a*.xyz", f"{tmp_path}/b.xyz")
    assert data.reference_energies == f"{tmp_path.parent}/c.xyz"
    assert (config.run, config.start_from) == (f"{home}/first", "runs/base")
    assert parse(["data=a.xyz", "data.test=t.xyz"]).data.test == f"{tmp_path}/t.xyz"
    average = parse([*MOLECULE, "data.reference_energies=average"]).data
    assert average.reference_energies == average.read_reference_energies(5.0) == "average"
    typed = parse([*MOLECULE, "data.reference_energies={H: -13.6, 8: -2041}"]).data
    assert typed.read_reference_energies(5.0) == {1: -13.6, 8: -2041.0}
    fitted = from_plain(given | {"data.reference_energies": "fit"}, "mine.yaml")
    assert fitted.data.reference_energies == "fit"


def test_seeds_are_runs_that_are_checked_before_the_first(tmp_path, monkeypatch, capsys):
    trained, ends = [], {1: TrainingFailed("its loss is NaN")}

    def train(config):
        trained.append((config.run, config.seed))
        if config.seed in ends:
            raise ends[config.seed]

    monkeypatch.setattr("eqfuse.train.main._run", train)
    seeds = ["seeds=3", "data=ethanol", f"run={tmp_path}"]
    assert main(seeds) == 1  # one failed, and the others went on
    assert trained == [(f"{tmp_path}/seed={seed}", seed) for seed in range(3)]
    trained.clear()
    ends[1] = Interrupted(2, "by Ctrl-C")
    assert main(seeds) == 130
    assert len(trained) == 2
    trained.clear()
    assert main(["seeds=2", "data=ethanol", "lr=x"]) == 2
    assert main(["seeds=2", f"resume={tmp_path}"]) == 2
    (tmp_path / "seed=2").mkdir()
    (tmp_path / "seed=2" / "metrics.csv").touch()
    assert main(seeds) == 2
    assert "exists already" in capsys.readouterr().err
    assert not trained


def test_fit_takes_settings_of_python_and_raises_what_is_refused(monkeypatch):
    configs = []
    monkeypatch.setattr("eqfuse.train.main._run", lambda config, callbacks: configs.append(config))
    fit("training.second_stage=null", data="ethanol", channels=8, verbose=True, epochs=None)
    [config] = configs
    assert (config.model.channels, config.verbose, config.epochs) == (8, True, None)
    assert config.training.second_stage is None
    for wrong, part in (({"chanels": 8}, "nearest: channels"), ({"seeds": 2}, "trains one run")):
        with pytest.raises(ConfigError, match=part):
            fit(data="ethanol", **wrong)


@pytest.mark.parametrize("value", ["a\nb", "a\x00b", "a\x1b[31mb", "\udcff"])
def test_a_refused_name_is_shown_in_one_line_that_a_terminal_can_print(value, capsys):
    assert main(["data=lif", f"lr={value}"]) == 2
    assert main([value]) == 2
    error = capsys.readouterr().err
    assert error.endswith("\n")
    assert len(error.splitlines()) == 2
    assert all(line.isprintable() for line in error.splitlines())
    assert ascii(value)[1:-1] in error
