"""Equations of a traced function as steps of a program, a rule for each primitive of JAX."""

from __future__ import annotations

import math

import jax
import numpy as np
from jax.lax import GatherScatterMode

from eqfuse.ops.backends.llvm.linear import is_wide
from eqfuse.ops.ir import program
from eqfuse.ops.ir.form import INDEX_ARRAYS, Index
from eqfuse.ops.ir.program import Array, Copy, Elementwise, FormStep, Number, Reduce, strides_of
from eqfuse.ops.transforms.trace import (
    LARGEST_CONSTANT,
    Node,
    Trace,
    free_axes,
    moves_rows,
)

VIEWS = frozenset(("reshape", "squeeze", "expand_dims", "reshard", "optimization_barrier"))
"""What changes no element; on one device a reshard does not."""

FORM, LINEAR_FORM = "eqfuse_form", "eqfuse_linear_form"
NAMES = {"add_any": "add", "select_n": "select", "convert_element_type": "convert"}
NAMES |= {"stop_gradient": "identity", "copy": "identity", "copy_p": "identity"}
REDUCTIONS = {"reduce_sum": "add", "reduce_max": "max", "reduce_min": "min"}
REDUCTIONS |= {"reduce_or": "or", "reduce_and": "and"}
SAME_NUMBERS = VIEWS | {"broadcast_in_dim", "copy", "copy_p", "stop_gradient"}

MOST_PRODUCTS = 1 << 15
"""Products of one matmul: they fit in the cache of a core. A larger one is faster as XLA's."""


class NoStepError(Exception):
    """An equation that is no step, and why."""


def dtype_of(aval) -> str:
    is_key = not isinstance(aval.dtype, np.dtype)
    name = str(aval.dtype) if is_key else np.dtype(aval.dtype).name
    if name not in program.BYTES:
        raise NoStepError(f"arrays of {name}")
    return name


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


