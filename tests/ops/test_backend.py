"""What runs is what was asked for; only None may choose."""

import importlib.util
import subprocess
import sys

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import pytest

from eqfuse import ops
from eqfuse.ops import _backend
from eqfuse.ops._backend import BACKENDS, Op, availability, recorded, resolve


@pytest.fixture
def machine(monkeypatch):
    """Return a machine with or without a GPU, triton, and llvmlite."""

    def make(gpu: bool, triton: bool, llvmlite: bool = True):
        find_spec = importlib.util.find_spec
        here = {"triton": triton, "llvmlite": llvmlite}
        monkeypatch.delenv("EQFUSE_BACKEND", raising=False)
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu" if gpu else "cpu")
        monkeypatch.setattr(
            importlib.util,
            "find_spec",
            lambda name: (object() if here[name] else None) if name in here else find_spec(name),
        )
        monkeypatch.setattr("jaxlib.gpu_triton.TritonKernel", object, raising=False)
        _backend._say_once.cache_clear()

    return make


def test_none_chooses_by_device(machine):
    machine(gpu=True, triton=True)
    assert resolve(None) == "triton"
    machine(gpu=False, triton=True)
    assert resolve(None) == "numba"


def test_calls_are_recorded_with_what_runs_them_and_why(machine):
    x = e3nn.IrrepsArray("0e + 1o", jnp.ones((2, 4)))
    machine(gpu=False, triton=False)
    with recorded() as calls:
        with recorded() as inner:
            ops.tensor_product(x, x, backend="xla")
        ops.elementwise_tensor_product(x, x)
        ops.tensor_product(x.irreps, x.irreps)  # computes nothing
        resolve("xla")
    ops.tensor_product(x, x, backend="xla")
    assert inner == [Op("tensor_product", "xla", "not numba: backend 'xla' was asked for")]
    assert calls == [Op("elementwise_tensor_product", "numba", "")]
    machine(gpu=False, triton=False, llvmlite=False)
    with recorded() as calls, pytest.warns(UserWarning, match="not 'numba'"):
        ops.tensor_product(x, x)
    [call] = calls
    assert call.backend == "xla"
    assert call.why.startswith("not numba: the package llvmlite")


def test_none_falls_back_and_says_so_once(machine):
    machine(gpu=True, triton=False)
    with pytest.warns(UserWarning, match="'xla', not 'triton': the package triton is not install"):
        assert resolve(None) == "xla"
    assert resolve(None) == "xla"  # a second warning would be an error
    machine(gpu=False, triton=True, llvmlite=False)
    with pytest.warns(UserWarning, match="'xla', not 'numba': the package llvmlite, the compiler"):
        assert resolve(None) == "xla"
    assert resolve(None) == "xla"


def test_the_variable_says_what_none_means(machine, monkeypatch):
    machine(gpu=True, triton=True)
    monkeypatch.setenv("EQFUSE_BACKEND", "e3nn")
    assert resolve(None) == "e3nn"
    assert resolve("xla") == "xla"
    monkeypatch.setenv("EQFUSE_BACKEND", "cuda")
    with pytest.raises(ValueError, match="EQFUSE_BACKEND 'cuda' is unknown; choose one of triton"):
        resolve(None)


def test_a_named_backend_runs_or_is_an_error(machine):
    machine(gpu=False, triton=False)
    assert [resolve(name) for name in ("xla", "e3nn")] == ["xla", "e3nn"]
    for name in ("triton", "triton-interpret"):
        with pytest.raises(ValueError, match=f"'{name}' cannot run here: .*install eqfuse"):
            resolve(name)
    machine(gpu=False, triton=False, llvmlite=False)
    with pytest.raises(ValueError, match=r"'numba' cannot run here: .*pip install llvmlite"):
        resolve("numba")
    with pytest.raises(ValueError, match="'pallas' is unknown; choose one of triton, "):
        resolve("pallas")


def test_availability_names_a_reason_for_every_backend(machine):
    machine(gpu=False, triton=True)
    report = availability()
    assert tuple(report) == BACKENDS
    assert {name for name, (runs, _) in report.items() if runs} == {
        "triton-interpret",
        "numba",
        "xla",
        "e3nn",
    }
    assert "no GPU" in report["triton"][1]
    assert all(reason for _, reason in report.values())


def test_info_prints_versions_devices_and_reasons():
    run = subprocess.run(
        [sys.executable, "-W", "error", "-m", "eqfuse.ops.info"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"jax         {jax.__version__}" in run.stdout
    assert f"None picks {resolve(None)!r}" in run.stdout
    assert all(f"  {name} " in run.stdout for name in BACKENDS)
    assert "cache  " in run.stdout
