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
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parents[2])
    from benchmarks.launches import PluginMissingError, device

    try:
        return device()
    except PluginMissingError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(("order", "launches"), [("forward", 1), ("backward", 1), ("double", 2)])
def test_the_graph_product_is_one_launch_each_way(gpu, order, launches):
    from benchmarks.graph_product_launches import CASES
    from benchmarks.launches import count

    scratch = []
    for size in ("135 nodes, 2700 edges", "3000 nodes, 160000 edges"):
        found = count(*CASES[f"{order}, {size}, eqfuse"](), gpu)
        assert (found.launches, found.custom_calls) == (launches, launches)
        scratch.append(found.temp_bytes)
    # no array of edges, nodes or channels: at most a table of pointers, of one size for both
    assert scratch[0] == scratch[1] <= 64


@pytest.mark.parametrize(
    ("case", "forward", "backward"),
    [("graph of 135 nodes, 2700 edges", 1, 3), ("2700 rows", 1, 2)],
)
@pytest.mark.parametrize(
    "channels", [pytest.param(64, id="64 channels", marks=pytest.mark.slow), None]
)
def test_launches_of_product_linear_and_gate(gpu, case, forward, backward, channels, monkeypatch):
    """On a graph, the backward follows the forward, which gives it the row before the gate."""
    from benchmarks import fused_launches
    from benchmarks.launches import count

    if channels is None:  # fewer, in kernels that take seconds to compile
        monkeypatch.setattr(fused_launches, "FEATURES", "16x0e+16x0o+16x1e+16x1o")
        monkeypatch.setattr(fused_launches, "GATED", "16x0e+16x0o+32x0e+16x1e+16x1o")
        monkeypatch.setattr(fused_launches, "HARMONICS", "0e+1o")
    cases = fused_launches.CASES
    found = count(*cases[f"forward, {case}, eqfuse"](), gpu)
    assert (found.launches, found.custom_calls) == (forward, forward)
    found = count(*cases[f"backward, {case}, eqfuse"](), gpu)
    launches = backward + ("graph" in case)
    assert (found.launches, found.custom_calls) == (launches, launches)
    # far less than the product of every edge, 53 MB
    assert found.temp_bytes < 17e6


def test_launches_of_a_training_step_of_the_tetris_network(gpu):
    from benchmarks.account import NOT_SCHEDULED, account
    from benchmarks.launches import compiled
    from benchmarks.tetris_launches import CASES
    from eqfuse.training.hlo import NOT_ATTRIBUTED

    found = compiled(*CASES["tetris, eqfuse"](), gpu)
    told = account(found.text, found.launches.launches)
    assert sum(sum(kinds.values()) for kinds in told.values()) == found.launches.launches
    assert sum(kinds.get("eqfuse", 0) for kinds in told.values()) == found.launches.custom_calls
    assert {"layer/linear_pre", "layer/LinearSum", "optimizer"} < set(told)
    assert not {NOT_ATTRIBUTED, NOT_SCHEDULED} & set(told)
    if jax.__version_info__ < (0, 12):
        pytest.xfail("XLA of jax 0.10 copies every parameter that a kernel reads: 53 launches")
    assert found.launches.launches <= 40
