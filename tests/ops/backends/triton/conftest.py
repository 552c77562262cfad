"""Fixtures of the tests of Triton's kernels."""

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
