"""`sequence=`: a training step in one native call, or as it is written."""

import re

import pytest

from eqfuse.train.main import main
from tests.train.test_molecule_run import rows_of, train


@pytest.mark.slow
def test_tetris_is_the_same_in_one_native_call(capsys):
    losses = {}
    for setting in ("auto", "on", "off"):
        main(["layers=3", "steps=3", f"sequence={setting}", "verbose=true"])
        out = capsys.readouterr().out
        assert ("sequence   one native call of " in out) == (setting != "off")
        losses[setting] = re.findall(r"loss +(\S+)", out)
    assert losses["on"] == losses["auto"] == losses["off"]  # to four digits


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


def test_an_unknown_choice_is_refused(capsys):
    assert main(["data=ethanol", "sequence=maybe"]) == 2
    assert "sequence=maybe is unknown; choose from: auto, off, on" in capsys.readouterr().err
