"""What is measured, in the order of its worth."""

from __future__ import annotations

from benchmarks.gpu.worker import Job

LARGE, MIDDLE = (3_000, 160_000), (1_000, 50_000)
REDUCED = (24, 400)
MANY = (1_000, 3_000)
STEPS = ((135, 2_700), LARGE)
TINY, TINY_STEPS = (5, 12), ((20, 40),)

PARITY = (
    "nequip-64-l2",
    "mace-large",
    "nequip-32-l2",
    "nequip-benzene-64-l3",
    "mixed",
    "mace-contraction-l2",
    "allegro-64-l2",
    "fused-gate-64-l2",
    "fused-linear-128",
    "fused-rows-32-l2",
    "linear-64-l2",
    "tetris-1",
    "tetris-2",
    "product-rows",
    "elementwise-rows",
    "weighted-channels-64-l2",
    "grouped-dense-64",
    "mace-contraction-l0",
    "allegro-128-l3",
)
PARTS = ("fused-gate-64-l2", "linear-64-l2")
"""Checked with so many rows, too, that gradients of parameters are sums of parts."""
OTHER_DTYPES = ("float64", "bfloat16")
MAIN = ("nequip-64-l2", "mace-large")
MODELS = ("nequip", "mace", "allegro")
FIRST_KERNELS = [(name, LARGE, "float32") for name in MAIN]
KERNELS = [
    *((name, MIDDLE, "float32") for name in MAIN),
    ("fused-gate-64-l2", LARGE, "float32"),
    ("mace-contraction-l2", LARGE, "float32"),
    ("nequip-benzene-64-l3", MIDDLE, "float32"),
    ("mixed", MIDDLE, "float32"),
    ("allegro-64-l2", MIDDLE, "float32"),
    *((name, MIDDLE, dtype) for dtype in OTHER_DTYPES for name in MAIN),
    ("nequip-32-l2", MIDDLE, "float32"),
    ("fused-linear-128", LARGE, "float32"),
    ("fused-rows-32-l2", MIDDLE, "float32"),
    ("nequip-benzene-64-l3", LARGE, "float32"),
    ("mixed", LARGE, "float32"),
    ("allegro-64-l2", LARGE, "float32"),
    ("tetris-2", MIDDLE, "float32"),
    ("linear-64-l2", LARGE, "float32"),
]


def parity(name: str, dtype: str, backend: str, dry: bool, size=REDUCED) -> Job:
    """Return a comparison with e3nn-jax in a reduced size."""
    size = TINY if dry else size
    arguments = {"name": name, "dtype": dtype, "backend": backend, "size": size}
    label = {"group": "parity", "case": name, "dtype": dtype}
    return Job("parity", arguments, label, cost_s=20)


def jobs(
    backend: str, peers: dict[str, dict], seconds: float, dry: bool, cached: bool = False
) -> list[Job]:
    """Return all jobs of a run.

    Args:
      backend: of eqfuse.
      peers: names of `benchmarks.gpu.peers.PEERS`, with options.
      seconds: to time each function.
      dry: tiny sizes.
      cached: whether kernels may be those of an earlier run.
    """

    def kernels(name, size, dtype):
        arguments = {"name": name, "size": TINY if dry else size, "dtype": dtype}
        arguments |= {"backend": backend, "peers": peers, "seconds": seconds}
        label = {"group": "kernels", "case": name, "dtype": dtype, "size": arguments["size"]}
        return Job("kernels", arguments, label, cost_s=70)

    def steps(model):
        arguments = {"model": model, "sizes": TINY_STEPS if dry else STEPS}
        arguments |= {"backend": backend, "seconds": seconds, "cached": cached}
        label = {"group": "steps", "case": model, "dtype": "float32"}
        return Job("steps", arguments, label, cost_s=100, fresh=True)

    def compiled(dtype):
        if backend != "triton":
            return []
        arguments = {"names": PARITY, "dtype": dtype, "size": REDUCED}
        label = {"group": "compile", "case": "all kernels", "dtype": dtype}
        return [Job("compile", arguments, label, cost_s=60)]

    found = [
        *(parity(name, "float32", backend, dry) for name in MAIN),
        *(kernels(*case) for case in FIRST_KERNELS),
        *compiled("float32"),
        *(parity(name, "float32", backend, dry) for name in PARITY),
        *(parity(name, "float32", backend, dry, MANY) for name in PARTS),
        *(steps(model) for model in MODELS),
    ]
    for dtype in OTHER_DTYPES:
        found += [*compiled(dtype), *(parity(name, dtype, backend, dry) for name in PARITY)]
    found += [kernels(*case) for case in KERNELS]
    # in a dry run sizes are alike
    return [job for n, job in enumerate(found) if job not in found[:n]]


def ahead(target: str) -> list[Job]:
    """Return compilations of all of it for a GPU that need not be here."""
    found = []
    sizes = {name: size for name, size, _ in reversed([*FIRST_KERNELS, *KERNELS])}
    for dtype in ("float32", *OTHER_DTYPES):
        for name in PARITY:
            arguments = {"name": name, "dtype": dtype, "size": sizes.get(name, MIDDLE)}
            label = {"group": "ahead", "case": name, "dtype": dtype}
            found.append(Job("ahead", arguments | {"target": target}, label, cost_s=120))
    for model in MODELS:
        for size in STEPS:
            arguments = {"model": model, "size": size, "target": target}
            label = {"group": "ahead", "case": model, "dtype": "float32"}
            found.append(Job("ahead_step", arguments, label, cost_s=120))
    return found


def selected(found: list[Job], only: str) -> list[Job]:
    """Return those whose group, case and dtype hold a text."""
    names = ("group", "case", "dtype")
    return [job for job in found if only in " ".join(job.label[name] for name in names)]
