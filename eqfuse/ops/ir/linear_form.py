"""Linear forms as data: a Linear, every derivative of one, and sums of several.

A `LinearForm` is a sum of terms, each the trilinear form of a matrix and two blocks of rows,

    sum over r, u, v, k:  scale * x[r, u, k] * w[u, v] * z[r, v, k]

of whose three factors two are inputs and one is the output: z for a Linear, x for what takes
cotangents through it, w for the gradient of its weights. A bias has no x, which stands for one.
The derivative of a linear form is a linear form (`jvp`), and so is its transpose, as for a `Form`,
of which this is the dense counterpart. Pure Python, hashable.
"""

from __future__ import annotations

import dataclasses
import functools


@dataclasses.dataclass(frozen=True)
class Block:
    """`mul` channels of `dim` components at `offset` of a row, mul_ir."""

    offset: int
    mul: int
    dim: int

    def holds(self, segment) -> bool:
        """Return whether a segment of a form's operand lies in this block."""
        inside = 0 <= segment.offset - self.offset < self.mul * self.dim
        return inside and segment.dim == self.dim


@dataclasses.dataclass(frozen=True)
class Rows:
    """An array [rows, size], blocks of whose rows are mixed."""

    size: int
    blocks: tuple[Block, ...]


@dataclasses.dataclass(frozen=True)
class Weights:
    """An array [mul_in, mul_out], or [mul_out] for a bias; [sets, ...] where rows choose a set."""

    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class BlockRef:
    """A block of an operand: inputs are numbered first, then outputs."""

    operand: int
    block: int


@dataclasses.dataclass(frozen=True)
class Term:
    """One trilinear form; `x` is None for a bias. See the module's docstring."""

    x: BlockRef | None
    w: int
    z: BlockRef
    scale: float

    def operands(self) -> tuple[int, ...]:
        """Return the numbers of its operands."""
        numbers = (self.w, self.z.operand)
        return numbers if self.x is None else (self.x.operand, *numbers)

    def replaced(self, place) -> Term:
        """Return the term with each operand's number n replaced by place(n)."""
        x = self.x and BlockRef(place(self.x.operand), self.x.block)
        return Term(x, place(self.w), BlockRef(place(self.z.operand), self.z.block), self.scale)


@dataclasses.dataclass(frozen=True)
class LinearForm:
    """A sum of terms from inputs to outputs. See the module's docstring.

    Attributes:
      inputs, outputs: Rows or Weights.
      terms: each reads two inputs (a bias one) and adds to one output.
      num_sets: how many sets of weights rows choose from; 0 for one set for all rows.
      input_precision: of the matmuls on a GPU: "ieee", "tf32x3" or "tf32".
    """

    inputs: tuple[Rows | Weights, ...]
    outputs: tuple[Rows | Weights, ...]
    terms: tuple[Term, ...]
    num_sets: int = 0
    input_precision: str = "ieee"

    @functools.cached_property
    def _hash(self):
        return hash((self.inputs, self.outputs, self.terms, self.num_sets, self.input_precision))

    def __hash__(self):
        return self._hash

    @property
    def operands(self) -> tuple[Rows | Weights, ...]:
        return self.inputs + self.outputs

    @property
    def needs_integers(self) -> bool:
        """Return whether rows choose a set of weights, by their index."""
        return self.num_sets > 0

    def output_of(self, term: Term) -> int:
        """Return the number, among the outputs, of the output that a term adds to."""
        [o] = [n for n in term.operands() if n >= len(self.inputs)]
        return o - len(self.inputs)

    def shape(self, operand: Rows | Weights, num_rows: int) -> tuple[int, ...]:
        """Return the shape of an operand's array."""
        if isinstance(operand, Rows):
            return num_rows, operand.size
        return (*((self.num_sets,) if self.num_sets else ()), *operand.shape)

    def reached(self) -> tuple[bool, ...]:
        """Return which outputs any term adds to."""
        result = {self.output_of(t) for t in self.terms}
        return tuple(o in result for o in range(len(self.outputs)))

    def used_inputs(self) -> tuple[bool, ...]:
        """Return which inputs any term reads."""
        result = {n for t in self.terms for n in t.operands()}
        return tuple(i in result for i in range(len(self.inputs)))

    def jvp(self, active: tuple[bool, ...]) -> LinearForm:
        """Return the derivative along tangents of the active inputs, which follow the inputs."""
        n = len(self.inputs)
        tangent = {i: n + t for t, i in enumerate(i for i in range(n) if active[i])}
        terms = []
        for term in self.terms:
            for i in term.operands():
                if i in tangent:
                    terms.append(
                        term.replaced(
                            lambda j, i=i: tangent[i] if j == i else j + len(tangent) * (j >= n)
                        )
                    )
        inputs = self.inputs + tuple(self.inputs[i] for i in tangent)
        return dataclasses.replace(self, inputs=inputs, terms=tuple(terms))

    def transpose(self, linear: tuple[bool, ...], cotangents: tuple[bool, ...]) -> LinearForm:
        """Return the form from cotangents of the outputs to those of the linear inputs.

        Every term must read exactly one linear input. Inputs: those that are not linear, then a
        cotangent for each output marked in `cotangents`. Outputs: one for each linear input.
        """
        n = len(self.inputs)
        known = [i for i in range(n) if not linear[i]]
        known += [n + o for o in range(len(self.outputs)) if cotangents[o]]
        order = known + [i for i in range(n) if linear[i]]
        return self._with(order, len(known))

    def restrict(self, wanted: tuple[bool, ...]) -> LinearForm:
        """Return the same linear form with only the wanted outputs, and every input."""
        n = len(self.inputs)
        return self._with([*range(n), *(n + o for o, keep in enumerate(wanted) if keep)], n)

    def drop_inputs(self, keep: tuple[bool, ...]) -> LinearForm:
        """Return the same with only the inputs that `keep` marks; no term may read another."""
        n = len(self.inputs)
        kept = [i for i in range(n) if keep[i]]
        return self._with([*kept, *range(n, len(self.operands))], len(kept))

    def turned(self) -> tuple[LinearForm, tuple[int, ...]]:
        """Return the same linear form with no transposed matrix.

        The second result is the numbers of the weights whose transposes it reads, behind all
        inputs. There must be one set of weights.
        """
        n, result = len(self.inputs), {}
        for term in self.terms:
            if term.x is not None and term.x.operand >= n:
                result.setdefault(term.w, n + len(result))

        def place(j: int) -> int:
            return j + len(result) * (j >= n)

        terms = []
        for term in self.terms:
            new = term.replaced(place)
            if term.x is not None and term.x.operand >= n:
                new = Term(new.z, result[term.w], new.x, new.scale)
            terms.append(new)
        more = tuple(Weights(self.inputs[w].shape[::-1]) for w in result)
        inputs = self.inputs + more
        return dataclasses.replace(self, inputs=inputs, terms=tuple(terms)), tuple(result)

    def _with(self, order: list[int], num_inputs: int) -> LinearForm:
        """Return the operands of these numbers, inputs first, and the terms that have no others."""
        place = {j: new for new, j in enumerate(order)}
        terms = tuple(
            t.replaced(place.__getitem__)
            for t in self.terms
            if all(j in place for j in t.operands())
        )
        operands = tuple(self.operands[j] for j in order)
        inputs, outputs = operands[:num_inputs], operands[num_inputs:]
        return dataclasses.replace(self, inputs=inputs, outputs=outputs, terms=terms)
