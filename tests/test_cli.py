"""The console command: the right program, its arguments and its exit code."""

import argparse
import subprocess
import sys

import pytest

from eqfuse import __version__
from eqfuse.cli import COMMANDS, main
from tests.child import run_python


def test_help_names_every_command(capsys):
    for arguments in (["--help"], ["-h"]):
        assert main(arguments) == 0
        text = capsys.readouterr().out
        assert all(f"  eqfuse {name} " in text for name in COMMANDS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"eqfuse {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], f"eqfuse needs a command; choose one of {', '.join(COMMANDS)}"),
        (["trian"], "'trian' is not a command of eqfuse; did you mean train?"),
        (["x\n"], f"'x\\n' is not a command of eqfuse; choose one of {', '.join(COMMANDS)}"),
    ],
)
def test_what_is_no_command_is_one_line(arguments, message, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"error: {message}\n"


def test_a_reader_of_its_output_that_ends_is_no_error():
    """As `head` does, which may end before anything is written."""
    arguments = [sys.executable, "-m", "eqfuse.cli", "train", "--help"]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(arguments, **pipe) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_a_reader_that_ends_is_no_error_of_what_predicts():
    from eqfuse.inference.commands import run

    def task(_):
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run(argparse.ArgumentParser(), [], task)


def test_each_command_has_help_of_its_own(capsys):
    assert main(["train", "--help"]) == 0
    assert "\n  eqfuse train [name=value ...]\n" in capsys.readouterr().out
    for name in ("predict", "evaluate", "check", "export", "convert", "info"):
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0
        assert capsys.readouterr().out.startswith(f"usage: eqfuse {name} [-h]")


def test_arguments_and_exit_codes_are_those_of_the_program(tmp_path, capsys):
    assert main(["train", "layer=3"]) == 2
    assert capsys.readouterr().err.startswith("error: layer is not a setting of this run")
    assert main(["train", "layers=5", "data=lif", "--cfg"]) == 0
    assert "  layers: 5\n" in capsys.readouterr().out
    assert main(["evaluate", str(tmp_path), "FILE.xyz"]) == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert main(["convert", "mace", str(tmp_path / "none.model"), str(tmp_path / "run")]) == 2
    assert "none.model" in capsys.readouterr().err
    assert main(["info"]) == 0
    assert capsys.readouterr().out.startswith("python ")
    assert main(["info", str(tmp_path)]) == 2  # no run
    assert "has no checkpoint" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["info", str(tmp_path), "FILE", "all"])
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("code", "returned"),
    [
        ("from eqfuse.cli import main; code = main(['--help'])", 0),
        ("import eqfuse.train.main; code = 0", 0),
        ("from eqfuse.cli import main; code = main(['md', 'a', 'b', 'ensemble=nvt'])", 2),
    ],
    ids=["help", "settings of a training", "a wrong setting"],
)
def test_nobody_waits_for_jax_where_nothing_is_computed(code, returned):
    """It may take ten seconds."""
    code = f"import sys; {code}; sys.exit(7 if 'jax' in sys.modules else code)"
    found = run_python("-c", code, check=False)
    assert found.returncode == returned, found.stderr
