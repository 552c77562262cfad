"""JAX's CUDA plug-in, installed without CUDA, prints no traceback; no device is hidden."""

import importlib.util
import logging
import os
import re
from subprocess import CompletedProcess

import pytest

from eqfuse import _startup
from eqfuse.ops._backend import has_gpu
from tests.child import ROOT, run_python

DEVICE = "from benchmarks.launches import device; print(device().platform)"


@pytest.fixture
def plugin():
    """Skip where there is no CUDA plug-in, or where it works."""
    names = [f"jax_plugins.xla_cuda{version}" for version in (12, 13)]
    if not importlib.util.find_spec("jax_plugins") or not any(map(importlib.util.find_spec, names)):
        pytest.skip("JAX's CUDA plug-in is not installed; pip install -e '.[launches]'")
    if has_gpu():
        pytest.skip("there is a GPU")


def run(*arguments, **variables) -> CompletedProcess:
    """Run Python as a user does who has set nothing."""
    ours = ("JAX_PLATFORMS", _startup._SKIP)
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    environment |= {"PYTHONPATH": str(ROOT), **variables}
    return run_python(*arguments, env=environment)


@pytest.mark.slow
def test_nothing_is_said_and_the_plugin_compiles_without_a_gpu(plugin):
    found = run("-m", "eqfuse.ops.info")
    assert found.stderr == ""
    assert "device      cpu" in found.stdout
    found = run("-c", DEVICE)
    assert (found.stdout, found.stderr) == ("gpu\n", "")


def test_missing_libraries_are_one_line_where_there_is_a_gpu(plugin):
    # an empty variable is what the plug-in finds where eqfuse does not set it
    found = run("-c", "import eqfuse, jax; jax.devices()", **{_startup._SKIP: ""})
    [line] = found.stderr.splitlines()
    assert line.startswith("JAX cannot use CUDA: Unable to load cuDNN.")


@pytest.mark.parametrize(
    ("error", "advice"),
    [("no cuDNN", "eqfuse.cuda.' brings"), ("ALREADY_EXISTS: a", "uninstall jax-cuda12-plugin or")],
)
def test_cuda_that_does_not_start_is_one_line_with_advice(error, advice):
    problem = RuntimeError(f"Unable to load:\n {error}")
    place = ("jax", logging.ERROR, "", 0, "Jax plugin configuration error: xla_cuda12", ())
    record = logging.LogRecord(*place, (RuntimeError, problem, None))
    assert _startup._as_one_line(record)
    assert re.fullmatch(
        f"JAX cannot use CUDA: Unable to load: {error} .*{advice}.*", record.getMessage()
    )
    assert record.exc_info is None


OF_USER = {_startup._SKIP: "", "JAX_PLATFORMS": "cuda"}


@pytest.mark.parametrize("user", [{}, OF_USER])
@pytest.mark.parametrize("name", ["nvidia0", "nvidiactl", "dxg", "nvhost-gpu", None])
def test_only_a_check_is_skipped_and_only_without_a_gpu(tmp_path, monkeypatch, name, user):
    """What a user has set is kept."""
    monkeypatch.setattr(_startup, "DEVICES", tmp_path)
    monkeypatch.setattr(os, "environ", dict(user))
    if name is not None:
        (tmp_path / name).touch()
    _startup.silence_cuda_plugin()
    assert os.environ == (user if name or user else {_startup._SKIP: "1"})


def test_startup_imports_sympy_when_it_is_read():
    code = """if True:
        import sys
        import eqfuse.ops
        names = "sympy", "haiku", "equinox", "scipy.signal"
        print([name for name in names if name in sys.modules])
        import jax, e3nn_jax as e3nn
        from e3nn_jax._src import s2grid
        print(s2grid.scipy.signal.find_peaks([0, 1, 0])[0])
        y = jax.numpy.array([0.0, 1.0, 0.0])
        print(e3nn.spherical_harmonics("2e", y, True).array.tolist()[2] > 1)
        import sympy
        print(sympy.Expr.__name__)"""
    assert run("-c", code).stdout.splitlines() == ["[]", "[1]", "True", "Expr"]


def test_frameworks_of_e3nn_are_imported_when_they_are_read():
    for package in ("haiku", "equinox"):
        pytest.importorskip(package)
    code = """if True:
        import eqfuse.ops, e3nn_jax as e3nn
        print("Linear" in dir(e3nn.haiku), e3nn.equinox.Linear.__name__)
        import e3nn_jax.haiku
        print(e3nn.haiku.Linear is e3nn_jax.haiku.Linear)"""
    assert run("-c", code).stdout.splitlines() == ["True Linear", "True"]
