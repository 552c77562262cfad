"""The command: what `resume=` takes, and what is refused before a folder is made."""

import ase.build
import ase.io
import pytest

from eqfuse.distill import command, rounds


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Return a function of arguments of the command that returns the settings of its run."""
    ase.io.write(tmp_path / "start.xyz", ase.build.bulk("Cu"))
    monkeypatch.chdir(tmp_path)
    seen = []

    def no_rounds(distillation):
        seen.append(distillation.settings)
        distillation.teacher.close()

    monkeypatch.setattr(rounds.Distillation, "run", no_rounds)

    def run(*arguments):
        assert command.main([*arguments]) == 0
        return seen[-1]

    return run


EMT = ("ase.calculators.emt:EMT()", "start.xyz", "run=made", "temperature=300..900", "seed=4")


@pytest.mark.parametrize("resume", [("resume=made",), ("--resume", "made"), ("--resume=made",)])
def test_resume_keeps_settings_and_takes_others(resume, started):
    first = started(*EMT, "properties=none")
    again = started(*resume, "minutes=7")
    assert (first.minutes, again.minutes) == (60, 7)
    assert (again.teacher, again.temperature, again.seed) == (EMT[0], "300..900", 4)
    assert again.properties == first.properties == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("resume=made", "seed=1"), "seed: resume= goes on with the settings of its folder"),
        (("resume=other",), "other holds no distillation to go on with"),
        ((EMT[0], "run=new"), "START is missing"),
        ((*EMT[:2], "run=new", "labels=100"), "batch= and thrice new=, 208, or more"),
        ((*EMT[:2], "run=new", "temperature=900..300"), "a number or two, as 300..1500"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message, started, tmp_path, capsys):
    started(*EMT)
    assert command.main([*arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
