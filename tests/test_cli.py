"""The console command: the right program, its arguments and its exit code."""

import re
import subprocess
import sys

import pytest

from eqfuse import __version__
from eqfuse.cli import COMMANDS, main
from eqfuse.inference.uncertainty import Uncertainty
from eqfuse.md import simulation
from eqfuse.runs import command
from eqfuse.runs.errors import ConfigError
from eqfuse.train import main as train
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
def test_unknown_command_is_one_line(arguments, message, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"error: {message}\n"


def test_a_reader_of_its_output_that_ends_is_no_error():
    """As `head` does, which may end before anything is written."""
    arguments = [sys.executable, "-m", "eqfuse", "train", "--help"]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(arguments, **pipe) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_a_reader_that_ends_is_no_error_of_what_predicts():
    def task(_):
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        command.run(Uncertainty, task, ["RUN"])


def test_each_command_has_help_of_its_own(capsys):
    for name in COMMANDS:
        assert main([name, "--help"]) == 0
        out = capsys.readouterr().out
        assert f"\n  eqfuse {name} " in out
        assert "[name=value ...]" in out


OPTIONS = {
    "train": (["data=lif"], "data.batch_size", "3", "data.batch_siz"),
    "predict": (["RUN", "FILE"], "batch_size", "3", "batch_siz"),
    "evaluate": (["RUN", "FILE"], "energy_key", "dft", "energie_key"),
    "select": (["RUNS", "FILE", "OUT"], "most", "-1.5", "mst"),
    "uncertainty": (["RUN"], "val", "more.xyz", "vall"),
    "md": (["RUN", "START"], "save_every", "10", "saveevery"),
    "distill": (["TEACHER", "START"], "batch", "13", "batc"),
    "check": (["mine:made(sigma=2.2)"], "backends", "xla,llvm", "backendz"),
    "compare": (["A", "seed=0", "FILE"], "dtype_a", "float32", "dtyp_a"),
    "relax": (["RUN", "FILE"], "cell", "true", "cel"),
    "export": (["RUN", "FOLDER"], "types", "Si,O", "tpes"),
    "convert": (["mace", "FILE", "RUN"], "head", "one", "haed"),
}
"""Words of each command with settings, one of these, a value of it, and a wrong name."""


@pytest.mark.parametrize("name", OPTIONS)
def test_settings_are_written_in_one_way_by_every_command(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "seed=0").mkdir()  # a run of seeds=, which is no setting
    words, setting, value, wrong = OPTIONS[name]
    parse, found = command.parse, []

    def take(*arguments):
        found.append(parse(*arguments))
        raise ConfigError("it is not run")

    monkeypatch.setattr(command, "parse", take)
    monkeypatch.setattr(simulation, "run", lambda *given: found.append(given))
    monkeypatch.setattr(train, "_train_all", lambda configs: found.append(configs) or 0)
    dashed = setting.replace("_", "-")
    ways = [[f"{setting}={value}"], [f"--{dashed}={value}"], [f"--{setting}", value]]
    ways += [[f"--{dashed}"]] if value == "true" else []
    ways += [[f"--{setting}", *value.split(",")]] if "," in value else []
    for way in ways:
        main([name, *words, *way])
    main([name, f"--{setting}", value, *words])
    assert capsys.readouterr().err.count("\n") == (len(found) if name not in ("md", "train") else 0)
    assert [*map(repr, found)] == [repr(found[0])] * (len(ways) + 1)
    main([name, *words])
    assert repr(found[-1]) != repr(found[0])
    given = [f"{wrong}={value}"], [f"--{wrong}", value]
    for way in given:
        assert main([name, *words, *way]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith(f"error: {wrong} is not a setting ")
        assert re.search(rf"nearest: ([a-z]+, )?{setting}\b", error)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "RUN is missing: eqfuse predict RUN FILE [OUT] [name=value ...]; see --help"),
        (["a"], "FILE is missing: eqfuse predict RUN FILE"),
        (["a", "b", "c", "d"], "d is one too many: eqfuse predict RUN FILE"),
        (["a", "b", "--head"], "--head needs a value: head=VALUE"),
        (["a", "b", "--head", "--dtype=float32"], "--head needs a value: head=VALUE"),
        (["a", "b", "-x=1"], "-x=1 is not a setting; write it as name=value"),
        (["a", "b", "dtype=half"], "dtype=half is unknown; choose from: float32, float64"),
        (["a", "b", "batch_size=0"], "batch_size=0 is impossible: it must be finite and greater"),
        (
            ["a", "b", "batch_size=1.5"],
            "batch_size=1.5 is impossible: it must be a whole number",
        ),
        (["a\0", "b"], "RUN='a\\x00' is impossible: it must be without NUL characters"),
    ],
)
def test_arguments_that_are_wrong_are_one_line(arguments, message, capsys):
    assert main(["predict", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


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
    assert main(["info", str(tmp_path), "FILE"]) == 2
    assert "FILE is one too many: eqfuse info [RUN]" in capsys.readouterr().err


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
