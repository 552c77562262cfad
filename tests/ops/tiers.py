"""Which checks against e3nn-jax run by default, and which by `--run-slow`."""

import pytest

from tests.ops.parity import BACKENDS

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


NATIVELY = slow_unless([NATIVE], *BACKENDS)
"""The backends, where a test asks nothing of one; all but the native one by `--run-slow`."""

KERNELS = slow_unless(["llvm", "triton"], *BACKENDS)
"""The backends; XLA, which compiles longest, by `--run-slow`."""


def targets(cases, slow_cases=()) -> list:
    """Return pairs of a case and a GPU; by default, for the H100, and the first for the MI300."""
    return [
        pytest.param(
            case,
            target,
            marks=()
            if case in cases and (target == "sm_90" or (case, target) == (cases[0], "gfx942"))
            else pytest.mark.slow,
        )
        for case in (*cases, *slow_cases)
        for target in ("sm_80", "sm_90", "gfx942")
    ]
