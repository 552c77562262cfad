"""The arrays that a kernel is called with, and what the runtime checks of each."""

import dataclasses

from eqfuse.ops.backends.llvm.emit.ir import Function

DTYPES = {"bool": 1, "float32": 11, "float64": 12, "int32": 4}  # XLA_FFI_DataType
DATA, NODE_INDEX, ROW_INDEX, OFFSETS = 0, 1, 2, 3  # as in runtime.py
ROWS, NODES, NODES_AND_ONE = 0, 1, 2
INDEX_ROLES = {
    "senders": (ROWS, NODE_INDEX),
    "receivers": (ROWS, NODE_INDEX),
    "receiver_order": (ROWS, ROW_INDEX),
    "sender_order": (ROWS, ROW_INDEX),
    "receiver_ptr": (NODES_AND_ONE, OFFSETS),
    "sender_ptr": (NODES_AND_ONE, OFFSETS),
    "index": (ROWS, NODE_INDEX),
    "order": (ROWS, ROW_INDEX),
    "offsets": (NODES_AND_ONE, OFFSETS),
}


@dataclasses.dataclass(frozen=True)
class Entry:
    """What the runtime checks of an array: [rows, width], or an index array [rows].

    Attributes:
      dtype, rank: of the array.
      rows: what its rows are; -n where there are n, whatever the call.
      width: elements of a row; of an index array of n rows, what its indices are less than, or
        where its offsets end.
      role: what it holds.
      name: for errors.
    """

    dtype: int
    rank: int
    rows: int
    width: int
    role: int
    name: str

    @classmethod
    def of_index(cls, name: str) -> "Entry":
        rows, role = INDEX_ROLES[name]
        return cls(DTYPES["int32"], 1, rows, 0, role, name)

    @classmethod
    def of_known_index(cls, name: str, size: int, limit: int) -> "Entry":
        """Return that of an index array whose size and limit are known; see `Entry.width`."""
        return cls(DTYPES["int32"], 1, -size, limit, INDEX_ROLES[name][1], name)


class Arguments:
    """The arrays of a kernel, by keys such as ("in", 0), in the order in which they are added.

    Every pass of the kernel is given a table of pointers to them. Those that XLA hands over come
    first: the arguments, then the results. A kernel may add words of its own to the table.

    Attributes:
      numbers: the place of each array in the table.
      entries: what the runtime checks of those that XLA hands over.
      num_arguments: how many of these are arguments.
    """

    def __init__(self, dtype: str):
        self.dtype, self.num_arguments = DTYPES[dtype], 0
        self.numbers: dict[tuple, int] = {}
        self.entries: list[Entry] = []

    def add(self, key: tuple, rows: int, width: int, name: str):
        """Add an array [rows, width]; see `Entry`."""
        self.add_word(key)
        self.entries.append(Entry(self.dtype, 2, rows, width, DATA, name))

    def add_indices(self, names):
        """Add index arrays."""
        for name in names:
            self.add_word(("index", name))
            self.entries.append(Entry.of_index(name))

    def end(self):
        """End the arguments: what follows are results."""
        self.num_arguments = len(self.entries)

    def add_word(self, key: tuple):
        """Add a word of the table that the kernel itself fills."""
        self.numbers[key] = len(self.numbers)

    def place(self, f: Function, *key) -> str:
        """Return where a word of the table is."""
        return f.at("%buffers", self.numbers[key] * 8)

    def load(self, f: Function, *key) -> str:
        """Return the pointer to an array."""
        return f.load_pointer(self.place(f, *key))
