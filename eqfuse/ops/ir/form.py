"""The multilinear form: every product of eqfuse, and every derivative of one, as data.

A form is a sum over paths. On each row (an edge of a graph, or a row of a batch) a path adds

    out[u, k] += sum over its terms:  c * a[u, i] * b[u, j] * ...

to a segment of an output, with a, b, ... segments of inputs. A segment is `mul` channels by `dim`
components; an operand without channels is shared by all of them, and an output without channels is
summed over them. An operand is read per row, or per node through `senders` or `receivers`, or
it is one row that all rows share; an output per node is the sum over the rows that point at it, and
an output of one row the sum over all of them. A matrix [mul_in, mul_out] mixes channels:

    z[v, k] += c * sum over u:  x[u, k] * w[u, v]

The derivative of a form is a form: `jvp` puts a tangent in place of each input in turn, and
`transpose` exchanges inputs, in which the form is linear, with the outputs. Nothing else is needed
for derivatives of any order. Pure Python, hashable, without JAX.

The page docs/explanation/kernels.md follows a form to its backward pass, and to a kernel's text.
"""

import collections
import dataclasses
import enum
import functools
import math
from typing import NamedTuple

import numpy as np

INDEX_ARRAYS = (
    "senders",
    "receivers",
    "receiver_order",
    "receiver_ptr",
    "sender_order",
    "sender_ptr",
)
"""Names of the index arrays of a form on a graph, in the order of its operands, as in `Edges`."""


class Index(enum.Enum):
    """How the row of an operand follows from the row of the form."""

    ROW = "row"
    SENDER = "sender"
    RECEIVER = "receiver"
    SHARED = "shared"

    @property
    def is_node(self) -> bool:
        return self in (Index.SENDER, Index.RECEIVER)

    @property
    def edge_arrays(self) -> tuple[str, ...]:
        """Return the arrays of `Edges` that list the edges of each node; none for rows."""
        return (f"{self.value}_order", f"{self.value}_ptr") if self.is_node else ()

    def count(self, num_rows: int, num_nodes: int | tuple[int, int]) -> int:
        """Return how many rows an operand has; nodes may be those that receive, and that send."""
        if isinstance(num_nodes, tuple):
            num_nodes = num_nodes[self is Index.SENDER]
        return {Index.ROW: num_rows, Index.SHARED: 1}.get(self, num_nodes)


class Role(enum.IntEnum):
    """What an operand is in the product that a form comes from; a derivative's keeps its role.

    Kernels take paths together that read the same segments of the two factors.
    """

    LEFT = 0
    RIGHT = 1
    OTHER = 2
    OUTPUT = 3


@dataclasses.dataclass(frozen=True)
class Segment:
    """A block of `mul` channels times `dim` components inside the row of an operand.

    Channel u, component i is the element `offset + u * channel_stride + i * component_stride`: both
    of e3nn's layouts, mul_ir (strides dim, 1) and ir_mul (strides 1, mul), and parts of either.
    """

    offset: int
    mul: int
    dim: int
    channel_stride: int
    component_stride: int = 1

    @classmethod
    def mul_ir(cls, offset: int, mul: int, dim: int) -> "Segment":
        """Return `mul` channels of `dim` components each, one channel after the other."""
        return cls(offset, mul, dim, dim)

    def part(self, first: int, mul: int) -> "Segment":
        """Return `mul` of its channels from the one numbered `first` on."""
        return dataclasses.replace(self, offset=self.element(first, 0), mul=mul)

    def holds(self, other: "Segment") -> bool:
        """Return whether another segment of the same row lies in this one, which is mul_ir."""
        inside = 0 <= other.offset - self.offset < self.mul * self.dim
        return inside and other.dim == self.dim

    def element(self, channel: int, component: int) -> int:
        return self.offset + channel * self.channel_stride + component * self.component_stride

    def elements(self) -> np.ndarray:
        """Return the offsets of all elements, [mul, dim]."""
        return self.element(np.arange(self.mul)[:, None], np.arange(self.dim))


