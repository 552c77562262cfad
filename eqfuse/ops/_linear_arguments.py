"""The arguments of `Linear` and the fused ops: what is refused, and dtypes."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp

OF_LINEAR_ALONE = {
    "channel_out",
    "instructions",
    "irreps_in",
    "parameter_initializer",
    "simplify_irreps_internally",
    "weights_per_channel",
}
"""Options of `e3nn.flax.Linear` that `Linear` has here, and fused ops have not."""


def check_positional(cls, args, kwargs, others) -> None:
    """Refuse all arguments but irreps_out by position, and `others` by name.

    Raises:
      TypeError: naming them.
    """
    if len(args) > 1:
        raise TypeError(
            f"ops.{cls.__name__} takes irreps_out alone by position, the rest by name: the second "
            f"argument of e3nn.flax.Linear is irreps_in; got {args}"
        )
    if missing := sorted(set(others) & kwargs.keys()):
        raise TypeError(
            f"ops.{cls.__name__} has no {', '.join(missing)}; ops.Linear has, to be applied to the "
            "product"
        )


def check_index(index, num_indexed_weights) -> None:
    """Refuse an index that there are no sets of weights for, and sets without an index.

    Raises:
      ValueError: one without the other, or an index that is not of integers.
    """
    if index is not None:
        array = index.array if isinstance(index, e3nn.IrrepsArray) else jnp.asarray(index)
        if not jnp.issubdtype(array.dtype, jnp.integer):
            raise ValueError(f"index must be of integers, got {array.dtype}")
    if (index is not None) != (num_indexed_weights is not None):
        raise ValueError("index is needed with num_indexed_weights, and only with it")


def index_or_weights(first, num_indexed_weights: int | None):
    """Return (index, weights), of which one at least is None.

    Raises:
      ValueError: neither an index nor weights, or not what the options are for.
    """
    if isinstance(first, e3nn.IrrepsArray):
        if not first.irreps.is_scalar():
            raise ValueError(f"weights must be scalars, 0e, got {first.irreps}")
        first = first.array
    if first is None or num_indexed_weights is not None:
        check_index(first, num_indexed_weights)
        return first, None
    weights = jnp.asarray(first)
    if not jnp.issubdtype(weights.dtype, jnp.inexact):
        check_index(first, None)
    if weights.ndim == 0 or weights.shape[-1] == 0:
        raise ValueError(f"weights must be [..., d], at least one, got shape {weights.shape}")
    return None, weights


def check_options(module, x: e3nn.IrrepsArray, weights) -> None:
    """Refuse options of `Linear` that exclude each other, and an x that they are not for.

    Raises:
      ValueError: naming them.
    """
    excluded = {
        "weights_per_channel needs weights as an argument": weights is None
        and module.weights_per_channel,
        "weights_per_channel and channel_out exclude each other": module.weights_per_channel
        and module.channel_out is not None,
        "instructions need irreps_in": module.instructions is not None and module.irreps_in is None,
        "instructions need simplify_irreps_internally=False": module.instructions is not None
        and module.simplify_irreps_internally,
        "instructions and channel_out exclude each other": module.instructions is not None
        and module.channel_out is not None,
    }
    for message, is_wrong in excluded.items():
        if is_wrong:
            raise ValueError(message)
    if (module.channel_out is not None or module.weights_per_channel) and x.ndim < 2:
        raise ValueError(f"x must be [..., channels, {x.irreps}], got shape {x.shape}")
    if module.irreps_in is None:
        return
    irreps = e3nn.Irreps(module.irreps_in)
    known = [x.irreps]
    if module.channel_out is not None:  # e3nn's counts the channels in
        known.append(x.shape[-2] * x.irreps)
    same = irreps == x.irreps
    if module.instructions is None:
        same = irreps.regroup() in [i.regroup() for i in known]
    if not same:
        raise ValueError(f"x has irreps {x.irreps}, and irreps_in is {irreps}")


def parts_of(split, irreps: e3nn.Irreps) -> list[e3nn.Irreps]:
    """Return the irreps of the parts that an output of these irreps is split into.

    Raises:
      ValueError: they are not those of adjacent parts of it.
    """
    if isinstance(split, str | e3nn.Irreps):
        raise ValueError(f"split needs a tuple of irreps, got {split!r}")
    parts = [e3nn.Irreps(part) for part in split]
    whole = e3nn.Irreps([mul_ir for part in parts for mul_ir in part])
    if whole.simplify() != irreps.simplify():
        raise ValueError(
            f"split {parts} must be adjacent parts of the output, {irreps}; what no path gives "
            "is part of it with force_irreps_out only"
        )
    return parts


def split_array(x: e3nn.IrrepsArray, parts) -> tuple[e3nn.IrrepsArray, ...]:
    """Return an array for each of the parts."""
    arrays = jax.lax.split(x.array, [part.dim for part in parts], axis=-1)
    return tuple(map(e3nn.IrrepsArray, parts, arrays))


def checked_skip(skip, irreps_out: e3nn.Irreps, lead: tuple[int, ...]) -> e3nn.IrrepsArray:
    """Return a skip that fits the output of a Linear.

    Raises:
      ValueError: other irreps or leading axes.
    """
    skip = e3nn.as_irreps_array(skip)
    if skip.irreps.simplify() != irreps_out.simplify() or skip.shape[:-1] != lead:
        raise ValueError(
            f"skip must be [{', '.join(map(str, lead))}, {irreps_out}], the output of the "
            f"Linear, got {skip.irreps} of shape {skip.shape}"
        )
    return skip


def promoted(rows, parameters):
    """Return the dtype that a Linear of some rows is computed in, which is that of the result.

    As for e3nn, that of all operands together: parameters of float32 widen rows of bfloat16.
    """
    return jnp.result_type(*(a.dtype for a in (*rows, *parameters)))


def as_floating(x: e3nn.IrrepsArray, weights=None) -> e3nn.IrrepsArray:
    """Return x in the dtype that it has together with weights, a floating one."""
    dtype = x.dtype if weights is None else jnp.result_type(x.dtype, weights.dtype)
    return x.astype(dtype if jnp.issubdtype(dtype, jnp.inexact) else jnp.float32)
