"""What a form is made of: operands, their segments, and the paths that join them."""

import dataclasses
import enum

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
        """Return whether it is a node."""
        return self in (Index.SENDER, Index.RECEIVER)

    @property
    def edge_arrays(self) -> tuple[str, ...]:
        """Return the arrays of `Edges` that list the edges of each node; none for rows."""
        return (f"{self.value}_order", f"{self.value}_ptr") if self.is_node else ()

    @property
    def counted(self) -> str | None:
        """Return what the leading axis of an operand's array counts; None for one shared row."""
        if self is Index.SHARED:
            return None
        return "nodes" if self.is_node else "rows"

    def count(self, num_rows: int, num_nodes: int) -> int:
        """Return rows of an operand."""
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

    def element(self, channel: int, component: int) -> int:
        return self.offset + channel * self.channel_stride + component * self.component_stride


@dataclasses.dataclass(frozen=True)
class Operand:
    """An array [rows, size] that a form reads or writes."""

    name: str
    size: int
    segments: tuple[Segment, ...]
    channels: bool
    index: Index = Index.ROW
    role: Role = Role.OTHER

    @property
    def is_whole(self) -> bool:
        """Return whether the segments are the whole row."""
        return sum(s.mul * s.dim for s in self.segments) == self.size

    def __repr__(self):
        blocks = "+".join(
            f"{s.mul}x{s.dim}" if self.channels else f"{s.dim}" for s in self.segments
        )
        return f"{self.name}[{self.index.value}: {blocks}]"


@dataclasses.dataclass(frozen=True)
class SegmentRef:
    """One segment of one operand: `form.inputs[operand].segments[segment]`, or of the outputs."""

    operand: int
    segment: int


@dataclasses.dataclass(frozen=True)
class Path:
    """Products of components of some input segments, summed into one output segment.

    Attributes:
      factors: the input segments that are multiplied.
      output: the output segment.
      terms: ((components, coefficient), ...), with `components` one index for each factor, in
        order, and one for the output.
    """

    factors: tuple[SegmentRef, ...]
    output: SegmentRef
    terms: tuple[tuple[tuple[int, ...], float], ...]
