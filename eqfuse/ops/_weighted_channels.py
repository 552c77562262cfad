"""`weighted_channels`: irreps without channels, such as spherical harmonics, times weights."""

import functools

import e3nn_jax as e3nn
import jax.numpy as jnp

from eqfuse.ops._backend import resolve
from eqfuse.ops._tensor_product import operands
from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.operands import Operand, Path, Role, Segment, SegmentRef
from eqfuse.ops.primitives import forms
from eqfuse.ops.primitives.batch_axes import BatchAxes


def weighted_channels(y, weights, *, backend: str | None = None):
    """Return channels of each irrep, each with a weight of its own.

        out[..., u, (l, k)] = weights[..., l, u] * y[..., (l, k)]

    Args:
      y: IrrepsArray [..., irreps_y], each irrep once: a multiplicity of 1.
      weights: [..., number of irreps times channels], those of the first irrep first; the leading
        axes of y.
      backend: "triton", "llvm", "xla", "e3nn", "triton-interpret", or None: by device.
    Returns:
      IrrepsArray [..., channels x each irrep of y], in the order of y, of the promoted dtype.
    Raises:
      ValueError: multiplicities other than 1, shapes that do not fit, or a backend that cannot
        run here.
    References: Musaelian et al. 2023 (the first features of Allegro).
    """
    backend = resolve(backend, "weighted_channels", y, weights)
    scalars = e3nn.Irreps([(jnp.shape(weights)[-1], "0e")])
    y, weights = operands("weighted_channels", y, e3nn.IrrepsArray(scalars, jnp.asarray(weights)))
    count = len(y.irreps)
    if any(mul != 1 for mul, _ in y.irreps):
        raise ValueError(f"each irrep of y must have a multiplicity of 1, got {y.irreps}")
    channels = weights.shape[-1] // max(count, 1)
    if weights.shape != (*y.shape[:-1], count * channels):
        raise ValueError(
            f"weights must be [..., {count} irreps of {y.irreps} x channels] with "
            f"the leading axes {y.shape[:-1]} of y, got shape {weights.shape}"
        )
    irreps_out = e3nn.Irreps([(channels, ir) for _, ir in y.irreps])
    if not irreps_out.dim:
        return e3nn.IrrepsArray(irreps_out, jnp.zeros((*y.shape[:-1], 0), y.dtype))
    if backend == "e3nn":
        of_irreps = weights.array.reshape(*y.shape[:-1], count, channels, 1)
        chunks = [
            None if chunk is None else of_irreps[..., k, :, :] * chunk
            for k, chunk in enumerate(y.chunks)
        ]
        return e3nn.from_chunks(irreps_out, chunks, y.shape[:-1], y.dtype)
    batch_axes = BatchAxes.of(y.shape[:-1], [weights.array, y.array])
    arrays = [batch_axes.rows(a.array) for a in (weights, y)]
    [out] = forms.evaluate(_form(y.irreps, channels), arrays, backend=backend)
    return e3nn.IrrepsArray(irreps_out, batch_axes.apart(out))


@functools.cache
def _form(irreps: e3nn.Irreps, channels: int) -> Form:
    """Return a path for each irrep, which joins its weights with it."""
    weights, y, out, paths, offset = [], [], [], [], 0
    for k, (_, ir) in enumerate(irreps):
        weights.append(Segment(k * channels, channels, 1, 1))
        y.append(Segment(offset, 1, ir.dim, ir.dim))
        out.append(Segment(offset * channels, channels, ir.dim, ir.dim))
        terms = tuple(((0, i, i), 1.0) for i in range(ir.dim))
        paths.append(Path((SegmentRef(0, k), SegmentRef(1, k)), SegmentRef(0, k), terms))
        offset += ir.dim
    return Form(
        (
            Operand("weights", len(irreps) * channels, tuple(weights), channels=True),
            Operand("y", offset, tuple(y), channels=False, role=Role.RIGHT),
        ),
        (Operand("out", offset * channels, tuple(out), channels=True, role=Role.OUTPUT),),
        tuple(paths),
    )