class Table(NamedTuple):
    """Polynomials [intervals, order, size], from which native code computes an operand's rows.

    The first half of its segments are values, the second half slopes of the same elements.
    """

    intervals: int
    order: int  # number of coefficients


@dataclasses.dataclass(frozen=True)
class Operand:
    """An array [rows, size] that a form reads or writes."""

    name: str
    size: int
    segments: tuple[Segment, ...]
    channels: bool
    index: Index = Index.ROW
    role: Role = Role.OTHER
    matrix: tuple[int, ...] = ()  # of a matrix its shape, of a bias [mul_out]; () for rows
    table: Table | None = None  # what its rows are computed from, in native code
    half: bool = False  # whether it is bfloat16 where the others are float32

    @classmethod
    def of_matrix(cls, name: str, shape: tuple[int, ...]) -> "Operand":
        """Return a matrix, or a bias; one for each set of weights, where rows choose a set."""
        size = math.prod(shape)
        segment = (Segment.mul_ir(0, size, 1),)
        return cls(name, size, segment, channels=True, index=Index.SHARED, matrix=shape)

    @property
    def is_whole(self) -> bool:
        """Return whether the segments are the whole row."""
        return sum(s.mul * s.dim for s in self.segments) == self.size

    def block_name(self, s: Segment) -> str:
        shape = self.matrix or ((s.mul, s.dim) if self.channels else (s.dim,))
        return "x".join(map(str, shape))

    def __repr__(self):
        return f"{self.name}[{self.index.value}: {'+'.join(map(self.block_name, self.segments))}]"


@dataclasses.dataclass(frozen=True)
class SegmentRef:
    """One segment of one operand: `form.inputs[operand].segments[segment]`, or of the outputs."""

    operand: int
    segment: int


@dataclasses.dataclass(frozen=True)
class Path:
    """Products of components of some input segments, summed into one output segment.

    `terms` are (components, coefficient): an index for each factor, in order, and the output's.
    With a matrix, `roles` are what each factor and the output is: "x", "w" or "z", see above.
    """

    factors: tuple[SegmentRef, ...]
    output: SegmentRef
    terms: tuple[tuple[tuple[int, ...], float], ...]
    roles: str = ""

    @classmethod
    def of_matrix(cls, x, w: int, z: SegmentRef, scale: float, dim: int) -> "Path":
        """Return x, or nothing for a bias, times the matrix that is the input numbered `w`."""
        if x is None:
            return cls((SegmentRef(w, 0),), z, (((0, 0), scale),), "wz")
        terms = tuple(((k, 0, k), scale) for k in range(dim))
        return cls((x, SegmentRef(w, 0)), z, terms, "xwz")


class Term(NamedTuple):
    """A path with a matrix, of operands that are numbered: inputs first, then outputs."""

    x: SegmentRef | None  # None for a bias
    w: int
    z: SegmentRef
    scale: float
    output: int  # the number of the one that it adds to, among the outputs


