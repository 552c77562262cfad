import pytest

from eqfuse import plots


@pytest.fixture(scope="module", autouse=True)
def _pictures(request):
    """Leave pictures to modules that look at them (`PICTURES`): they take half of a small run."""
    if getattr(request.module, "PICTURES", False):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        for name in ("learning_curves", "parity"):
            patch.setattr(plots, name, lambda *_, **__: None)
        yield
