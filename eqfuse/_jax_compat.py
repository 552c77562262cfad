"""All that eqfuse uses of JAX's private modules, each with the reason why no public name serves.

Tried with jax 0.10.2 and 0.12.0. Nothing is imported before it is used, so that
`eqfuse --help` does not wait for JAX.
"""

from __future__ import annotations

BACKEND_LOGGER = "jax._src.xla_bridge"
"""The logger of plug-ins that do not start. JAX documents no name for it."""


def is_unspecified(sharding) -> bool:
    """Test that `jit` was given no such sharding; its sentinel for that is private."""
    from jax._src.sharding_impls import UnspecifiedValue

    return sharding is None or isinstance(sharding, UnspecifiedValue)


def is_on_one_device(axis_context) -> bool:
    """Test that a lowering is for one device: its context is of a private class."""
    from jax._src.sharding_impls import ShardingContext

    return isinstance(axis_context, ShardingContext) and axis_context.num_devices == 1


def refuse_export(ctx):
    """Refuse to lower a kernel for `jax.export`, whose files hold no kernels; the flag is private.

    Raises:
      ValueError: says how to export without them.
    """
    if ctx.module_context.lowering_parameters.for_export:
        raise ValueError(
            "jax.export cannot keep kernels of eqfuse: compute its ops by XLA, for which set the "
            "environment's EQFUSE_BACKEND=xla, or give backend='xla' to ops and models; "
            "`eqfuse export` writes the networks of runs with their kernels"
        )


def user_frames(source_info):
    """Return the frames of the user's code that wrote an equation; no public function has them."""
    from jax._src import source_info_util

    return source_info_util.user_frames(source_info.traceback)


def same_source(source_info):
    """Return a context in which what is bound keeps an equation's place in the code and its scope.

    `jax.named_scope` sets the scope alone: errors would name the rewriting.
    """
    from jax._src import source_info_util

    stack = source_info_util.current_name_stack() + source_info.name_stack
    return source_info_util.user_context(source_info.traceback, name_stack=stack)


def num_scan_constants(params: dict) -> int:
    """Return the number of operands that every step of a `scan` gets; a tree in JAX 0.12."""
    return params["num_consts"] if "num_consts" in params else len(params["ft_in"].unpack()[0])
