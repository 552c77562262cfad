"""Fixtures of the tests of the ops."""

import jax
import pytest

from eqfuse.fuse import layers
from eqfuse.fuse.moves import STRICT
from eqfuse.ops.primitives import choice
from tests.ops import parity


@pytest.fixture
def kernels(monkeypatch):
    """Return what native kernels compute; any number of rows is enough for one of a sequence."""
    monkeypatch.setattr(choice, "FEWEST_ROWS", 1)
    jax.clear_caches()  # of what was lowered for more
    yield parity.record_native(monkeypatch)
    jax.clear_caches()


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    """Keep sources and compiled kernels of this run, apart from those of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EQFUSE_CACHE_DIR", str(tmp_path_factory.mktemp("kernels")))
        yield


@pytest.fixture(autouse=True)
def _faults_of_fuse_are_raised():
    """Raise what `ops.fuse` notes in its report elsewhere, and then leaves as it is."""
    token = STRICT.set(True)
    yield
    STRICT.reset(token)


@pytest.fixture
def one_op(monkeypatch):
    """Let `ops.fuse` make one op of every layer, also where kernels of the parts are chosen."""
    whole = choice.Choice(choice.Kernels.NATIVE, "one op")

    def chosen(mode, *arguments):
        is_native = mode == "always" and "llvm" in arguments  # of sums of nodes too
        return whole if is_native else choice.choose(mode, *arguments)

    monkeypatch.setenv("EQFUSE_FUSED", "always")
    monkeypatch.setattr(layers, "choose", chosen)


@pytest.fixture
def any_product_is_large(monkeypatch):
    """Compute three rows at a time: two blocks, and what is left."""
    monkeypatch.setattr(choice, "LARGE", 0)
    monkeypatch.setattr(choice, "BLOCK", 3)
