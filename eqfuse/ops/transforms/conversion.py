"""Equations of a traced function as steps of a program, a rule for each primitive of JAX."""

from __future__ import annotations

import math

import jax
import numpy as np
from jax.lax import GatherScatterMode

from eqfuse.ops.backends.llvm.functions import HIGHEST
from eqfuse.ops.backends.llvm.linear import is_wide
from eqfuse.ops.ir import program
from eqfuse.ops.ir.form import INDEX_ARRAYS, Index
from eqfuse.ops.ir.functions import FUNCTIONS, OF_JAX
from eqfuse.ops.ir.program import (
    Array,
    Copy,
    Elementwise,
    FormStep,
    Number,
    Program,
    Reduce,
    merged_axes,
    strides_of,
)
from eqfuse.ops.transforms.trace import (
    LARGEST_CONSTANT,
    VIEWS,
    Node,
    Trace,
    matmul_views,
    moves_rows,
)

SAME = frozenset(("reshape", "squeeze", "expand_dims", "reshard", "optimization_barrier"))
"""What changes no element; on one device a reshard does not."""

FORM, LINEAR_FORM, ACTIVATION = "eqfuse_form", "eqfuse_linear_form", "eqfuse_activation"
REDUCTIONS = {"reduce_sum": "add", "reduce_max": "max", "reduce_min": "min"}
REDUCTIONS |= {"reduce_or": "or", "reduce_and": "and"}
SAME_NUMBERS = SAME | {"broadcast_in_dim", "copy", "copy_p", "stop_gradient"}

MOST_PRODUCTS = 1 << 15
"""Products of one matmul: they fit in the cache of a core. A larger one is faster as XLA's."""


NOTHING = np.zeros(1, np.int8)


class NoStepError(Exception):
    """An equation that is no step, and why."""


def whole(shape) -> np.ndarray:
    """Return an array of a shape, of whose elements nobody may read any.

    NumPy's views of it say which elements an operation reads or writes: their strides, in elements,
    and by `first` the place of their first one.
    """
    return np.lib.stride_tricks.as_strided(NOTHING, shape, strides_of(shape))