class Converter:
    """Turns nodes of a traced function into steps, one after the other.

    The inputs are arrays of what is read from outside: of a value of the trace, or of an index
    array (its name, value of the index, size, limit); "order" and "offsets" are those of the sets
    of weights that an index chooses.
    """

    def __init__(self, trace: Trace, dtype: str):
        self.trace, self.dtype = trace, dtype
        self.arrays: list[Array] = []
        self.steps: list = []
        self.indices: list[tuple[int, str, int]] = []
        self.inputs: dict[object, int] = {}
        self.numbers: dict[int, int | Number | None] = {}  # of values; None: it has no elements

    def convert(self, node: Node):
        """Add the steps of a node, or raise NoStepError."""
        name = NAMES.get(node.name, node.name)
        if all(self.aval(v).size == 0 for v in node.outputs):
            self.numbers |= dict.fromkeys(node.outputs)
        elif node.name in (FORM, LINEAR_FORM):
            self._form_step(node)
        elif name in program.FUNCTIONS:
            self._elementwise(node, name)
        elif name in VIEWS:
            if node.params.get("dimensions") is not None and name == "reshape":
                raise NoStepError("reshape of a permutation")
            for value, out in zip(node.inputs, node.outputs, strict=True):
                self.numbers[out] = self.read(value)
        elif node.name in REDUCTIONS:
            self._reduce(node)
        elif rule := getattr(self, f"rule_{name.replace('-', '_')}", None):
            rule(node)
        else:
            raise NoStepError(f"{node.name} has no step")

    # values

    def aval(self, value: int):
        return self.trace.avals[value]

    def new(self, size: int, dtype: str) -> int:
        self.arrays.append(Array(size, dtype))
        return len(self.arrays) - 1

    def result(self, value: int) -> int:
        aval = self.aval(value)
        self.numbers[value] = self.new(aval.size, dtype_of(aval))
        return self.numbers[value]

    def read(self, value: int) -> int | Number | None:
        """Return a value as an array, or as the number that it is everywhere."""
        if value not in self.numbers:
            aval = self.aval(value)
            dtype = dtype_of(aval)
            number = _number(self.trace, value) if aval.size else None
            if not aval.size:
                self.numbers[value] = None
            elif number is not None:
                self.numbers[value] = Number(number)
            else:
                self.numbers[value] = self.inputs[value] = self.new(aval.size, dtype)
        return self.numbers[value]

    def array(self, value: int) -> int:
        """Return the array of a value, filled if it is a number."""
        result = self.read(value)
        if isinstance(result, Number):
            aval = self.aval(value)
            return self.copy(result, self.new(aval.size, dtype_of(aval)), (aval.size,), (0,))
        if result is None:
            raise NoStepError("an array without elements")
        return result

    def _index_array(self, name: str, value: int, size: int, limit: int) -> int:
        """Return an index array that the runtime looks through before the kernel runs."""
        key = name, value, size, limit
        if key not in self.inputs:
            self.inputs[key] = self.new(size, "int32")
            self.indices.append((self.inputs[key], name, limit))
        return self.inputs[key]

    def copy(
        self, read: int | Number, write: int, shape, strides_in, strides=None, first_in=0, first=0
    ) -> int:
        """Add a copy of an array or a number, in the order of what is written; return `write`."""
        if isinstance(read, Number):
            strides_in, first_in = (0,) * len(shape), 0
        strides = strides_of(shape) if strides is None else strides
        sides = tuple(shape), tuple(strides_in), tuple(strides), first_in, first
        self.steps.append(Copy((read,), write, *sides))
        return write

    # shapes

    def _moved(self, node: Node, strides_in, first_in: int = 0):
        """Add a copy of the first input; the same number everywhere stays one."""
        [value], [out] = node.inputs[:1], node.outputs
        read = self.read(value)
        if isinstance(read, Number):
            self.numbers[out] = read
        else:
            write = self.result(out)
            self.copy(read, write, self.aval(out).shape, strides_in, first_in=first_in)

    def rule_broadcast_in_dim(self, node: Node):
        if len(node.inputs) != 1:
            raise NoStepError("a shape that is not known")
        own, axes = self.aval(node.inputs[0]).shape, node.params["broadcast_dimensions"]
        strides = [0] * len(node.params["shape"])
        for n, s, axis in zip(own, strides_of(own), axes, strict=True):
            strides[axis] = 0 if n == 1 else s
        self._moved(node, strides)

    def rule_transpose(self, node: Node):
        strides = strides_of(self.aval(node.inputs[0]).shape)
        self._moved(node, [strides[n] for n in node.params["permutation"]])

    def rule_slice(self, node: Node):
        own = strides_of(self.aval(node.inputs[0]).shape)
        steps_of = node.params["strides"] or (1,) * len(own)
        first = sum(a * s for a, s in zip(node.params["start_indices"], own, strict=True))
        self._moved(node, [a * s for a, s in zip(steps_of, own, strict=True)], first)

    def rule_rev(self, node: Node):
        shape = self.aval(node.inputs[0]).shape
        own, axes = strides_of(shape), node.params["dimensions"]
        first = sum((shape[n] - 1) * own[n] for n in axes)
        self._moved(node, [-s if n in axes else s for n, s in enumerate(own)], first)

    def rule_split(self, node: Node):
        [value], axis = node.inputs, node.params["axis"]
        read, strides, first = self.read(value), strides_of(self.aval(value).shape), 0
        for out in node.outputs:
            shape = self.aval(out).shape
            if isinstance(read, Number) or not math.prod(shape):
                self.numbers[out] = read if math.prod(shape) else None
            else:
                self.copy(read, self.result(out), shape, strides, first_in=first)
            first += shape[axis] * strides[axis]

    def rule_concatenate(self, node: Node):
        self._joined(node, node.params["dimension"], [self.aval(v).shape for v in node.inputs])

    def rule_stack(self, node: Node):
        axis = node.params["axis"]
        shapes = [self.aval(v).shape for v in node.inputs]
        self._joined(node, axis, [(*shape[:axis], 1, *shape[axis:]) for shape in shapes])

    def _joined(self, node: Node, axis: int, shapes):
        [out] = node.outputs
        write, strides, first = self.result(out), strides_of(self.aval(out).shape), 0
        for value, shape in zip(node.inputs, shapes, strict=True):
            read = self.read(value)
            if read is not None:
                self.copy(read, write, shape, strides_of(shape), strides, first=first)
            first += shape[axis] * strides[axis]

    def rule_pad(self, node: Node):
        value, padding = node.inputs
        [out], fill, read = node.outputs, self.read(padding), self.read(value)
        shape, own = self.aval(value).shape, strides_of(self.aval(value).shape)
        size, strides = self.aval(out).shape, strides_of(self.aval(out).shape)
        write = self.result(out)
        self.copy(fill, write, (math.prod(size),), (0,))
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
            self.copy(read, write, sizes, own, apart, first_in, first_out)

    # functions, sums and matmuls

    def _elementwise(self, node: Node, name: str):
        out = self.aval(node.outputs[0])
        reads = [self._broadcast(v, out.shape) for v in node.inputs]
        dtypes = [dtype_of(self.aval(v)) for v in node.inputs]
        if name == "pow" and dtypes[1] != dtypes[0]:
            if not isinstance(reads[1], Number):
                exponents = self.new(self.arrays[reads[1]].size, dtypes[0])
                self.steps.append(Elementwise("convert", (reads[1],), exponents))
                reads[1] = exponents
            dtypes[1] = dtypes[0]
        if name in program.REAL and "int32" in dtypes:
            raise NoStepError(f"{node.name} of integers")
        if name == "select" and (len(reads) != 3 or dtypes[0] != "bool"):
            raise NoStepError("a choice of more than two")
        if name in ("max", "min", "add", "mul") and "bool" in dtypes:
            raise NoStepError(f"{node.name} of bool")
        if all(isinstance(read, Number) for read in reads):  # an array carries the dtype
            reads[0] = self.copy(reads[0], self.new(1, dtypes[0]), (1,), (0,), (1,))
        power = node.params["y"] if name == "integer_pow" else 0
        self.steps.append(Elementwise(name, tuple(reads), self.result(node.outputs[0]), power))

    def _broadcast(self, value: int, shape) -> int | Number:
        """Return an operand of an element-wise function, as large as its result or one element."""
        read, own = self.read(value), self.aval(value).shape
        if isinstance(read, Number) or math.prod(own) == 1 or own == tuple(shape):
            return read
        strides = [0 if n == 1 else s for n, s in zip(own, strides_of(own), strict=True)]
        return self.copy(read, self.new(math.prod(shape), self.arrays[read].dtype), shape, strides)

    def rule_clamp(self, node: Node):
        out = self.aval(node.outputs[0])
        if dtype_of(out) == "bool":
            raise NoStepError("clamp of bool")
        middle = self.new(out.size, dtype_of(out))
        low, x, high = (self._broadcast(v, out.shape) for v in node.inputs)
        self.steps.append(Elementwise("max", (low, x), middle))
        self.steps.append(Elementwise("min", (middle, high), self.result(node.outputs[0])))

    def rule_one_minus_square(self, node: Node):
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

    def rule_dot_general(self, node: Node):
        """Add the products and sums of a small matmul of floats of one kind, of any axes."""
        contracted, batch = node.params["dimension_numbers"]
        [out] = node.outputs
        dtype = dtype_of(self.aval(out))
        if any(dtype_of(self.aval(v)) != dtype for v in node.inputs) or "float" not in dtype:
            raise NoStepError("a matmul of other dtypes than one kind of floats")
        shapes = [self.aval(v).shape for v in node.inputs]
        free = free_axes(node.params, shapes)
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
            strides = [0 if n is None else strides_of(shape)[n] for n in own]
            operands.append(self.new(count, dtype))
            self.copy(self.array(value), operands[-1], sizes + over, strides)
        products = self.new(count, dtype)
        self.steps.append(Elementwise("mul", tuple(operands), products))
        strides, kept = strides_of(sizes + over), len(sizes)
        sides = tuple(sizes), strides[:kept], tuple(over), strides[kept:]
        self.steps.append(Reduce("add", (products,), self.result(out), *sides))

    # rows by an index

    def rule_gather(self, node: Node):
        source, index = node.inputs
        shape = self.aval(source).shape
        if not moves_rows(self.trace, node) or dtype_of(self.aval(index)) != "int32":
            raise NoStepError("gather of something else than rows")
        fill = None
        if node.params["mode"] == GatherScatterMode.FILL_OR_DROP:
            fill = node.params["fill_value"]
            if fill is None and dtype_of(self.aval(source)) not in ("float32", "float64"):
                raise NoStepError("gather that fills integers")
            fill = Number(math.nan if fill is None else np.asarray(fill).item())
        reads, write = (self.array(source), self.array(index)), self.result(node.outputs[0])
        self.steps.append(program.Gather(reads, write, math.prod(shape[1:]), fill))

    def rule_scatter_add(self, node: Node):
        start, index, updates = node.inputs
        shape, whole = self.aval(start).shape, moves_rows(self.trace, node)
        whole = whole and dtype_of(self.aval(index)) == "int32"
        if not whole or dtype_of(self.aval(start)) == "bool":
            raise NoStepError("scatter of something else than rows")
        clipped = node.params["mode"] == GatherScatterMode.CLIP
        reads = tuple(self.array(v) for v in (start, index, updates))
        write = self.result(node.outputs[0])
        self.steps.append(program.ScatterAdd(reads, write, math.prod(shape[1:]), clipped))

    # kernels

    def _form_step(self, node: Node):
        form, rows = node.params["form"], node.params["num_rows"]
        n, dtype = len(form.inputs), dtype_of(self.aval(node.inputs[0]))
        if node.params["backend"] != "llvm":
            raise NoStepError(f"on backend {node.params['backend']}")
        if dtype != self.dtype:
            raise NoStepError(f"of {dtype}, where others are of {self.dtype}")
        if not rows or not form.paths:
            raise NoStepError("nothing to compute")
        given = self._graph if node.name == FORM else self._sets
        indices, nodes = given(node, form, rows, node.inputs[n:])
        operands = tuple(self.array(v) for v in node.inputs[:n])
        writes = tuple(self.result(v) for v in node.outputs)
        self.steps.append(FormStep(form, operands, writes, tuple(indices), rows, nodes))

    def _graph(self, node: Node, form, rows: int, values):
        """Return the index arrays of a form, and how many nodes there are."""
        if any(o.index is Index.SHARED for o in form.outputs):
            raise NoStepError("one row summed over all")
        indices, nodes = [], node.params["num_nodes"]
        for name, value in zip(INDEX_ARRAYS, values, strict=False):
            limit = rows if name.endswith(("_order", "_ptr")) else nodes
            array = self._index_array(name, value, self.aval(value).size, limit)
            indices.append((name, array))
        return indices, nodes

    def _sets(self, node: Node, form, rows: int, values):
        """Return the index arrays of a linear form, and how many sets of weights there are."""
        if is_wide(form):
            raise NoStepError("matrices so large that they are XLA's")
        if not form.num_sets:
            return [], 1
        [value], sizes = values, [("index", rows, form.num_sets)]
        if any(o.matrix for o in form.outputs):
            sizes += [("order", rows, rows), ("offsets", form.num_sets + 1, rows)]
        indices = [(name, self._index_array(name, value, *size)) for name, *size in sizes]
        return indices, form.num_sets
