"""`patched`: e3nn-jax's names mean the ops of eqfuse, in one thread, while a function is traced."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import threading
import types

import e3nn_jax as e3nn
import jax

REPLACED = {
    "e3nn_jax": {"tensor_product": "eqfuse.ops"},
    "e3nn_jax.flax": {"Linear": "eqfuse.ops"},
    "e3nn_jax.haiku": dict.fromkeys(("Linear", "FullyConnectedTensorProduct"), "eqfuse.ops.haiku"),
    "e3nn_jax.equinox": {"Linear": "eqfuse.ops.equinox"},
    "e3nn_jax.legacy": dict.fromkeys(
        ("FunctionalTensorProduct", "FunctionalFullyConnectedTensorProduct"), "eqfuse.ops"
    ),
}
"""Names of e3nn-jax's modules, and the modules whose attributes of the same name they become."""
BETWEEN = ("jax", "flax", "haiku", "equinox", "functools", "contextlib")
BETWEEN += (
    "eqfuse.fuse",
    "eqfuse.ops.transforms",
    e3nn.utils.vmap.__module__.rpartition(".")[0],
)
"""Modules whose frames lie between a call and the function that is called."""

_active = jax.make_user_context(False)  # of a thread, and in the keys of jit's caches
_lock, _inside, _own_code = threading.Lock(), 0, {}


class _Patched(types.ModuleType):
    """A module of e3nn-jax, some of whose names depend on the thread that reads them.

    e3nn-jax's functions look up its other names here: so one that was called without its name,
    because it was imported or kept before, is noticed.
    """

    def __getattribute__(self, name):
        own = super().__getattribute__
        if not _active.value:
            return own(name)
        frame = sys._getframe(1)
        if frame.f_code in _own_code and not _is_internal(caller := _caller(frame)):
            public = _own_code[frame.f_code]
            module, _, last = public.rpartition(".")
            raise RuntimeError(
                f"{caller.f_code.co_filename}:{caller.f_lineno} calls e3nn-jax's own {last}, which "
                f"was imported by `from {module} import {last}`, or kept or made before ops.patched"
                f"() began: call it as {public}, or take it from eqfuse.ops; make networks of "
                "Equinox within ops.patched()"
            )
        of = REPLACED.get(own("__name__"), {}).get(name)
        return own(name) if of is None or _is_internal(frame) else _ours(of, name)


def _ours(module: str, name: str):
    return getattr(importlib.import_module(module), name)


def _is_internal(frame) -> bool:
    """Return whether a frame is of a module that needs e3nn-jax's own functions."""
    return frame.f_globals.get("__name__", "").split(".")[0] in ("e3nn_jax", "eqfuse")


def _caller(frame):
    """Return the frame that calls the function of a frame, without wrappers between."""
    frame = frame.f_back
    while f"{frame.f_globals.get('__name__', '')}.".startswith(tuple(f"{b}." for b in BETWEEN)):
        frame = frame.f_back
    return frame


def _modules():
    """Yield e3nn-jax's modules, and remember the code of what is replaced in them."""
    for of, names in REPLACED.items():
        module = importlib.import_module(of)
        for name in names:
            if own := vars(module).get(name):  # absent without the framework
                method = "left_right" if hasattr(own, "left_right") else "__call__"
                called = getattr(own, method) if inspect.isclass(own) else own
                _own_code[inspect.unwrap(called).__code__] = f"{of}.{name}"
        yield module


@contextlib.contextmanager
def patched():
    """Put the ops of eqfuse in the place of e3nn-jax's names, for code that is traced within.

    In a `with` block, `e3nn_jax.tensor_product` is `ops.tensor_product`, the `Linear` of
    `e3nn_jax.flax`, `.haiku` and `.equinox` that of `ops`, `ops.haiku` and `ops.equinox`, and
    `e3nn_jax.legacy.FunctionalTensorProduct` that of `ops`: parameters, their names and results
    stay. Other threads see e3nn-jax's own, blocks can be nested, and after the block, also by an
    error, all is as it was. Functions under `jit` are traced again in it. Modules of Equinox make
    their Linears when they are made: make them in it.

    Raises:
      RuntimeError: where code in the block calls what it imported by `from e3nn_jax import`, or
        kept, before: a name that is no attribute of e3nn-jax's modules cannot be replaced.

    Example:
      >>> with ops.patched():
      ...     e3nn.flax.Linear is ops.Linear
      True
    """
    global _inside
    with _lock:
        for module in _modules() if not _inside else ():
            module.__class__ = _Patched
        _inside += 1
    try:
        with _active(True):
            yield
    finally:
        with _lock:
            _inside -= 1
            for module in _modules() if not _inside else ():
                module.__class__ = types.ModuleType
