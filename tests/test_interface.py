"""Tab shows every public name and nothing else; the docstring of the package runs."""

import contextlib
import doctest
import importlib.util
import inspect
import os
import re
import textwrap
import types

import jax
import numpy as np
import pytest

import eqfuse
from eqfuse.runs import command
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


@pytest.mark.parametrize("name", ["data", "inference", "runs", "train"])
def test_every_name_of_a_front_has_an_example_that_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if name == "inference":
        untrained_run(tmp_path).rename(tmp_path / "first")
        untrained_run(tmp_path, seed=4).rename(tmp_path / "second")
    front = importlib.import_module(f"eqfuse.{name}")
    given = {name: front, "command": command, "contextlib": contextlib, "np": np, "os": os}
    given |= {"jax": jax, "jnp": jax.numpy}
    examples = doctest.DocTestParser().get_doctest(front.__doc__, given, name, None, None)
    used = re.findall(rf"\b{name}\.(\w+)", "".join(e.source for e in examples.examples))
    assert {*front.__all__} <= {*used}
    said = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(examples, out=said.append)
    assert not said, "".join(said)
