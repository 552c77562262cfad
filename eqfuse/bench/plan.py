"""The checks and times of `eqfuse bench`, in the order of their worth."""

from __future__ import annotations

from typing import NamedTuple

LARGE, MIDDLE = (3_000, 160_000), (1_000, 50_000)
REDUCED, MANY = (24, 400), (1_000, 3_000)
STEPS = (135, 2_700)
"""Nodes and edges."""
MAIN = ("nequip-64-l2", "mace-large")
FUSED = ("fused-gate-64-l2", "fused-rows-32-l2")
LARGER = (
    *(*MAIN, "mace-contraction-l2", "allegro-64-l2", "linear-64-l2"),
    *(*FUSED, *(f"{name}-always" for name in FUSED)),
)
"""Checked in a size, too, in which programs walk edges one by one, tiles of matmuls are wide, and
gradients of parameters are sums of parts."""
PARITY = (
    *(*LARGER, "nequip-32-l2", "nequip-benzene-64-l3", "mixed", "fused-linear-128"),
    *("tetris-1", "tetris-2", "product-rows", "elementwise-rows", "weighted-channels-64-l2"),
    *("grouped-dense-64", "mace-contraction-l0", "allegro-128-l3"),
)
MATMULS = (*FUSED, "linear-64-l2", "grouped-dense-64")
"""Checked in tf32x3, too."""
OTHER_DTYPES = ("float64", "bfloat16")
IN_MIDDLE = ("nequip-benzene-64-l3", "mixed", "allegro-64-l2", "nequip-32-l2", "tetris-2")
IN_LARGE = (
    *("fused-gate-64-l2", "mace-contraction-l2", "fused-linear-128", "fused-rows-32-l2"),
    *("nequip-benzene-64-l3", "mixed", "allegro-64-l2", "linear-64-l2"),
)
MODELS = ("nequip", "mace", "allegro")


class Job(NamedTuple):
    """Something to measure."""

    group: str  # "describe", the machine, or "parity", "kernels" or "steps"
    case: str = ""  # a key of `problems.PROBLEMS`, or a model
    size: tuple[int, int] = REDUCED  # nodes and edges
    dtype: str = "float32"
    tf32x3: bool = False  # whether matmuls are three products of TF32

    @property
    def label(self) -> dict:
        """Return the fields that are added to its results, also where there are none."""
        case = f"{self.case}, tf32x3" if self.tf32x3 else self.case
        return {"group": self.group, "case": case, "dtype": self.dtype, "size": self.size}

    @property
    def cost_s(self) -> float:
        """Return the seconds that it takes, roughly."""
        return {"parity": 20, "kernels": 70, "steps": 60}[self.group]


def parity_of(job: Job) -> Job:
    """Return the comparison with e3nn-jax, in a reduced size, of what a job times."""
    return Job("parity", job.case, min(job.size, REDUCED), job.dtype)


def jobs() -> list[Job]:
    found = [
        *(Job("parity", name, REDUCED) for name in MAIN),
        *(Job("kernels", name, LARGE) for name in MAIN),
        *(Job("parity", name, REDUCED) for name in PARITY),
        *(Job("parity", name, MANY) for name in LARGER),
        *(Job("parity", name, MANY, tf32x3=True) for name in MATMULS),
        *(Job("steps", model, size) for model in MODELS for size in (STEPS, LARGE)),
        *(Job("parity", name, REDUCED, dtype) for dtype in OTHER_DTYPES for name in PARITY),
        *(Job("kernels", name, MIDDLE) for name in MAIN),
        *(Job("kernels", name, MIDDLE, dtype) for dtype in OTHER_DTYPES for name in MAIN),
        *(Job("kernels", name, MIDDLE) for name in IN_MIDDLE),
        *(Job("kernels", name, LARGE) for name in IN_LARGE),
    ]
    return list(dict.fromkeys(found))


def tiny(found: list[Job]) -> list[Job]:
    sizes = {"steps": (20, 40)}
    return list(dict.fromkeys(job._replace(size=sizes.get(job.group, (5, 12))) for job in found))
