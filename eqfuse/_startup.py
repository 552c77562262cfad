"""How JAX starts where its CUDA plug-in is installed and cannot work: without a traceback."""

import logging
import os
from pathlib import Path

from eqfuse._jax_compat import BACKEND_LOGGER

DEVICES = Path("/dev")
# NVIDIA's driver, in containers too; WSL; the driver of Jetson boards
_GPUS = ("nvidia[0-9]*", "nvidiactl", "dxg", "nvhost*", "nvgpu")
_SKIP = "JAX_SKIP_CUDA_CONSTRAINTS_CHECK"


def silence_cuda_plugin():
    """Reduce the messages of the CUDA plug-in of JAX: one line with an NVIDIA GPU, none without.

    JAX's CUDA plug-in compiles for a GPU also where there is none, and needs no CUDA for that; but
    it refuses to start without cuDNN, unless the environment variable
    JAX_SKIP_CUDA_CONSTRAINTS_CHECK is set. It is set here where there is no GPU and the user has
    not set it. No device is hidden by it: JAX computes on whatever it finds, as before. With a GPU
    the check stays, and what it finds is logged as one line.
    """
    if not any(True for pattern in _GPUS for _ in DEVICES.glob(pattern)):
        os.environ.setdefault(_SKIP, "1")
    logging.getLogger(BACKEND_LOGGER).addFilter(_as_one_line)


def _as_one_line(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if error is not None and "xla_cuda" in record.getMessage():
        text = " ".join(str(error).split())
        advice = "pip install 'eqfuse[cuda]' brings CUDA's libraries"
        if "ALREADY_EXISTS" in text:
            advice = "uninstall jax-cuda12-plugin or jax-cuda13-plugin: JAX takes one"
        record.msg, record.exc_info = "JAX cannot use CUDA: %s (%s)", None
        record.args = text, advice
    return True
