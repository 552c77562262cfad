"""What the rows of a trace's values are made of, through moves and arithmetic."""

import dataclasses
import functools
import math

import jax.numpy as jnp
import numpy as np

from eqfuse.ops.ir.operands import Role
from eqfuse.ops.transforms.fuse import polynomials
from eqfuse.ops.transforms.fuse.gathers import Gathers
from eqfuse.ops.transforms.fuse.indices import summed
from eqfuse.ops.transforms.fuse.moves import MOVES, MovedRows, row_shape
from eqfuse.ops.transforms.fuse.polynomials import Polynomial
from eqfuse.ops.transforms.fuse.trace import Trace

ARITHMETIC = frozenset(["mul", "div", "neg", "add", "add_any", "sub", "dot_general", "reduce_sum"])
"""Primitives of whose operands polynomials can be multiplied out."""
FOLLOWED = MOVES | ARITHMETIC | {"convert_element_type"}


@dataclasses.dataclass(frozen=True)
class ProductFactor:
    """The output of a form over rows: the node of this number.

    Attributes:
      group: how many rows of the form, one after the other, are one row.
    """

    node: int
    group: int = 1


@dataclasses.dataclass(frozen=True)
class SumFactor:
    """The sum over the edges of each node: the scatter of this number."""

    node: int