@dataclasses.dataclass(frozen=True, repr=False)
class Form:
    """A sum of paths from inputs to outputs: products alone, or matrices alone.

    Its hash is computed once. Operands are numbered: inputs first, then outputs.
    """

    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    paths: tuple[Path, ...]
    num_sets: int = 0  # sets of matrices that rows choose from; 0 for one set for all rows
    input_precision: str = "ieee"  # of the matmuls on a GPU: "ieee", "tf32x3" or "tf32"

    def __post_init__(self):
        names = [operand.name for operand in self.operands]
        if len(set(names)) < len(names):
            raise ValueError(f"the operands of a form need distinct names, got {names}")
        for path in self.paths:
            if not path.roles:
                self._check(path)

    @functools.cached_property
    def _hash(self) -> int:
        fields = self.inputs, self.outputs, self.paths, self.num_sets, self.input_precision
        return hash(fields)

    def __hash__(self):
        return self._hash

    @property
    def operands(self) -> tuple[Operand, ...]:
        return self.inputs + self.outputs

    @functools.cached_property
    def has_matrices(self) -> bool:
        """Return whether it mixes channels, as a Linear and its derivatives do."""
        return any(o.matrix for o in self.operands)

    @functools.cached_property
    def terms(self) -> tuple[Term, ...]:
        """Return its paths, if it has matrices."""
        terms = []
        for path in self.paths:
            output = SegmentRef(len(self.inputs) + path.output.operand, path.output.segment)
            of = dict(zip(path.roles, (*path.factors, output), strict=True))
            scale = path.terms[0][1]
            terms.append(Term(of.get("x"), of["w"].operand, of["z"], scale, path.output.operand))
        return tuple(terms)

    def shape(self, operand: Operand, num_rows: int, num_nodes: int = 0) -> tuple[int, ...]:
        if operand.matrix:
            return (*((self.num_sets,) if self.num_sets else ()), *operand.matrix)
        return operand.index.count(num_rows, num_nodes), operand.size

    def dtype(self, operand: Operand, of_others: str) -> str:
        """Return the dtype of an operand, given that of all that are not halves."""
        return "bfloat16" if operand.half and of_others == "float32" else of_others

    def halved(self, halves: frozenset[int]) -> "Form":
        """Return the same form with these inputs, and no others, in bfloat16 beside float32."""
        inputs = enumerate(self.inputs)
        inputs = tuple(dataclasses.replace(o, half=n in halves) for n, o in inputs)
        outputs = tuple(dataclasses.replace(o, half=False) for o in self.outputs)
        return dataclasses.replace(self, inputs=inputs, outputs=outputs)

    def dtypes(self, arrays) -> tuple[str, list[str]]:
        """Return the dtype of all but halves, given arrays of the inputs, and those of outputs."""
        whole = next(a.dtype.name for o, a in zip(self.inputs, arrays, strict=False) if not o.half)
        return whole, [self.dtype(o, whole) for o in self.outputs]

    def output_shapes(self, num_rows: int, num_nodes: int = 0) -> list[tuple[int, ...]]:
        return [self.shape(o, num_rows, num_nodes) for o in self.outputs]

    def _check(self, path: Path):
        refs = [(self.inputs, ref) for ref in path.factors] + [(self.outputs, path.output)]
        operands = [side[ref.operand] for side, ref in refs]
        segments = [side[ref.operand].segments[ref.segment] for side, ref in refs]
        muls = {s.mul for s, o in zip(segments, operands, strict=True) if o.channels}
        if len(muls) > 1:
            raise ValueError(f"a path joins segments of {sorted(muls)} channels: {operands}")
        if all(o.index is Index.SHARED for o in operands[:-1]):
            raise ValueError(f"a path needs a factor that differs from row to row, got {operands}")
        if operands[-1].channels and not any(o.channels for o in operands[:-1]):
            raise ValueError(f"{operands[-1]} has channels, but no input of its path has")
        for components, _ in path.terms:
            if any(i >= s.dim for i, s in zip(components, segments, strict=True)):
                raise ValueError(f"components {components} lie outside segments {segments}")

    def __repr__(self):
        lines = [
            f"Form of {len(self.paths)} paths, {self.num_terms} terms",
            f"  inputs  {', '.join(map(repr, self.inputs))}",
            f"  outputs {', '.join(map(repr, self.outputs))}",
        ]
        for path in self.paths:
            left = " * ".join(self._slot_name(self.inputs, ref) for ref in path.factors)
            right = self._slot_name(self.outputs, path.output)
            lines.append(f"  {right} += {left}  ({len(path.terms)} terms)")
        return "\n".join(lines)

    @staticmethod
    def _slot_name(side, ref):
        operand = side[ref.operand]
        return f"{operand.name}.{ref.segment}[{operand.block_name(operand.segments[ref.segment])}]"

    @property
    def num_terms(self) -> int:
        return sum(len(path.terms) for path in self.paths)

    @property
    def on_graph(self) -> bool:
        """Return whether any operand is indexed by node, so that edges are needed."""
        return any(o.index.is_node for o in self.operands)

    @property
    def needs_integers(self) -> bool:
        """Return whether arrays of `Edges`, or the index of sets, follow those of the inputs."""
        return self.on_graph or self.num_sets > 0

    def reached(self) -> tuple[bool, ...]:
        """Return which outputs anything adds to; the others are zero."""
        touched = {path.output.operand for path in self.paths}
        return tuple(o in touched for o in range(len(self.outputs)))

    def used_inputs(self) -> tuple[bool, ...]:
        touched = {ref.operand for path in self.paths for ref in path.factors}
        return tuple(i in touched for i in range(len(self.inputs)))

    def indexed(self, inputs: dict[int, Index], outputs: dict[int, Index] | None = None) -> "Form":
        """Return the same form with other indices of the operands of these numbers."""

        def side(operands, changed):
            pairs = ((o, changed.get(n, o.index)) for n, o in enumerate(operands))
            return tuple(dataclasses.replace(o, index=index) for o, index in pairs)

        sides = {"inputs": side(self.inputs, inputs), "outputs": side(self.outputs, outputs or {})}
        return dataclasses.replace(self, **sides)

    @property
    def max_mul(self) -> int:
        """Return the largest number of channels of any operand, at least 1."""
        operands = [o for o in self.operands if o.channels]
        return max((s.mul for o in operands for s in o.segments), default=1)

    def jvp(self, active: tuple[bool, ...]) -> "Form":
        """Return the derivative along tangents of the active inputs, all in one form.

        Inputs: those of this form, then one tangent for each active input. Outputs: the tangents
        of the outputs.
        """
        used = {operand.name for operand in self.operands}
        tangents, tangent_of = [], {}
        for i, operand in enumerate(self.inputs):
            if active[i]:
                tangent_of[i] = len(self.inputs) + len(tangents)
                name = _fresh(f"t_{operand.name}", used)
                tangents.append(dataclasses.replace(operand, name=name))
        paths = []
        for path in self.paths:
            for position, ref in enumerate(path.factors):
                if ref.operand in tangent_of:
                    tangent = SegmentRef(tangent_of[ref.operand], ref.segment)
                    factors = (*path.factors[:position], tangent, *path.factors[position + 1 :])
                    paths.append(dataclasses.replace(path, factors=factors))
        inputs = self.inputs + tuple(tangents)
        return dataclasses.replace(self, inputs=inputs, paths=tuple(paths)).merged()

    def transpose(self, linear: tuple[bool, ...], cotangents: tuple[bool, ...]) -> "Form":
        """Return the form from cotangents of the outputs to cotangents of the linear inputs.

        Every product must contain one linear input at most; one without is constant, and has no
        part in it. Inputs: those that are not linear, then a cotangent for each output marked in
        `cotangents` (the others are zero). Outputs: one for each linear input, in order.
        """
        n = len(self.inputs)
        known, wanted = ([i for i in range(n) if linear[i] is wish] for wish in (False, True))
        given = [n + o for o in range(len(self.outputs)) if cotangents[o]]
        used = {self.inputs[i].name for i in known}
        names = {j: _fresh(f"d{self.operands[j].name}", used) for j in given}
        names |= {i: _fresh(f"d{self.inputs[i].name.removeprefix('t_')}", used) for i in wanted}
        return self._with(known + given, wanted, names).merged()

    def restrict(self, wanted: tuple[bool, ...]) -> "Form":
        """Return the same with only the wanted outputs, and every input."""
        n = len(self.inputs)
        return self._with([*range(n)], [n + o for o, keep in enumerate(wanted) if keep], {})

    def drop_inputs(self, keep: tuple[bool, ...]) -> "Form":
        """Return the same with only the inputs that `keep` marks; no other may be read."""
        n = len(self.inputs)
        return self._with([i for i in range(n) if keep[i]], [*range(n, len(self.operands))], {})

    def _with(self, inputs: list[int], outputs: list[int], names: dict[int, str]) -> "Form":
        """Return the form of the operands of these numbers, and of the paths with no others.

        `names` are new names of some of them.
        """
        n, order = len(self.inputs), inputs + outputs
        place = {j: new for new, j in enumerate(order)}
        paths = []
        for path in self.paths:
            refs = [*path.factors, SegmentRef(n + path.output.operand, path.output.segment)]
            if any(ref.operand not in place for ref in refs):
                continue
            refs = [SegmentRef(place[ref.operand], ref.segment) for ref in refs]
            added = [p for p, ref in enumerate(refs) if ref.operand >= len(inputs)]
            if not added:  # of a tangent that is an array of zeros, as JAX makes them in `remat`
                continue
            [out] = added
            output = SegmentRef(refs[out].operand - len(inputs), refs[out].segment)
            terms, roles = path.terms, path.roles
            if out < len(refs) - 1:
                terms = tuple(((*c[:out], *c[out + 1 :], c[out]), value) for c, value in terms)
                roles = roles[:out] + roles[out + 1 :] + roles[out : out + 1]
            paths.append(Path((*refs[:out], *refs[out + 1 :]), output, terms, roles))
        operands = list(self.operands)
        for j, name in names.items():
            operands[j] = dataclasses.replace(operands[j], name=name)
        sides = (tuple(operands[j] for j in side) for side in (inputs, outputs))
        return Form(*sides, tuple(paths), self.num_sets, self.input_precision)

    def turned(self) -> tuple["Form", tuple[int, ...]]:
        """Return the same form of matrices, of which none is read transposed.

        The second result is the numbers of those whose transposes it reads, behind all inputs.
        There must be one set of matrices.
        """
        result, paths = {}, []
        for path in self.paths:
            if path.roles == "wzx":
                w, z = path.factors
                place = result.setdefault(w.operand, len(self.inputs) + len(result))
                path = Path.of_matrix(z, place, path.output, path.terms[0][1], len(path.terms))
            paths.append(path)
        more = tuple(Operand.of_matrix(f"turned_{w}", self.inputs[w].matrix[::-1]) for w in result)
        inputs = self.inputs + more
        return dataclasses.replace(self, inputs=inputs, paths=tuple(paths)), tuple(result)

    def merged(self) -> "Form":
        """Return the form with equal paths merged, without terms that cancel."""
        merged = collections.OrderedDict()
        for path in self.paths:
            slots = [(ref.operand, ref.segment) for ref in path.factors]
            slots = [*map("xwz".index, path.roles[:-1])] or slots
            order = sorted(range(len(slots)), key=slots.__getitem__)
            roles = "".join(path.roles[n : n + 1] for n in (*order, len(order)))
            key = (tuple(path.factors[n] for n in order), path.output, roles)
            terms = merged.setdefault(key, collections.Counter())
            for components, value in path.terms:
                terms[(*(components[n] for n in order), components[-1])] += value
        paths = (
            Path(factors, output, tuple((c, v) for c, v in sorted(terms.items()) if v), roles)
            for (factors, output, roles), terms in merged.items()
        )
        return dataclasses.replace(self, paths=tuple(path for path in paths if path.terms))


