"""The example of a kernel of ours that jax-triton launches, for an H100 that is absent."""

import pathlib
import runpy
import zlib

import jax
import numpy as np
import pytest

from tests.interpreter import interpret
from tests.ops.backends.triton.test_handover import fields

pytest.importorskip("triton")


example = runpy.run_path(
    str(pathlib.Path(__file__).parents[4] / "examples" / "jax_triton_kernel.py")
)
KERNEL = 1
"""The number of a field of TritonKernelCall, in jaxlib/gpu/triton.proto."""


@pytest.fixture
def jax_triton(tmp_path, monkeypatch):
    """Return jax-triton, made to work with JAX 0.12 as the example does it."""
    from jaxlib import gpu_triton

    monkeypatch.setenv("EQFUSE_CACHE_DIR", str(tmp_path))
    if not hasattr(gpu_triton, "TritonKernel"):
        pytest.skip("jaxlib's GPU plug-in is not installed; it is the extra launches")
    if jax.__version_info__ < (0, 11):
        pytest.skip("jax-triton 0.4, of which this is, needs JAX 0.11 and Python 3.12")
    module = pytest.importorskip("jax_triton", reason="jax-triton is not installed")
    example["let_jax_triton_work"]()
    return module


def lowered(function, args):
    """Return the target of the one custom call of a function, and its message for jaxlib."""
    module = jax.jit(function).trace(*args).lower(lowering_platforms=("cuda",)).compiler_ir()
    [main] = (op for op in module.body if op.attributes["sym_name"].value == "main")
    calls = [op for op in main.body.blocks[0] if op.operation.name == "stablehlo.custom_call"]
    [attributes] = (call.attributes for call in calls)
    message = zlib.decompress(attributes["mhlo.backend_config"]["opaque"].value_bytes)
    [(_, call)] = (field for field in fields(message) if field[0] == 1)
    return attributes["call_target_name"].value, fields(call)


def test_the_example_lowers_through_jax_triton(jax_triton):
    *arrays, edges = example["example"]()
    target, call = lowered(lambda *a: example["product"](*a, 90), (*arrays, edges))
    assert target == "triton_kernel_call_ffi"
    assert b"silu_weights" in dict(call)[KERNEL]


def test_the_example_changes_what_is_computed(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("EQFUSE_CACHE_DIR", str(tmp_path))
    if jax.default_backend() == "cpu":
        example["main"]()
        assert "w_0_0 = w_0_0 * tl.sigmoid(w_0_0)" in capsys.readouterr().out
    *arrays, edges = example["example"]()
    kernel = example["generated"]()

    def error(spec):
        inputs = [np.asarray(a) for a in example["operands"](kernel, *arrays, edges)]
        out = np.full((len(arrays[0]), 64), np.nan, np.float32)
        nodes, grid = len(arrays[0]), kernel.grid(len(arrays[2]), len(arrays[0]))
        interpret(spec, inputs, [out], (nodes,), grid=grid)
        return np.abs(out - np.asarray(example["expected"](*arrays, edges))).max()

    # products of two numbers below 4 and a weight, of up to 12 edges
    bound = 12 * 4**3 * np.finfo(np.float32).eps
    assert error(example["changed"](kernel.spec)) <= bound
    assert error(kernel.spec) > 1e3 * bound
