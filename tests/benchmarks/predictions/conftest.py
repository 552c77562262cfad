"""A folder of compiled kernels that the tests of predictions share."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EQFUSE_CACHE_DIR", str(tmp_path_factory.mktemp("kernels")))
        yield
