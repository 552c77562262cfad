"""Launches and scratch memory of the weighted graph product, compiled for an H100 without one."""

import pathlib

import jax
import pytest

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


@pytest.mark.slow  # by default test_what_runs.py counts what is interpreted
@pytest.mark.parametrize(
    ("case", "forward", "backward"),
    [
        ("graph of 135 nodes, 2700 edges", (3, 2), (5, 4)),
        ("2700 rows", (2, 2), (4, 4)),
    ],
)
@pytest.mark.parametrize("channels", [pytest.param(64, id="64 channels"), None])
def test_launches_of_product_linear_and_gate(gpu, case, forward, backward, channels, monkeypatch):
    """Count all, and our kernels among them: the product, the Linear; on a graph XLA has the gate.

    The backward follows the forward as far as it needs it: the product, on a graph the row before
    the gate too. With few channels, one kernel computes the value on a graph, and both of them.
    XLA transposes each matrix of the Linear for a backward in wide tiles, which has to have 128
    programs at least: all of these but few channels of 135 nodes.
    """
    from benchmarks.launches import count
    from benchmarks.launches import fused as fused_launches

    if channels is None:  # fewer, in kernels that take seconds to compile
        monkeypatch.setattr(fused_launches, "FEATURES", "16x0e+16x0o+16x1e+16x1o")
        monkeypatch.setattr(fused_launches, "GATED", "16x0e+16x0o+32x0e+16x1e+16x1o")
        monkeypatch.setattr(fused_launches, "HARMONICS", "0e+1o")
        if "graph" in case:
            forward, backward = (1, 1), (4, 3)
    cases = fused_launches.CASES
    found = count(*cases[f"forward, {case}, eqfuse"](), gpu)
    assert (found.launches, found.custom_calls) == forward
    function, args = cases[f"backward, {case}, eqfuse"]()
    found = count(function, args, gpu)
    launches, ours = backward
    matrices = len(jax.tree.leaves(args[1])) if channels or "graph" not in case else 0
    assert (found.launches, found.custom_calls) == (launches + matrices, ours)
    if "graph" in case:  # far less than the product of every edge, 53 MB
        assert found.temp_bytes < 17e6


@pytest.mark.slow
def test_launches_of_a_training_step_of_the_tetris_network(gpu):
    from benchmarks.launches import compiled
    from benchmarks.launches.account import NOT_SCHEDULED, account
    from benchmarks.launches.hlo import NOT_ATTRIBUTED
    from benchmarks.launches.tetris import CASES

    found = compiled(*CASES["tetris, eqfuse"](), gpu)
    by_part = account(found.text, found.launches.launches)
    assert sum(sum(kinds.values()) for kinds in by_part.values()) == found.launches.launches
    assert sum(kinds.get("eqfuse", 0) for kinds in by_part.values()) == found.launches.custom_calls
    assert {"layer/linear_pre", "layer/LinearSum", "optimizer"} < set(by_part)
    assert not {NOT_ATTRIBUTED, NOT_SCHEDULED} & set(by_part)
    if jax.__version_info__ < (0, 12):
        pytest.xfail("XLA of jax 0.10 copies every parameter that a kernel reads: 59 launches")
    assert found.launches.launches <= 46


def test_the_edges_of_both_ends_are_ordered_in_the_launches_of_one(gpu):
    """Keys, a sort, a search in three steps of 16 ways, and the two orders."""
    from benchmarks.launches import count
    from eqfuse.ops import Edges

    ends = [jax.ShapeDtypeStruct((2700,), "int32")] * 2
    names = "receiver_order", "receiver_ptr", "sender_order", "sender_ptr"

    def orders(senders, receivers):
        edges = Edges.from_arrays(senders, receivers, 135)
        return [getattr(edges, name) for name in names]

    assert count(orders, ends, gpu).launches == 6


@pytest.mark.slow
def test_a_fused_layer_launches_what_the_rewritten_one_does(gpu, monkeypatch):
    """Count one launch more for the indices, since edges may be dropped.

    The operands of dropped edges are zeros where they are made.
    """
    import e3nn_jax as e3nn
    import jax.numpy as jnp

    from benchmarks.launches import count
    from eqfuse import ops

    monkeypatch.setenv("EQFUSE_BACKEND", "triton")
    nodes, edges, keep = 135, 2700, ("0e", "1o")
    irreps_x, irreps_y = e3nn.Irreps("64x0e+64x1o"), e3nn.Irreps("0e+1o")
    size = e3nn.tensor_product(irreps_x, irreps_y, filter_ir_out=keep).num_irreps

    def existing(x, y, w, senders, receivers):
        y, w = jnp.sin(y), jnp.sin(w)
        rows = e3nn.IrrepsArray(irreps_x, x)[senders]
        m = ops.tensor_product(rows, e3nn.IrrepsArray(irreps_y, y), filter_ir_out=keep) * w
        return jnp.zeros((nodes, m.irreps.dim)).at[receivers].add(m.array)

    def rewritten(x, y, w, senders, receivers):
        graph = ops.Edges.from_arrays(senders, receivers, nodes)
        y, w = jnp.sin(y), jnp.sin(w)
        x, y = e3nn.IrrepsArray(irreps_x, x), e3nn.IrrepsArray(irreps_y, y)
        return ops.graph_tensor_product(x, y, w, graph, filter_ir_out=keep).array

    shapes = (nodes, irreps_x.dim), (edges, irreps_y.dim), (edges, size)
    args = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    args += [jax.ShapeDtypeStruct((edges,), "int32")] * 2

    def gradients(function):
        return jax.grad(lambda *a: jnp.sum(function(*a) ** 2), (0, 1, 2))

    for of in (lambda function: function, gradients):
        found, expected = (count(of(f), args, gpu) for f in (ops.fuse(existing), rewritten))
        assert found.launches == expected.launches + 1
