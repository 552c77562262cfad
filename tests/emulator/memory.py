"""Global and shared memory: bounds, alignment, what was written, and races."""

from __future__ import annotations

import dataclasses

import numpy as np

from tests.emulator.arrays import GRANULE, Array
from tests.emulator.errors import MisalignedError, NeverWrittenError, OutOfBoundsError, RaceError
from tests.emulator.group import Group
from tests.emulator.races import Tracker

_WINDOW = 40  # bits of the addresses of one array: none is next to another
COPIES = 8  # units in the last place by which copies of a sum may differ


@dataclasses.dataclass
class Access:
    """One instruction's access, of all threads."""

    group: Group
    addresses: np.ndarray  # [blocks, threads], int64; an axis may be 1
    mask: np.ndarray | None  # threads that take part, alike; None if all do
    width: int  # bytes of one value
    count: int  # values of each thread, next to each other
    text: str

    def spread(self) -> None:
        """Give addresses and mask all axes in full."""
        shape = self.group.shape
        self.addresses = np.broadcast_to(self.addresses, shape)
        if self.mask is not None:
            self.mask = np.broadcast_to(self.mask, shape)

    def first(self):
        """Return the address of the first thread that takes part."""
        if self.mask is None:
            return self.addresses.flat[0]
        addresses, mask = np.broadcast_arrays(self.addresses, self.mask)
        return addresses[mask][0]

    def refuse(self, wrong: np.ndarray, error, what: str) -> None:
        """Raise `error` if `wrong` is true for a thread that takes part."""
        if self.mask is not None:
            wrong = wrong & self.mask
        if wrong.any():
            wrong = np.broadcast_to(wrong, self.group.shape)
            block, thread = np.argwhere(wrong)[0]
            raise error(f"{self.text!r}: block {self.group.ids[block]}, thread {thread} {what}")

    def check(self, offsets: np.ndarray, size: int, where: str) -> None:
        """Refuse offsets outside `size` bytes, or not aligned."""
        length = self.width * self.count
        self.refuse(
            (offsets < 0) | (offsets > size - length),
            OutOfBoundsError,
            f"is outside the {size} bytes of {where}",
        )
        self.refuse(offsets % length != 0, MisalignedError, f"is not aligned to {length} bytes")

    def active(self, array: np.ndarray) -> np.ndarray:
        """Return the values of the threads that take part, flat."""
        array = np.broadcast_to(array, self.group.shape)
        return array.ravel() if self.mask is None else array[self.mask]

    def values(self, data: np.ndarray, offsets) -> list[np.ndarray]:
        """Return the values of each thread, unsigned integers, from bytes; any where masked."""
        values = data[: data.size // self.width * self.width].view(f"u{self.width}")
        first = offsets // self.width
        if self.mask is not None:
            first = np.where(self.mask, first, 0)
        return [values[np.minimum(first + n, len(values) - 1)] for n in range(self.count)]

    def agents(self):
        """Return block and warp of each thread that takes part."""
        blocks = self.active(self.group.ids[:, None])
        return blocks, self.active((np.arange(self.group.shape[1]) // 32)[None, :])


class Global:
    """The arrays of a launch."""

    def __init__(self, arrays: list[Array]):
        self.arrays = arrays

    def address(self, number: int) -> int:
        """Return where array `number` begins."""
        return number + 1 << _WINDOW

    def find(self, access: Access) -> tuple[Array, np.ndarray]:
        """Return the array of an access and the offsets in it, in bytes."""
        number = int(access.first() >> _WINDOW) - 1
        if not 0 <= number < len(self.arrays):
            raise OutOfBoundsError(f"{access.text!r} uses address {access.first()}, of no array")
        array = self.arrays[number]
        offsets = access.addresses - self.address(number)
        access.check(offsets, array.nbytes, array.name)
        return array, offsets

    def load(self, access: Access) -> list[np.ndarray]:
        """Return the values of each thread, as unsigned integers; zero where masked."""
        array, offsets = self.find(access)
        if array.data is None:
            return [np.zeros((1, 1), f"u{access.width}")] * access.count
        if array.writable:
            access.spread()
            offsets = np.broadcast_to(offsets, access.addresses.shape)
            own = access.active(offsets)
            _note_read(access, array.tracker, own, _Where(access, array, own), array)
        return access.values(array.data[: array.nbytes], offsets)

    def store(self, access: Access, values: list[np.ndarray]) -> None:
        """Write values, unsigned integers, of each thread."""
        array, offsets = self.find(access)
        if not array.writable:
            raise OutOfBoundsError(f"{access.text!r} writes to {array.name}, an input")
        if array.data is None:
            return
        access.spread()
        offsets = access.active(offsets)
        _note_write(access, array.tracker, offsets, _Where(access, array, offsets))
        _put_all(access, array.data[: array.nbytes], offsets, values)


def _note_read(access: Access, tracker: Tracker, offsets, where, array: Array | None = None):
    """Note who reads these bytes, which somebody must have written."""
    blocks, warps = access.agents()
    for start in range(0, access.width * access.count, GRANULE):
        places = (offsets + start) // GRANULE
        written = tracker.written(places)
        if array is not None:
            written = written | array.known[(offsets + start) // array.itemsize]
        if not written.all():
            n = int(np.flatnonzero(~written)[0])
            raise NeverWrittenError(f"{where(n)} is read and was never written")
        tracker.read(places, blocks, warps, access.group.epoch, where)


def _note_write(access: Access, tracker: Tracker, offsets, where):
    """Note who writes these bytes; a RaceError where it races."""
    blocks, warps = access.agents()
    for start in range(0, access.width * access.count, GRANULE):
        tracker.write((offsets + start) // GRANULE, blocks, warps, access.group.epoch, where)


@dataclasses.dataclass
class _Where:
    """Says where one of the accesses of an instruction is."""

    access: Access
    array: Array | None
    offsets: np.ndarray

    def __call__(self, n: int) -> str:
        blocks, warps = self.access.agents()
        name, size = (self.array.name, self.array.itemsize) if self.array else ("shared memory", 1)
        unit = "element" if self.array else "byte"
        return (
            f"{self.access.text!r}, block {blocks[n]}, warp {warps[n]}: "
            f"{unit} {self.offsets[n] // size} of {name}"
        )


def _put_all(access: Access, data: np.ndarray, offsets, values) -> None:
    """Write the values of each thread to bytes, from these offsets on."""
    data = data[: data.size // access.width * access.width].view(f"u{access.width}")
    for n, value in enumerate(values):
        _put(data, offsets // access.width + n, access.active(value), access)


def _put(data, places, values, access: Access) -> None:
    """Write values to places, of which threads of a warp may name one twice, for copies of a value.

    Triton lets several threads hold one value, and writes it from all of them. In a warp, the bits
    of two copies may differ: a sum of two lanes, a b + shuffled(a b), becomes an fma, which rounds
    only the other lane's product. Values that differ by more are a RaceError.
    """
    data[places] = values
    differs = data[places] != values
    if not differs.any():
        return
    at = places[differs]
    text = f"{access.text!r}: two threads write different values to one place"
    involved = np.isin(places, at)
    _, warps = access.agents()
    order = np.argsort(places[involved], kind="stable")
    sorted_places, sorted_warps = places[involved][order], warps[involved][order]
    same_place = sorted_places[1:] == sorted_places[:-1]
    if (same_place & (sorted_warps[1:] != sorted_warps[:-1])).any():
        raise RaceError(f"{text}, from two warps")
    if access.width in (4, 8):
        kind = f"f{access.width}"
        apart = np.abs(data[places].view(kind) - values.view(kind)).max()
        if apart <= COPIES * np.finfo(kind).eps * np.abs(values.view(kind)).max():
            return
    raise RaceError(text)


class Shared:
    """The shared memory of some blocks, `size` bytes each."""

    def __init__(self, blocks: int, size: int, warps: int, checked: bool = True):
        self.size = size
        self.stride = -(-size // 16) * 16
        self.data = np.zeros((blocks, self.stride), np.uint8)
        self.tracker = Tracker((blocks, self.stride // GRANULE), warps) if checked else None

    def only(self, chosen) -> Shared:
        """Return the shared memory of some of the blocks."""
        other = Shared.__new__(Shared)
        other.size, other.stride, other.data = self.size, self.stride, self.data[chosen]
        other.tracker = self.tracker and self.tracker.only(chosen)
        return other

    def _places(self, access: Access, note):
        """Return where the first byte of each thread is in the memory of all blocks, and note it.

        The second array has those of the threads that take part.
        """
        access.spread()
        access.check(access.addresses, self.size, "shared memory")
        rows = np.arange(len(self.data))[:, None] * self.stride
        places = access.addresses + rows
        active = access.active(places)
        if self.tracker is not None:
            where = _Where(access, None, access.active(access.addresses))
            note(access, self.tracker, active, where)
        return places, active

    def load(self, access: Access) -> list[np.ndarray]:
        """Return the values of each thread, as unsigned integers; of any value where masked."""
        places, _ = self._places(access, _note_read)
        return access.values(self.data.reshape(-1), places)

    def store(self, access: Access, values: list[np.ndarray]) -> None:
        """Write values, unsigned integers, of each thread."""
        _, active = self._places(access, _note_write)
        _put_all(access, self.data.reshape(-1), active, values)
