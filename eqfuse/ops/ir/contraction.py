"""How a kernel computes the paths of a form: factors pulled out of sums, and values that are kept.

A path adds sum_ij c_ijk x_i y_j w to each component k of its output. Here w, of one component, is a
factor of the whole sum, as is the size of the first coefficient; x and y are vectors:

    out_k += (scale w) * sum_i x_i t_ik,      t_ik = sum_j (c_ijk / scale) y_j

What comes out of a sum is a vector whose inner sums are known from another path, or are the fewest.
A backend says how many vectors are left together, as products that paths with other outputs share
(sum_ij c_ijk (x_i y_j) for two), and writes each value in its own language, once.
"""

import functools

from eqfuse.ops.ir.form import Form, Path, SegmentRef

Component = tuple[int, int, int]
"""Operand, segment and component of an input or output."""

Number = float | tuple[tuple[tuple[Component, ...], float], ...]
"""A literal, or a sum of coefficients times components of operands, which differs by row."""


@functools.lru_cache(maxsize=4096)
def split(form: Form, path: Path, numbers: bool = True):
    """Return a path of a form as (vectors, factors, entries).

    vectors: references to segments of several components; factors: of one component. entries:
    ((components of the vectors, (component of the output,)), number), sorted. With `numbers`,
    operands without channels are neither: their components are in the numbers of the entries.
    """
    slots = [(form.inputs[ref.operand], ref) for ref in path.factors]
    apart = [numbers and not operand.channels for operand, _ in slots]
    one = [operand.segments[ref.segment].dim == 1 for operand, ref in slots]
    kinds = list(enumerate(zip(apart, one, strict=True)))
    vector = [n for n, kind in kinds if kind == (False, False)]
    factor = [n for n, kind in kinds if kind == (False, True)]
    shared = [n for n, (is_apart, _) in kinds if is_apart]
    found: dict = {}
    for components, value in path.terms:
        key = (tuple([components[n] for n in vector]), components[-1:])
        refs = ((path.factors[n], components[n]) for n in shared)
        names = tuple([(ref.operand, ref.segment, component) for ref, component in refs])
        found.setdefault(key, []).append((names, value))
    entries = tuple(sorted((key, _number(sums)) for key, sums in found.items()))
    vectors, factors = (tuple(path.factors[n] for n in chosen) for chosen in (vector, factor))
    return vectors, factors, entries


def _number(sums) -> Number:
    is_literal = not any(names for names, _ in sums)
    return sum(c for _, c in sums) if is_literal else tuple(sorted(sums))


class Contraction:
    """Computes paths; a backend's subclass writes the values, in the order of the calls.

    It has `load(operand, segment, component)` of an input, `number(number)`, `multiply(a, b)`,
    `scaled(scale, value)` for a scale that is not 1, and `total(parts)`, the sum of
    number * a * b over parts (number, a, b). A value that is None is one.
    """

    TOGETHER = 1
    """Vectors that are left in a sum, at most."""
    NUMBERS = True
    """Whether operands without channels are in the numbers, see `split`."""

    def __init__(self, form: Form):
        self.form = form
        self._memo: dict = {}
        self._numbers: dict[float, float] = {}  # one for all that are equal but for rounding

    def values(self, path: Path) -> tuple:
        """Return a factor of a path, and the value that it is to be multiplied with by component.

        Either may be None, which is one. The product of both is what the path adds.
        """
        vectors, factors, entries = split(self.form, path, self.NUMBERS)
        if all(index == (0,) for (_, index), _ in entries):
            # no index, so that the sums of all such paths can be shared
            entries = tuple(((c, ()), number) for (c, _), number in entries)
        scale, entries = self._scaled(entries)
        more, sums = self._contract(vectors, entries)
        scale *= more
        names = tuple((ref.operand, ref.segment, 0) for ref in factors)
        factor = self.product(names)
        if scale != 1.0:
            factor = self.known((scale, names), lambda: self.scaled(scale, factor))
        return factor, {index[0] if index else 0: value for index, value in sums.items()}

    def known(self, key, make):
        """Return a value that is made once."""
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]

    def input(self, name: Component):
        return self.known(name, lambda: self.load(*name))

    def product(self, names: tuple[Component, ...]):
        """Return the product of components of inputs; None for none of them."""
        if len(names) < 2:
            return self.input(names[0]) if names else None
        *first, last = names

        def make():
            return self.multiply(self.product(tuple(first)), self.input(last))

        return self.known(names, make)

    def _contract(self, vectors: tuple[SegmentRef, ...], entries) -> tuple[float, dict]:
        """Return a scale, and sums over the components of `vectors` for each index of entries."""
        scale, entries = self._rescaled(entries)
        more, sums = self.known((vectors, entries), lambda: self._sums(vectors, entries))
        return scale * more, sums

    def _scaled(self, entries) -> tuple[float, tuple]:
        """Return the size of the first number, and entries divided by it, where all are literal."""
        if not all(isinstance(number, float) for _, number in entries):
            return 1.0, entries
        scale = _whole(abs(entries[0][1]))
        return scale, tuple((key, self._same(number / scale)) for key, number in entries)

    def _rescaled(self, entries) -> tuple[float, tuple]:
        """Return the same of a part of scaled entries, which often begins with 1 or -1."""
        return (1.0, entries) if entries[0][1] in (1.0, -1.0) else self._scaled(entries)

    def _same(self, number: float) -> float:
        key = round(number, 12)
        if key not in self._numbers:
            self._numbers[key] = _whole(number)
        return self._numbers[key]

    def _sums(self, vectors, entries) -> tuple[float, dict]:
        parts: dict = {}
        if len(vectors) <= self.TOGETHER:
            scale = 1.0
            for (components, index), number in entries:
                pairs = zip(vectors, components, strict=True)
                value = self.product(tuple((ref.operand, ref.segment, i) for ref, i in pairs))
                parts.setdefault(index, []).append((self.number(number), value, None))
        else:
            ref, inner = self._pull_out(vectors, entries)
            scale, sums = self._contract(*inner)
            for (i, *index), value in sums.items():
                part = 1.0, self.input((ref.operand, ref.segment, i)), value
                parts.setdefault(tuple(index), []).append(part)
        return scale, {index: self.total(part) for index, part in parts.items()}

    def _pull_out(self, vectors, entries):
        """Return the vector to multiply last: one whose inner sums are known, or are the fewest."""
        choices = []
        for n, ref in enumerate(vectors):
            rest = vectors[:n] + vectors[n + 1 :]
            inner = tuple(
                sorted(
                    ((c[:n] + c[n + 1 :], (c[n], *index)), number) for (c, index), number in entries
                )
            )
            is_known = (rest, self._rescaled(inner)[1]) in self._memo
            sums = len({index for (_, index), _ in inner})
            choices.append(((not is_known, sums), n, ref, (rest, inner)))
        _, _, ref, inner = min(choices, key=lambda choice: choice[:2])
        return ref, inner


def _whole(value: float) -> float:
    """Return the integer that a coefficient is but for rounding, or the coefficient."""
    return float(round(value)) if abs(value - round(value)) < 1e-14 else value
