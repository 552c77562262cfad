"""Fixtures of the tests of the ops."""

import jax
import pytest


@pytest.fixture
def x64():
    """float64, which JAX turns into float32 by default."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    """Sources and compiled kernels of this run, apart from those of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EQFUSE_CACHE_DIR", str(tmp_path_factory.mktemp("kernels")))
        yield
