"""Which implementation runs an op: chosen by argument, or by EQFUSE_BACKEND where that is None."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import importlib.util
import os
import warnings

import jax
import jax.numpy as jnp

BACKENDS = ("triton", "triton-interpret", "numba", "xla", "e3nn")

# what None tries, best first
PREFERRED = ("triton", "numba", "xla", "e3nn")
_VARIABLE = "EQFUSE_BACKEND"

NO_GPU = (
    "backend 'triton' runs on a GPU (CUDA or ROCm), and this computation is for a CPU; use "
    "backend='xla' there, or backend='triton-interpret' to check the kernels' results in Triton's "
    "interpreter, thousands of times slower"
)

COMPLEX = "complex operands are computed by backend 'e3nn' alone"


@dataclasses.dataclass(frozen=True)
class Op:
    """An op that was called: its kind, what runs it, and why not what is best here, or ""."""

    kind: str
    backend: str
    why: str


_recorded: contextvars.ContextVar[list[Op] | None] = contextvars.ContextVar("ops", default=None)


@contextlib.contextmanager
def recorded():
    """Inside, the ops that are called add themselves to the list that this gives.

    What `jax.jit` has traced before calls nothing, and so adds nothing.
    """
    ops: list[Op] = []
    token = _recorded.set(ops)
    try:
        yield ops
    finally:
        _recorded.reset(token)


def resolve(backend: str | None, op: str = "", *arrays) -> str:
    """Return the name of the backend that runs, given what was asked for.

    None means the environment variable EQFUSE_BACKEND or, where that is not set, "triton" on a
    GPU, "numba" on a CPU and "xla" elsewhere; only this choice may fall back, and says so once. A
    backend asked for by name runs or is an error. Whether a GPU is there for "triton", or a CPU for
    "numba", is known only when the op is compiled: another device then refuses it, and an
    ahead-of-time compilation for a GPU needs none. `op` is the kind of op that asks, if one does,
    for those who have it `recorded`. `arrays` are its operands: "e3nn" alone computes complex ones,
    which None then means.

    Raises:
      ValueError: a name that is not a backend, or one that cannot run here, or not with these
        operands, saying why.
    """
    asked = "backend"
    if backend is None:
        backend, asked = os.environ.get(_VARIABLE) or None, _VARIABLE
    is_complex = bool(op) and any(jnp.iscomplexobj(getattr(a, "array", a)) for a in arrays)
    if backend is None:
        name, why = ("e3nn", COMPLEX) if is_complex else (_choose(), "")
    elif backend not in BACKENDS:
        raise ValueError(f"{asked} {backend!r} is unknown; choose one of {', '.join(BACKENDS)}")
    elif is_complex and backend != "e3nn":
        raise ValueError(f"{asked} {backend!r} is for real numbers: {COMPLEX}")
    elif reason := _cannot_run(backend):
        raise ValueError(f"{asked} {backend!r} cannot run here: {reason}")
    else:
        name, why = backend, f"{asked} {backend!r} was asked for"
    if op and (ops := _recorded.get()) is not None:
        ops.append(_op(op, name, why))
    return name


def resolve_here(backend: str | None) -> str:
    """Resolve as `resolve` does, for what is computed by JAX's default device.

    Raises:
      ValueError: as there, and a backend for other devices.
    """
    name = resolve(backend)
    reason = {"triton": _no_gpu, "numba": _no_cpu}.get(name, str)()
    if reason:
        raise ValueError(f"backend {name!r} cannot run here: {reason}")
    return name


def availability() -> dict[str, tuple[bool, str]]:
    """For each backend whether it runs on the devices of this machine, and why or why not."""
    report = {}
    for name in BACKENDS:
        reason = _cannot_run(name)
        if not reason and name == "triton":
            reason = _no_gpu()
        if not reason and name == "numba":
            reason = _no_cpu()
        report[name] = (not reason, reason or _runs(name))
    return report


def _op(kind: str, name: str, asked: str) -> Op:
    best = _best()
    if name == best:
        return Op(kind, name, "")
    return Op(kind, name, f"not {best}: {asked or availability()[best][1]}")


def _best() -> str:
    """Return what runs the ops fastest on the devices of this machine, if all that it takes is
    there.
    """
    return "triton" if has_gpu() else "numba" if jax.default_backend() == "cpu" else "xla"


def _choose() -> str:
    available, best = availability(), _best()
    name = next(name for name in PREFERRED if available[name][0])
    if name != best:
        _say_once(f"ops run on backend {name!r}, not {best!r}: {available[best][1]}")
    return name


def has_gpu() -> bool:
    """Return whether JAX computes on a GPU by default."""
    return jax.default_backend() in ("gpu", "cuda", "rocm")


@functools.cache
def _say_once(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=4)


def _cannot_run(name: str) -> str:
    """Return why a backend cannot run whatever the device, or ""."""
    if name.startswith("triton") and importlib.util.find_spec("triton") is None:
        return "the package triton is not installed; install eqfuse[cuda]"
    if name == "numba":
        from eqfuse.ops.llvm.runtime.machine import unavailable

        return unavailable()
    return ""


def _no_cpu() -> str:
    kind = jax.default_backend()
    return "" if kind == "cpu" else f"it runs on CPUs, and JAX's devices here are {kind}"


def _no_gpu() -> str:
    if not has_gpu():
        return f"JAX has no GPU here (its devices are {jax.default_backend()})"
    from jaxlib import gpu_triton

    if not hasattr(gpu_triton, "TritonKernel"):
        return "jaxlib's GPU plug-in, which launches triton kernels, is missing or does not fit"
    return ""


def _runs(name: str) -> str:
    return {
        "triton": "one kernel per op, on the GPU",
        "triton-interpret": "the same kernels in Triton's interpreter, to check them; very slow",
        "numba": "one native kernel per op, on the CPU",
        "xla": "the same products in jax.numpy, on any device",
        "e3nn": "e3nn-jax, the reference, on any device",
    }[name]