def _fresh(name: str, used: set[str]) -> str:
    """Return `name`, or `name_2`, `name_3`, ... if it is taken, and add it to what is taken."""
    candidate, n = name, 1
    while candidate in used:
        n += 1
        candidate = f"{name}_{n}"
    used.add(candidate)
    return candidate


def backward_form(form: Form, wanted: tuple[bool, ...]) -> Form:
    """Return the cotangents of the wanted inputs; its last inputs are those of the outputs."""
    linear = (False,) * len(form.inputs) + (True,) * sum(wanted)
    return form.jvp(wanted).transpose(linear, (True,) * len(form.outputs))


def derivatives(form: Form) -> dict[str, Form]:
    """Return the form ("forward"), its backward pass, and the backward pass of that ("double")."""
    backward = backward_form(form, (True,) * len(form.inputs))
    double = backward_form(backward, (True,) * len(backward.inputs))
    return {"forward": form, "backward": backward, "double": double}


def tabulated(form: Form, weights: int, table: Table, wanted: tuple[bool, ...] = ()):
    """Return a form, or its backward pass, that computes the rows of one input from a table.

    They are polynomials of a number in an interval; both are in the last input, [rows, 2]. `wanted`
    are the inputs whose cotangents are results, with that of the number, [rows, 1], in the place of
    that of the rows. The second result is which inputs, before the last, are read.
    """
    form = backward_form(form, wanted) if wanted else form
    inputs, outputs, paths = list(form.inputs), list(form.outputs), list(form.paths)
    rows = inputs[weights]
    inputs[weights] = dataclasses.replace(rows, segments=rows.segments * 2, table=table)
    if wanted and wanted[weights]:
        o = sum(wanted[:weights])
        segment = (Segment(0, 1, 1, 1),)
        outputs[o] = Operand("dnumber", 1, segment, channels=False, role=Role.OUTPUT)
        for n, path in enumerate(paths):
            if path.output.operand == o:
                slope = SegmentRef(weights, path.output.segment + len(rows.segments))
                terms = tuple(((*components, 0), value) for components, value in path.terms)
                paths[n] = Path((*path.factors, slope), SegmentRef(o, 0), terms)
    form = Form(tuple(inputs), tuple(outputs), tuple(paths))
    used = form.used_inputs()
    place = Operand("place", 2, (Segment(0, 1, 2, 2),), channels=False)
    form = form.drop_inputs(used)
    return dataclasses.replace(form, inputs=(*form.inputs, place)), used


