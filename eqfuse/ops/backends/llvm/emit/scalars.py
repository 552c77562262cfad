"""What of a path depends on no channel: numbers of a row, computed once for each row.

A term c * y_j * x_i * w of a path, with y shared by the channels, is a number of the row (c * y_j)
times values of the channel. `split` takes them apart. `Scalars` collects the numbers of a row: sums
over j of c * y_j, one for each (i, k).
"""

import functools

from eqfuse.ops.backends.llvm.emit.ir import Function
from eqfuse.ops.ir.operands import Path

Component = tuple[int, int, int]
"""Operand, segment and component of an input."""

Number = tuple[tuple[tuple[Component, ...], float], ...]
"""A sum of coefficients times components of shared operands; literal where there are none."""


class Scalars:
    """The numbers of a row, as rows of a table with one lane for each row of a block."""

    def __init__(self):
        self.components: dict[Component, int] = {}
        self.sums: dict[Number, int] = {}

    def row(self, number: Number) -> int:
        """Return the row of the table for a number, which is not a literal."""
        for names, _ in number:
            for name in names:
                self.components.setdefault(name, len(self.components) + len(self.sums))
        if len(number) == 1 and number[0][1] == 1.0 and len(number[0][0]) == 1:
            return self.components[number[0][0][0]]
        return self.sums.setdefault(number, len(self.components) + len(self.sums))

    @property
    def rows(self) -> int:
        return len(self.components) + len(self.sums)

    def write(self, f: Function, table: str, lanes: int):
        """Fill in the sums from the components, for all lanes of the table at once."""
        stride, known = lanes * f.bytes, {}

        def component(name):
            if name not in known:
                known[name] = f.load(f.at(table, self.components[name] * stride), lanes)
            return known[name]

        def product(names):
            if names not in known:
                known[names] = f.mul(product(names[:-1]), component(names[-1]), lanes)
            return known[names]

        for name in self.components:
            known[(name,)] = component(name)
        for number, row in self.sums.items():
            total = None
            for names, coefficient in number:
                c = f.constant(coefficient, lanes)
                p = product(names) if names else f.constant(1.0, lanes)
                total = f.mul(c, p, lanes) if total is None else f.fma(c, p, total, lanes)
            f.store(total, f.at(table, row * stride), lanes)


@functools.lru_cache(maxsize=4096)
def split(form, path: Path):
    """Return a path of a form as (vectors, factors, entries).

    vectors: slots per channel of several components; factors: of one component. entries:
    ((components of the vectors, (component of the output,)), number), sorted.
    """
    operands = [form.inputs[ref.operand] for ref in path.factors]
    dims = [o.segments[s.segment].dim for o, s in zip(operands, path.factors, strict=True)]
    vector = [n for n, o in enumerate(operands) if o.channels and dims[n] > 1]
    factor = [n for n, o in enumerate(operands) if o.channels and dims[n] == 1]
    shared = [n for n, o in enumerate(operands) if not o.channels]
    numbers: dict = {}
    for components, value in path.terms:
        key = (tuple(components[n] for n in vector), components[-1:])
        names = tuple(
            (path.factors[n].operand, path.factors[n].segment, components[n]) for n in shared
        )
        numbers.setdefault(key, []).append((names, value))
    entries = tuple(sorted((key, tuple(sorted(number))) for key, number in numbers.items()))
    return (
        tuple(path.factors[n] for n in vector),
        tuple(path.factors[n] for n in factor),
        entries,
    )
