"""What every test runs under."""

import os
from pathlib import Path

import jax
import numpy as np
import pytest

# Reduced precision of matrix products would hide, or look like, an error of ours.
jax.config.update("jax_default_matmul_precision", "highest")


@pytest.fixture
def shared_data() -> Path:
    """The folder of published data sets beside the repository; skips where it is absent."""
    default = Path(__file__).parents[1] / ".." / "shared" / "data"
    path = Path(os.environ.get("EQFUSE_TEST_DATA", default)).resolve()
    if not path.is_dir():
        pytest.skip(f"published data sets are not at {path}; set EQFUSE_TEST_DATA to their folder")
    return path


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers, the same in every run."""
    return np.random.default_rng(0)


@pytest.fixture(scope="module", autouse=True)
def _forget_what_was_compiled():
    """Thousands of small programs of JAX take gigabytes, which the next file does not need."""
    yield
    jax.clear_caches()
