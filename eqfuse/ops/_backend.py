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
BACKENDS = tuple(_RUNS)

OPS = (
    "tensor_product",
    "elementwise_tensor_product",
    "tensor_square",
    "channelwise_tensor_product",
    "graph_tensor_product",
    "weighted_channels",
    "symmetric_contraction",
    "linear",
    "tensor_product_linear",
    "tensor_product_linear_gate",
    "grouped_dense",
    "interpolate",
)
"""The ops that can have a backend of their own; "linear" is `Linear` and `LinearSum`."""

# what None tries, best first
PREFERRED = ("triton", "llvm", "xla", "e3nn")
_VARIABLE = "EQFUSE_BACKEND"

PRECISIONS = ("ieee", "tf32x3", "tf32")
TF32X3 = "TF32_TF32_F32_X3"
"""What `jax.default_matmul_precision` calls matmuls of float32 in three products of TF32."""

COMPLEX = "complex operands are computed by backend 'e3nn' alone"


@dataclasses.dataclass(frozen=True)
class Op:
    kind: str  # one of `OPS`
    backend: str
    why: str  # why it is not what is best here, or ""
    fused: str = ""  # of an op that may be one kernel or several, which, and why


_recorded: contextvars.ContextVar[list[Op] | None] = contextvars.ContextVar("ops", default=None)


@contextlib.contextmanager
def recorded():
    """Record the ops that are called inside: they add themselves to the list that this yields.

    What `jax.jit` has traced before calls nothing, and so adds nothing.
    """
    ops: list[Op] = []
    token = _recorded.set(ops)
    try:
        yield ops
    finally:
        _recorded.reset(token)


def record_fused(text: str) -> None:
    """Record of the op that was called last whether it is one kernel, and why."""
    if ops := _recorded.get():
        ops[-1] = dataclasses.replace(ops[-1], fused=text)


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
      backend: the name of a backend; or several, separated by commas, each for the op before its
        "=", and at most one, for the other ops, without: "triton,linear=xla". An op that it does
        not name has the backend of the environment variable EQFUSE_BACKEND, which is written alike;
        one that neither names has "triton" on a GPU, "llvm" on a CPU and "xla" elsewhere. Only this
        choice may fall back, with one warning; a backend asked for by name runs or is an error.
        Whether a GPU is there for "triton", or a CPU for "llvm", is known only when the op is
        compiled: another device then refuses it, and an ahead-of-time compilation needs none.
      op: one of `OPS`; "" for what runs ops that have no backend of their own.
      arrays: operands of the op, which is then noted for those who have it `recorded`. "e3nn" alone
        computes complex ones, and is chosen for them.
      of_e3nn: why "e3nn" computes the op whatever the backend.
    Raises:
      ValueError: an unknown backend or op, listing those there are; a backend that cannot run here,
        or not with these operands, saying why.
    """
    if op and op not in OPS:
        raise ValueError(f"op {op!r} is unknown; choose one of {', '.join(OPS)}")
    is_complex = bool(op) and any(jnp.iscomplexobj(getattr(a, "array", a)) for a in arrays)
    name, asked = _asked(backend, op)
    if of_e3nn:
        name, why = "e3nn", of_e3nn
    elif name is None:
        name, why = ("e3nn", COMPLEX) if is_complex else (_choose(), "")
    elif is_complex and name != "e3nn":
        raise ValueError(f"{asked} is for real numbers: {COMPLEX}")
    elif reason := _cannot_run(name):
        raise ValueError(f"{asked} cannot run here: {reason}")
    else:
        why = f"{asked} was asked for"
    if op and arrays and (ops := _recorded.get()) is not None:
        ops.append(_op(op, name, why))
    return name


def resolve_here(backend: str | None) -> str:
    """Resolve for all ops; refuse what JAX's default device does not run."""
    name = resolve(backend)
    for used in {name, *resolve_apart(backend).values()}:
        if reason := _no_device(used):
            raise ValueError(f"backend {used!r} cannot run here: {reason}")
    return name


def resolve_apart(backend: str | None) -> dict[str, str]:
    """Return the backend of each op that has another one than `resolve(backend)` returns."""
    name = resolve(backend)
    return {op: other for op in OPS if (other := resolve(backend, op)) != name}


def _asked(backend: str | None, op: str) -> tuple[str | None, str]:
    """Return the backend that is asked for by name, if any, and what asks for it."""
    for text, asked in ((backend, "backend"), (os.environ.get(_VARIABLE) or None, _VARIABLE)):
        if text is not None:
            named = _named(str(text), asked)
            if name := named.get(op, named.get("")):
                return name, _part(asked, text, name)
    return None, ""


def _part(asked: str, text: str, name: str) -> str:
    return f"{asked} {name!r}" if name == text else f"{asked} {text!r}: {name!r}"


@functools.lru_cache(maxsize=1024)
def _named(text: str, asked: str) -> dict[str, str]:
    """Return the backend of each op that is named, and under "" that of the others."""
    backends: dict[str, str] = {}
    for part in text.split(","):
        op, equals, name = (word.strip() for word in part.rpartition("="))
        if equals and op not in OPS:
            known = ", ".join(OPS)
            raise ValueError(f"{asked} {text!r}: op {op!r} is unknown; choose one of {known}")
        if name not in BACKENDS:
            known = ", ".join(BACKENDS)
            raise ValueError(f"{_part(asked, text, name)} is unknown; choose one of {known}")
        if op in backends:
            whose = op or "the other ops"
            raise ValueError(f"{asked} {text!r} names two backends for {whose}; give one")
        backends[op] = name
    return backends


def availability() -> dict[str, tuple[bool, str]]:
    """Return for each backend whether it runs on this machine's devices, and why or why not."""
    reasons = {name: _cannot_run(name) or _no_device(name) for name in BACKENDS}
    return {name: (not why, why or _RUNS[name]) for name, why in reasons.items()}


def _op(kind: str, name: str, asked: str) -> Op:
    best = _best()
    if name == best:
        return Op(kind, name, "")
    return Op(kind, name, f"not {best}: {asked or availability()[best][1]}")


def _best() -> str:
    """Return the fastest backend on this machine's devices, if it is installed."""
    return "triton" if has_gpu() else "llvm" if jax.default_backend() == "cpu" else "xla"


def _choose() -> str:
    available, best = availability(), _best()
    name = next(name for name in PREFERRED if available[name][0])
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
