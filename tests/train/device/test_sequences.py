"""`sequence=`: a training step in one native call, or as it is written."""

import pytest

from eqfuse.train.main import main
from tests.train.test_molecule_run import rows_of, train


def steps(folder) -> list[list[float]]:
    """Return the loss and accuracy of each step."""
    return [[float(row["loss"]), float(row["accuracy"])] for row in rows_of(folder)]


@pytest.mark.slow
def test_the_tetris_run_is_the_same_in_one_native_call(tmp_path, capsys):
    for setting, said in (
        ("auto", "sequence   one native call of "),
        ("on", "sequence   one native call of "),
        ("off", None),
    ):
        run = f"run={tmp_path / setting}"
        main(["model=tetris", "steps=3", f"sequence={setting}", "verbose=true", run])
        out = capsys.readouterr().out
        assert (said is None) == ("sequence " not in out)
        assert said is None or said in out
    assert steps(tmp_path / "on") == steps(tmp_path / "auto")
    for found, expected in zip(steps(tmp_path / "on"), steps(tmp_path / "off"), strict=True):
        # Adam divides by the root of the second moment: three steps of roundings
        assert found == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
def test_a_molecule_run_says_its_choice_before_it_trains(tmp_path, water, tiny, capsys):
    losses = {}
    for setting in ("on", "off"):
        folder = tmp_path / setting
        assert train(folder, water, tiny, "steps=4", f"sequence={setting}", "verbose=true") == 0
        lines = capsys.readouterr().out.splitlines()
        said = [n for n, line in enumerate(lines) if line.startswith("sequence   ")]
        heads = next(n for n, line in enumerate(lines) if line.split()[:2] == ["epoch", "loss"])
        assert len(said) == (setting == "on")
        assert all(n < heads and "native call" in lines[n] for n in said)
        losses[setting] = [float(row["train_loss"]) for row in rows_of(folder)]
    assert losses["on"] == pytest.approx(losses["off"], rel=1e-3)


@pytest.mark.slow
def test_a_profile_is_of_the_step_as_it_is_written(tmp_path, capsys):
    more = ["profile=true", "verbose=true", f"run={tmp_path / 'run'}"]
    main(["model=tetris", "steps=1", *more])
    assert "sequence " not in capsys.readouterr().out


def test_an_unknown_choice_is_refused(tmp_path, capsys):
    assert main(["model=tetris", "sequence=maybe", f"run={tmp_path / 'run'}"]) == 2
    assert "sequence=maybe is unknown; choose from: auto, off, on" in capsys.readouterr().err
