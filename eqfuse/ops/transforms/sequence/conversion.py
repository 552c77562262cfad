"""Equations of a traced function as steps of a program, a rule for each primitive of JAX."""

from __future__ import annotations

import math

import numpy as np
from jax.lax import GatherScatterMode

from eqfuse.ops.backends.llvm.emit.linear_layouts import is_wide
from eqfuse.ops.ir import steps
from eqfuse.ops.ir.linear_form import Weights
from eqfuse.ops.ir.operands import INDEX_ARRAYS, Index
from eqfuse.ops.ir.steps import Copy, Elementwise, Multilinear, Number, Reduce
from eqfuse.ops.transforms.fuse.trace import Node
from eqfuse.ops.transforms.sequence.matmul import dot_general
from eqfuse.ops.transforms.sequence.shapes import ShapeRules
from eqfuse.ops.transforms.sequence.values import VIEWS, NoStepError, dtype_of, strides_of

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
        elif name in steps.FUNCTIONS:
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
        if name in steps.REAL and "int32" in dtypes:
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
        self.steps.append(steps.Gather(reads, self.result(node.outputs[0]), width, fill))

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
        self.steps.append(steps.ScatterAdd(reads, write, math.prod(shape[1:]), clipped))

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
        form, rows = node.params["linear_form"], node.params["num_rows"]
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
