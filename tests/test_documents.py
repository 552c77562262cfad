"""What the documents show is what happens, and their links lead somewhere."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from eqfuse.convert import ConvertError
from eqfuse.convert.sevennet import sevennet_file

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("benchmarks/*.md"),
        *ROOT.glob("benchmarks/results/*.md"),
        *ROOT.glob("eqfuse/**/*.md"),
    ]
)
LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#[^)\s]*)?\)")


def module(name: str):
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    missing = [to for to in LINK.findall(text) if to and not (page.parent / to).exists()]
    assert missing == []


def test_a_broken_link_is_seen():
    assert LINK.findall("[a](b.md#c), [d](https://e.f), ![g](h.png)") == ["b.md", "h.png"]


@pytest.mark.parametrize(
    "name",
    [
        "fuse",
        pytest.param("backends", marks=pytest.mark.slow),
        pytest.param("mace", marks=pytest.mark.slow),
        pytest.param("trained_networks", marks=pytest.mark.slow),
        pytest.param("train", marks=pytest.mark.slow),
        "train-from-python",
    ],
)
def test_pages_run(name, tmp_path):
    for package in ("haiku", "equinox") if name == "fuse" else ():
        pytest.importorskip(package)
    if name == "trained_networks":
        try:
            sevennet_file("7net-0", download=False)
        except ConvertError as error:
            pytest.skip(str(error))
    folder = "how-to" if name == "train-from-python" else "tutorials"
    page = ROOT / "docs" / folder / f"{name}.md"
    module("execute").execute(page, tmp_path)
    assert "```" in page.read_text(encoding="utf-8")  # had blocks; one that fails is an error


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


def test_settings_are_those_of_the_configuration():
    settings = module("settings")
    assert settings.PAGE.read_text(encoding="utf-8") == settings.page()


def test_the_readme_is_short():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120


@pytest.mark.slow
def test_the_documentation_builds(tmp_path):
    for package in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(package)
    command = [sys.executable, "-m", "sphinx", "-W", "-q", str(ROOT / "docs"), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "reference" / "ops.html").exists()
