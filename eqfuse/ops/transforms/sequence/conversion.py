"""Equations of a traced function as steps of a program, a rule for each primitive of JAX."""

from __future__ import annotations

import math

import jax
import numpy as np
from jax.lax import GatherScatterMode

from eqfuse.ops.backends.llvm.linear import is_wide
from eqfuse.ops.ir import program
from eqfuse.ops.ir.form import INDEX_ARRAYS, Index
from eqfuse.ops.ir.linear import Weights
from eqfuse.ops.ir.program import Array, Copy, Elementwise, Multilinear, Number, Reduce
from eqfuse.ops.transforms.fuse.trace import LARGEST_CONSTANT, Node, Trace

VIEWS = frozenset(("reshape", "squeeze", "expand_dims", "reshard", "optimization_barrier"))
"""What changes no element; on one device a reshard does not."""


class NoStepError(Exception):
    """An equation that is no step, and why."""


def strides_of(shape) -> tuple[int, ...]:
    """Return the elements between neighbours of each axis of an array that lies in order."""
    return tuple(math.prod(shape[n + 1 :]) for n in range(len(shape)))


class Values:
    """The values of a traced function as arrays.

    Attributes:
      dtype, backend: of the forms.
      arrays, steps, indices: as in `ir.program.Program`, of what was turned so far.
      inputs: what is read from outside, by the number of its array: a value of the trace, or
        ("order" or "offsets", value of an index, sets of weights).
      numbers: of the values, an array, a `Number`, or None where it has no elements.
    """

    def __init__(self, trace: Trace, dtype: str, backend: str):
        self.trace, self.dtype, self.backend = trace, dtype, backend
        self.arrays: list[Array] = []
        self.steps: list = []
        self.indices: list[tuple[int, str, int]] = []
        self.inputs: dict[int, object] = {}
        self.numbers: dict[int, int | Number | None] = {}
        self._of_inputs: dict[object, int] = {}

    # values

    def aval(self, value: int):
        return self.trace.avals[value]

    def new(self, size: int, dtype: str) -> int:
        self.arrays.append(Array(size, dtype))
        return len(self.arrays) - 1

    def result(self, value: int) -> int:
        """Return a new array for a value."""
        aval = self.aval(value)
        self.numbers[value] = self.new(aval.size, dtype_of(aval))
        return self.numbers[value]

    def _input(self, key, size: int, dtype: str) -> int:
        if key not in self._of_inputs:
            self._of_inputs[key] = self.new(size, dtype)
            self.inputs[self._of_inputs[key]] = key
        return self._of_inputs[key]

    def read(self, value: int) -> int | Number | None:
        """Return what a value is: an array, or the number that it is everywhere."""
        if value not in self.numbers:
            aval = self.aval(value)
            dtype = dtype_of(aval)
            number = _number(self.trace, value) if aval.size else None
            if not aval.size:
                self.numbers[value] = None
            elif number is not None:
                self.numbers[value] = Number(number)
            else:
                self.numbers[value] = self._input(value, aval.size, dtype)
        return self.numbers[value]

    def array(self, value: int) -> int:
        """Return the array of a value, filled if it is a number."""
        result = self.read(value)
        if isinstance(result, Number):
            aval = self.aval(value)
            array = self.new(aval.size, dtype_of(aval))
            self.steps.append(Copy((result,), array, (aval.size,), (0,), (1,)))
            return array
        if result is None:
            raise NoStepError("an array without elements")
        return result

    def index_array(self, value: int, name: str, limit: int) -> int:
        """Return an index array that the runtime looks through before the kernel runs."""
        key = ("index", value, name, limit)
        known = key in self._of_inputs
        array = self._input(key, self.aval(value).size, "int32")
        if not known:
            self.indices.append((array, name, limit))
        return array

    def _sorted_index(self, what: str, value: int, num_sets: int) -> int:
        """Return the order of rows by their set of weights, or where each set starts in it."""
        rows = self.aval(value).size
        size, limit = (rows, rows) if what == "order" else (num_sets + 1, rows)
        key = (what, value, num_sets)
        known = key in self._of_inputs
        array = self._input(key, size, "int32")
        if not known:
            self.indices.append((array, what, limit))
        return array


SAME_NUMBERS = VIEWS | {"broadcast_in_dim", "copy", "copy_p", "stop_gradient"}


