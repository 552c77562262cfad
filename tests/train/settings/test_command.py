import pytest

from eqfuse.train import ConfigError, Interrupted, TrainingFailed, fit
from eqfuse.train.main import main


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
