"""Run kernels in Triton's interpreter on numpy arrays: a check of results without a GPU.

Where this module is imported, the backend "triton" runs on a CPU, thousands of times slower than on
a GPU. `triton.language` is patched for the process while a kernel runs and restored after, so that
the same process can compile the same kernel.
"""

from __future__ import annotations

import contextlib
import functools
import types

import ml_dtypes
import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

from eqfuse.ops.backends.triton.compile import LANGUAGE_LOCK, load
from eqfuse.ops.backends.triton.primitive import launch_p
from eqfuse.ops.backends.triton.spec import KernelSpec, pointer_type

_FUNCTIONS: dict[object, object] = {}
_count = 0


def interpret_count() -> int:
    """Return the number of launches that this process has interpreted."""
    return _count


def interpret(spec: KernelSpec, inputs, outputs, scalars=(), grid=(1,)) -> None:
    """Run the kernel over `grid`, writing into `outputs`; arrays are NumPy's, C-contiguous."""
    global _count
    spec.check_call(inputs, scalars)
    if not all(a.flags.c_contiguous for a in (*inputs, *outputs)):
        raise ValueError(f"kernel {spec.name}: arrays must be C-contiguous")
    kernel = _loaded(spec)  # of its own, since the interpreter writes into its globals
    arguments = (*map(_Buffer, inputs), *map(int, scalars), *map(_Buffer, outputs))
    with LANGUAGE_LOCK, _interpreting():
        _interpreted(kernel)[tuple(map(int, grid))](*arguments)
        _count += 1


_loaded = functools.cache(load)