def _number(trace: Trace, value: int):
    """Return the number that a value is everywhere, if it is written so; None otherwise.

    Nothing is computed for it, as `Trace.uniform` does: each operation would be compiled.
    """
    if value in trace.given:
        result = trace.given[value]
        if isinstance(result, jax.core.Tracer) or np.size(result) > LARGEST_CONSTANT:
            return None
        result = np.ravel(result)
        same = result.tobytes() == result[:1].tobytes() * result.size  # -0 is another number than 0
        return result[0].item() if same else None
    node = trace.node(value)
    if node is None or node.name not in SAME_NUMBERS | {"convert_element_type"}:
        return None
    number = _number(trace, node.inputs[node.outputs.index(value)])
    if number is None or node.name in SAME_NUMBERS:
        return number
    return np.asarray(number).astype(trace.avals[value].dtype).item()


def dtype_of(aval) -> str:
    name = np.dtype(aval.dtype).name if not _is_key(aval) else str(aval.dtype)
    if name not in program.BYTES:
        raise NoStepError(f"arrays of {name}")
    return name


def _is_key(aval) -> bool:
    return not isinstance(aval.dtype, np.dtype)


MOST_PRODUCTS = 1 << 15
"""Products of one matmul: they fit in the cache of a core. A larger one is faster as XLA's."""


def dot_general(values: Values, node: Node) -> None:
    """Add the steps of a matmul, of any axes.

    Raises:
      NoStepError: it is large, or of other dtypes than floats of one kind.
    """
    (contracted, batch) = node.params["dimension_numbers"]
    [out] = node.outputs
    dtype = dtype_of(values.aval(out))
    if any(dtype_of(values.aval(v)) != dtype for v in node.inputs) or "float" not in dtype:
        raise NoStepError("a matmul of other dtypes than one kind of floats")
    shapes = [values.aval(v).shape for v in node.inputs]
    free = [
        [n for n in range(len(shape)) if n not in (*c, *b)]
        for shape, c, b in zip(shapes, contracted, batch, strict=True)
    ]
    sizes = [shapes[0][n] for n in (*batch[0], *free[0])] + [shapes[1][n] for n in free[1]]
    over = [shapes[0][n] for n in contracted[0]]
    count = math.prod(sizes + over)
    if count > MOST_PRODUCTS:
        raise NoStepError("matmuls so large that they are XLA's")
    # zero along the axes that an operand does not have
    axes = [[*batch[0], *free[0], *[None] * len(free[1]), *contracted[0]]]
    axes += [[*batch[1], *[None] * len(free[0]), *free[1], *contracted[1]]]
    operands = []
    for value, own, shape in zip(node.inputs, axes, shapes, strict=True):
        strides = tuple(0 if n is None else strides_of(shape)[n] for n in own)
        operands.append(values.new(count, dtype))
        copied = tuple(sizes + over), strides, strides_of(sizes + over)
        values.steps.append(Copy((values.array(value),), operands[-1], *copied))
    products = values.new(count, dtype)
    values.steps.append(Elementwise("mul", tuple(operands), products))
    strides, kept = strides_of(sizes + over), len(sizes)
    sides = tuple(sizes), strides[:kept], tuple(over), strides[kept:]
    values.steps.append(Reduce("add", (products,), values.result(out), *sides))


