"""Which checks against e3nn-jax run by default, and which by `--run-slow`."""

import numpy as np
import pytest

from tests.ops.parity import BACKENDS, PORTABLE

Parameter = type(pytest.param())
NATIVE = "llvm"
"""The backend that compiles fastest, which computes every case by default."""


def slow_unless(kept, *parameters) -> list:
    """Return the parameters of a test, slow where neither their id nor first value is kept."""
    sets = [p if isinstance(p, Parameter) else pytest.param(p) for p in parameters]
    return [
        p
        if p.values[0] in kept or p.id in kept
        else pytest.param(*p.values, id=p.id, marks=[*p.marks, pytest.mark.slow])
        for p in sets
    ]


KERNELS = slow_unless(["llvm", "triton-interpret", "triton"], *BACKENDS)
"""All backends, of which XLA, which compiles longest, is left to `--run-slow`."""


def by_backend(cases, core, always: str = NATIVE) -> list:
    """Return pairs of a case and a backend.

    By default those of the core run on every backend, the others on the backend `always` alone.
    """
    found = []
    for name in cases:
        for given in PORTABLE:
            marks = list(getattr(given, "marks", ()))
            backend = given.values[0] if marks else given
            marks += [] if name in core or backend == always else [pytest.mark.slow]
            found.append(pytest.param(name, backend, marks=marks, id=f"{name}-{backend}"))
    return found


def targets(cases, everywhere: str) -> list:
    """Return pairs of a case and a GPU; by default, all but one case are for the H100."""
    return [
        pytest.param(
            case, target, marks=[] if case == everywhere or target == "sm_90" else pytest.mark.slow
        )
        for case in cases
        for target in ("sm_80", "sm_90", "gfx942")
    ]


def value_and_derivatives(cases, core, float32):
    """Return the parameters `name`, `dtype` and `backend` of a test of all cases.

    By default every case runs in float64 on the native backend. What a case asks of an op before it
    chooses a backend is seen there; what it asks of a backend, in its core.

    Args:
      cases: names.
      core: those that by default run in float64 on every backend.
      float32: those that by default run in float32 too, on every backend.
    """
    assert {*core, *float32} <= {*cases}
    found = []
    for name in cases:
        for dtype, kept in ((np.float64, core), (np.float32, float32)):
            for given in BACKENDS:
                marks = list(getattr(given, "marks", ()))
                backend = given.values[0] if marks else given
                by_default = name in kept or (dtype is np.float64 and backend == NATIVE)
                marks += [] if by_default else [pytest.mark.slow]
                label = f"{name}-{np.dtype(dtype).name}-{backend}"
                found.append(pytest.param(name, dtype, backend, marks=marks, id=label))
    return pytest.mark.parametrize(("name", "dtype", "backend"), found)
