"""The end of a run: errors of all sets, the page, callbacks; and lines meanwhile."""

import platform
import re
from unittest import mock

import numpy as np
import pytest
from ase.data import chemical_symbols

from eqfuse import __version__
from eqfuse.data import Dataset, read_structures
from eqfuse.inference.evaluate import main as evaluate
from eqfuse.runs.errors import TrainingFailed
from eqfuse.train import terminal
from eqfuse.train.arguments import parse
from eqfuse.train.loop import Fit
from eqfuse.train.main import main
from eqfuse.train.molecule import run
from eqfuse.train.results import Callback, _page
from eqfuse.train.sources import DataSettings
from tests.small_runs import TINY, errors_of, prepared, rewritten, rows_of

PICTURES = True


@pytest.fixture(scope="module")
def ended(tmp_path_factory, water):
    """Return the folder of a run with test frames of two kinds, their file, and its callback."""
    folder, recorder = tmp_path_factory.mktemp("ended"), mock.Mock(spec=Callback)

    def change(number, atoms):
        atoms.positions *= 1.01
        atoms.info["config_type"] = "wet" if number % 2 else "<dry>"

    test = rewritten(water, folder / "test.xyz", change)
    data = [f"data={water}", f"data.test={test}", f"run={folder / 'run'}"]
    run(parse([*TINY, *data, "epochs=3", "lr=0.02"]), [recorder])
    return folder / "run", test, recorder


def test_a_training_without_forces_reports_none(water, tmp_path):
    def change(_, atoms):
        del atoms.calc.results["forces"]

    rewritten(water, tmp_path / "water.xyz", change)
    _, text = prepared(f"data={tmp_path / 'water.xyz'}", "training.forces_weight=0")
    assert "forces     in 0 of" in text
    assert "force RMS" not in text


def test_commands_of_a_page_quote_the_folder(tmp_path):
    (tmp_path / "my run").mkdir()
    metadata = {"config": {"training": {}}, "model": "nequip", "epoch": 1, "step": 1}
    rows = [{"set": "validation", "group": "all"}]
    page = _page(tmp_path / "my run", metadata, rows, {}, [], True)
    assert "my run&#x27; FILE.xyz OUT.xyz\neqfuse evaluate &#x27;" in page


def test_test_frames_have_the_errors_that_evaluate_prints(ended):
    folder, test, _ = ended
    assert evaluate([str(folder), str(test)]) == 0
    theirs = rows_of(folder / "evaluation-test" / "errors.csv")
    ours = [row for row in rows_of(folder / "errors.csv") if row["set"] == "test"]
    groups = [row["group"] for row in ours]
    assert groups == [row["group"] for row in theirs]
    assert {"all", "config_type wet", "config_type <dry>", "element O"} <= {*groups}
    for our, their in zip(ours, theirs, strict=True):
        for name, value in their.items():
            if value and name != "group":  # float32 sums, and energies that are totals there
                assert float(our[name]) == pytest.approx(float(value), rel=1e-3), name


def test_errors_of_the_best_network_are_those_of_its_epoch_and_callbacks_see_all(ended):
    folder, _, recorder = ended
    lines, rows = rows_of(folder), errors_of(folder)
    best = min(lines, key=lambda row: float(row["val_loss"]))
    frames = {name: row["frames"] for (name, group), row in rows.items() if group == "all"}
    assert frames == {"training": "16", "validation": "4", "test": "20"}
    for name in ("energy_rmse_mev_per_atom", "forces_mae_mev_per_a"):
        expected = pytest.approx(float(best[f"val_{name}"]), rel=1e-3)
        assert float(rows["validation", "all"][name]) == expected
    [[(start, config), _]] = recorder.on_start.call_args_list
    assert (start, config["training"]["lr"]) == (folder, 0.02)
    seen = [str(row["val_loss"]) for [row], _ in recorder.on_epoch.call_args_list]
    assert seen == [row["val_loss"] for row in lines]
    [[[errors], _]] = recorder.on_end.call_args_list
    assert [(row["set"], row["group"]) for row in errors] == [*rows]


