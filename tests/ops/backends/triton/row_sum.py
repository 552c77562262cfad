"""A small hand-written graph kernel and a JAX primitive around it: what the runtime tests run."""

import functools

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from eqfuse.ops.backends.triton.runtime import lower_gpu
from eqfuse.ops.backends.triton.spec import KernelSpec, pointer_type
from tests.interpreter import lower_interpret

SOURCE = '''import triton
import triton.language as tl


@triton.jit
def KERNEL(values, row_start, width, out):
    """out[row] = sum of values[row_start[row] : row_start[row + 1]]: one program per row."""
    row = tl.program_id(0)
    lane = tl.arange(0, 32)
    mask = lane < width
    total = tl.zeros([32], tl.float32)
    edge = tl.load(row_start + row).to(tl.int64)
    stop = tl.load(row_start + row + 1)
    while edge < stop:
        total += tl.load(values + edge * width + lane, mask=mask, other=0.0).to(tl.float32)
        edge += 1
    tl.store(out + row.to(tl.int64) * width + lane, total.to(out.dtype.element_ty), mask=mask)
'''
ROW_START = np.array([0, 2, 2, 7], np.int32)


def spec(dtype=np.float32, source=SOURCE):
    """Return the kernel for one dtype."""
    pointer = pointer_type(np.dtype(dtype))
    return KernelSpec.build("row_sum", source, (pointer, "*i32"), (pointer,), ("width",))


def values(dtype=np.float32):
    """Return random values [7, 20], to be summed over the rows of ROW_START."""
    return np.random.default_rng(0).normal(size=(7, 20)).astype(dtype)


def expected(array):
    """Return the sums [3, 20] in float64."""
    parts = np.split(array.astype(np.float64), ROW_START[1:-1])
    return np.stack([part.sum(axis=0) for part in parts])


row_sum_p = Primitive("row_sum_for_tests")
row_sum_p.multiple_results = True


@row_sum_p.def_abstract_eval
def _abstract(array, row_start):
    return [jax.core.ShapedArray((row_start.shape[0] - 1, array.shape[1]), array.dtype)]


def _lower(lower, ctx, *operands):
    rows, width = ctx.avals_out[0].shape
    kernel = spec(ctx.avals_in[0].dtype)
    return lower(ctx, kernel, operands, (width,), (rows,))


mlir.register_lowering(row_sum_p, functools.partial(_lower, lower_interpret), platform="cpu")
mlir.register_lowering(row_sum_p, functools.partial(_lower, lower_gpu), platform="cuda")


def row_sum(array, row_start):
    """Return the kernel alone."""
    return row_sum_p.bind(array, row_start)[0]
