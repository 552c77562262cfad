"""The arithmetic of paths for each channel: out_k += w * sum_i s_ik x_i, with s_ik of `scalars`.

Inner sums are named once for all paths that need them.
"""

from eqfuse.ops.backends.llvm.emit.ir import Function
from eqfuse.ops.backends.llvm.emit.scalars import Component, Number, Scalars, split
from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.operands import Path, SegmentRef


class Contraction:
    """Writes paths for one vector of channels of one row.

    Args:
      f: the function to write into.
      lanes: channels of the vector.
      load: (operand, segment, component) of an input per channel to its value.
      scalar: row of the table of numbers to its value in every lane.
    """

    def __init__(self, form: Form, f: Function, lanes: int, scalars: Scalars, load, scalar):
        self.form, self.f, self.lanes, self.scalars = form, f, lanes, scalars
        self._load, self._scalar = load, scalar
        self._memo: dict = {}
        self.operations = 0

    def add(self, paths: list[Path], accumulate):
        """Add paths of one output by calls of `accumulate(component, factor, value)`.

        Several of them have the same numbers, and what these are multiplied with is added first.
        The factor may be None.
        """
        vectors, factors, entries = split(self.form, paths[0])
        if len(paths) > 1:
            for (components, (component,)), number in entries:
                value = self.sum_of_products(tuple(self.names(p, components) for p in paths))
                self.operations += 1
                accumulate(component, self.number(number), value)
            return
        if all(index == (0,) for (_, index), _ in entries):
            # no index, so that the sums of all such paths can be shared
            entries = tuple(((c, ()), number) for (c, _), number in entries)
        sums = self._contract(vectors, entries)
        factor = self.product(self.names(paths[0], (), ())) if factors else None
        for index, value in sums.items():
            self.operations += 1
            accumulate(index[0] if index else 0, factor, value)

    def names(self, path: Path, components, order=(0,)) -> tuple[Component, ...]:
        """Return the factors of a path, then these components of its vectors, in some order."""
        vectors, factors, _ = split(self.form, path)
        chosen = ((vectors[v], components[v]) for v in order[: len(vectors)])
        pairs = (*((ref, 0) for ref in factors), *chosen)
        return tuple((ref.operand, ref.segment, component) for ref, component in pairs)

    def add_times(self, total: str, terms: tuple[tuple[Component, ...], ...], last: Component):
        """Return total + last * the sum of products of inputs."""
        self.operations += 1
        value = self._input(last)
        if terms == ((),):
            return self.f.add(total, value, self.lanes)
        return self.f.fma(self.sum_of_products(terms), value, total, self.lanes)

    def sum_of_products(self, terms: tuple[tuple[Component, ...], ...]) -> str:
        """Return a sum of products of inputs."""
        *before, (*first, last) = terms
        if not before:
            return self.product(terms[0])

        def add():
            return self.add_times(self.sum_of_products(terms[:-1]), (tuple(first),), last)

        return self._known(terms, add)

    def product(self, names: tuple[Component, ...]) -> str:
        """Return a product of inputs."""
        if len(names) == 1:
            return self._input(names[0])
        return self._known(names, lambda: self._multiply(self.product(names[:-1]), names[-1]))

    def _multiply(self, a: str, name: Component) -> str:
        self.operations += 1
        return self.f.mul(a, self._input(name), self.lanes)

    def _input(self, name: Component) -> str:
        return self._known(name, lambda: self._load(*name))

    def _known(self, key, make):
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]

    def number(self, number: Number) -> str:
        """Return a number of the row in every lane."""
        if not any(names for names, _ in number):
            return self.f.constant(sum(c for _, c in number), self.lanes)
        return self._known(number, lambda: self._scalar(self.scalars.row(number)))

    def _contract(self, vectors: tuple[SegmentRef, ...], entries) -> dict:
        """Return sums over the components of `vectors`, for each index of the entries."""
        key = (vectors, entries)
        if key not in self._memo:
            self._memo[key] = self._sums(vectors, entries)
        return self._memo[key]

    def _sums(self, vectors, entries):
        if not vectors:
            return {index: self.number(number) for (_, index), number in entries}
        parts: dict = {}
        if len(vectors) == 1:
            [ref] = vectors
            for ((i,), index), number in entries:
                value = self._input((ref.operand, ref.segment, i))
                parts.setdefault(index, []).append((value, self.number(number)))
        else:
            ref, inner = self._pull_out(vectors, entries)
            for (i, *index), value in self._contract(*inner).items():
                name = (ref.operand, ref.segment, i)
                parts.setdefault(tuple(index), []).append((self._input(name), value))
        sums = {}
        for index, products in parts.items():
            total = None
            for a, b in products:
                f, lanes = self.f, self.lanes
                total = f.mul(a, b, lanes) if total is None else f.fma(a, b, total, lanes)
                self.operations += 1
            sums[index] = total
        return sums

    def _pull_out(self, vectors, entries):
        """Return the factor to multiply last: one whose inner sums are known, or are the fewest."""
        choices = []
        for n, ref in enumerate(vectors):
            rest = vectors[:n] + vectors[n + 1 :]
            inner = tuple(
                sorted(
                    ((c[:n] + c[n + 1 :], (c[n], *index)), number) for (c, index), number in entries
                )
            )
            sums = len({index for (_, index), _ in inner})
            choices.append((((rest, inner) not in self._memo, sums), n, ref, (rest, inner)))
        _, _, ref, inner = min(choices, key=lambda choice: choice[:2])
        return ref, inner
