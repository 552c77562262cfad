"""A whole training step: the sum over what XLA schedules for an H100.

Kernels of ours cost what `model` predicts, each with cold code. A matmul waits for its operations
at the rate of `Device.matmul`, and for the bytes of its operands and its result; all else for those
bytes, at the bandwidth of memory, or of level 2 if they are less than half of it. The two are added
as bounds of a kernel are, no kernel takes less than `Device.least`, and to each the launch is
added. So it is for our kernels that read tables of radial functions, whose intervals are not known.
Bytes of an operand of which only a part is read, as by a gather, count in full. What is launched
besides the instructions of the schedule, such as the steps of a sort, takes the least time.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import math
import re
import zlib

from benchmarks import launches as compiled_launches
from benchmarks.launches import account
from benchmarks.launches.hlo import HloProgram
from benchmarks.predictions import cases, model
from benchmarks.predictions.counts import UnknownIndexError
from benchmarks.predictions.devices import Device
from benchmarks.predictions.launches import launches_of

_SHAPE = re.compile(r"(pred|[a-z]+\d+)\[([\d,]*)\]")
_DEFINED = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) [\w\-]+\(")
_OPAQUE = re.compile(r'opaque = "((?:[^"\\]|\\.)*)"')
_KERNEL = re.compile(rb"[a-z]\w*_[0-9a-f]{16}")
_TF32X3 = "tf32_tf32_f32_x3"
_CONTRACTED = re.compile(r'lhs_contracting_dim(?:s=\{|ensions":\[)"?(\d+)')


@dataclasses.dataclass(frozen=True)
class Item:
    """Something that is launched.

    Attributes:
      kind: of `account.KINDS`.
      name: which part of the model it comes from, layers taken together, and the kernel.
      seconds: predicted, with the launch.
      lower: seconds by the longest bound alone, with the launch.
      bound: what it waits for.
      cold: those of the seconds that it waits for its code.
    """

    kind: str
    name: str
    seconds: float
    lower: float
    bound: str
    cold: float = 0.0


class Shapes:
    """The shapes of the instructions in the text of a program."""

    def __init__(self, text: str):
        self.lines = {}
        for line in text.splitlines():
            if match := _DEFINED.match(line):
                self.lines[match[1]] = match[2], line

    def bytes(self, name: str) -> int:
        """Return the bytes of the result of an instruction."""
        shape, _ = self.lines.get(name, ("", ""))
        return sum(_size(dims) * _width(kind) for kind, dims in _SHAPE.findall(shape))

    def operations(self, name: str, operands) -> int:
        """Return multiplications and additions of a matmul; 0 of what is none."""
        shape, line = self.lines[name]
        contracted = _CONTRACTED.search(line)
        if contracted is None or not operands or operands[0] not in self.lines:
            return 0
        left = _SHAPE.search(self.lines[operands[0]][0])[2].split(",")
        return 2 * _size(_SHAPE.search(shape)[2]) * int(left[int(contracted[1])])

    def is_tf32x3(self, name: str) -> bool:
        """Return whether a matmul is three products of TF32."""
        return _TF32X3 in self.lines[name][1].lower()


def _size(dims: str) -> int:
    return math.prod(int(d) for d in dims.split(",") if d)


def _width(kind: str) -> int:
    bits = re.search(r"\d+", kind)
    return max(1, int(bits[0]) // 8) if bits else 1


def kernel_name(line: str) -> str:
    """Return the name of the kernel of a custom call.

    Raises:
      ValueError: it cannot be read from the line.
    """
    content = b""
    if match := _OPAQUE.search(line):
        raw = re.sub(
            r"\\([0-9A-Fa-f]{2}|.)",
            lambda m: chr(int(m[1], 16)) if len(m[1]) == 2 else m[1],
            match[1],
        )
        with contextlib.suppress(zlib.error):
            content = zlib.decompress(raw.encode("latin-1"))
        if found := _KERNEL.search(content):
            return found[0].decode()
    raise ValueError(f"no name of a kernel in {line[:200]!r}")


def predict(
    name: str, size: tuple[int, int], device: Device, radial: str = "auto", precision: str = "ieee"
) -> list[Item]:
    """Return what a training step launches on a device, in the order of the schedule.

    Args:
      name: "nequip", "mace" or "allegro".
      size: of `graphs.SIZES`.
      device: an H100 or an H200: the schedule is that of an H100.
      radial: "auto", "network" or "table".
      precision: of matmuls: of `cases.PRECISIONS`.
    """
    by_name, text, launches = _schedule(name, size, radial, precision)
    found = items(text, lambda kernel: cases.counted(by_name[kernel], size, device), device)
    times = device.least + device.launch, device.launch
    more = Item("others", account.NOT_SCHEDULED, *times, "launch")
    return [*found, *[more] * (launches - len(found))]


def items(text: str, counted, device: Device) -> list[Item]:
    """Return what a program launches on a device, in the order of the schedule.

    Args:
      text: of the program that XLA made.
      counted: name of a kernel of ours -> its `counts.Counts`.
    """
    program, shapes = HloProgram(text), Shapes(text)
    found = []
    for instruction in program.entry:
        kind = account.kind(program, instruction)
        if kind == "eqfuse":
            kernel = kernel_name(shapes.lines[_call(program, instruction).name][1])
            source = f"{program.source(instruction)}: {kernel.rpartition('_')[0]}"
            try:
                prediction = model.predict(counted(kernel), device, is_cold=True)
            except UnknownIndexError:  # such as of intervals, which follow from the lengths
                moved = _other(program, shapes, instruction, kind, device)
                found.append(dataclasses.replace(moved, name=source))
                continue
            times = prediction.seconds, prediction.lower, prediction.bound, prediction.cold
            found.append(Item(kind, source, *times))
            continue
        found.append(_other(program, shapes, instruction, kind, device))
    return found


def _call(program: HloProgram, instruction):
    """Return the call of a kernel: the instruction, or inside one that hands slices on in place."""
    inner = program.computations.get(instruction.calls, ())
    return next((i for i in inner if i.opcode == "custom-call"), instruction)


@functools.lru_cache(maxsize=1)
def _schedule(name: str, size: tuple[int, int], radial: str, precision: str):
    """Return our launches by kernel; of XLA's program for an H100 the text, and all launches."""
    with cases.multiplied_in(precision):
        function, args = cases.step(name, size, radial)
        by_name: dict = {}
        for launch in launches_of(function, *args):
            by_name.setdefault(launch.spec.name, launch)
        compiled = compiled_launches.compiled(function, args)
        return by_name, compiled.text, compiled.launches.launches


