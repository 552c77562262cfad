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


def output_of(*command, cwd, **variables) -> str:
    """Return what Python prints in a folder, with other variables of the environment."""
    environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    command, options = [sys.executable, *map(str, command)], {"check": True, "text": True}
    return subprocess.run(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, **options
    ).stdout


def built(source, kind: str, folder) -> Path:
    """Return the path of a wheel, or of what `pip install -e` installs: kind "editable"."""
    pytest.importorskip("hatchling", reason="it builds the wheel")
    code = f"import sys, hatchling.build as h; print(h.build_{kind}(sys.argv[1]))"
    return folder / output_of("-c", code, folder, cwd=source).split()[-1]


def unpacked(wheel, tmp_path) -> Path:
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(tmp_path / "site")
    return tmp_path / "site"


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    return built(source, "wheel", tmp_path_factory.mktemp("wheel"))


def test_an_editable_install_is_imported_beside_the_clone(source, tmp_path):
    """A folder with the clone in it has a folder `eqfuse`, which is no package."""
    site = unpacked(built(source, "editable", tmp_path), tmp_path)
    code = f"import site; site.addsitedir({str(site)!r}); import eqfuse; print(eqfuse.__file__)"
    found = output_of("-S", "-c", code, cwd=source.parent, PYTHONPATH="")
    assert Path(found.strip()) == source / "eqfuse" / "__init__.py"


def test_a_wheel_has_them(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert Path("eqfuse/data/readers/embedded/lif.npz") in DATA
    assert {str(path) for path in DATA} <= set(names)
    assert "eqfuse/ops/backends/llvm/machine.py" in names


def test_a_wheel_of_a_clone_names_its_commit(source, tmp_path):
    clone = shutil.copytree(source, tmp_path / "clone")
    git = ["git", "-C", str(clone), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "README.md"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], check=True)
    commit = subprocess.check_output([*git, "rev-parse", "--short", "HEAD"], text=True).strip()
    site = unpacked(built(clone, "wheel", tmp_path), tmp_path)
    found = output_of("-m", "eqfuse", "--version", cwd=tmp_path, PYTHONPATH=site)
    assert found == f"eqfuse {__version__} (of commit {commit})\n"


def test_the_command_of_a_wheel_runs(wheel, tmp_path):
    site = unpacked(wheel, tmp_path)
    [points] = site.glob("*/entry_points.txt")
    assert "eqfuse = eqfuse.cli:main" in points.read_text("utf-8").splitlines()
    variables = {"PYTHONPATH": site, "EQFUSE_CACHE_DIR": tmp_path / "cache"}

    def run(*arguments):
        return output_of("-m", "eqfuse", *arguments, cwd=tmp_path, **variables)

    assert run("--version") == f"eqfuse {__version__}\n"
    assert "  layers: 5\n" in run("train", "layers=5", "data=lif", "--cfg")
    assert f"eqfuse      {__version__}\n" in run("info")