def first(view: np.ndarray) -> int:
    return view.ctypes.data - NOTHING.ctypes.data


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
    node = trace.producer.get(value)
    if node is None or node.name not in SAME_NUMBERS | {"convert_element_type"}:
        return None
    number = _number(trace, node.inputs[node.outputs.index(value)])
    if number is None or node.name in SAME_NUMBERS:
        return number
    if isinstance(number, float) and trace.avals[value].dtype.kind == "i":  # JAX saturates
        return None
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
        self.views: dict[int, tuple[int, int]] = {}  # see `Program`
        self.numbers: dict[int, int | Number | None] = {}  # of values; None: it has no elements

    def convert(self, node: Node):
        """Add the steps of a node, or raise NoStepError."""
        name = OF_JAX.get(node.name, node.name)
        if all(self.aval(v).size == 0 for v in node.outputs):
            self.numbers |= dict.fromkeys(node.outputs)
        elif node.name in (FORM, LINEAR_FORM):
            self._form_step(node)
        elif node.name == ACTIVATION:
            self._activation(node)
        elif name == "convert" and (number := self._converted(*node.outputs)) is not None:
            self.numbers[node.outputs[0]] = Number(number)
        elif name in FUNCTIONS:
            self._elementwise(node, name)
        elif name in SAME:
            if node.params.get("dimensions") is not None and name == "reshape":
                raise NoStepError("reshape of a permutation")
            for value, out in zip(node.inputs, node.outputs, strict=True):
                self.numbers[out] = self.read(value)
        elif name in VIEWS:
            self._move(node)
        elif node.name in REDUCTIONS:
            self._reduce(node)
        elif rule := getattr(self, f"rule_{name.replace('-', '_')}", None):
            rule(node)
        else:
            raise NoStepError(f"{node.name} has no step")

    def program(self, outputs) -> Program:
        """Return the program that writes some arrays."""
        parts = self.arrays, self.inputs.values(), outputs, self.steps, self.indices
        return Program(*map(tuple, parts), tuple((n, *part) for n, part in self.views.items()))

    @property
    def index_arrays(self) -> list[tuple]:
        """Return the keys of the inputs that are index arrays."""
        return [key for key in self.inputs if isinstance(key, tuple)]

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

    def _converted(self, value: int):
        dtype_of(self.aval(value))  # or no step
        return _number(self.trace, value)

    def array(self, value: int) -> int:
        """Return the array of a value, filled if it is a number."""
        result = self.read(value)
        if isinstance(result, Number):
            aval = self.aval(value)
            return self.copy(result, self.new(aval.size, dtype_of(aval)), whole((aval.size,)))
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

    def copy(self, read: int | Number, write: int, source, target=None) -> int:
        """Add a copy from one view of `whole` to another, which is in order if none is given."""
        target = whole(source.shape) if target is None else target
        places = (0,) * target.ndim, target.strides, 0, first(target)
        if not isinstance(read, Number):
            places = source.strides, target.strides, first(source), first(target)
        self.steps.append(Copy((read,), write, target.shape, *places))
        return write

    # shapes

    def _move(self, node: Node):
        """Add copies of what the outputs take of the first input; one number everywhere stays."""
        if len(node.inputs) > 1:
            raise NoStepError("a shape that is not known")
        [value] = node.inputs
        read, views = self.read(value), VIEWS[node.name](self._whole(value), **node.params)
        for out, view in zip(node.outputs, views, strict=True):
            if isinstance(read, Number) or not view.size:
                self.numbers[out] = read if view.size else None
            elif (part := self._part(read, view)) is not None:
                self.views[self.result(out)] = part
            else:
                self.copy(read, self.result(out), view)

    def _part(self, read: int, view: np.ndarray) -> tuple[int, int] | None:
        """Return an input, and where a view of an array begins in it, if it is a part of it."""
        base, start = self.views.get(read, (read, 0))
        in_order = merged_axes(view.shape, view.strides) in ([], [(view.size, 1)])
        return (base, start + first(view)) if in_order and base in self.inputs.values() else None

    def _whole(self, value: int) -> np.ndarray:
        return whole(self.aval(value).shape)

    def rule_concatenate(self, node: Node):
        axis = node.params["dimension"]
        self._join(node, axis, [self.aval(v).shape[axis] for v in node.inputs])

    def rule_stack(self, node: Node):
        self._join(node, node.params["axis"], [1] * len(node.inputs))

    def _join(self, node: Node, axis: int, sizes):
        [out] = node.outputs
        write, places = self.result(out), np.split(self._whole(out), np.cumsum(sizes)[:-1], axis)
        for value, place in zip(node.inputs, places, strict=True):
            if (read := self.read(value)) is not None:
                self.copy(read, write, whole(place.shape), place)

    def rule_pad(self, node: Node):
        value, padding = node.inputs
        [out], fill, read = node.outputs, self.read(padding), self.read(value)
        write, source, target = self.result(out), self._whole(value), self._whole(out)
        self.copy(fill, write, np.broadcast_to(whole(()), target.size))
        for axis, (low, _, inner) in enumerate(node.params["padding_config"]):
            step = 1 + inner
            cut = max(0, -(low // step))  # elements before the first that stays
            stop = max(cut, min(source.shape[axis], -((low - target.shape[axis]) // step)))
            before = (slice(None),) * axis
            source = source[*before, cut:stop]
            target = target[*before, low + cut * step : low + stop * step : step]
        if read is not None and source.size:
            self.copy(read, write, source, target)

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
        if FUNCTIONS[name].is_real and "int32" in dtypes:
            raise NoStepError(f"{node.name} of integers")
        if name == "select" and (len(reads) != 3 or dtypes[0] != "bool"):
            raise NoStepError("a choice of more than two")
        if name in ("max", "min", "add", "mul") and "bool" in dtypes:
            raise NoStepError(f"{node.name} of bool")
        if all(isinstance(read, Number) for read in reads):  # an array carries the dtype
            reads[0] = self.copy(reads[0], self.new(1, dtypes[0]), whole((1,)))
        power = node.params["y"] if name == "integer_pow" else 0
        self.steps.append(Elementwise(name, tuple(reads), self.result(node.outputs[0]), power))

    def _broadcast(self, value: int, shape) -> int | Number:
        """Return an operand of an element-wise function, as large as its result or one element."""
        read, own = self.read(value), self.aval(value).shape
        if isinstance(read, Number) or math.prod(own) == 1 or own == tuple(shape):
            return read
        view = np.broadcast_to(whole(own), shape)
        return self.copy(read, self.new(view.size, self.arrays[read].dtype), view)

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
        [out] = node.outputs
        dtype = dtype_of(self.aval(out))
        if any(dtype_of(self.aval(v)) != dtype for v in node.inputs) or "float" not in dtype:
            raise NoStepError("a matmul of other dtypes than one kind of floats")
        views, kept = matmul_views(node.params, [*map(self._whole, node.inputs)])
        sizes, count = views[0].shape, views[0].size
        if count > MOST_PRODUCTS:
            raise NoStepError("matmuls so large that they are XLA's")
        operands = [
            self.copy(self.array(value), self.new(count, dtype), view)
            for value, view in zip(node.inputs, views, strict=True)
        ]
        products = self.new(count, dtype)
        self.steps.append(Elementwise("mul", tuple(operands), products))
        strides = strides_of(sizes)
        sides = sizes[:kept], strides[:kept], sizes[kept:], strides[kept:]
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
        if node.params["backend"] not in ("llvm", "xla"):
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

    def _activation(self, node: Node):
        form = node.params["form"]
        if max(form.orders) > HIGHEST:
            raise NoStepError("a derivative of an activation that no kernel has")
        operands = tuple(self.array(v) for v in node.inputs)
        self.steps.append(FormStep(form, operands, tuple(self.result(v) for v in node.outputs)))

    def _graph(self, node: Node, form, rows: int, values):
        """Return the index arrays of a form, and how many nodes there are."""
        if any(o.index is Index.SHARED for o in form.outputs):
            raise NoStepError("one row summed over all")
        indices, nodes = [], node.params["num_nodes"]
        if isinstance(nodes, tuple):
            raise NoStepError("nodes that only send")
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
