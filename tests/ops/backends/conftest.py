"""Fixtures of the tests of kernels for GPUs."""

import collections

import pytest

from eqfuse.ops.backends.triton import compile


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    """Return an empty cache folder; nothing is compiled or loaded yet."""
    monkeypatch.setenv("EQFUSE_CACHE_DIR", str(tmp_path / "cache"))
    for name, value in (("_KERNELS", {}), ("COUNTS", collections.Counter())):
        monkeypatch.setattr(compile, name, value)
    return tmp_path / "cache"


@pytest.fixture
def plugin(empty_cache):
    """Return jaxlib's bindings of its GPU plug-in, and an empty cache."""
    from jaxlib import gpu_triton

    if not hasattr(gpu_triton, "TritonKernel"):
        pytest.skip("jaxlib's GPU plug-in is not installed; it is the extra launches")
    return gpu_triton


@pytest.fixture
def h100(plugin):
    """Return an H100 to compile for, which is absent, and an empty cache."""
    from benchmarks.launches import PluginMissingError, device

    try:
        return device()
    except PluginMissingError as error:
        pytest.skip(str(error))
