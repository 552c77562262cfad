"""What is installed: every file of the package."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DATA = sorted(
    path.relative_to(ROOT)
    for path in (ROOT / "eqfuse").rglob("*")
    if path.is_file() and path.suffix != ".py" and "__pycache__" not in path.parts
)


def test_files_that_are_not_code_are_package_data():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]
    assert Path("eqfuse/data/embedded/lif.npz") in DATA
    for path in DATA:
        package = ".".join(path.parent.parts)
        assert any(path.match(pattern) for pattern in patterns.get(package, ())), path


def test_a_wheel_has_them(tmp_path):
    setuptools = pytest.importorskip("setuptools", reason="the wheel is built by setuptools")
    if int(setuptools.__version__.partition(".")[0]) < 77:
        pytest.skip("the build needs setuptools 77")
    # Setuptools writes beside the sources that it builds.
    source = tmp_path / "source"
    source.mkdir()
    for name in ("eqfuse", "pyproject.toml", "README.md", "LICENSE"):
        (source / name).symlink_to(ROOT / name)
    command = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", tmp_path], cwd=source, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {str(path) for path in DATA} <= set(names)
    assert "eqfuse/ops/llvm/runtime/machine.py" in names
