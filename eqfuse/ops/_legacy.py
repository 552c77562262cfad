"""e3nn-jax's functional Linear, and its legacy products by instructions, on a form."""

import itertools
import math

import e3nn_jax as e3nn
import e3nn_jax.legacy
import jax.numpy as jnp

from eqfuse.ops._backend import resolve
from eqfuse.ops._tensor_product import evaluate_rows, operands
from eqfuse.ops.ir import products
from eqfuse.ops.ir.form import Form, Operand, Path, SegmentRef
from eqfuse.ops.ir.linear import blocks, matrices
from eqfuse.ops.primitives import forms

MODES = ("uvu", "uvuv", "uvw")
"""The connection modes whose products of channels (u, v) are those of a form, channels along u."""


class FunctionalTensorProduct(e3nn.legacy.FunctionalTensorProduct):
    """Compute `e3nn_jax.legacy.FunctionalTensorProduct` by kernels, with its arguments.

    Instructions "uvu", "uvuv" and "uvw" are one product, of whose channels weights are made; within
    `ops.fuse` they match as `ops.tensor_product` does. Where there are others, e3nn-jax computes.

    Args:
      irreps_in1, ..., gradient_normalization: as in `e3nn_jax.legacy.FunctionalTensorProduct`.
    References: e3nn-jax 0.21.

    Example:
      >>> product = ops.FunctionalTensorProduct("4x1o", "1o", "4x0e", [(0, 0, 0, "uvu", True)])
      >>> x, y = e3nn.IrrepsArray("4x1o", jnp.ones(12)), e3nn.IrrepsArray("1o", jnp.ones(3))
      >>> product.left_right(jnp.ones(4), x, y).irreps
      4x0e
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
        scalars = [e3nn.IrrepsArray(f"{w.size}x0e", w.ravel()) for w in self._parts(weights)]
        x, y, *parts = operands("FunctionalTensorProduct", x, y, *scalars)
        weighted = [i for i in self.instructions if i.has_weight]
        of = {
            id(i): w.array.reshape(i.path_shape) for i, w in zip(weighted, parts, strict=True)
        }  # two instructions may be equal
        paths = [(i.i_in1, i.i_in2, self.irreps_out[i.i_out].ir) for i in used]
        flags = {"zero_x": x.zero_flags, "zero_y": y.zero_flags, "unroll": backend == "llvm"}
        keep = tuple(sorted({ir for *_, ir in paths}))
        product = products.tensor_product(x.irreps, y.irreps, keep, "none", False, **flags)
        rows = evaluate_rows(product, x, y, backend)
        pairs = itertools.product(enumerate(x.irreps), enumerate(y.irreps))
        made = [(i, j, ir) for (i, a), (j, b) in pairs for ir in a.ir * b.ir if ir in keep]
        made.sort(key=lambda path: path[-1])  # as the blocks of the product
        places = [made.index(path) for path in paths]
        chunks = [None] * len(self.irreps_out)
        mixed = [(i, n) for i, n in zip(used, places, strict=True) if i.connection_mode == "uvw"]
        if mixed:
            chunks = self._mixed(mixed, rows, of, backend)
        for i, n in zip(used, places, strict=True):
            if i.connection_mode == "uvw":
                continue
            part = rows.chunks[n].reshape(
                i.first_input_multiplicity, i.second_input_multiplicity, -1
            )
            part = part * i.path_weight
            part = part * of[id(i)][..., None] if i.has_weight else part
            part = part.sum(1) if i.connection_mode == "uvu" else part.reshape(-1, part.shape[-1])
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

    def _mixed(self, mixed, rows: e3nn.IrrepsArray, of, backend: str) -> list:
        """Return the chunks that instructions "uvw" add, as a Linear of the product."""
        outs = sorted({i.i_out for i, _ in mixed})
        irreps_out = e3nn.Irreps([self.irreps_out[n] for n in outs])
        weights = [of[id(i)].reshape(-1, i.output_multiplicity) for i, _ in mixed]
        paths = []
        for k, (i, n) in enumerate(mixed, start=1):
            z, dim = SegmentRef(0, outs.index(i.i_out)), self.irreps_out[i.i_out].ir.dim
            paths.append(Path.of_matrix(SegmentRef(0, n), k, z, float(i.path_weight), dim))
        z = _linear_of_row(rows.array, weights, rows.irreps, irreps_out, paths, backend)
        chunks = [None] * len(self.irreps_out)
        for n, chunk in zip(outs, e3nn.IrrepsArray(irreps_out, z).chunks, strict=True):
            chunks[n] = chunk
        return chunks


class FunctionalLinear(e3nn.FunctionalLinear):
    """Compute `e3nn_jax.FunctionalLinear` by one kernel, with its arguments.

    References: e3nn-jax 0.21.

    Example:
      >>> linear = ops.FunctionalLinear(e3nn.Irreps("4x0e+1o"), e3nn.Irreps("2x0e+1o"))
      >>> x = e3nn.IrrepsArray("4x0e+1o", jnp.ones(7))
      >>> linear([jnp.ones((4, 2)), jnp.ones((1, 1))], x).array
      Array([2., 2., 1., 1., 1.], dtype=float32)
    """

    def __call__(self, ws, input: e3nn.IrrepsArray) -> e3nn.IrrepsArray:
        """Apply it to one row; use `e3nn_jax.utils.vmap` for more, as for e3nn's.

        Args:
          ws: arrays of the `path_shape` of each of `instructions`, or all in one array, flat.
          input: IrrepsArray [irreps_in].
        Returns:
          IrrepsArray [irreps_out], of the promoted dtype.
        Raises:
          ValueError, AssertionError: those of `e3nn_jax.FunctionalLinear`.
        """
        x = input.rechunk(self.irreps_in)
        weights = ws if isinstance(ws, list) else self.split_weights(ws)
        used = [
            (i, w)
            for i, w in zip(self.instructions, weights, strict=False)
            if 0 not in i.path_shape and not (i.i_in >= 0 and x.zero_flags[i.i_in])
        ]
        backend = resolve(None, "linear", x, *(w for _, w in used))
        fits = [jnp.shape(w) for w in weights] == [i.path_shape for i in self.instructions]
        if backend == "e3nn" or x.ndim != 1 or not used or not fits:
            return super().__call__(ws, input)
        row, *parts = operands("FunctionalLinear", x.array, *(w.ravel() for _, w in used))
        paths, arrays = [], []
        for k, ((i, _), part) in enumerate(zip(used, parts, strict=True), start=1):
            x_in = None if i.i_in < 0 else SegmentRef(0, i.i_in)
            dim = self.irreps_out[i.i_out].ir.dim
            paths.append(Path.of_matrix(x_in, k, SegmentRef(0, i.i_out), float(i.path_weight), dim))
            arrays.append(part.array.reshape(i.path_shape))
        z = _linear_of_row(row.array, arrays, x.irreps, self.irreps_out, paths, backend)
        reached = {i.i_out for i, _ in used}
        flags = tuple(n not in reached for n in range(len(self.irreps_out)))
        return e3nn.IrrepsArray(self.irreps_out, z, zero_flags=flags)


def _linear_of_row(row, weights, irreps_in, irreps_out, paths, backend: str):
    """Return [irreps_out.dim], the Linear of one row that has these paths."""
    rows_in = Operand("x", irreps_in.dim, blocks(irreps_in), True)
    rows_out = Operand("z", irreps_out.dim, blocks(irreps_out), True)
    form = Form((rows_in, *matrices(weights)), (rows_out,), tuple(paths))
    [z] = forms.evaluate_linear(form, [row[None], *weights], None, 1, backend)
    return z[0]
