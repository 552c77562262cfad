"""A report on this machine, which `python -m eqfuse.ops.info` prints."""

from __future__ import annotations

import importlib.metadata
import os
import platform

import jax

from eqfuse.ops._backend import availability, resolve
from eqfuse.ops._host import cache_folder
from eqfuse.ops.primitives.choice import resolve_fused

_PACKAGES = ("eqfuse", "jax", "jaxlib", "e3nn-jax", "triton", "jax-triton", "llvmlite")


def info() -> str:
    """Return a report of devices, versions, the cache folder and backends."""
    chosen = resolve(None)
    lines = [f"python      {platform.python_version()} on {platform.system()} {platform.machine()}"]
    lines += [f"{name:<11} {_version(name)}" for name in _PACKAGES]
    lines += [f"device      {device.device_kind} ({device})" for device in jax.devices()]
    lines += [f"cache       {cache_folder()}", f"backend     None picks {chosen!r}, {_why()}"]
    for name, (available, reason) in availability().items():
        lines.append(f"  {name:<17} {'yes' if available else 'no'}: {reason}")
    lines.append(f"fused       None is {resolve_fused(None)!r}")
    return "\n".join(lines)


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
