"""The PTX that ships, emulated, gives what e3nn-jax gives, and breaks no rule of memory."""

import pytest

from eqfuse.ops.backends.triton.emit import plan
from tests.emulator import cases

pytest.importorskip("triton", reason="triton, which compiles the kernels, is not installed")

SMALL = (
    ("tetris-1", "forward"),
    ("tetris-1", "backward"),
    ("tetris-1", "double"),
    ("fused rows-16-l1", "forward"),
    ("fused rows-16-l1", "backward"),
    ("linear 16-l1", "backward"),
)
"""Run by default: a minute with their compilation."""


def _parameters():
    for name in cases.NAMES:
        for order in cases.ORDERS:
            for dtype in ("float32", "float64", "bfloat16"):
                for target in ("sm_80", "sm_90"):
                    small = (name, order) in SMALL and (dtype, target) == ("float32", "sm_90")
                    marks = [] if small else [pytest.mark.slow]
                    label = f"{name}-{order}-{dtype}-{target}"
                    yield pytest.param(name, order, dtype, target, marks=marks, id=label)


@pytest.mark.parametrize(("name", "order", "dtype", "target"), list(_parameters()))
def test_emulated_kernels_give_what_e3nn_gives(name, order, dtype, target):
    cases.check(name, order, dtype, target)


@pytest.mark.parametrize("order", cases.ORDERS)
def test_edges_side_by_side_do_not_race(order, monkeypatch):
    """On graphs that do not fill a GPU, the sums of edges meet in shared memory."""
    monkeypatch.setattr(plan, "edge_lanes", lambda *_: 2)
    cases.check("tetris-1", order, "float32", "sm_90")
