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


def test_an_interrupt_while_a_command_is_imported_is_one_line(monkeypatch, capsys):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.import_module", interrupted)
    assert main(["info"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


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


CHOOSE = f"choose one of {', '.join(COMMANDS)}"
PREDICT = "eqfuse predict RUN FILE"
WORDS = ["predict", "a", "b"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], f"eqfuse needs a command; {CHOOSE}\n"),
        (["trian"], "'trian' is not a command of eqfuse; did you mean train?\n"),
        (["x\n"], f"'x\\n' is not a command of eqfuse; {CHOOSE}\n"),
        (["predict"], f"RUN is missing: {PREDICT} [OUT] [name=value ...]; see --help"),
        (["predict", "a"], f"FILE is missing: {PREDICT}"),
        ([*WORDS, "c", "d"], f"d is one too many: {PREDICT}"),
        ([*WORDS, "--head"], "--head needs a value: head=VALUE"),
        ([*WORDS, "--head", "--dtype=float32"], "--head needs a value: head=VALUE"),
        ([*WORDS, "-x=1"], "-x=1 is not a setting; write it as name=value"),
        ([*WORDS, "dtype=half"], "dtype=half is unknown; choose from: float32, float6"),
        ([*WORDS, "batch_size=0"], "batch_size=0 is impossible: it must be finite and"),
        ([*WORDS, "batch_size=1.5"], "batch_size=1.5 is impossible: it must be a whole"),
        (["predict", "a\0", "b"], "RUN='a\\x00' is impossible: it must be without NUL characters"),
        (["predict", "~nobody-here/a", "b"], "RUN=~nobody-here/a is impossible: it must be in the"),
        (["check", "a", "report=~nobody-here/a.html"], "report=~nobody-here/a.html is impossible"),
        (["train", "layer=3"], "layer is not a setting of this run"),
        (["info", "a", "FILE"], "FILE is one too many: eqfuse info [RUN]"),
    ],
)
def test_arguments_that_are_wrong_are_one_line(arguments, message, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"error: {message}")
    assert captured.err.count("\n") == 1


def test_arguments_and_exit_codes_are_those_of_the_program(tmp_path, capsys):
    none = str(tmp_path / "none.model")
    for arguments, named in (
        (["evaluate", str(tmp_path), "FILE.xyz"], str(tmp_path)),
        (["convert", "mace", none, str(tmp_path / "run")], "none.model"),
        (["info", str(tmp_path)], "has no checkpoint"),  # no run
    ):
        assert main(arguments) == 2
        assert named in capsys.readouterr().err
    assert main(["train", "layers=5", "data=lif", "--cfg"]) == 0
    assert "  layers: 5\n" in capsys.readouterr().out
    assert main(["info"]) == 0
    assert capsys.readouterr().out.startswith("python ")


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
