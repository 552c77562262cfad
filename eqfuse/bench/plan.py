"""What is measured, in the order of its worth."""

from __future__ import annotations

from eqfuse.bench.worker import Job

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
    "fused-gate-64-l2-always",
    "fused-linear-128",
    "fused-rows-32-l2",
    "fused-rows-32-l2-always",
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
LARGER = (
    "nequip-64-l2",
    "mace-large",
    "mace-contraction-l2",
    "allegro-64-l2",
    "fused-gate-64-l2",
    "fused-gate-64-l2-always",
    "fused-rows-32-l2",
    "fused-rows-32-l2-always",
    "linear-64-l2",
)
"""Checked in a size, too, in which programs walk edges one by one, tiles of matmuls are wide, and
gradients of parameters are sums of parts."""
MATMULS = ("fused-gate-64-l2", "fused-rows-32-l2", "linear-64-l2", "grouped-dense-64")
"""Checked in tf32x3, too."""
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


def parity(
    name: str,
    dtype: str,
    backend: str,
    dry: bool,
    size=REDUCED,
    tf32x3: bool = False,
    recorded: bool = True,
) -> Job:
    """Return a comparison with e3nn-jax in a reduced size."""
    size = TINY if dry else size
    arguments = {"name": name, "dtype": dtype, "backend": backend, "size": size, "tf32x3": tf32x3}
    label = {"group": "parity", "case": f"{name}, tf32x3" if tf32x3 else name, "dtype": dtype}
    label |= {} if recorded else {"recorded": False}
    return Job("parity", arguments, label, cost_s=20, recorded=recorded)


def jobs(
    backend: str, peers: dict[str, dict], seconds: float, dry: bool, cached: bool = False
) -> list[Job]:
    """Return all jobs of a run.

    It begins without command buffers for our kernels: should recording them fail, it is known that
    the kernels themselves are right.

    Args:
      backend: of eqfuse.
      peers: names of `eqfuse.bench.peers.PEERS`, with options.
      seconds: to time each function.
      dry: tiny sizes.
      cached: whether kernels may be those of an earlier run.
    """

    def kernels(name, size, dtype, recorded=True):
        arguments = {"name": name, "size": TINY if dry else size, "dtype": dtype}
        arguments |= {"backend": backend, "peers": peers, "seconds": seconds}
        label = {"group": "kernels", "case": name, "dtype": dtype, "size": arguments["size"]}
        label |= {} if recorded else {"recorded": False}
        return Job("kernels", arguments, label, cost_s=70, recorded=recorded)

    def machine(recorded):
        if not backend.startswith("triton"):
            return []
        arguments = {"backend": backend, "seconds": seconds, "small": dry}
        label = {"group": "machine", "case": "launches, code, stores", "dtype": "float32"}
        label |= {} if recorded else {"recorded": False}
        return [Job("machine", arguments, label, cost_s=60, recorded=recorded)]

    def steps(model, sizes=STEPS, recorded=True):
        arguments = {"model": model, "sizes": TINY_STEPS if dry else sizes}
        arguments |= {"backend": backend, "seconds": seconds, "cached": cached}
        label = {"group": "steps", "case": model, "dtype": "float32"}
        label |= {} if recorded else {"recorded": False}
        return Job("steps", arguments, label, cost_s=100, fresh=True, recorded=recorded)

    def compiled(dtype):
        if backend != "triton":
            return []
        arguments = {"names": PARITY, "dtype": dtype, "size": REDUCED}
        label = {"group": "compile", "case": "all kernels", "dtype": dtype}
        return [Job("compile", arguments, label, cost_s=60)]

    found = [
        *(parity(name, "float32", backend, dry, recorded=False) for name in MAIN),
        *machine(recorded=False),
        kernels(*FIRST_KERNELS[0], recorded=False),
        steps(MODELS[0], STEPS[:1], recorded=False),
        *(parity(name, "float32", backend, dry) for name in MAIN),
        *machine(recorded=True),
        *(kernels(*case) for case in FIRST_KERNELS),
        *compiled("float32"),
        *(parity(name, "float32", backend, dry) for name in PARITY),
        *(parity(name, "float32", backend, dry, MANY) for name in LARGER),
        *(parity(name, "float32", backend, dry, MANY, tf32x3=True) for name in MATMULS),
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
