"""A problem of the benchmark: one op at one size, and the derivatives of it that are timed."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable

import jax

from eqfuse.bench.cases import Case
from eqfuse.ops.ir.form import Form, Index

ORDERS = ("forward", "backward", "double")


@dataclasses.dataclass(frozen=True)
class Problem:
    """One op at one size.

    Attributes:
      function: backend -> function(floats, integers) that gives one array.
      shapes: of what it is differentiated by, a tuple of pytrees of tuples of integers.
      integers: edges or indices, numpy arrays in any pytree.
      forms: of each of `ORDERS`, where the op is a form and nothing more; empty elsewhere.
      rows: over which the forms run.
      summands: the most rows (or, without forms, products) that are summed into one.
      composed: whether an array of the op's dtype lies between kernels.
      case: the irreps, where the op is a product on a graph.
    """

    function: Callable
    shapes: tuple
    integers: object
    forms: dict[str, Form] = dataclasses.field(default_factory=dict)
    rows: int = 0
    summands: int = 1
    composed: bool = False
    case: Case | None = None

    def indices(self, integers) -> list:
        """Return the index of the rows of each operand, inputs then outputs, or None."""
        form = self.forms["forward"]
        if not form.on_graph:
            return [None, integers, None]  # a contraction: weights of each species
        nodes = {Index.SENDER: integers.senders, Index.RECEIVER: integers.receivers}
        return [nodes.get(operand.index) for operand in form.inputs + form.outputs]

    def products(self, order: str) -> list[int]:
        """Return the most products summed into one number, for each result."""
        if not self.forms:
            return [self.summands] * len(jax.tree.leaves(self.results(order)))
        form = self.forms[order]
        terms = collections.Counter(
            (path.output, components[-1]) for path in form.paths for components, _ in path.terms
        )
        most = [1] * len(form.outputs)
        for (slot, _), count in terms.items():
            output = form.outputs[slot.operand]
            channels = 1 if output.channels else form.max_mul
            rows = self.summands if self.composed or output.index is not Index.ROW else 1
            most[slot.operand] = max(most[slot.operand], count * channels * rows)
        return most

    def arguments(self, order: str, dtype: str):
        """Return jax.ShapeDtypeStructs of the arguments of a derivative, all of one dtype."""
        floats = jax.tree.map(
            lambda shape: jax.ShapeDtypeStruct(shape, dtype), self.shapes, is_leaf=_is_shape
        )
        out = jax.eval_shape(self.function("e3nn"), floats, self.integers)
        return (floats, out, floats)[: 1 + ORDERS.index(order)]

    def results(self, order: str, dtype: str = "float32"):
        """Return jax.ShapeDtypeStructs of the results of a derivative."""
        function = derivative(self.function("e3nn"), order)
        return jax.eval_shape(function, self.arguments(order, dtype), self.integers)


def _is_shape(value) -> bool:
    return isinstance(value, tuple) and all(isinstance(n, int) for n in value)


def derivative(function, order: str):
    """Return an order of derivative, as a function(arguments, integers) that gives a tuple.

    Arguments and results: forward (floats) and (out); backward (floats, cotangent) and (gradients);
    double (floats, cotangent, cotangents of the gradients) and (gradients of floats, of cotangent).
    """

    def backward(floats, cotangent, integers):
        return jax.vjp(lambda f: function(f, integers), floats)[1](cotangent)[0]

    def double(floats, cotangent, cotangents, integers):
        return jax.vjp(lambda f, c: backward(f, c, integers), floats, cotangent)[1](cotangents)

    return {
        "forward": lambda arguments, integers: (function(*arguments, integers),),
        "backward": lambda arguments, integers: (backward(*arguments, integers),),
        "double": lambda arguments, integers: double(*arguments, integers),
    }[order]
