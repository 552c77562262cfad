"""Tab shows every public name and nothing else; the docstring of the package runs."""

import importlib.util
import inspect
import textwrap
import types

import pytest

import eqfuse
from tests.lammps.untrained import untrained_run

LATE = {"haiku": "haiku", "equinox": "equinox"}
PACKAGES = ["eqfuse", *(f"eqfuse.{name}" for name in eqfuse._PACKAGES)]


@pytest.mark.parametrize("name", PACKAGES)
def test_tab_shows_public_names_and_nothing_else(name):
    package = importlib.import_module(name)
    shown = {n for n in dir(package) if not n.startswith("__")}
    assert shown == set(package.__all__) or name == "eqfuse.ops"
    for attribute in shown:
        if attribute in LATE and importlib.util.find_spec(LATE[attribute]) is None:
            with pytest.raises(ImportError, match=f"needs .*{LATE[attribute]}: pip install"):
                getattr(package, attribute)
            continue
        value = getattr(package, attribute)
        if isinstance(value, types.ModuleType):
            assert value.__name__ in (*PACKAGES, f"eqfuse.ops.{attribute}")
        elif inspect.isclass(value) or inspect.isfunction(value):
            assert value.__module__.startswith("eqfuse."), attribute


def test_a_function_is_not_hidden_by_its_module():
    importlib.import_module("eqfuse.inference.predict")
    assert inspect.isfunction(eqfuse.inference.predict)
    assert eqfuse.predict is eqfuse.inference.predict


def test_the_docstring_of_the_package_runs(tmp_path, monkeypatch, capsys):
    (tmp_path / "runs").mkdir()
    untrained_run(tmp_path).rename(tmp_path / "runs" / "first")
    monkeypatch.chdir(tmp_path)
    lines = eqfuse.__doc__.splitlines()
    exec(textwrap.dedent("\n".join(line for line in lines if line.startswith("    "))), {})
    assert "(4, 3, 4, 3)" in capsys.readouterr().out
