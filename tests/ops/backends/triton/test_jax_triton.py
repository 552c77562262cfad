"""Kernels of every kind through jax-triton, for an H100 that is absent: launches like ours."""

import pathlib
import runpy
import zlib

import e3nn_jax as e3nn
import jax
import numpy as np
import pytest

from benchmarks.fused_cases import fused, mixing_kernels
from eqfuse.bench.cases import Case
from eqfuse.ops.backends.triton import form as plan
from eqfuse.ops.backends.triton import rows
from eqfuse.ops.backends.triton.primitive import launch
from eqfuse.ops.backends.triton.spec import TRITON_TYPES
from tests.ops.backends.triton.test_handover import fields

pytest.importorskip("triton")

from eqfuse.ops.backends.triton import compile, runtime
from eqfuse.ops.backends.triton.compile import load

example = runpy.run_path(
    str(pathlib.Path(__file__).parents[4] / "examples" / "jax_triton_kernel.py")
)
DTYPES = {pointer: name for name, pointer in TRITON_TYPES.items()}
GRID = (3, 2, 1)
# numbers of the fields of TritonKernelCall and its TritonKernel, in jaxlib/gpu/triton.proto
KERNEL, PTX, TTIR = 1, 4, 5


def kinds():
    """Return a kernel of each kind that is generated."""
    form = Case("16x0e+16x1o", "0e+1o", "0e+1o").forms()["backward"]
    [product] = plan.kernels(form, "float32")
    linear, _ = mixing_kernels(e3nn.Irreps("16x0e+16x1o"), 1, "float32")
    layer = fused("16x0e+16x1o", "0e+1o", "32x0e+16x1o", on_graph=False, gated=True)
    everything = (True,) * len(layer.form.inputs), (True,) * len(layer.sizes)
    return {
        "form": product.spec,
        "linear": linear,
        "fused forward": rows.forward(layer, "float32").spec,
        "fused backward": rows.backward(layer, *everything, "float32").spec,
    }


KINDS = kinds()


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


@pytest.mark.parametrize("kind", KINDS)
def test_a_launch_is_as_ours(jax_triton, monkeypatch, kind):
    spec = KINDS[kind]
    if kind.startswith("fused"):  # the pass that we leave out, which changes nothing in a form
        from triton.backends.nvidia.compiler import CUDABackend

        make_ttgir = compile._without_coalesce(CUDABackend.make_ttgir)
        monkeypatch.setattr(CUDABackend, "make_ttgir", staticmethod(make_ttgir))
    monkeypatch.setattr(runtime, "takes_cubins", lambda: False)
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parents[4])
    from benchmarks import launches

    sharding = jax.sharding.SingleDeviceSharding(launches.device())
    args = [jax.ShapeDtypeStruct((64,), DTYPES[t], sharding=sharding) for t in spec.input_types]
    outs = [jax.ShapeDtypeStruct((64,), DTYPES[t]) for t in spec.output_types]
    # triton, if told, makes use of a scalar that is one or a multiple of 16
    scalars = tuple(range(17, 17 + len(spec.scalars)))

    def ours(*arrays):
        return launch(spec, arrays, [out.shape for out in outs], scalars, GRID, "triton")

    def theirs(*arrays):
        return jax_triton.triton_call(
            *arrays,
            *scalars,
            kernel=load(spec),
            out_type=outs,
            grid=GRID,
            compute_capability=90,
            num_warps=spec.num_warps,
            backend_options={"ptx_version": 87, "enable_fp_fusion": True},
        )

    (target, call), (their_target, their_call) = lowered(ours, args), lowered(theirs, args)
    assert target == their_target == "triton_kernel_call_ffi"
    [(_, kernel), *launched] = call
    [(_, their_kernel), *they_launch] = their_call
    assert [value for number, value in launched if number in (2, 3, 4)] == list(GRID)
    assert len(launched) == len(GRID) + len(spec.parameter_types)
    assert launched == they_launch  # grid and parameters
    kernel, their_kernel = dict(fields(kernel)), dict(fields(their_kernel))
    assert kernel.pop(PTX).decode() == compile._without_lines(their_kernel.pop(PTX).decode())
    del their_kernel[TTIR]  # for people to read
    assert kernel == their_kernel  # name, warps, clusters, shared memory, capability


def test_the_example_lowers_through_jax_triton(jax_triton):
    *arrays, edges = example["example"]()
    target, call = lowered(lambda *a: example["product"](*a, 90), (*arrays, edges))
    assert target == "triton_kernel_call_ffi"
    assert b"silu_weights" in dict(call)[KERNEL]


def test_the_example_changes_what_is_computed(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("EQFUSE_CACHE_DIR", str(tmp_path))
    if jax.default_backend() == "cpu":
        example["main"]()
        assert "interpreted: largest difference" in capsys.readouterr().out
    arguments = example["example"]()
    expected = np.asarray(example["expected"](*arguments))
    # products of two numbers below 4 and a weight, of up to 12 edges
    bound = 12 * 4**3 * np.finfo(np.float32).eps
    np.testing.assert_allclose(example["interpreted"](*arguments), expected, rtol=0, atol=bound)
    monkeypatch.setitem(example["interpreted"].__globals__, "changed", lambda spec: spec)
    difference = np.abs(example["interpreted"](*arguments) - expected).max()
    assert difference > 1e3 * bound
