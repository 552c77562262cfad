"""What is installed: every file of the package."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from eqfuse import __version__

ROOT = Path(__file__).parents[1]
DATA = sorted(
    path.relative_to(ROOT)
    for path in (ROOT / "eqfuse").rglob("*")
    if path.is_file() and path.suffix != ".py" and "__pycache__" not in path.parts
)


def test_every_folder_of_tests_is_in_a_part_of_the_nightly_run():
    workflow = (ROOT / ".github/workflows/nightly.yml").read_text(encoding="utf-8")
    parts = set(workflow.split())
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")}
    covers = {f: {f"{f}/test_*.py", str(f), *map(str, list(f.parents)[:-2])} for f in folders}
    left_out = [str(folder) for folder, names in covers.items() if not parts & names]
    assert left_out == []


def test_ci_runs_the_commands_of_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    [commands] = re.findall(r"(?m)^pip install .*pytest.*$", readme)
    first, _, rest = (ROOT / ".ci/run").read_text(encoding="utf-8").partition("fresh rest")
    assert "\n  ".join(["fresh readme", *commands.split(" && ")]) in first
    # tests that are skipped there for want of these run in the rest
    skipped = re.compile(r'importorskip\((package|"haiku|"equinox|"jax_md)')
    for path in (ROOT / "tests").rglob("test_*.py"):
        if skipped.search(path.read_text(encoding="utf-8")):
            assert str(path.relative_to(ROOT)) in rest.split(), path


def test_the_citation_has_the_version():
    lines = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    assert f"version: {__version__}" in lines


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Return a copy of what the sources of a wheel are."""
    folder = tmp_path_factory.mktemp("beside") / "eqfuse"
    shutil.copytree(ROOT / "eqfuse", folder / "eqfuse", ignore=shutil.ignore_patterns("*.pyc"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "hatch_build.py"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def built(source, kind: str, folder) -> Path:
    """Return the path of a wheel, or of what `pip install -e` installs: kind "editable"."""
    code = f"import sys, hatchling.build as h; print(h.build_{kind}(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, cwd=source, check=True, capture_output=True, text=True)
    return folder / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    pytest.importorskip("hatchling", reason="it builds the wheel")
    return built(source, "wheel", tmp_path_factory.mktemp("wheel"))


def test_an_editable_install_is_imported_beside_the_clone(source, tmp_path):
    """A folder with the clone in it has a folder `eqfuse`, which is no package."""
    pytest.importorskip("hatchling", reason="it builds the wheel")
    with zipfile.ZipFile(built(source, "editable", tmp_path)) as opened:
        opened.extractall(tmp_path / "site")
    code = f"import site; site.addsitedir({str(tmp_path / 'site')!r}); import eqfuse; "
    code += "print(eqfuse.__file__)"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(
        command, cwd=source.parent, env=environment, capture_output=True, text=True
    )
    assert Path(done.stdout.strip()) == source / "eqfuse" / "__init__.py", done.stderr


def test_a_wheel_has_them(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert Path("eqfuse/data/readers/embedded/lif.npz") in DATA
    assert {str(path) for path in DATA} <= set(names)
    assert "eqfuse/ops/backends/llvm/machine.py" in names


def test_a_wheel_of_a_clone_names_its_commit(source, tmp_path):
    pytest.importorskip("hatchling", reason="it builds the wheel")
    clone = shutil.copytree(source, tmp_path / "clone")
    git = ["git", "-C", str(clone), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "README.md"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], check=True)
    done = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    with zipfile.ZipFile(built(clone, "wheel", tmp_path)) as opened:
        opened.extractall(tmp_path / "site")
    command = [sys.executable, "-m", "eqfuse", "--version"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert found.stdout == f"eqfuse {__version__} (of commit {done.stdout.strip()})\n"


def test_the_command_of_a_wheel_runs(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as opened:
        [path] = [name for name in opened.namelist() if name.endswith("/entry_points.txt")]
        assert "eqfuse = eqfuse.cli:main" in opened.read(path).decode().splitlines()
        opened.extractall(tmp_path / "site")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    environment["EQFUSE_CACHE_DIR"] = str(tmp_path / "cache")

    def run(*arguments):
        command = [sys.executable, "-m", "eqfuse", *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert run("--version") == f"eqfuse {__version__}\n"
    assert "  layers: 5\n" in run("train", "layers=5", "data=lif", "--cfg")
    assert f"eqfuse      {__version__}\n" in run("info")
