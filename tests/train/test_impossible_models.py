"""Settings of a network that only the network itself can refuse."""

import pytest

from eqfuse.train.main import main


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model.skip=nequip"], "skip must be one of species, linear, none"),
        (["model.hidden=4x1o"], "holds 0e, which"),
        (["model.hidden=4x0e,4x0e"], "for each of the 3 layers with commas"),
        (["model.cutoff_function=xplor"], "needs a cutoff_onset between 0 and 5.0 Å, got None"),
    ],
)
def test_they_are_refused_in_one_sentence(settings, message, tmp_path, capsys):
    folder = tmp_path / "run"
    assert main(["model=nequip", "data=ethanol", *settings, f"run={folder}"]) == 2
    error = capsys.readouterr().err
    assert "model=nequip is impossible" in error
    assert message in error
    assert not folder.exists()
