"""e3nn's Linear as a `LinearForm`: which matrices, with e3nn's names, normalisation and order."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools

import e3nn_jax as e3nn
import numpy as np

from eqfuse.ops.ir.form import Multilinear, Segment, SegmentRef


@dataclasses.dataclass(frozen=True)
class Rows:
    """An array [rows, size], blocks of whose rows are mixed."""

    size: int
    blocks: tuple[Segment, ...]


@dataclasses.dataclass(frozen=True)
class Weights:
    """An array [mul_in, mul_out], or [mul_out] for a bias; [sets, ...] where rows choose a set."""

    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Term:
    """One trilinear form; `x` is None for a bias."""

    x: SegmentRef | None
    w: int
    z: SegmentRef
    scale: float

    def operands(self) -> tuple[int, ...]:
        numbers = (self.w, self.z.operand)
        return numbers if self.x is None else (self.x.operand, *numbers)

    def replaced(self, place) -> Term:
        """Return the term with each operand's number n replaced by place(n)."""
        x = self.x and SegmentRef(place(self.x.operand), self.x.segment)
        return Term(x, place(self.w), SegmentRef(place(self.z.operand), self.z.segment), self.scale)


@dataclasses.dataclass(frozen=True, eq=False)
class LinearForm(Multilinear):
    """A sum of terms from inputs to outputs."""

    inputs: tuple[Rows | Weights, ...]
    outputs: tuple[Rows | Weights, ...]
    terms: tuple[Term, ...]  # each reads two inputs (a bias one) and adds to one output
    num_sets: int = 0  # sets of weights that rows choose from; 0 for one set for all rows
    input_precision: str = "ieee"  # of the matmuls on a GPU: "ieee", "tf32x3" or "tf32"

    @property
    def needs_integers(self) -> bool:
        """Return whether rows choose a set of weights, by their index."""
        return self.num_sets > 0

    def output_of(self, term: Term) -> int:
        """Return the number, among the outputs, of the output that a term adds to."""
        [o] = [n for n in term.operands() if n >= len(self.inputs)]
        return o - len(self.inputs)

    def shape(self, operand: Rows | Weights, num_rows: int) -> tuple[int, ...]:
        if isinstance(operand, Rows):
            return num_rows, operand.size
        return (*((self.num_sets,) if self.num_sets else ()), *operand.shape)

    def touched(self) -> set[int]:
        """Return the numbers of the operands that any term reads or adds to."""
        return {n for t in self.terms for n in t.operands()}

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

    def _transposed(self, known: list[int], given: list[int], wanted: list[int]) -> LinearForm:
        return self._with(known + given, wanted)

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

    def _with(self, inputs: list[int], outputs: list[int]) -> LinearForm:
        """Return the operands of these numbers, and the terms that have no others."""
        place, given = {j: new for new, j in enumerate(inputs + outputs)}, set(inputs)
        terms = tuple(
            t.replaced(place.__getitem__)
            for t in self.terms
            if all(j in place for j in t.operands()) and not given.issuperset(t.operands())
        )
        inputs, outputs = (tuple(self.operands[j] for j in side) for side in (inputs, outputs))
        return dataclasses.replace(self, inputs=inputs, outputs=outputs, terms=terms)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter of `e3nn.flax.Linear`: name, shape, and standard deviation when initialised."""

    name: str
    shape: tuple[int, ...]
    std: float


@dataclasses.dataclass(frozen=True)
class Linear:
    """A Linear as a linear form, with its parameters.

    The inputs of `linear_form` are the row, then the parameters; its output is the pre-activation.

    The pre-activation is one array, or several that are adjacent parts of it, see `cut`. Its blocks
    are numbered through all of them.
    """

    linear_form: LinearForm
    parameters: tuple[Parameter, ...]
    irreps_out: e3nn.Irreps

    @property
    def blocks_in(self) -> tuple[Segment, ...]:
        return self.linear_form.inputs[0].blocks

    @property
    def blocks_out(self) -> tuple[Segment, ...]:
        return tuple(block for rows in self.linear_form.outputs for block in rows.blocks)

    @functools.cached_property
    def _first_blocks(self) -> list[int]:
        """Return the first block of each array of the pre-activation, and how many there are."""
        return [0, *itertools.accumulate(len(rows.blocks) for rows in self.linear_form.outputs)]

    def array_of(self, block: int) -> int:
        """Return which array of the pre-activation a block of it is in."""
        return bisect.bisect_right(self._first_blocks, block) - 1

    def block_of(self, term: Term) -> int:
        """Return the number of the block of the pre-activation that a matrix or a bias adds to."""
        return self._first_blocks[term.z.operand - len(self.linear_form.inputs)] + term.z.segment

    @property
    def size_out(self) -> int:
        return self.irreps_out.dim

    @property
    def zero_flags(self) -> tuple[bool, ...]:
        """Return of each block of the pre-activation whether nothing is added to it."""
        added = {self.block_of(t) for t in self.linear_form.terms}
        return tuple(n not in added for n in range(len(self.blocks_out)))

    def reads(self, block: int) -> bool:
        """Return whether any matrix reads a block of the row."""
        return any(t.x is not None and t.x.segment == block for t in self.linear_form.terms)

    def into(self, block: int) -> list[Term]:
        """Return the matrices into a block of the pre-activation."""
        return [t for t in self.linear_form.terms if self.block_of(t) == block and t.x is not None]

    def biases(self, block: int) -> list[Term]:
        """Return the biases of a block of the pre-activation."""
        return [t for t in self.linear_form.terms if self.block_of(t) == block and t.x is None]


@functools.cache
def cut(linear: Linear, sizes: tuple[int, ...]) -> tuple[Linear, list[tuple[int, slice]]]:
    """Return the same Linear with its pre-activation as several arrays.

    A block that belongs to two arrays becomes two blocks, and so do its parameters, each of which
    is columns of one of the given Linear: its number and a slice, the second result. `sizes` are of
    whole channels, together the whole row.
    """
    outputs, places = [], {}  # places: of a block, (array, block, first channel, last)
    stop = 0
    for o, size in enumerate(sizes):
        start, stop, blocks = stop, stop + size, []
        for n, b in enumerate(linear.blocks_out):
            first = max(start - b.offset, 0) // b.dim
            last = min((stop - b.offset) // b.dim, b.mul)
            if first < last:
                places.setdefault(n, []).append((o, len(blocks), first, last))
                blocks.append(Segment.mul_ir(b.offset + first * b.dim - start, last - first, b.dim))
        outputs.append(Rows(size, tuple(blocks)))
    assert stop == linear.size_out, (sizes, linear.irreps_out)
    columns, parameters, slots = [], [], []
    for term in linear.linear_form.terms:
        old = linear.parameters[term.w - 1]
        for o, block, first, last in places[term.z.segment]:
            columns.append((term.w - 1, slice(first, last)))
            shape = (*old.shape[:-1], last - first)
            parameters.append(Parameter(f"{old.name}[{first}:{last}]", shape, old.std))
            slots.append((term, o, block))
    row, num_inputs = linear.linear_form.inputs[0], 1 + len(parameters)
    linear_form = dataclasses.replace(
        linear.linear_form,
        inputs=(row, *(Weights(p.shape) for p in parameters)),
        outputs=tuple(outputs),
        terms=tuple(
            Term(term.x, number, SegmentRef(num_inputs + o, block), term.scale)
            for number, (term, o, block) in enumerate(slots, start=1)
        ),
    )
    return Linear(linear_form, tuple(parameters), linear.irreps_out), columns


def blocks(irreps) -> tuple[Segment, ...]:
    """Return the layout of the blocks of irreps in a row."""
    offsets = np.cumsum([0] + [mul_ir.dim for mul_ir in irreps])
    return tuple(
        Segment.mul_ir(int(o), mul, ir.dim) for o, (mul, ir) in zip(offsets, irreps, strict=False)
    )


def normalizations(path_normalization, gradient_normalization) -> dict[str, float]:
    """Return e3nn's two normalisations of Linears as numbers, its configured ones for None."""
    names, result = ("path_normalization", "gradient_normalization"), {}
    for name, value in zip(names, (path_normalization, gradient_normalization), strict=True):
        value = e3nn.config(name) if value is None else value
        by_name = {"element": 0.0, "path": 1.0}
        result[name] = by_name[value] if isinstance(value, str) else float(value)
    return result


