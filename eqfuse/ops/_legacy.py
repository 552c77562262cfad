"""e3nn-jax's legacy products by instructions, on a form."""

import functools
import math

import e3nn_jax as e3nn
import e3nn_jax.legacy
import jax.numpy as jnp

from eqfuse.ops._backend import resolve
from eqfuse.ops._tensor_product import operands
from eqfuse.ops.ir.form import Form, Index, Segment
from eqfuse.ops.ir.linear import Block, BlockRef, LinearForm, Rows, Term, Weights
from eqfuse.ops.ir.products import OUT, Operands, X, Y, coupling
from eqfuse.ops.primitives import forms

MODES = ("uvu", "uvuv", "uvw")
"""The connection modes whose products of channels (u, v) are those of a form, channels along u."""


@functools.lru_cache(maxsize=256)
def _form(irreps_x: e3nn.Irreps, irreps_y: e3nn.Irreps, paths: tuple) -> tuple[Form, list[Block]]:
    """Return the products of paths (i_in1, i_in2, irrep), and the block [u, v] of each."""
    made, blocks, offset = Operands(), [], 0
    starts_x, starts_y = ([s.start for s in irreps.slices()] for irreps in (irreps_x, irreps_y))
    for i, j, ir in paths:
        (mul_x, ir_x), (mul_y, ir_y) = irreps_x[i], irreps_y[j]
        for v in range(mul_y):
            x = Segment(starts_x[i], mul_x, ir_x.dim, ir_x.dim)
            y = Segment(starts_y[j] + v * ir_y.dim, 1, ir_y.dim, ir_y.dim)
            out = Segment(offset + v * ir.dim, mul_x, ir.dim, mul_y * ir.dim)
            made.add({X: x, Y: y}, out, coupling(ir_x, ir_y, ir, "none"))
        blocks.append(Block(offset, mul_x * mul_y, ir.dim))
        offset += mul_x * mul_y * ir.dim
    row = Index.ROW
    sizes = (X, irreps_x.dim, True, row), (Y, irreps_y.dim, False, row), (OUT, offset, True, row)
    return made.form(*sizes), blocks