class ShapeRules(Values):
    """Adds the steps of what changes the shape of an array, and no number in it."""

    def _copy_of(self, node: Node, strides_in, first_in: int = 0):
        """Add a copy in the order of what is written."""
        [value], [out] = node.inputs[:1], node.outputs
        read, shape = self.read(value), self.aval(out).shape
        if isinstance(read, Number):
            self.numbers[out] = read
            return
        strides = tuple(strides_in), strides_of(shape)
        write = self.result(out)
        self.steps.append(Copy((read,), write, tuple(shape), *strides, first_in))

    def _broadcast_in_dim(self, node: Node):
        if len(node.inputs) != 1:
            raise NoStepError("a shape that is not known")
        own = self.aval(node.inputs[0]).shape
        strides = [0] * len(node.params["shape"])
        for n, s, axis in zip(
            own, strides_of(own), node.params["broadcast_dimensions"], strict=True
        ):
            strides[axis] = 0 if n == 1 else s
        self._copy_of(node, strides)

    def _transpose(self, node: Node):
        strides = strides_of(self.aval(node.inputs[0]).shape)
        self._copy_of(node, [strides[n] for n in node.params["permutation"]])

    def _slice(self, node: Node):
        own = strides_of(self.aval(node.inputs[0]).shape)
        steps_of = node.params["strides"] or (1,) * len(own)
        first = sum(a * s for a, s in zip(node.params["start_indices"], own, strict=True))
        self._copy_of(node, [a * s for a, s in zip(steps_of, own, strict=True)], first)

    def _rev(self, node: Node):
        shape = self.aval(node.inputs[0]).shape
        own, axes = strides_of(shape), node.params["dimensions"]
        first = sum((shape[n] - 1) * own[n] for n in axes)
        self._copy_of(node, [-s if n in axes else s for n, s in enumerate(own)], first)

    def _split(self, node: Node):
        [value], axis = node.inputs, node.params["axis"]
        read, strides = self.read(value), strides_of(self.aval(value).shape)
        first = 0
        for out in node.outputs:
            shape = self.aval(out).shape
            if isinstance(read, Number) or not math.prod(shape):
                self.numbers[out] = read if math.prod(shape) else None
            else:
                write = self.result(out)
                self.steps.append(
                    Copy((read,), write, tuple(shape), strides, strides_of(shape), first)
                )
            first += shape[axis] * strides[axis]

    def _concatenate(self, node: Node):
        axis = node.params["dimension"]
        self._parts(node, [(v, self.aval(v).shape, axis) for v in node.inputs])

    def _stack(self, node: Node):
        axis = node.params["axis"]
        shapes = [list(self.aval(v).shape) for v in node.inputs]
        for shape in shapes:
            shape.insert(axis, 1)
        self._parts(node, [(v, s, axis) for v, s in zip(node.inputs, shapes, strict=True)])

    def _parts(self, node: Node, parts):
        [out] = node.outputs
        write, strides, first = self.result(out), strides_of(self.aval(out).shape), 0
        for value, shape, axis in parts:
            read = self.read(value)
            if read is not None:
                own = (0,) * len(shape) if isinstance(read, Number) else strides_of(shape)
                self.steps.append(Copy((read,), write, tuple(shape), own, strides, 0, first))
            first += shape[axis] * strides[axis]

    def _pad(self, node: Node):
        value, padding = node.inputs
        [out], fill, read = node.outputs, self.read(padding), self.read(value)
        shape, own = self.aval(value).shape, strides_of(self.aval(value).shape)
        size, strides = self.aval(out).shape, strides_of(self.aval(out).shape)
        write = self.result(out)
        self.steps.append(Copy((fill,), write, (math.prod(size),), (0,), (1,)))
        first_in = first_out = 0
        sizes, apart = [], []
        for axis, (low, _, inner) in enumerate(node.params["padding_config"]):
            step = 1 + inner
            cut = max(0, -(low // step))  # elements before the first that stays
            stop = min(shape[axis], -((low - size[axis]) // step))
            first_in += cut * own[axis]
            first_out += (low + cut * step) * strides[axis]
            sizes.append(max(0, stop - cut))
            apart.append(step * strides[axis])
        if read is not None and math.prod(sizes):
            own = (0,) * len(shape) if isinstance(read, Number) else own
            first_in = 0 if isinstance(read, Number) else first_in
            copied = tuple(sizes), own, tuple(apart), first_in, first_out
            self.steps.append(Copy((read,), write, *copied))


FORM, LINEAR_FORM = "eqfuse_form", "eqfuse_linear_form"
NAMES = {"add_any": "add", "select_n": "select", "convert_element_type": "convert"}
NAMES |= {"stop_gradient": "identity", "copy": "identity", "copy_p": "identity"}
REDUCTIONS = {"reduce_sum": "add", "reduce_max": "max", "reduce_min": "min"}
REDUCTIONS |= {"reduce_or": "or", "reduce_and": "and"}


class Converter(ShapeRules):
    """Turns nodes of a traced function into steps, one after the other."""

    def convert(self, node: Node):
        """Add the steps of a node.

        Raises:
          NoStepError: it is none, and why.
        """
        name = NAMES.get(node.name, node.name)
        if all(self.aval(v).size == 0 for v in node.outputs):
            self.numbers |= dict.fromkeys(node.outputs)
        elif node.name in (FORM, LINEAR_FORM):
            self._form(node) if node.name == FORM else self._linear_form(node)
        elif name in program.FUNCTIONS:
            self._elementwise(node, name)
        elif name in VIEWS:
            if node.params.get("dimensions") is not None and name == "reshape":
                raise NoStepError("reshape of a permutation")
            for value, out in zip(node.inputs, node.outputs, strict=True):
                self.numbers[out] = self.read(value)
        elif node.name in REDUCTIONS:
            self._reduce(node)
        elif name in RULES:
            RULES[name](self, node)
        else:
            raise NoStepError(f"{node.name} has no step")

    def _elementwise(self, node: Node, name: str):
        out = self.aval(node.outputs[0])
        reads = [self._broadcast(v, out.shape) for v in node.inputs]
        dtypes = [dtype_of(self.aval(v)) for v in node.inputs]
        if name == "pow" and dtypes[1] != dtypes[0]:
            reads[1] = self._converted(reads[1], dtypes[0])
            dtypes[1] = dtypes[0]
        if name in program.REAL and "int32" in dtypes:
            raise NoStepError(f"{node.name} of integers")
        if name == "select" and (len(reads) != 3 or dtypes[0] != "bool"):
            raise NoStepError("a choice of more than two")
        if name in ("max", "min", "add", "mul") and "bool" in dtypes:
            raise NoStepError(f"{node.name} of bool")
        if all(isinstance(read, Number) for read in reads):  # an array carries the dtype
            first = self.new(1, dtypes[0])
            self.steps.append(Copy((reads[0],), first, (1,), (0,), (1,)))
            reads[0] = first
        power = node.params["y"] if name == "integer_pow" else 0
        self.steps.append(Elementwise(name, tuple(reads), self.result(node.outputs[0]), power))

    def _converted(self, read, dtype: str):
        if isinstance(read, Number):
            return read
        array = self.new(self.arrays[read].size, dtype)
        self.steps.append(Elementwise("convert", (read,), array))
        return array

    def _broadcast(self, value: int, shape) -> int | Number:
        """Return an operand of an element-wise function, as large as its result or one element."""
        read, own = self.read(value), self.aval(value).shape
        if isinstance(read, Number) or math.prod(own) == 1 or own == tuple(shape):
            return read
        array = self.new(math.prod(shape), self.arrays[read].dtype)
        strides = [0 if n == 1 else s for n, s in zip(own, strides_of(own), strict=True)]
        self.steps.append(Copy((read,), array, tuple(shape), tuple(strides), strides_of(shape)))
        return array

    def _clamp(self, node: Node):
        low, x, high = node.inputs
        out = self.aval(node.outputs[0])
        if dtype_of(out) == "bool":
            raise NoStepError("clamp of bool")
        middle = self.new(out.size, dtype_of(out))
        low, x, high = (self._broadcast(v, out.shape) for v in (low, x, high))
        self.steps.append(Elementwise("max", (low, x), middle))
        self.steps.append(Elementwise("min", (middle, high), self.result(node.outputs[0])))

    def _one_minus_square(self, node: Node):
        """Add (1 - x)(1 + x), which JAX 0.12 has for the slope of tanh."""
        out, read = self.aval(node.outputs[0]), self.array(node.inputs[0])
        less, more = (self.new(out.size, dtype_of(out)) for _ in range(2))
        self.steps.append(Elementwise("sub", (Number(1.0), read), less))
        self.steps.append(Elementwise("add", (Number(1.0), read), more))
        self.steps.append(Elementwise("mul", (less, more), self.result(node.outputs[0])))

    def _reduce(self, node: Node):
        [value], [out] = node.inputs, node.outputs
        shape, axes = self.aval(value).shape, node.params["axes"]
        dtype, name = dtype_of(self.aval(value)), REDUCTIONS[node.name]
        if (dtype == "bool") != (name in ("or", "and")):
            raise NoStepError(f"{node.name} of {dtype}")
        read, strides = self.array(value), strides_of(shape)
        kept = [n for n in range(len(shape)) if n not in axes]
        sides = [tuple(of[n] for n in chosen) for chosen in (kept, axes) for of in (shape, strides)]
        self.steps.append(Reduce(name, (read,), self.result(out), *sides))

    # rows by an index

    def _gather(self, node: Node):
        source, index = node.inputs
        dims, sizes = node.params["dimension_numbers"], node.params["slice_sizes"]
        shape, count = self.aval(source).shape, self.aval(index).size
        rest = tuple(range(1, len(shape)))
        plain = dims.collapsed_slice_dims == (0,) == dims.start_index_map
        plain = plain and not dims.operand_batching_dims and tuple(sizes[1:]) == shape[1:]
        own = self.aval(index).shape
        plain = plain and own[-1:] == (1,) and dtype_of(self.aval(index)) == "int32"
        if not plain or dims.offset_dims != tuple(len(own) - 1 + n for n in range(len(rest))):
            raise NoStepError("gather of something else than rows")
        fill = None
        if node.params["mode"] == GatherScatterMode.FILL_OR_DROP:
            fill = node.params["fill_value"]
            if fill is None and dtype_of(self.aval(source)) not in ("float32", "float64"):
                raise NoStepError("gather that fills integers")
            fill = Number(math.nan if fill is None else np.asarray(fill).item())
        width = math.prod(shape[1:])
        reads = self.array(source), self.array(index)
        assert count == self.aval(node.outputs[0]).size // width
        self.steps.append(program.Gather(reads, self.result(node.outputs[0]), width, fill))

    def _scatter_add(self, node: Node):
        start, index, updates = node.inputs
        dims, shape = node.params["dimension_numbers"], self.aval(start).shape
        own = self.aval(index).shape
        rest = tuple(range(len(own) - 1, len(own) - 1 + len(shape) - 1))
        plain = dims.inserted_window_dims == (0,) == dims.scatter_dims_to_operand_dims
        plain = plain and not dims.operand_batching_dims and dims.update_window_dims == rest
        plain = plain and own[-1:] == (1,) and dtype_of(self.aval(index)) == "int32"
        plain = plain and self.aval(updates).shape[len(own) - 1 :] == shape[1:]
        if not plain or dtype_of(self.aval(start)) == "bool":
            raise NoStepError("scatter of something else than rows")
        clipped = node.params["mode"] == GatherScatterMode.CLIP
        reads = tuple(self.array(v) for v in (start, index, updates))
        write = self.result(node.outputs[0])
        self.steps.append(program.ScatterAdd(reads, write, math.prod(shape[1:]), clipped))

    # kernels

    def _check_kernel(self, node: Node, dtype: str):
        if node.params["backend"] != self.backend:
            raise NoStepError(f"on backend {node.params['backend']}")
        if dtype != self.dtype:
            raise NoStepError(f"of {dtype}, where others are of {self.dtype}")

    def _form(self, node: Node):
        form, rows = node.params["form"], node.params["num_rows"]
        nodes, n = node.params["num_nodes"], len(form.inputs)
        self._check_kernel(node, dtype_of(self.aval(node.inputs[0])))
        if not rows or not form.paths:
            raise NoStepError("nothing to compute")
        if any(o.index is Index.SHARED for o in form.outputs):
            raise NoStepError("one row summed over all")
        indices = []
        for name, value in zip(INDEX_ARRAYS, node.inputs[n:], strict=False):
            limit = rows if name.endswith(("_order", "_ptr")) else nodes
            indices.append((name, self.index_array(value, name, limit)))
        operands = tuple(self.array(v) for v in node.inputs[:n])
        writes = tuple(self.result(v) for v in node.outputs)
        self.steps.append(Multilinear(form, operands, writes, tuple(indices), rows, nodes))

    def _linear_form(self, node: Node):
        form, rows = node.params["form"], node.params["num_rows"]
        n = len(form.inputs)
        self._check_kernel(node, dtype_of(self.aval(node.inputs[0])))
        if not rows or not form.terms:
            raise NoStepError("nothing to compute")
        if self.backend == "llvm" and is_wide(form):
            raise NoStepError("matrices so large that they are XLA's")
        indices = []
        if form.num_sets:
            [value] = node.inputs[n:]
            indices.append(("index", self.index_array(value, "index", form.num_sets)))
            if self.backend == "llvm" and any(isinstance(o, Weights) for o in form.outputs):
                for what in ("order", "offsets"):
                    indices.append((what, self._sorted_index(what, value, form.num_sets)))
        operands = tuple(self.array(v) for v in node.inputs[:n])
        writes = tuple(self.result(v) for v in node.outputs)
        nodes = max(1, form.num_sets)
        self.steps.append(Multilinear(form, operands, writes, tuple(indices), rows, nodes))


RULES = {
    "clamp": Converter._clamp,
    "one_minus_square": Converter._one_minus_square,
    "broadcast_in_dim": Converter._broadcast_in_dim,
    "transpose": Converter._transpose,
    "slice": Converter._slice,
    "rev": Converter._rev,
    "split": Converter._split,
    "concatenate": Converter._concatenate,
    "stack": Converter._stack,
    "pad": Converter._pad,
    "gather": Converter._gather,
    "scatter-add": Converter._scatter_add,
    "dot_general": dot_general,
}
