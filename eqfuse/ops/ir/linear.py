"""e3nn's Linear as a form: which matrices, with e3nn's names, normalisation and order."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math

import e3nn_jax as e3nn

from eqfuse.ops.ir.form import Form, Operand, Path, Segment, SegmentRef, Term


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
    """

    linear_form: Form
    parameters: tuple[Parameter, ...]
    irreps_out: e3nn.Irreps

    @property
    def blocks_in(self) -> tuple[Segment, ...]:
        return self.linear_form.inputs[0].segments

    @property
    def blocks_out(self) -> tuple[Segment, ...]:
        return self.linear_form.outputs[0].segments

    def place(self, part) -> Segment:
        """Return the `mul` channels of a block of the pre-activation from `first` on, a `Part`."""
        return self.blocks_out[part.block].part(part.first, part.mul)

    @property
    def size_out(self) -> int:
        return self.irreps_out.dim

    @property
    def zero_flags(self) -> tuple[bool, ...]:
        """Return of each block of the pre-activation whether nothing is added to it."""
        added = {t.z.segment for t in self.linear_form.terms}
        return tuple(n not in added for n in range(len(self.blocks_out)))

    def reads(self, block: int) -> bool:
        return any(t.x is not None and t.x.segment == block for t in self.linear_form.terms)

    def into(self, block: int) -> list[Term]:
        return [t for t in self.linear_form.terms if t.z.segment == block and t.x is not None]

    def biases(self, block: int) -> list[Term]:
        return [t for t in self.linear_form.terms if t.z.segment == block and t.x is None]


def matrices(parameters) -> tuple[Operand, ...]:
    """Return the operands of a form that parameters of these shapes are."""
    return tuple(Operand.of_matrix(f"w{n}", p.shape) for n, p in enumerate(parameters))


def blocks(irreps) -> tuple[Segment, ...]:
    """Return the layout of the blocks of irreps in a row."""
    pairs = zip(irreps, irreps.slices(), strict=True)
    return tuple(Segment.mul_ir(place.start, mul, ir.dim) for (mul, ir), place in pairs)


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
    # as `e3nn.FunctionalLinear`, whose mask of the output JAX would compile for each shape
    gradient = normalizations(path_normalization, gradient_normalization)["gradient_normalization"]
    if isinstance(biases, bool):
        biases = [biases and ir.is_scalar() for _, ir in irreps_out]
    pairs = itertools.product(range(len(merged)), range(len(irreps_out)))
    instructions = [(i, o) for i, o in pairs if merged[i].ir == irreps_out[o].ir]
    instructions += [(-1, o) for o, bias in enumerate(biases) if bias]
    # where the merged blocks lie in the input, whose zero blocks take up room as well
    offsets = {}
    for (_, ir), block, zero in zip(irreps_in, blocks(irreps_in), zero_flags, strict=True):
        if not zero:
            offsets.setdefault(ir, block.offset)
    place = {ir: n for n, (_, ir) in enumerate(merged if numbered is None else numbered)}
    parameters, paths = [], []
    for number, (i_in, i_out) in enumerate(instructions, start=1):
        out = irreps_out[i_out]
        if i_in < 0:
            name = f"b[{i_out}] {out}"
            x, shape, scale, std = None, (out.mul,), 1.0, 0.0
        else:
            name = f"w[{place[merged[i_in].ir]},{i_out}] {merged[i_in]},{out}"
            x, shape = SegmentRef(0, i_in), (merged[i_in].mul, out.mul)
            root = math.sqrt(1 / max(merged[i_in].mul, 1))  # one path leads to each output
            scale, std = root**gradient, root ** (1 - gradient)
        parameters.append(Parameter(name, shape, std))
        paths.append(Path.of_matrix(x, number, SegmentRef(0, i_out), scale, out.ir.dim))
    places = tuple(Segment.mul_ir(offsets[ir], mul, ir.dim) for mul, ir in merged)
    inputs = (Operand("x", irreps_in.dim, places, True), *matrices(parameters))
    mixed = Operand("z", irreps_out.dim, blocks(irreps_out), True)
    linear_form = Form(inputs, (mixed,), tuple(paths), num_sets, input_precision)
    return Linear(linear_form, tuple(parameters), irreps_out)


def for_product(computed: e3nn.Irreps, zero_flags, irreps: e3nn.Irreps, irreps_out, **options):
    """Return the Linear of a regrouped product's output, and all parameters of e3nn's, in order.

    `computed` are the irreps of the product, at least those that the Linear reads; `zero_flags` say
    which of its blocks are zero by structure. `irreps` are of what e3nn's Linear gets instead,
    sorted and merged, also blocks that are zero; they number the parameters.
    """
    whole = linear(irreps, (False,) * len(irreps), e3nn.Irreps(irreps_out), **options)
    options = options | {"force_irreps_out": True, "numbered": irreps}
    return linear(computed, zero_flags, whole.irreps_out, **options), whole