def reductions(form: Form) -> dict[Index, list[int]]:
    """Return the outputs of each kernel (Triton) or pass (LLVM), by what it reduces over.

    Outputs by row go along with those of the senders or receivers.
    """
    result: dict[Index, list[int]] = {}
    for o, operand in enumerate(form.outputs):
        result.setdefault(operand.index, []).append(o)
    rows = result.pop(Index.ROW, [])
    if rows:
        host = next((i for i in (Index.SENDER, Index.RECEIVER) if i in result), Index.ROW)
        result.setdefault(host, []).extend(rows)
    return result


def rows_of_nodes(size: int, index: Index, summed: bool) -> Form:
    """Return the form that gathers the row of a node for each edge, or sums those of edges."""
    segment, one = (Segment(0, size, 1, 1),), SegmentRef(0, 0)
    of_edges = Operand("rows", size, segment, True)
    of_nodes = Operand("nodes", size, segment, True, index)
    source, target = (of_edges, of_nodes) if summed else (of_nodes, of_edges)
    return Form((source,), (target,), (Path((one,), one, (((0, 0), 1.0),)),))


def ordered_groups(form: Form) -> list[list[Path]]:
    """Return paths in a kernel's order, grouped by the segments that the original product reads."""
    groups = collections.OrderedDict()
    for path in sorted(form.paths, key=functools.partial(product_of, form)):
        groups.setdefault(product_of(form, path)[:2], []).append(path)
    return list(groups.values())


def product_of(form: Form, path: Path) -> tuple:
    """Return the segments of the path of the original product that a path comes from, by role."""
    refs = [(form.inputs[s.operand].role, s.segment) for s in path.factors]
    refs.append((form.outputs[path.output.operand].role, path.output.segment))
    return tuple(sorted(refs))