def test_the_log_and_the_page_hold_everything_and_the_page_needs_no_network(ended):
    folder, _, _ = ended
    log, page = ((folder / name).read_text(encoding="utf-8") for name in ("log.txt", "report.html"))
    assert page.count("data:image/png;base64,") == 3
    assert "http" not in re.sub(r"base64,[^']*", "", page)
    for name in ("learning.png", "parity.png", "parity_test.png"):
        assert (folder / name).stat().st_size > 10_000
    in_log = [
        f"eqfuse {__version__}, Python ",
        "warning: the fit does not determine the reference energies",
        "species    H O\n",
        "network    NequIP, 66 parameters\n",
        "\n     3 ",
        "all steps done after ",
        "  test        config_type wet",
    ]
    in_page = [
        "  lr: 0.02\n",
        "config_type &lt;dry&gt;",
        "element O",
        "<li>the fit does not determine the reference energies",
        "<td>species</td><td>H O</td>",
        "<td>frames</td><td>16 training, 4 validation, 20 test",
        "<td>network</td><td>NequIP, 66 parameters</td>",
        f"eqfuse {__version__}, Python ",
        "<td>training time</td><td>",
        platform.node(),
    ]
    in_page += [
        f"<td>{float(row['forces_rmse_mev_per_a']):.2f}</td>"
        for (_, group), row in errors_of(folder).items()
        if group == "all"
    ]
    assert [part for part in in_log if part not in log] == []
    assert [part for part in in_page if part not in page] == []
    assert re.search(r"of the best network, of epoch \d: E in meV/atom, F in meV/Å\n", log)
    assert "\x1b" not in log
    assert log.index("warning: the fit") < log.index("species    H O")


def test_a_run_that_learned_no_forces_says_so_at_its_end(water, tmp_path, capsys):
    folder = tmp_path / "run"
    assert main([*TINY, f"data={water}", "epochs=1", "lr=1e-5", f"run={folder}"]) == 0
    text = "nothing was learned of the forces: their error on validation frames, "
    assert text in capsys.readouterr().err.splitlines()[-1]
    lines = (folder / "log.txt").read_text(encoding="utf-8").splitlines()
    assert any(line.startswith(f"warning: {text}") for line in lines[-2:])
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert f"<li>{text}" in page
    assert "forces of the next frame, of the frame before, of other atoms" in page


def test_an_error_is_in_the_log_and_a_resumed_run_adds_to_it(water, tmp_path, monkeypatch):
    settings = [f"data={water}", *TINY, f"run={tmp_path / 'run'}", "epochs=1"]
    with monkeypatch.context() as patch:
        patch.setattr(Fit, "_epoch", lambda *_: (_ for _ in ()).throw(TrainingFailed("too hot")))
        patch.setattr(DataSettings, "check_data", lambda *_: ["odd <data>"])  # of a new run only
        assert main(settings) == 1
    log = tmp_path / "run" / "log.txt"
    before = log.read_text(encoding="utf-8")
    assert before.endswith("TrainingFailed: too hot\n")
    assert main([f"resume={tmp_path / 'run'}"]) == 0
    after = log.read_text(encoding="utf-8")
    assert after.startswith(before)
    assert after.count("versions ") == 2
    assert after.count("warning: odd <data>\n") == 1
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert page.count("<li>odd &lt;data&gt;</li>") == 1


def test_the_references_of_many_elements_are_several_lines():
    each = [f"{symbol} {-13.6 * z:.4f}" for z, symbol in enumerate(chemical_symbols[1:90])]
    text = terminal.lines({"references": ", ".join(each), "run": 120 * "x"})
    *references, run = text.splitlines()
    assert max(map(len, references)) <= 100
    assert run == f"{'run':<11}{120 * 'x'}"
    for element in each:
        assert any(element in line for line in references)


def test_lines_are_printed_every_ten_seconds_where_there_is_no_terminal(monkeypatch, capsys):
    with terminal.Progress(4, ("energy", "forces")) as shown:
        shown.start_epoch(2)
        shown.step(0.5)
        assert "batch" not in capsys.readouterr().out
        monkeypatch.setattr(terminal, "HEARTBEAT", 0.0)
        shown.step(0.25)
        shown.heartbeat("validation, batch 1 of 2")
    out = capsys.readouterr().out
    for line in ("epoch 2, batch 2 of 4, loss 0.25\n", "validation, batch 1 of 2\n"):
        assert line in out


def test_an_outlier_moves_no_force_scale_and_is_named(water, tmp_path):
    def change(number, atoms):
        if number == 7:
            atoms.calc.results["forces"][1, 2] = 500.0

    path = rewritten(water, tmp_path / "outlier.xyz", change)
    clean, wrong = (
        Dataset.build(read_structures(file), cutoff=4.0, val_size=4) for file in (water, path)
    )
    assert clean.force_outliers == []
    [number] = wrong.force_outliers
    assert "frame 7" in wrong.train[number].name
    others = [s.forces for s in clean.train if "frame 7" not in s.name]
    assert wrong.force_rms == pytest.approx(np.sqrt(np.mean(np.concatenate(others) ** 2)))
    assert wrong.force_rms == pytest.approx(clean.force_rms, rel=0.2)
    _, text = prepared(f"data={path}", "training.loss=universal")
    assert "without 1 training frame of much larger forces" in text