class FunctionalTensorProduct(e3nn.legacy.FunctionalTensorProduct):
    """Compute `e3nn_jax.legacy.FunctionalTensorProduct` by kernels, with its arguments.

    Instructions "uvu", "uvuv" and "uvw" are one product, of whose channels weights are made; within
    `ops.fuse` they match as `ops.tensor_product` does. Where there are others, e3nn-jax computes.

    References: e3nn-jax 0.21.
    """

    def left_right(self, weights, input1, input2=None, *, backend: str | None = None, **options):
        """Return the product of two arrays.

        Args:
          weights: arrays of `path_shape`, one for each instruction that has weights, or all in one
            array, flat; left out where none has.
          input1, input2: IrrepsArray [irreps_in1] and [irreps_in2], as e3nn's; use `vmap` for rows.
          backend: as in `eqfuse.ops.tensor_product`.
          options: e3nn-jax's, which choose how it computes where it does.
        Returns:
          IrrepsArray [irreps_out].
        Raises:
          ValueError, AssertionError: those of `e3nn_jax.legacy.FunctionalTensorProduct`.
        """
        if input2 is None:
            weights, input1, input2 = [], weights, input1
        used = [i for i in self.instructions if 0 not in (i.output_multiplicity, *i.path_shape)]
        x, y = input1.rechunk(self.irreps_in1), input2.rechunk(self.irreps_in2)
        used = [i for i in used if not (x.zero_flags[i.i_in1] or y.zero_flags[i.i_in2])]
        backend = resolve(backend, "tensor_product", x, y)
        if backend == "e3nn" or not used or any(i.connection_mode not in MODES for i in used):
            return super().left_right(weights, input1, input2, **options)
        if x.ndim != 1 or y.ndim != 1:
            raise ValueError(
                f"operands must be one row, [{x.irreps}] and [{y.irreps}], got shapes {x.shape} "
                f"and {y.shape}: use jax.vmap for more"
            )
        x, y, *parts = operands(
            "FunctionalTensorProduct", x, y, *map(_scalars, self._parts(weights))
        )
        weighted = [i for i in self.instructions if i.has_weight]
        of = {
            id(i): w.array.reshape(i.path_shape) for i, w in zip(weighted, parts, strict=True)
        }  # two instructions may be equal
        paths = tuple((i.i_in1, i.i_in2, self.irreps_out[i.i_out].ir) for i in used)
        form, blocks = _form(self.irreps_in1, self.irreps_in2, paths)
        [rows] = forms.evaluate(form, [x.array[None], y.array[None]], backend=backend)
        chunks = [None] * len(self.irreps_out)
        mixed = [(i, b) for i, b in zip(used, blocks, strict=True) if i.connection_mode == "uvw"]
        if mixed:
            chunks = self._mixed(mixed, rows, of, backend)
        for i, b in zip(used, blocks, strict=True):
            if i.connection_mode == "uvw":
                continue
            shape = i.first_input_multiplicity, i.second_input_multiplicity, b.dim
            part = rows[0, b.offset : b.offset + b.mul * b.dim].reshape(shape) * i.path_weight
            part = part * of[id(i)][..., None] if i.has_weight else part
            part = part.sum(1) if i.connection_mode == "uvu" else part.reshape(b.mul, b.dim)
            known = chunks[i.i_out]
            chunks[i.i_out] = part if known is None else known + part
        return e3nn.from_chunks(self.irreps_out, chunks, (), x.dtype)

    def _parts(self, weights) -> list:
        """Return the weights of each instruction that has some."""
        shapes = [i.path_shape for i in self.instructions if i.has_weight]
        if not isinstance(weights, list):
            flat, start, weights = jnp.asarray(weights), 0, []
            for shape in shapes:
                weights.append(flat[start : start + math.prod(shape)].reshape(shape))
                start += math.prod(shape)
            if flat.shape != (start,):
                raise ValueError(f"weights must be [{start}], got shape {flat.shape}")
        if [jnp.shape(w) for w in weights] != shapes:
            raise ValueError(f"weights must be of {shapes}, got {[jnp.shape(w) for w in weights]}")
        return weights

    def _mixed(self, mixed, rows, of, backend: str) -> list:
        """Return the chunks that instructions "uvw" add, as a Linear of the product."""
        out, offset = {}, 0
        for n, (mul, ir) in enumerate(self.irreps_out):
            if any(i.i_out == n for i, _ in mixed):
                out[n] = Block(offset, mul, ir.dim)
                offset += mul * ir.dim
        matrices = [of[id(i)].reshape(-1, i.output_multiplicity) for i, _ in mixed]
        place = list(out)
        form = LinearForm(
            (
                Rows(rows.shape[1], tuple(b for _, b in mixed)),
                *(Weights(m.shape) for m in matrices),
            ),
            (Rows(offset, tuple(out.values())),),
            tuple(
                Term(
                    BlockRef(0, n),
                    1 + n,
                    BlockRef(1 + len(mixed), place.index(i.i_out)),
                    float(i.path_weight),
                )
                for n, (i, _) in enumerate(mixed)
            ),
        )
        [z] = forms.evaluate_linear(form, [rows, *matrices], None, 1, backend)
        chunks = [None] * len(self.irreps_out)
        for n, b in out.items():
            chunks[n] = z[0, b.offset : b.offset + b.mul * b.dim].reshape(b.mul, b.dim)
        return chunks


def _scalars(weights) -> e3nn.IrrepsArray:
    return e3nn.IrrepsArray(f"{math.prod(jnp.shape(weights))}x0e", jnp.ravel(weights))


def FunctionalFullyConnectedTensorProduct(irreps_in1, irreps_in2, irreps_out, *args, **options):
    """Return a `FunctionalTensorProduct` of all paths, each with weights "uvw".

    Args:
      irreps_in1, irreps_in2, irreps_out, args, options: those of
        `e3nn_jax.legacy.FunctionalFullyConnectedTensorProduct`.
    References: e3nn-jax 0.21.
    """
    irreps = [e3nn.Irreps(i) for i in (irreps_in1, irreps_in2, irreps_out)]
    paths = [
        (i, j, k, "uvw", True)
        for i, (_, ir_1) in enumerate(irreps[0])
        for j, (_, ir_2) in enumerate(irreps[1])
        for k, (_, ir_out) in enumerate(irreps[2])
        if ir_out in ir_1 * ir_2
    ]
    return FunctionalTensorProduct(*irreps, paths, *args, **options)