@functools.cache
def linear(
    irreps_in: e3nn.Irreps,
    zero_flags: tuple[bool, ...],
    irreps_out: e3nn.Irreps,
    force_irreps_out: bool = False,
    biases: bool = False,
    path_normalization=None,
    gradient_normalization=None,
    num_sets: int = 0,
    input_precision: str = "ieee",
    numbered: e3nn.Irreps | None = None,
) -> Linear:
    """Return `e3nn.flax.Linear` of a row whose blocks of one irrep are adjacent.

    The names of the parameters count the blocks of `numbered`, sorted irreps of which the row has
    some only; None: those of the row itself.
    """
    order = [ir for _, ir in irreps_in.simplify()]
    if len(set(order)) < len(order):
        raise ValueError(f"blocks of one irrep must be adjacent, got {irreps_in}; regroup them")
    kept = [m for m, zero in zip(irreps_in, zero_flags, strict=True) if not zero]
    merged = e3nn.Irreps(kept).regroup()
    irreps_out = irreps_out.simplify()
    if not force_irreps_out:
        irreps_out = irreps_out.filter(keep=merged)
    if not isinstance(biases, bool) and (
        not isinstance(biases, tuple | list)
        or len(biases) != len(irreps_out)
        or any(b and not ir.is_scalar() for b, (_, ir) in zip(biases, irreps_out, strict=True))
    ):
        raise ValueError(
            f"biases must be True, False, or one of them for each block of {irreps_out} (True for "
            f"0e only), got {biases!r}"
        )
    ours = e3nn.FunctionalLinear(
        merged,
        irreps_out,
        biases=biases,
        path_normalization=path_normalization,
        gradient_normalization=gradient_normalization,
    )
    # where the merged blocks lie in the input, whose zero blocks take up room as well
    offsets = {}
    for (_, ir), block, zero in zip(irreps_in, blocks(irreps_in), zero_flags, strict=True):
        if not zero:
            offsets.setdefault(ir, block.offset)
    place = {ir: n for n, (_, ir) in enumerate(merged if numbered is None else numbered)}
    instructions = ours.instructions
    parameters, terms = [], []
    for number, i in enumerate(instructions, start=1):
        out = irreps_out[i.i_out]
        z = SegmentRef(1 + len(instructions), i.i_out)
        if i.i_in < 0:
            name = f"b[{i.i_out}] {out}"
            x, shape, scale, std = None, (out.mul,), 1.0, 0.0
        else:
            name = f"w[{place[merged[i.i_in].ir]},{i.i_out}] {merged[i.i_in]},{out}"
            x, shape = SegmentRef(0, i.i_in), (merged[i.i_in].mul, out.mul)
            scale, std = float(i.path_weight), float(i.weight_std)
        parameters.append(Parameter(name, shape, std))
        terms.append(Term(x, number, z, scale))
    rows = Rows(
        irreps_in.dim, tuple(Segment.mul_ir(offsets[ir], mul, ir.dim) for mul, ir in merged)
    )
    weights = tuple(Weights(p.shape) for p in parameters)
    mixed = Rows(irreps_out.dim, blocks(irreps_out))
    linear_form = LinearForm((rows, *weights), (mixed,), tuple(terms), num_sets, input_precision)
    return Linear(linear_form, tuple(parameters), irreps_out)


