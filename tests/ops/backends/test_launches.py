"""Launches and scratch memory of the weighted graph product, compiled for an H100 without one."""

import pathlib

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import pytest

from eqfuse import ops

pytest.importorskip("triton")


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    """Return an H100 to compile for, and an empty cache."""
    from jaxlib import gpu_triton

    if not hasattr(gpu_triton, "TritonKernel"):
        pytest.skip("jaxlib's GPU plug-in, which the lowering needs, is not installed")
    monkeypatch.setenv("EQFUSE_CACHE_DIR", str(tmp_path))
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parents[3])
    from benchmarks.launches import PluginMissingError, device

    try:
        return device()
    except PluginMissingError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("order", "launches"),
    [
        ("forward", 1),
        pytest.param("backward", 1, marks=pytest.mark.slow),
        pytest.param("double", 2, marks=pytest.mark.slow),
    ],
)
def test_the_graph_product_is_one_launch_each_way(gpu, order, launches):
    from benchmarks.launches import count
    from benchmarks.launches.graph_product import CASES

    scratch = []
    for size in ("135 nodes, 2700 edges", "3000 nodes, 160000 edges"):
        found = count(*CASES[f"{order}, {size}, eqfuse"](), gpu)
        assert (found.launches, found.custom_calls) == (launches, launches)
        scratch.append(found.temp_bytes)
    # no array of edges, nodes or channels: at most a table of pointers, of one size for both
    assert scratch[0] == scratch[1] <= 64


def test_the_edges_of_both_ends_are_ordered_in_the_launches_of_one(gpu):
    """Keys and a sort of them, the orders, counts and their sums."""
    from benchmarks.launches import count
    from eqfuse.ops import Edges

    ends = [jax.ShapeDtypeStruct((2700,), "int32")] * 2
    names = "receiver_order", "receiver_ptr", "sender_order", "sender_ptr"

    def orders(senders, receivers):
        edges = Edges.from_arrays(senders, receivers, 135)
        return [getattr(edges, name) for name in names]

    assert count(orders, ends, gpu).launches == 7


def test_kernels_are_recorded_in_one_cuda_graph_with_those_of_xla(gpu):
    """The handler says that it may be recorded; XLA asks for the driver's version besides."""
    from benchmarks.launches import count

    module = ops.Linear("16x0e+16x1o", backend="triton")
    x = e3nn.IrrepsArray("16x0e+16x1o", jnp.ones((256, 64)))
    params = jax.eval_shape(lambda: module.init(jax.random.key(0), x))

    def three(params, x):
        for _ in range(3):
            x = module.apply(params, e3nn.IrrepsArray(x.irreps, jnp.tanh(x.array)))
        return x.array

    found = count(three, (params, x), gpu)
    assert (found.launches, found.custom_calls) == (6, 3)
    assert (found.graphs, found.recorded) == (1, 6)
