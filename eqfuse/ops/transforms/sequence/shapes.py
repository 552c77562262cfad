"""Changes of shape as steps that copy, a rule for each primitive of JAX."""

from __future__ import annotations

import math

from eqfuse.ops.ir.steps import Copy, Number
from eqfuse.ops.transforms.fuse.trace import Node
from eqfuse.ops.transforms.sequence.values import NoStepError, Values, strides_of


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
