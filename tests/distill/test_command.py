"""The command: what `resume=` takes, and what is refused before a folder is made."""

import json

import ase
import ase.build
import ase.io
import pytest

from eqfuse.distill import rounds
from eqfuse.distill.student import untrained
from eqfuse.runs import ConfigError


@pytest.fixture
def started(tmp_path, monkeypatch, command):
    """Return a function of arguments of the command that returns the settings of its run."""
    ase.io.write(tmp_path / "start.xyz", ase.build.bulk("Cu"))
    ase.io.write(tmp_path / "near.xyz", ase.Atoms("Cu2", [(0, 0, 0), (0.09, 0, 0)]))
    monkeypatch.chdir(tmp_path)
    seen = []

    def no_rounds(distillation):
        seen.append(distillation.settings)
        distillation.teacher.close()

    monkeypatch.setattr(rounds.Distillation, "run", no_rounds)

    def run(*arguments):
        command("distill", *arguments)
        return seen[-1]

    return run


EMT = ("ase.calculators.emt:EMT()", "start.xyz", "run=made", "temperature=300..900", "seed=4")


@pytest.mark.parametrize("resume", [("resume=made",), ("--resume", "made"), ("--resume=made",)])
def test_resume_keeps_settings_and_takes_others(resume, started):
    first = started(*EMT, "properties=none")
    again = started(*resume, EMT[0], "minutes=7")
    assert (first.minutes, again.minutes) == (60, 7)
    assert (again.teacher, again.temperature, again.seed) == (EMT[0], "300..900", 4)
    assert again.properties == first.properties == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("resume=made", "seed=1"), "seed: resume= goes on with the settings of its folder"),
        (("resume=made",), "resume=made 'ase.calculators.emt:EMT()'"),
        (("resume=made", "7net-0"), "has labels of the teacher 'ase.calculators.emt:EMT()'"),
        ((*EMT[:2], "run=new", "student=data.val=x.xyz"), "without data="),
        ((*EMT[:2], "run=new", "student=run=new"), "of a network and its training, without run="),
        (("resume=other",), "other holds no distillation to go on with"),
        ((EMT[0], "run=new"), "START is missing"),
        ((f"nomodule:made('{300 * 'x'}')", "start.xyz", "run=new"), "No module named 'nomodule'"),
        ((*EMT[:2], "run=new", "labels=8"), "60: 12 to train on, and thrice new="),
        ((EMT[0], "near.xyz", "run=new"), "near.xyz, frame 0: atoms 0 and 1 overlap"),
        ((*EMT[:2], "run=new", "temperature=900..300"), "a number or two, as 300..1500"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message, started, tmp_path, command):
    started(*EMT)
    assert message in command("distill", *arguments, code=2).err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("name", "named"), [("teacher", "os:system('touch executed')"), ("python", "./program")]
)
def test_nothing_that_a_folder_names_is_executed(name, named, started, tmp_path, command):
    started(*EMT)
    file, program = tmp_path / "made/distill/settings.json", tmp_path / "program"
    program.write_text("#!/bin/sh\ntouch executed\n")
    program.chmod(0o755)
    file.write_text(json.dumps(json.loads(file.read_text()) | {name: named}))
    before = file.read_bytes()
    error = ""
    for given in ((), EMT[:1]):
        error += command("distill", "resume=made", *given, code=2).err
    assert named.removeprefix(".") in error  # the path of the program is whole there
    assert "EMT()" in error
    assert file.read_bytes() == before
    assert not (tmp_path / "executed").exists()


def test_a_student_of_a_folder_names_no_files(tmp_path):
    with pytest.raises(ConfigError, match="without verbose="):
        untrained("channels=2 verbose=true", ase.build.bulk("Cu"), tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: "[1, 2]", "it holds a list"),
        (lambda _: "[" * 10**5, "recursion"),
        (lambda _: "\ud800".encode("utf-8", "surrogatepass"), "can't decode"),
        (lambda text: text[:-9], "is damaged"),
        (lambda text: text.replace('"minutes": 60.0', '"minutes": "long"'), "minutes=long is imp"),
        (lambda text: text.replace('"batch"', '"other"'), "setting=other is unknown"),
        (lambda text: text.replace('"labels": 2000', '"labels": {"a": [1]}'), "labels={'a'"),
        (lambda text: text.replace('"seed": 4', '"seed": ' + "9" * 5000), "is damaged"),
    ],
)
def test_settings_that_are_none_are_refused_by_name(change, message, started, tmp_path, command):
    started(*EMT)
    file = tmp_path / "made/distill/settings.json"
    text = change(file.read_text())
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    error = command("distill", "resume=made", EMT[0], code=2).err
    assert "settings.json" in error
    assert message in error
    assert error.count("\n") == 1
