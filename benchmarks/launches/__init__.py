"""Launches and scratch memory of computations compiled for a GPU."""

from benchmarks.launches.ahead import (
    H100,
    Compiled,
    Launches,
    PluginMissingError,
    compiled,
    count,
    device,
)

__all__ = ["H100", "Compiled", "Launches", "PluginMissingError", "compiled", "count", "device"]
