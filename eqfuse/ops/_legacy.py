"""e3nn-jax's legacy products by instructions, on a form."""

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
        rows_in = Operand("x", rows.irreps.dim, blocks(rows.irreps), True)
        rows_out = Operand("z", irreps_out.dim, blocks(irreps_out), True)
        form = Form((rows_in, *matrices(weights)), (rows_out,), tuple(paths))
        [z] = forms.evaluate_linear(form, [rows.array[None], *weights], None, 1, backend)
        chunks = [None] * len(self.irreps_out)
        for n, chunk in zip(outs, e3nn.IrrepsArray(irreps_out, z[0]).chunks, strict=True):
            chunks[n] = chunk
        return chunks


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
