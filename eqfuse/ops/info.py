"""A report on this machine, which `python -m eqfuse.ops.info` prints."""

from __future__ import annotations

import importlib.metadata
import os
import platform

import jax

from eqfuse.ops._backend import availability, resolve
from eqfuse.ops._kept import cache_folder
from eqfuse.ops.primitives import measured
from eqfuse.ops.primitives.choice import resolve_fused

_PACKAGES = ("eqfuse", "jax", "jaxlib", "e3nn-jax", "triton", "jax-triton", "llvmlite")


def info() -> str:
    """Return a report of devices, versions, the cache folder and backends."""
    why = f"the best that runs on {jax.default_backend()}"
    if os.environ.get("EQFUSE_BACKEND"):
        why = "because EQFUSE_BACKEND is set"
    lines = [f"python      {platform.python_version()} on {platform.system()} {platform.machine()}"]
    for name in _PACKAGES:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = "not installed"
        lines.append(f"{name:<11} {version}")
    lines += [f"device      {device.device_kind} ({device})" for device in jax.devices()]
    lines += [f"cache       {cache_folder()}", f"backend     None picks {resolve(None)!r}, {why}"]
    for name, (available, reason) in availability().items():
        lines.append(f"  {name:<17} {'yes' if available else 'no'}: {reason}")
    lines.append(f"fused       None is {resolve_fused(None)!r}")
    for backend in ("triton", "llvm") if measured.is_on() else ():
        if availability()[backend][0]:
            found = measured.results(backend).items()
            lines += [f"measured    {name.rpartition(', ')[0]}: {result}" for name, result in found]
    return "\n".join(lines)


if __name__ == "__main__":
    print(info())
