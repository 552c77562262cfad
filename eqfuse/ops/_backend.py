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

_RUNS = {
    "triton": "one kernel per op, on the GPU",
    "llvm": "one native kernel per op, on the CPU",
    "xla": "the same products in jax.numpy, on any device",
    "e3nn": "e3nn-jax, the reference, on any device",
}
BACKENDS = tuple(_RUNS)  # best first, as None tries them

_VARIABLE = "EQFUSE_BACKEND"

PRECISIONS = ("ieee", "tf32x3", "tf32")
TF32X3 = "TF32_TF32_F32_X3"
"""What `jax.default_matmul_precision` calls matmuls of float32 in three products of TF32."""

DETERMINISTIC = "EQFUSE_DETERMINISTIC"
"""Unless this environment variable is 0, GPUs repeat results to the bit."""

COMPLEX = "complex operands are computed by backend 'e3nn' alone"


@dataclasses.dataclass(frozen=True)
class Op:
    kind: str  # its name, "linear" for `Linear`
    backend: str
    why: str  # why it is not what is best here, or not repeatable, or ""
    fused: str = ""  # of an op that may be one kernel or several, which, and why


_recorded: contextvars.ContextVar[list[Op] | None] = contextvars.ContextVar("ops", default=None)


@contextlib.contextmanager
def recorded():
    """Record the ops that are called inside: they add themselves to the list that this yields.

    What `jax.jit` has traced before calls nothing, and so adds nothing.

    Example:
      >>> with ops.recorded() as found:
      ...     _ = ops.grouped_dense(jnp.ones((1, 2)), [jnp.ones((2, 1))])
      >>> [op.kind for op in found]
      ['grouped_dense']
    """
    ops: list[Op] = []
    token = _recorded.set(ops)
    try:
        yield ops
    finally:
        _recorded.reset(token)


def record_fused(text: str) -> None:
    """Record whether the last op runs as one kernel, and the reason."""
    if ops := _recorded.get():
        ops[-1] = dataclasses.replace(ops[-1], fused=text)


def is_set(variable: str) -> bool:
    """Return whether an environment variable is 1, as it is by default, and not 0."""
    text = os.environ.get(variable) or "1"
    if text not in ("0", "1"):
        raise ValueError(f"{variable} must be 0 or 1, got {text!r}")
    return text == "1"


def matmul_precision(name: str | None = None) -> str:
    """Return in which of `PRECISIONS` the kernels multiply matrices of float32.

    None is "tf32x3" within `jax.default_matmul_precision(TF32X3)`, and "ieee", float32 itself,
    elsewhere.
    """
    if name is None:
        return "tf32x3" if jax.config.jax_default_matmul_precision == TF32X3 else "ieee"
    if name not in PRECISIONS:
        raise ValueError(f"input_precision {name!r} is unknown; choose one of {PRECISIONS}")
    return name


def resolve(backend: str | None, op: str = "", *arrays, of_e3nn: str = "") -> str:
    """Return the name of the backend that runs, given what was asked for.

    Args:
      backend: the name of a backend; None for that of the environment variable EQFUSE_BACKEND, or
        else "triton" on a GPU, "llvm" on a CPU and "xla" elsewhere. Only this choice may fall back,
        with one warning; a backend asked for by name runs or is an error. Whether a GPU is there
        for "triton", or a CPU for "llvm", is known only when the op is compiled: another device
        then refuses it, and an ahead-of-time compilation needs none.
      op: its name.
      arrays: operands of the op, which is then noted for those who have it `recorded`. "e3nn" alone
        computes complex ones, and is chosen for them.
      of_e3nn: why "e3nn" computes the op whatever the backend.
    Raises:
      ValueError: an unknown backend, listing those there are; a backend that cannot run here, or
        not with these operands, saying why.

    Example:
      >>> ops.resolve("xla")
      'xla'
    """
    is_complex = bool(op) and any(jnp.iscomplexobj(getattr(a, "array", a)) for a in arrays)
    given = os.environ.get(_VARIABLE) or None if backend is None else str(backend)
    asked = f"{_VARIABLE if backend is None else 'backend'} {given!r}"
    if given is not None and given not in BACKENDS:
        raise ValueError(f"{asked} is unknown; choose one of {', '.join(BACKENDS)}")
    name, why = given, f"{asked} was asked for"
    if of_e3nn:
        name, why = "e3nn", of_e3nn
    elif name is None:
        name, why = ("e3nn", COMPLEX) if is_complex else (_choose(), "")
    elif is_complex and name != "e3nn":
        raise ValueError(f"{asked} is for real numbers: {COMPLEX}")
    elif reason := _cannot_run(name):
        raise ValueError(f"{asked} cannot run here: {reason}")
    if op and arrays and (ops := _recorded.get()) is not None:
        best = _best()
        why = "" if name == best else f"not {best}: {why or availability()[best][1]}"
        if name == "triton" and not is_set(DETERMINISTIC):
            why += f"{why and '; '}gradients on a graph may not repeat: {DETERMINISTIC} is 0"
        ops.append(Op(op, name, why))
    return name


def resolve_here(backend: str | None) -> str:
    """Resolve, and refuse what JAX's default device does not run."""
    name = resolve(backend)
    if reason := _no_device(name):
        raise ValueError(f"backend {name!r} cannot run here: {reason}")
    return name


def availability() -> dict[str, tuple[bool, str]]:
    """Return for each backend whether it runs on this machine's devices, and why or why not."""
    reasons = {name: _cannot_run(name) or _no_device(name) for name in BACKENDS}
    return {name: (not why, why or _RUNS[name]) for name, why in reasons.items()}


def _best() -> str:
    """Return the fastest backend on this machine's devices, if it is installed."""
    return "triton" if has_gpu() else "llvm" if jax.default_backend() == "cpu" else "xla"


def _choose() -> str:
    available, best = availability(), _best()
    name = next(name for name in BACKENDS if available[name][0])
    if name != best:
        _warn_once(f"ops run on backend {name!r}, not {best!r}: {available[best][1]}")
    return name


def has_gpu() -> bool:
    return jax.default_backend() in ("gpu", "cuda", "rocm")


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=4)


def _cannot_run(name: str) -> str:
    """Return why a backend cannot run whatever the device, or ""."""
    if name == "triton" and importlib.util.find_spec("triton") is None:
        return "the package triton is not installed; install eqfuse[cuda]"
    if name == "llvm":
        from eqfuse.ops.backends.llvm.machine import unavailable

        return unavailable()
    return ""


def _no_device(name: str) -> str:
    """Return why a backend cannot run on JAX's default device, or ""."""
    kind = jax.default_backend()
    if name == "llvm" and kind != "cpu":
        return f"it runs on CPUs, and JAX's devices here are {kind}"
    if name != "triton":
        return ""
    if not has_gpu():
        return f"JAX has no GPU here (its devices are {kind})"
    from jaxlib import gpu_triton

    if not hasattr(gpu_triton, "TritonKernel"):
        return "jaxlib's GPU plug-in, which launches triton kernels, is missing or does not fit"
    for device in jax.devices():
        if (name := str(getattr(device, "compute_capability", ""))).startswith("gfx1"):
            return f"jaxlib launches waves of 64 threads, and {name} has waves of 32"
    return ""
