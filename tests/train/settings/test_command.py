import subprocess
import sys
from pathlib import Path

import pytest

from eqfuse.train import ConfigError, fit
from eqfuse.train.main import main

TRAIN = Path(__file__).parents[3] / "train.py"
# Warnings are errors, but for those that pyproject.toml names.
IGNORED = ("Creating NamedTuple:DeprecationWarning", "Error reading persistent:UserWarning")
PYTHON = [sys.executable, "-W", "error", *(f"-Wignore:{warning}" for warning in IGNORED)]


def test_a_wrong_setting_exits_with_2_and_one_line(tmp_path):
    command = [*PYTHON, TRAIN, "layer=3"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: layer is not a setting")
    assert len(result.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_checks_all_runs_and_trains_them_in_folders_of_their_own(
    tmp_path, monkeypatch, capsys
):
    trained, codes = [], [0, 1, 0, 0]

    def train(config):
        trained.append((config.run, config.seed, config.training.lr))
        return codes[len(trained) - 1]

    monkeypatch.setattr("eqfuse.train.main._train", train)
    sweep = ["training.lr=0.1,0.2", "-m", "seeds=2", "data=ethanol", f"run={tmp_path}"]
    assert main(sweep) == 1  # one failed, and the others went on
    names = [f"training.lr={lr},seed={seed}" for lr in (0.1, 0.2) for seed in (0, 1)]
    assert [run for run, *_ in trained] == [f"{tmp_path}/{name}" for name in names]
    assert [rest for _, *rest in trained] == [[0, 0.1], [1, 0.1], [0, 0.2], [1, 0.2]]
    trained.clear()
    codes[1] = 130
    assert main(sweep) == 130
    assert len(trained) == 2
    trained.clear()
    assert main(["training.lr=0.1,x", "-m", "data=ethanol"]) == 2
    assert main(["seeds=2", f"resume={tmp_path}"]) == 2
    (tmp_path / names[-1]).mkdir()
    (tmp_path / names[-1] / "metrics.csv").touch()
    assert main(sweep) == 2
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
