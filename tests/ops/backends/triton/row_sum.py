"""A small hand-written graph kernel, and its launch: what the runtime tests run."""

import numpy as np

import tests.interpreter  # noqa: F401  (runs it on this CPU)
from eqfuse.ops.backends.triton.primitive import launch
from eqfuse.ops.backends.triton.spec import KernelSpec, pointer_type

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


def row_sum(array, row_start):
    """Return the kernel alone."""
    rows, width = row_start.shape[0] - 1, array.shape[1]
    kernel, shapes = spec(array.dtype), [(rows, width)]
    return launch(kernel, [array, row_start], shapes, (width,), (rows,))[0]