class RowPolynomials(MovedRows):
    """The polynomials of the rows of a trace's values, of gathers, products and sums."""

    def __init__(self, trace: Trace):
        super().__init__(trace)
        self._multiplied = self._find_multiplied()

    @functools.cached_property
    def gathers(self) -> Gathers:
        """Return the gathers of rows."""
        return Gathers(self.trace)

    def _find_multiplied(self) -> set[int]:
        """Return the values that products, gathers or sums go into: their arithmetic is followed.

        Of all others only moves are: what is computed of them is an operand as it is.
        """
        values: set[int] = set()
        for number, node in enumerate(self.trace.nodes):
            follows = node.name in FOLLOWED and any(v in values for v in node.inputs)
            if follows or self.starts(number):
                values.update(node.outputs)
        return values

    def starts(self, number: int) -> bool:
        """Return whether the rows of a node are followed through arithmetic."""
        is_gathered = self.gathers.of(number) is not None
        return self.is_product(number) or is_gathered or summed(self.trace, number) is not None

    def _of_row_primitive(self, number: int, place: int, axis: int) -> Polynomial | None:
        if axis != 0:
            return None
        node = self.trace.nodes[number]
        shape = self._shape(node.outputs[place])
        if self.is_product(number) and shape[0] == node.params["num_rows"]:
            return polynomials.variable(ProductFactor(number), row_shape(shape, 0))
        if (found := self.gathers.of(number)) is not None:
            rows, elements = found
            whole = polynomials.variable(rows, (1, math.prod(self._shape(rows.rows)[1:])))
            return whole.take(elements.reshape(row_shape(shape, 0)))
        if summed(self.trace, number) is not None:
            return polynomials.variable(SumFactor(number), row_shape(shape, 0))
        return None

    def _is_followed(self, node, value: int) -> bool:
        return node.name in MOVES or (node.name in FOLLOWED and value in self._multiplied)

    def _reshape(self, node, place, axis):
        """Follow channels on axes of their own as well, whose rows a product takes one by one."""
        made, _ = self.trace.producer.get(node.inputs[0], (None, None))
        shape, before = self._shape(node.outputs[0]), self._shape(node.inputs[0])
        is_grouped = len(shape) > 2 and shape[-1] == before[-1] and shape[0] != before[0]
        if axis == 0 and is_grouped and made is not None and self.is_product(made):
            group = ProductFactor(made, math.prod(shape[1:-1]))
            return polynomials.variable(group, row_shape(shape, 0))
        return super()._reshape(node, place, axis)

    def grouped(self, value: int, group: int) -> Polynomial | None:
        """Return the rows of an operand of a product, `group` of them as one; None if unknown."""
        if group == 1:
            return self.of(value, 0)
        node, (count, size) = self.trace.node(value), self._shape(value)
        if node is None or node.name != "reshape":
            return None
        [source] = node.inputs
        shape = self._shape(source)
        if shape[:1] != (count // group,) or shape[-1] != size:
            return None
        return self.of(source, 0).reshaped((1, group * size))

    def is_product(self, number: int) -> bool:
        """Return whether a node is a product of two operands over rows."""
        node = self.trace.nodes[number]
        if node.name != "eqfuse_form":
            return False
        form = node.params["form"]
        roles = [o.role for o in form.inputs]
        return not form.on_graph and len(form.outputs) == 1 and roles == [Role.LEFT, Role.RIGHT]

    def is_gradient(self, number: int) -> bool:
        """Return whether a node is the derivative of a product over rows."""
        node = self.trace.nodes[number]
        if node.name != "eqfuse_form" or node.params["form"].on_graph:
            return False
        return any(o.role is Role.OUTPUT for o in node.params["form"].inputs)

    # arithmetic

    def _sides(self, node, axis):
        """Return the operands of an elementwise primitive."""
        shape = self._shape(node.outputs[0])
        sides = []
        for v in node.inputs:
            own = self._shape(v)  # () for a scalar; JAX broadcasts axes of one element
            is_row = len(own) == len(shape) and own[axis] == shape[axis]
            operand = self._operand(v, axis if is_row else None)
            sides.append(operand.take(np.broadcast_to(operand.labels, row_shape(shape, axis))))
        return sides

    def _mul(self, node, place, axis):
        a, b = self._sides(node, axis)
        return a * b

    def _div(self, node, place, axis):
        number = self.trace.uniform(node.inputs[1])
        if number is None or number == 0:
            return None
        return self._sides(node, axis)[0].scaled(1.0 / float(number))

    def _convert_element_type(self, node, place, axis):
        """Follow to a wider dtype: all is computed in it."""
        narrow = self.trace.avals[node.inputs[0]].dtype
        wide = node.params["new_dtype"]
        if not all(jnp.issubdtype(d, jnp.floating) for d in (narrow, wide)):
            return None
        if jnp.promote_types(narrow, wide) != wide:
            return None
        return self.of(node.inputs[0], axis)

    def _neg(self, node, place, axis):
        return self._sides(node, axis)[0].scaled(-1.0)

    def _add(self, node, place, axis):
        a, b = self._sides(node, axis)
        return a + b

    _add_any = _add

    def _sub(self, node, place, axis):
        a, b = self._sides(node, axis)
        return a + b.scaled(-1.0)

    def _reduce_sum(self, node, place, axis):
        axes = tuple(node.params["axes"])
        count = len(self._shape(node.inputs[0]))
        kept = [n for n in range(count) if n not in axes]
        if kept[axis:] == []:
            return None
        operand = self.of(node.inputs[0], kept[axis])
        if operand.shape[kept[axis]] != 1:
            return None
        moved = operand.take(operand.labels.transpose(*kept, *axes))
        row = [operand.shape[n] for n in kept]
        return moved.summed(math.prod(operand.shape[n] for n in axes), row)

    def _dot_general(self, node, place, axis):
        (contract, batch) = node.params["dimension_numbers"]
        shapes = [self._shape(v) for v in node.inputs]
        free = [
            [n for n in range(len(s)) if n not in (*c, *b)]
            for s, c, b in zip(shapes, contract, batch, strict=True)
        ]
        num_batch, num_left = len(batch[0]), len(free[0])
        if axis < num_batch:
            axes = [batch[0][axis], batch[1][axis]]
        elif axis < num_batch + num_left:
            axes = [free[0][axis - num_batch], None]
        else:
            axes = [None, free[1][axis - num_batch - num_left]]
        pairs = list(zip(node.inputs, axes, strict=True))
        if any(a is None and self.trace.constant(v) is None for v, a in pairs):
            return None
        operands = [self._operand(v, a) for v, a in pairs]
        sides = zip(operands, contract, batch, free, strict=True)
        a, b = (operand.labels.transpose(*bs, *fs, *cs) for operand, cs, bs, fs in sides)
        left = [operands[0].shape[n] for n in free[0]]
        right = [operands[1].shape[n] for n in free[1]]
        common = [operands[0].shape[n] for n in batch[0]]
        summed = [operands[0].shape[n] for n in contract[0]]
        shape = (*common, *left, *right, *summed)
        if math.prod(shape) > polynomials.MOST_TERMS:
            return None
        a = a.reshape(*common, *left, *[1] * len(right), *summed)
        b = b.reshape(*common, *[1] * len(left), *right, *summed)
        a, b = (
            operands[0].take(np.broadcast_to(a, shape)),
            operands[1].take(np.broadcast_to(b, shape)),
        )
        return (a * b).summed(math.prod(summed), (*common, *left, *right))
