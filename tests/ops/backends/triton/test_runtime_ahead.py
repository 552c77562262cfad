"""The kernels of a whole computation, compiled in parallel before it is lowered."""

import pathlib

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.lax.control_flow import loops
from jaxlib import gpu_triton

from eqfuse import ops
from eqfuse.inference import lists
from eqfuse.ops import Edges
from eqfuse.ops.backends.triton import runtime
from eqfuse.ops.ir import products
from eqfuse.ops.primitives.forms import evaluate
from eqfuse.ops.primitives.lowering import compile_ahead

pytest.importorskip("triton")

from eqfuse.ops.backends.triton import compile

NUM_NODES, NUM_EDGES = 5, 12


pytestmark = pytest.mark.usefixtures("empty_cache")


def force_matching(backend):
    """Return a function that trains on forces through a small graph product, and its arguments."""
    product = products.tensor_product(
        e3nn.Irreps("8x0e+8x1o"), e3nn.Irreps("0e+1o"), None, "component", True, True, on_graph=True
    )
    rng = np.random.default_rng(0)
    receivers = np.sort(rng.integers(NUM_NODES, size=NUM_EDGES))
    edges = Edges.from_arrays(rng.integers(NUM_NODES, size=NUM_EDGES), receivers, NUM_NODES)

    def energy(y, x, w):
        out = x
        for _ in range(2):
            [out] = evaluate(product.form, [out[:, :32], y, w], edges, backend=backend)
        return jnp.sum(out**2)

    def loss(w, x, y):
        return jnp.sum(jax.grad(energy)(y, x, w) ** 2)

    shapes = [(NUM_EDGES, product.irreps_out.num_irreps), (NUM_NODES, 32), (NUM_EDGES, 4)]
    args = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    return jax.jit(jax.grad(loss)), args


def test_lowering_finds_every_kernel_compiled(monkeypatch):
    function, args = force_matching("triton")
    kernels = compile_ahead(function, *args, target="sm_90", threads=2)
    assert len(kernels) == len({k.entry for k in kernels}) == compile.COUNTS["compiled"] > 3
    if not hasattr(gpu_triton, "TritonKernel"):
        pytest.skip("jaxlib's GPU plug-in, which the lowering needs, is not installed")
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parents[4])
    from benchmarks.launches import PluginMissingError, count

    try:
        launches = count(function, args)
    except PluginMissingError as error:
        pytest.skip(str(error))
    assert launches.custom_calls >= len(kernels)
    assert compile.COUNTS["compiled"] == len(kernels)


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
def test_jax_export_writes_functions_for_cuda(backend, monkeypatch):
    """Gradients on a graph that is sorted inside, chosen from a list, and one for each of a batch.

    Cumulative sums are lowered as by JAX 0.11. Kernels need a check to be disabled, and a GPU.
    """
    if backend == "triton" and not hasattr(gpu_triton, "TritonKernel"):
        pytest.skip("jaxlib's GPU plug-in, which the lowering needs, is not installed")
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