def for_product(computed: e3nn.Irreps, zero_flags, irreps: e3nn.Irreps, irreps_out, **options):
    """Return the Linear of a regrouped product's output, and all parameters of e3nn's, in order.

    `computed` are the irreps of the product, at least those that the Linear reads; `zero_flags` say
    which of its blocks are zero by structure. `irreps` are of what e3nn's Linear gets instead,
    sorted and merged, also blocks that are zero; they number the parameters.
    """
    irs = [ir for _, ir in computed]
    if len(set(irs)) < len(irs):
        raise ValueError("a Linear is fused with products that are regrouped only")
    whole = linear(irreps, (False,) * len(irreps), e3nn.Irreps(irreps_out), **options)
    options = options | {"force_irreps_out": True, "numbered": irreps}
    return linear(computed, zero_flags, whole.irreps_out, **options), whole


def sum_of(linears) -> LinearForm:
    """Add up Linears of several rows: inputs are the rows, then the parameters of each."""
    first = linears[0]
    for other in linears[1:]:
        if other.irreps_out != first.irreps_out:
            raise ValueError(
                f"Linears that are added need one output, got {first.irreps_out} and "
                f"{other.irreps_out}"
            )
        if other.linear_form.num_sets != first.linear_form.num_sets:
            raise ValueError("Linears that are added need weights indexed alike")
    counts = [len(li.parameters) for li in linears]
    total = len(linears) + sum(counts)
    terms, inputs = [], [li.linear_form.inputs[0] for li in linears]
    for number, li in enumerate(linears):
        start = len(inputs)
        inputs += li.linear_form.inputs[1:]

        def place(n, number=number, start=start, li=li):
            last = len(li.linear_form.inputs)
            return number if n == 0 else total if n == last else start + n - 1

        terms += [t.replaced(place) for t in li.linear_form.terms]
    return dataclasses.replace(first.linear_form, inputs=tuple(inputs), terms=tuple(terms))
