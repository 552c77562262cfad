"""A kernel inside a JAX computation: interpreted on a CPU, launched on a GPU."""

import pathlib
import re
import runpy
import types

import jax
import numpy as np
import pytest

from eqfuse.ops import Edges
from tests.interpreter import interpret_count

pytest.importorskip("triton")

CASE = pathlib.Path(__file__).with_name("row_sum.py")
ROOT = CASE.parents[4]
case = runpy.run_path(str(CASE))


pytestmark = pytest.mark.usefixtures("empty_cache")


def test_jitted_on_a_cpu_it_is_interpreted():
    before = interpret_count()
    out = jax.jit(case["row_sum_between"])(case["values"](), case["ROW_START"])
    assert out.dtype == np.float32
    exact = 1 + 2 * case["expected"](case["values"]())
    # sums of at most 5 numbers below 8, and three more roundings
    np.testing.assert_allclose(out, exact, rtol=0, atol=8 * 8 * np.finfo(np.float32).eps)
    assert interpret_count() == before + 1


def test_an_output_that_is_not_written_is_nan():
    module = runpy.run_path(str(CASE))
    source = module["SOURCE"].replace("    tl.store", "    if row != 1:\n        tl.store")
    module["_lower"].__globals__["spec"] = lambda dtype: case["spec"](dtype, source)
    out = jax.jit(module["row_sum"])(module["values"](), module["ROW_START"])
    np.testing.assert_array_equal(np.isnan(out).all(axis=1), [False, True, False])


def test_a_gpu_that_is_neither_present_nor_named_is_an_error():
    from jaxlib import gpu_triton

    if any(device.platform != "cpu" for device in jax.devices()):
        pytest.skip("a GPU is present")
    message = (
        "the GPU to compile for is not known.*target='sm_90'"
        if hasattr(gpu_triton, "TritonKernel")
        else "need jaxlib's GPU plug-in"
    )
    traced = jax.jit(case["row_sum"]).trace(case["values"](), case["ROW_START"])
    with pytest.raises(RuntimeError, match=message):
        traced.lower(lowering_platforms=("cuda",))


@pytest.mark.parametrize("grid", [(0,), (1, 2**16), (1, 1, 1, 1)])
def test_grids_that_cannot_run_are_refused(grid):
    from eqfuse.ops.backends.triton.runtime import _grid_of_three

    with pytest.raises(ValueError, match=r"grid .* is not within 1 to"):
        _grid_of_three(case["spec"](), grid)


def test_an_output_that_several_kernels_add_to_is_one_array(monkeypatch):
    """Else all but the first would add to memory that nobody has written."""
    from benchmarks.gpu.cases import CASES
    from eqfuse.ops.backends.triton import form as plan
    from eqfuse.ops.backends.triton import runtime
    from eqfuse.ops.primitives import forms

    def parameter(*_):
        return None

    call = types.SimpleNamespace(to_proto=lambda *_: b"")
    library = types.SimpleNamespace(
        create_array_parameter=parameter,
        create_scalar_parameter=parameter,
        TritonKernelCall=lambda *_: call,
    )
    monkeypatch.setattr(runtime, "gpu_library", lambda: library)
    monkeypatch.setattr(runtime, "target_of", lambda _: "sm_90")
    monkeypatch.setattr(runtime, "compile_kernel", lambda *_: None)
    monkeypatch.setattr(runtime, "gpu_kernel", lambda *_: (None, b""))
    monkeypatch.setitem(plan.TERMS, "float32", 8)
    monkeypatch.setattr(plan, "kernels", plan.kernels.__wrapped__)
    monkeypatch.setattr(plan, "tasks", plan.tasks.__wrapped__)  # of other limits, if kept

    form = CASES["tetris-1"].forms()["backward"]
    edges = Edges.from_arrays(np.array([0, 1, 1]), np.array([1, 0, 1]), 2)
    arrays = [np.zeros((o.index.count(3, 2), o.size), np.float32) for o in form.inputs]
    function = jax.jit(lambda *a: forms.evaluate(form, list(a), edges, backend="triton"))
    text = function.trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()
    calls = [line for line in text.splitlines() if "@triton_kernel_call_ffi" in line]
    inputs = [len(re.search(r"\((.*?)\)", line)[1].split(",")) for line in calls]
    aliases = [re.findall(r"operand_index = (\d+)", line) for line in calls]
    # the first begins both outputs, and the second and the third get one of them, after the inputs
    assert aliases == [[], [str(inputs[1] - 1)], [str(inputs[2] - 1)]]
