"""A sequence: products and linear forms of the same rows, one after the other, as one computation.

Between a product of edge features and its Linear lies an array with all paths of the product, the
largest of a model; between the derivatives of both lie its tangents and cotangents. A kernel that
runs the whole sequence for some rows at a time keeps them in the cache. `primitives.tracing` finds
the sequence in what JAX makes of a definition and its derivatives: no derivative is written by
hand.
"""

from __future__ import annotations

import dataclasses
import functools

from eqfuse.ops.ir.form import Form, Index
from eqfuse.ops.ir.linear_form import LinearForm, Rows


@dataclasses.dataclass(frozen=True)
class Step:
    """One form or linear form; `reads` and `writes` are the numbers of its arrays."""

    what: Form | LinearForm
    reads: tuple[int, ...]
    writes: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class StepSequence:
    """Steps from the arrays 0 to `num_inputs` - 1 to the arrays `outputs`.

    Each step writes arrays that nothing else writes. Those that are no outputs are `local`: rows
    that later steps read, and nobody else.
    """

    steps: tuple[Step, ...]
    num_inputs: int
    outputs: tuple[int, ...]

    @functools.cached_property
    def _hash(self):
        return hash((self.steps, self.num_inputs, self.outputs))

    def __hash__(self):
        return self._hash

    @functools.cached_property
    def operands(self) -> dict[int, object]:
        """Return what each array is: an `Operand` of a form, or the `Rows` or `Weights` of a linear
        form.

        A linear form's description is taken where both kinds of step have one.
        """
        found = {}
        for step in self.steps:
            for n, operand in zip((*step.reads, *step.writes), described(step.what), strict=True):
                if n not in found or isinstance(operand, Rows):
                    found[n] = operand
        return found

    @functools.cached_property
    def local(self) -> tuple[int, ...]:
        """Return the arrays that are neither inputs nor outputs."""
        written = [n for step in self.steps for n in step.writes]
        return tuple(n for n in written if n not in self.outputs)

    @property
    def on_graph(self) -> bool:
        """Return whether some step reads or writes nodes."""
        return any(isinstance(s.what, Form) and s.what.on_graph for s in self.steps)

    @property
    def is_runnable(self) -> bool:
        """Return whether it is worth a kernel of its own, and blocks of rows can run through it."""
        if not self.local or any(n < self.num_inputs for n in self.outputs):
            return False
        forms = [s.what for s in self.steps if isinstance(s.what, Form)]
        others = (Index.SENDER, Index.SHARED)
        if any(o.index in others for form in forms for o in described(form)):
            return False
        if any(isinstance(s.what, LinearForm) and s.what.num_sets for s in self.steps):
            return False
        later = {n for step in self.steps for n in step.reads if n >= self.num_inputs}
        return all(is_row(self.operands[n]) for n in (*later, *self.local))


def described(what: Form | LinearForm) -> tuple:
    """Return the operands of a step, inputs first."""
    return (*what.inputs, *what.outputs)


def is_row(operand) -> bool:
    """Return whether an array has one row for each row of the sequence."""
    return isinstance(operand, Rows) or getattr(operand, "index", None) is Index.ROW
