"""A report on this machine, which `python -m eqfuse.ops.info` prints."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform

import jax

from eqfuse.ops._backend import availability, resolve, resolve_apart
from eqfuse.ops._host import cache_folder
from eqfuse.ops.backends.triton import runtime
from eqfuse.ops.primitives.choice import resolve_fused

_PACKAGES = ("eqfuse", "jax", "jaxlib", "e3nn-jax", "triton", "jax-triton", "llvmlite")


def info() -> str:
    """Return a report of devices, versions, the cache folder, backends, and launches on a GPU."""
    chosen = resolve(None)
    lines = [f"python      {platform.python_version()} on {platform.system()} {platform.machine()}"]
    lines += [f"{name:<11} {_version(name)}" for name in _PACKAGES]
    lines += [f"device      {device.device_kind} ({device})" for device in jax.devices()]
    lines += [f"cache       {cache_folder()}", f"backend     None picks {chosen!r}, {_why()}"]
    lines += [f"  {op} on {name}" for op, name in resolve_apart(None).items()]
    for name, (available, reason) in availability().items():
        lines.append(f"  {name:<17} {'yes' if available else 'no'}: {reason}")
    lines.append(f"fused       None is {resolve_fused(None)!r}")
    return "\n".join([*lines, f"launch      {_launch()}"])


def _launch() -> str:
    """Describe the image of a kernel that jaxlib gets."""
    try:
        runtime.gpu_library()
        target = runtime.common_target(jax.devices()) or "sm_90"
    except (RuntimeError, ValueError) as error:
        return f"no: {error}"
    if importlib.util.find_spec("triton") is None:
        return "no: the package triton is not installed; install eqfuse[cuda]"
    if not target.startswith("sm_"):
        return "code objects, in a file for each launch that is lowered"
    if runtime.takes_cubins():
        return "cubin: jaxlib loads what triton's ptxas made; XLA's ptxas is not used"
    return "PTX, which XLA's ptxas assembles; jaxlib 0.11.1 and newer take a cubin"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _why() -> str:
    if os.environ.get("EQFUSE_BACKEND"):
        return "because EQFUSE_BACKEND is set"
    return f"the best that runs on {jax.default_backend()}"


if __name__ == "__main__":
    print(info())
