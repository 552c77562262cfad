"""Fixtures of the tests of kernels for GPUs."""

import pytest

from eqfuse.ops.backends.triton import compile


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    """Return an empty cache folder; nothing is compiled or loaded yet."""
    monkeypatch.setenv("EQFUSE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compile, "_KERNELS", {})
    return tmp_path / "cache"


@pytest.fixture
def compiled(empty_cache, monkeypatch):
    """Return a list of what is compiled from now on, and found neither in memory nor on disk."""
    found, right = [], compile._compile
    monkeypatch.setattr(compile, "_compile", lambda *args: found.append(args) or right(*args))
    return found


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
