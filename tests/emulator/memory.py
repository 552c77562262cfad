"""Global and shared memory: bounds, alignment, what was written, and races."""

from __future__ import annotations

import dataclasses

import numpy as np

from tests.emulator.arrays import GRANULE, NOBODY, Array, Tracker
from tests.emulator.errors import MisalignedError, NeverWrittenError, OutOfBoundsError, RaceError
from tests.emulator.group import Group

_WINDOW = 40  # bits of the addresses of one array: none is next to another
COPIES = 8  # units in the last place by which copies of a sum may differ


@dataclasses.dataclass
class Access:
    """One instruction's access, of all threads."""

    group: Group
    space: str  # "global" or "shared"
    addresses: np.ndarray  # [blocks, threads], int64; an axis may be 1
    mask: np.ndarray | None  # threads that take part, alike; None if all do
    width: int  # bytes of one value
    count: int  # values of each thread, next to each other
    text: str

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
            block, thread = np.argwhere(np.broadcast_to(wrong, self.group.shape))[0]
            raise error(f"{self.text!r}: block {self.group.ids[block]}, thread {thread} {what}")

    def check(self, offsets: np.ndarray, size: int, where: str) -> None:
        """Refuse offsets outside `size` bytes, or not aligned."""
        length = self.width * self.count
        outside = (offsets < 0) | (offsets > size - length)
        self.refuse(outside, OutOfBoundsError, f"is outside the {size} bytes of {where}")
        self.refuse(offsets % length != 0, MisalignedError, f"is not aligned to {length} bytes")

    def active(self, array: np.ndarray) -> np.ndarray:
        """Return the values of the threads that take part, flat."""
        array = np.broadcast_to(array, self.group.shape)
        mask = self.mask
        return array.ravel() if mask is None else array[np.broadcast_to(mask, self.group.shape)]

    def agents(self):
        """Return block and warp of each thread that takes part."""
        threads = np.arange(self.group.shape[1])
        return self.active(self.group.ids[:, None]), self.active(threads[None, :] // 32)


class Memory:
    """The arrays of a launch, and the shared memory of the blocks that run together."""

    def __init__(self, arrays: list[Array], parameters: dict[str, int]):
        self.arrays, self.parameters = arrays, parameters

    def share(self, blocks: int, size: int, warps: int, checked: bool) -> None:
        """Begin shared memory of `size` bytes for each of some blocks."""
        self.shared_bytes, stride = size, -(-size // 16) * 16
        data = np.zeros(blocks * stride, np.uint8)
        tracker = Tracker(data.size // GRANULE, warps) if checked else None
        self.shared = Array("shared memory", stride, 1, data, writable=True, tracker=tracker)

    @staticmethod
    def address(number: int) -> int:
        """Return where array `number` begins."""
        return number + 1 << _WINDOW

    def find(self, access: Access) -> tuple[Array, np.ndarray]:
        """Return the array of an access and the offsets in it, in bytes."""
        if access.space == "shared":
            access.check(access.addresses, self.shared_bytes, "shared memory")
            return self.shared, access.addresses + access.group.rows[:, None] * self.shared.size
        number = int(access.first() >> _WINDOW) - 1
        if not 0 <= number < len(self.arrays):
            raise OutOfBoundsError(f"{access.text!r} uses address {access.first()}, of no array")
        array = self.arrays[number]
        offsets = access.addresses - self.address(number)
        access.check(offsets, array.nbytes, array.name)
        return array, offsets

    def load(self, access: Access) -> list[np.ndarray]:
        """Return the values of each thread, as unsigned integers; of any value where masked."""
        array, offsets = self.find(access)
        if array.data is None:
            return [np.zeros((1, 1), f"u{access.width}")] * access.count
        _note(access, array, offsets, writes=False)
        data, first = _as_values(array.data, access.width), offsets // access.width
        if access.mask is not None:
            first = np.where(access.mask, first, 0)
        return [data[np.minimum(first + n, len(data) - 1)] for n in range(access.count)]

    def store(self, access: Access, values: list[np.ndarray]) -> None:
        """Write values, unsigned integers, of each thread."""
        array, offsets = self.find(access)
        if not array.writable:
            raise OutOfBoundsError(f"{access.text!r} writes to {array.name}, an input")
        if array.data is None:
            return
        _note(access, array, offsets, writes=True)
        data, first = _as_values(array.data, access.width), access.active(offsets) // access.width
        for n, value in enumerate(values):
            _put(data, first + n, access.active(value), access)


def _as_values(data: np.ndarray, width: int) -> np.ndarray:
    return data[: data.size // width * width].view(f"u{width}")


def _note(access: Access, array: Array, offsets, writes: bool) -> None:
    """Note who reads or writes these bytes; what is read somebody must have written."""
    if array.tracker is None:
        return
    tracker, offsets, (blocks, warps) = array.tracker, access.active(offsets), access.agents()

    def where(n: int) -> str:
        unit, at = "byte" if array.itemsize == 1 else "element", offsets[n] % array.nbytes
        who = f"{access.text!r}, block {blocks[n]}, warp {warps[n]}"
        return f"{who}: {unit} {at // array.itemsize} of {array.name}"

    for start in range(0, access.width * access.count, GRANULE):
        places = (offsets + start) // GRANULE
        if not writes:
            written = tracker.writer[places] != NOBODY
            if array.known is not None:
                written |= array.known[(offsets + start) // array.itemsize]
            if not written.all():
                raise NeverWrittenError(
                    f"{where(np.argmin(written))} is read and was never written"
                )
        note = tracker.write if writes else tracker.read
        note(places, blocks, warps, access.group.epoch, where)


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
    text = f"{access.text!r}: two threads write different values to one place"
    involved = np.isin(places, places[differs])
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
