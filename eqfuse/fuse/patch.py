"""`patched`: e3nn-jax's products and Linears are computed by ours, in one thread, while it traces.

What is replaced is what e3nn-jax's functions and methods call, not the names of its modules: so it
does not matter how code came by them, as by `from e3nn_jax import`, `functools.partial`, a default
of a dataclass, or a module that was made before.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
import threading

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp

REPLACED = {
    "e3nn_jax": dict.fromkeys(
        ("tensor_product", "elementwise_tensor_product", "FunctionalLinear"), "eqfuse.ops"
    ),
    "e3nn_jax.flax": {"Linear": "eqfuse.ops"},
    "e3nn_jax.haiku": dict.fromkeys(("Linear", "SymmetricTensorProduct"), "eqfuse.ops.haiku"),
    "e3nn_jax.equinox": {"Linear": "eqfuse.ops.equinox"},
    "e3nn_jax.legacy": {"FunctionalTensorProduct": "eqfuse.ops"},
}
"""Functions and classes of e3nn-jax's modules, and the modules that have ours, of the same name.

What is made of them is replaced with them, such as `e3nn_jax.haiku.FullyConnectedTensorProduct`.
"""
OF_FUSE = ("FunctionalLinear", "FunctionalTensorProduct")
"""Those of one row, which are as fast by e3nn-jax unless `ops.fuse` matches what is around them."""
BETWEEN = ("jax.", "e3nn_jax.", "flax.", "haiku.", "equinox.", "functools.", "contextlib.")
BETWEEN += ("eqfuse.fuse.", "eqfuse.ops.transforms.")
"""Modules whose frames lie between a call and the code that asks for it."""

_active = jax.make_user_context("")  # of a thread, and in the keys of jit's caches
_lock, _inside = threading.Lock(), 0


def _is_replaced(name: str) -> bool:
    """Return whether this thread is in a block, and the caller is no op that needs e3nn's own."""
    if not _active.value or (name in OF_FUSE and _active.value != "fuse"):
        return False
    frame, caller = sys._getframe(2), BETWEEN[0]
    while frame and f"{caller}.".startswith(BETWEEN):
        frame, caller = frame.f_back, frame.f_globals.get("__name__") or ""
    return caller.split(".")[0] != "eqfuse"


def _is_weighting(name: str, operands) -> bool:
    """Return whether an elementwise product is one with scalars, which is plain arithmetic."""
    return name == "elementwise_tensor_product" and any(
        isinstance(o, e3nn.IrrepsArray) and all(ir.l == 0 for _, ir in o.irreps) for o in operands
    )


def _function(own, of: str, name: str):
    @functools.wraps(own)
    def called(*args, **options):
        if not _is_replaced(name) or _is_weighting(name, (*args, *options.values())):
            return own(*args, **options)
        return getattr(importlib.import_module(of), name)(*args, **options)

    return called


def _distinct(own):
    """Return e3nn-jax's numbering of the targets of a sum, by one sort where it has a loop."""

    @functools.wraps(own)
    def called(x):
        if not _active.value:
            return own(x)
        return jnp.unique(x, size=x.size, return_inverse=True)[1].reshape(x.shape)

    return called


def _method(cls: type, method: str, of: str):
    """Return a method of a class of e3nn's that is ours, for those of its instances that can be."""
    own = vars(cls)[method]

    @functools.wraps(own)
    def called(module, *args, **options):
        if not _is_replaced(cls.__name__) or not _is_plain(type(module), cls):
            return own.__get__(module, cls)(*args, **options)
        ours = getattr(importlib.import_module(of), cls.__name__)
        view = object.__new__(ours)
        # one dictionary, so that parameters are its own, and flax's scope is after a call, too
        object.__setattr__(view, "__dict__", vars(module))
        return getattr(view, method)(*args, **options)

    return called


def _is_plain(cls: type, own: type) -> bool:
    """Return whether a class is e3nn's, or changes no method of it but how it is called."""
    classes = cls.__mro__[: cls.__mro__.index(own)]
    changed = {n for c in classes for n in vars(c) if not n.startswith("__")}
    return not any(callable(getattr(own, n, None)) for n in changed)


@functools.cache
def _slots() -> list[tuple]:
    """Return (object, attribute, e3nn's own value, ours) of all that is replaced."""
    slots = []
    for of_e3nn, names in REPLACED.items():
        module = importlib.import_module(of_e3nn)
        for name, of in names.items():
            own = vars(module).get(name)  # None without the framework
            if inspect.isclass(own):
                method = "left_right" if "left_right" in vars(own) else "__call__"
                slots.append((own, method, vars(own)[method], _method(own, method, of)))
            elif own is not None:  # what is called behind e3nn's decorator
                inner = inspect.unwrap(own)
                [cell] = (c for c in own.__closure__ if c.cell_contents is inner)
                slots.append((cell, "cell_contents", inner, _function(inner, of, name)))
    scatter = sys.modules[e3nn.scatter_sum.__module__]
    if own := vars(scatter).get("_distinct_but_small"):  # of sums that are mapped back
        slots.append((scatter, "_distinct_but_small", own, _distinct(own)))
    return slots


def patched():
    """Compute e3nn-jax's products and Linears by the ops of eqfuse, in code that is traced within.

    In a `with` block, `e3nn_jax.tensor_product`, the Linears of flax, Haiku and Equinox, and what
    else the reference lists, compute what those of `ops` do, however they were imported, and also
    in modules that were made before: parameters, their names and results stay. Subclasses of them
    keep the methods that they change. Other threads see e3nn-jax's own, blocks can be nested, and
    after the block, also by an error, all is as it was. Functions under `jit` are traced again in
    it.

    Example:
      >>> x = e3nn.IrrepsArray("1o", jnp.ones((2, 3)))
      >>> with ops.patched():
      ...     "eqfuse" in str(jax.make_jaxpr(e3nn.tensor_product)(x, x))
      True
    """
    return patched_for("patched")


@contextlib.contextmanager
def patched_for(mode: str):
    """Do so in a mode, "patched" or "fuse"; a block of the first in one of the second is of it."""
    global _inside
    with _lock:
        for holder, attribute, _, ours in () if _inside else _slots():
            setattr(holder, attribute, ours)
        _inside += 1
    try:
        with _active(mode if _active.value != "fuse" else "fuse"):
            yield
    finally:
        with _lock:
            _inside -= 1
            for holder, attribute, own, _ in () if _inside else _slots():
                setattr(holder, attribute, own)
