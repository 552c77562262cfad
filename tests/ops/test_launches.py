"""Launches and scratch memory of the weighted graph product, compiled for an H100 without one."""

import pathlib

import pytest

pytest.importorskip("triton")


@pytest.mark.parametrize(("order", "launches"), [("forward", 1), ("backward", 1), ("double", 2)])
def test_the_graph_product_is_one_launch_each_way(tmp_path, monkeypatch, order, launches):
    from jaxlib import gpu_triton

    if not hasattr(gpu_triton, "TritonKernel"):
        pytest.skip("jaxlib's GPU plug-in, which the lowering needs, is not installed")
    monkeypatch.setenv("EQFUSE_CACHE_DIR", str(tmp_path))
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parents[2])
    from benchmarks.graph_product_launches import CASES
    from benchmarks.launches import PluginMissingError, count, device

    try:
        gpu = device()
    except PluginMissingError as error:
        pytest.skip(str(error))
    scratch = []
    for size in ("135 nodes, 2700 edges", "3000 nodes, 160000 edges"):
        found = count(*CASES[f"{order}, {size}, eqfuse"](), gpu)
        assert (found.launches, found.custom_calls) == (launches, launches)
        scratch.append(found.temp_bytes)
    # no array of edges, nodes or channels: at most a table of pointers, of one size for both
    assert scratch[0] == scratch[1] <= 64