def _other(program: HloProgram, shapes: Shapes, instruction, kind: str, device: Device) -> Item:
    """Return a launch of XLA's own."""
    moved = sum(shapes.bytes(n) for n in (instruction.name, *instruction.operands))
    bandwidth = device.cache_bandwidth if moved < device.cache / 2 else device.bandwidth
    bounds, least = {"bandwidth": moved / bandwidth}, device.least
    if kind == "products":
        inner = program.computations.get(instruction.calls, ())
        dots = [i for i in inner if i.opcode == "dot"]
        operations = shapes.operations(instruction.name, instruction.operands)
        operations += sum(shapes.operations(i.name, i.operands) for i in dots)
        tf32x3 = any(shapes.is_tf32x3(i.name) for i in (instruction, *dots))
        bounds["arithmetic"] = operations / device.matmul(tf32x3)
        least = device.least_matmul
    seconds, names = model.together(bounds)
    bound = "launch" if seconds < least + device.launch else " + ".join(names)
    lower = max(bounds.values()) + device.launch
    return Item(
        kind, program.source(instruction), max(seconds, least) + device.launch, lower, bound
    )


def breakdown(items: list[Item]) -> list[tuple[str, str, int, float, str]]:
    """Return (kind, name, launches, seconds, bound) of what has one kind and name, by time."""
    groups: dict[tuple[str, str], list[Item]] = collections.defaultdict(list)
    for item in items:
        groups[item.kind, item.name].append(item)
    rows = []
    for (kind, name), group in groups.items():
        bounds = collections.Counter()
        for item in group:
            bounds[item.bound] += item.seconds
        seconds = sum(item.seconds for item in group)
        rows.append((kind, name, len(group), seconds, bounds.most_common(1)[0][0]))
    return sorted(rows, key=lambda row: -row[3])
