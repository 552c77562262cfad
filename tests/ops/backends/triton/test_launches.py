"""From a computation to launches: kernels compiled ahead, lowered for CUDA, counted for an H100.

No GPU is present: a kernel on a CPU is interpreted.
"""

import re
from unittest import mock

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.lax.control_flow import loops

from benchmarks.gpu.cases import CASES
from benchmarks.launches import count
from eqfuse import ops
from eqfuse.inference import lists
from eqfuse.ops import Edges
from eqfuse.ops.primitives import forms
from eqfuse.ops.primitives.lowering import compile_ahead
from tests.ops.test_what_runs import functions, problem

pytest.importorskip("triton")

from eqfuse.ops.backends.triton import form as plan
from eqfuse.ops.backends.triton import runtime
from tests.ops.backends.triton.row_sum import ROW_START, SOURCE, row_sum, spec, values

NUM_NODES, NUM_EDGES = 5, 12


pytestmark = pytest.mark.usefixtures("empty_cache")


def force_matching(backend):
    """Return a step that trains on forces through two equal products on a graph, and arguments."""
    apply, params, arrays = problem("TensorProduct", "a graph", "auto", backend)

    def twice(params, arrays):
        x, y = arrays
        return apply(params, (apply(params, arrays)[:, : x.shape[1]], y))

    return jax.jit(functions(twice)[2]), (params, tuple(a.astype(np.float32) for a in arrays))


def test_lowering_finds_every_kernel_compiled(compiled, request):
    function, args = force_matching("triton")
    kernels = compile_ahead(function, *args, target="sm_90", threads=2)
    assert len(kernels) == len({k.entry for k in kernels}) == len(compiled) > 3
    request.getfixturevalue("h100")
    assert count(function, args).custom_calls >= len(kernels)
    assert len(compiled) == len(kernels)


def test_other_backends_have_no_kernels():
    function, args = force_matching("xla")
    assert compile_ahead(function, *args) == []


def test_a_target_is_needed_without_a_gpu():
    if jax.default_backend() != "cpu":
        pytest.skip("a GPU is present")
    function, args = force_matching("triton")
    with pytest.raises(ValueError, match="JAX has no GPU here; give what to compile for"):
        compile_ahead(function, *args)


@pytest.mark.parametrize("backend", ["xla", "triton"])
def test_jax_export_writes_functions_for_cuda(backend, monkeypatch, request):
    """Gradients on a graph that is sorted inside, chosen from a list, and one for each of a batch.

    Cumulative sums are lowered as by JAX 0.11. Kernels need a check to be disabled, and a GPU.
    """
    if backend == "triton":
        request.getfixturevalue("plugin")
    monkeypatch.setattr(loops, "_is_supported_cumred", lambda *_: True, raising=False)
    monkeypatch.setattr(runtime, "target_of", lambda ctx: "sm_90")
    module = ops.TensorProductLinearGate("8x0e+4x1o", backend=backend)
    x, y = (e3nn.normal("4x0e+4x1o", jax.random.key(0), (n,)) for n in (NUM_NODES, NUM_EDGES))

    def graph(receivers):
        return Edges.from_arrays(2 * receivers % NUM_NODES, receivers, NUM_NODES)

    def value(params, x, y, receivers):
        return module.apply(params, x, y, edges=graph(receivers)).array

    def loss(params, x, y, receivers, near):
        pairs = lists.Pairs(graph(receivers), jnp.zeros((NUM_EDGES, 3), jnp.int32))
        edges, kept, _ = lists.within(pairs, near, NUM_EDGES - 1)
        chosen = module.apply(params, x, y[kept], edges=edges).array
        both = jax.vmap(value, (None, None, None, 0))(params, x, y, jnp.stack([receivers] * 2))
        return jnp.sum(chosen**2) + jnp.sum(both**2)

    receivers = jnp.arange(NUM_EDGES) // 3
    args = x, y, receivers, receivers > 0
    shapes = jax.eval_shape(
        lambda *a: module.init(jax.random.key(0), *a[:2], edges=graph(a[2])), *args
    )
    kernels = jax.export.DisabledSafetyCheck.custom_call("triton_kernel_call_ffi")
    run = jax.jit(jax.grad(loss, (0, 1, 2)))
    with jax.enable_x64(True):  # as dynamics have it
        found = jax.export.export(run, platforms=["cuda"], disabled_checks=[kernels])(shapes, *args)
    text = found.mlir_module()
    assert "chlo.scan" in text
    assert ("triton_kernel_call" in text) == (backend == "triton")


def test_an_output_that_is_not_written_is_nan(monkeypatch):
    source = SOURCE.replace("    tl.store", "    if row != 1:\n        tl.store")
    monkeypatch.setattr("tests.ops.backends.triton.row_sum.spec", lambda d: spec(d, source))
    out = jax.jit(lambda *operands: row_sum(*operands))(values(), ROW_START)
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
    traced = jax.jit(row_sum).trace(values(), ROW_START)
    with pytest.raises(RuntimeError, match=message):
        traced.lower(lowering_platforms=("cuda",))


@pytest.mark.parametrize("grid", [(0,), (1, 2**16), (1, 1, 1, 1)])
def test_grids_that_cannot_run_are_refused(grid):
    with pytest.raises(ValueError, match=r"grid .* is not within 1 to"):
        runtime._grid_of_three(spec(), grid)


def test_an_output_that_several_kernels_add_to_is_one_array(monkeypatch):
    """Else all but the first would add to memory that nobody has written."""
    library = mock.Mock()
    library.TritonKernelCall.return_value.to_proto.return_value = b""
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


@pytest.mark.parametrize(
    ("order", "launches"),
    [
        ("forward", 1),
        pytest.param("backward", 1, marks=pytest.mark.slow),
        pytest.param("double", 2, marks=pytest.mark.slow),
    ],
)
def test_the_graph_product_is_one_launch_each_way(h100, order, launches):
    from benchmarks.launches.graph_product import CASES as PRODUCTS

    scratch = []
    for size in ("135 nodes, 2700 edges", "3000 nodes, 160000 edges"):
        found = count(*PRODUCTS[f"{order}, {size}, eqfuse"](), h100)
        assert (found.launches, found.custom_calls) == (launches, launches)
        scratch.append(found.temp_bytes)
    # no array of edges, nodes or channels: at most a table of pointers, of one size for both
    assert scratch[0] == scratch[1] <= 64


def test_the_edges_of_both_ends_are_ordered_in_the_launches_of_one(h100):
    """Keys and a sort of them, the orders, counts and their sums."""
    ends = [jax.ShapeDtypeStruct((2700,), "int32")] * 2
    names = "receiver_order", "receiver_ptr", "sender_order", "sender_ptr"

    def orders(senders, receivers):
        edges = Edges.from_arrays(senders, receivers, 135)
        return [getattr(edges, name) for name in names]

    assert count(orders, ends, h100).launches == 7


def test_kernels_are_recorded_in_one_cuda_graph_with_those_of_xla(h100):
    """The handler says that it may be recorded; XLA asks for the driver's version besides."""
    module = ops.Linear("16x0e+16x1o", backend="triton")
    x = e3nn.IrrepsArray("16x0e+16x1o", jnp.ones((256, 64)))
    params = jax.eval_shape(lambda: module.init(jax.random.key(0), x))

    def three(params, x):
        for _ in range(3):
            x = module.apply(params, e3nn.IrrepsArray(x.irreps, jnp.tanh(x.array)))
        return x.array

    found = count(three, (params, x), h100)
    assert (found.launches, found.custom_calls) == (6, 3)
    assert (found.graphs, found.recorded) == (1, 6)