class _Buffer:
    """What the interpreter asks of a tensor, over a numpy array that it reads and writes."""

    def __init__(self, array):
        self.array = array
        self.dtype = pointer_type(array.dtype)[1:]

    def data_ptr(self):
        return self.array.ctypes.data

    def stride(self):
        return tuple(s // self.array.itemsize for s in self.array.strides)

    def size(self):
        return self.array.shape

    def storage_offset(self):
        return 0

    def _itself(self, *_, **__):
        return self

    # in the place of copies to a CPU and back
    untyped_storage = cpu = new_empty = set_ = copy_ = _itself


def _interpreted(kernel):
    from triton.runtime import interpreter

    # not keyed by the JITFunction, whose hash reads the language that is patched at this moment
    if kernel.fn not in _FUNCTIONS:
        _FUNCTIONS[kernel.fn] = interpreter.InterpretedFunction(kernel.fn)
    return _FUNCTIONS[kernel.fn]


def _bfloat16_cast(cast):
    """Return a cast that rounds to bfloat16 as a GPU does, to even; the given one truncates."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle, _get_np_dtype

    def cast_with_bfloat16(self, source, to, *rest):
        old, new = source.dtype.scalar, to.scalar
        if tl.bfloat16 not in (old, new) or old == new:
            return cast(self, source, to, *rest)
        values = source.data.view(ml_dtypes.bfloat16) if old == tl.bfloat16 else source.data
        if new == tl.bfloat16:
            return TensorHandle(values.astype(ml_dtypes.bfloat16).view(np.uint16), new)
        return TensorHandle(values.astype(_get_np_dtype(new)), new)

    return cast_with_bfloat16


def _bfloat16_dot(dot):
    """Return a matmul that reads bfloat16 as numbers; the given one takes its bits for integers."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    def wide(handle):
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return TensorHandle(handle.data.view(ml_dtypes.bfloat16).astype(np.float32), tl.float32)

    return lambda self, a, b, *rest: dot(self, wide(a), wide(b), *rest)


def _reduce_by_halves(self, values):
    """Reduce by halves; the interpreter calls the combining function for each element, slowly."""
    axis, dtypes = self.axis, [value.dtype for value in values]
    arrays = [value.handle.data for value in values]
    while arrays[0].shape[axis] > 1:
        halves = zip(*(np.split(array, 2, axis) for array in arrays), strict=True)
        tensors = [[self.to_tensor(a, t) for a, t in zip(h, dtypes, strict=True)] for h in halves]
        arrays = [t.handle.data for t in self.combine_fn.fn(*tensors[0], *tensors[1])]
    if not self.keep_dims:
        arrays = [array.squeeze(axis) for array in arrays]
    return [self.to_tensor(array, dtype) for array, dtype in zip(arrays, dtypes, strict=True)]


@contextlib.contextmanager
def _interpreting():
    import triton.language as tl
    from triton.runtime import interpreter
    from triton.runtime.jit import JITFunction

    patch_language, scopes = interpreter._patch_lang, {}

    def patch_once(function):
        if id(function.__globals__) not in scopes:
            scope = scopes[id(function.__globals__)] = patch_language(function)
            # triton 3.6 with numpy >= 2.4: int() of an array of one element raises
            scope.set_attr(tl.tensor, "__index__", lambda self: int(self.handle.data.squeeze()))
        return types.SimpleNamespace(restore=lambda: None)  # at the end, see below

    builder = interpreter.InterpreterBuilder
    patches = (
        (JITFunction, "__call__", lambda self, *args, **kw: _interpreted(self)(*args, **kw)),
        (interpreter, "_patch_lang", patch_once),
        (builder, "cast_impl", _bfloat16_cast(builder.cast_impl)),
        (builder, "create_dot", _bfloat16_dot(builder.create_dot)),
        (interpreter.ReduceOps, "generic_reduce", _reduce_by_halves),
    )
    with contextlib.ExitStack() as stack:
        for reduce_over, name, replacement in patches:
            stack.callback(setattr, reduce_over, name, getattr(reduce_over, name))
            setattr(reduce_over, name, replacement)
        try:
            yield
        finally:
            for scope in reversed(scopes.values()):
                scope.restore()


def _lower(ctx, *operands, spec: KernelSpec, shapes, scalars, grid, aliases):
    """Run the kernel in Triton's interpreter, on a CPU, as `lower_gpu` does on a GPU.

    Outputs of floating type are filled with NaN first, so that an element that the kernel fails to
    write is seen. Those of float64 leave the callback as pairs of int32, which JAX does not narrow:
    it may run in a thread of XLA's, where `jax.enable_x64` of the calling thread does not hold.
    """
    spec.check_call(ctx.avals_in, scalars)
    avals_in, avals_out = list(ctx.avals_in), list(ctx.avals_out)

    def call(*inputs):
        outputs = [_poisoned(aval) for aval in avals_out]
        for i, o in aliases:
            outputs[o][...] = inputs[i]
        interpret(spec, [np.ascontiguousarray(a) for a in inputs], outputs, scalars, grid)
        return [
            a.view(np.int32).reshape(*a.shape, 2) if a.dtype == np.float64 else a for a in outputs
        ]

    returned = [
        a.update(shape=(*a.shape, 2), dtype=np.dtype(np.int32)) if a.dtype == np.float64 else a
        for a in avals_out
    ]
    ctx = ctx.replace(avals_out=returned)
    results, _, keepalive = mlir.emit_python_callback(
        ctx, call, None, list(operands), avals_in, returned, has_side_effect=False
    )
    if keepalive is not None:
        ctx.module_context.add_keepalive(keepalive)

    def whole(aval, value):
        if aval.dtype != np.float64:
            return value
        return stablehlo.bitcast_convert(
            ir.RankedTensorType.get(aval.shape, ir.F64Type.get()), value
        )

    return list(map(whole, avals_out, results))


def _poisoned(aval):
    array = np.empty(aval.shape, aval.dtype)
    array.fill(np.nan if np.issubdtype(aval.dtype, np.inexact) or aval.dtype.kind == "V" else -1)
    return array


mlir.register_lowering(launch_p, _lower, platform="cpu")
