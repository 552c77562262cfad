"""From counts to a predicted time, and what bounds it.

What a launch waits for, each as if it were alone:

    bandwidth     bytes that miss level 2, at the bandwidth that a copy reaches
    level 2       sectors, at the bandwidth of level 2
    issue         an instruction of a warp per cycle and scheduler
    fp32, ...     instructions of one pipe, at its width; of the matrix unit, what they multiply
    memory pipe   a wavefront per cycle and multiprocessor, in global and in shared memory
    latency       the blocks of a multiprocessor, as many at a time as fit, one after the other;
                  each as long as one warp takes alone, with the loop of the block that has most
                  edges. A load takes what level 2 or memory takes, by the share of sectors that
                  miss

The longest of them is a lower bound of its time: all others are hidden behind it. They seldom are
where they take as long, so that the second is added if it takes more than `HIDDEN` of the first
(`together`). Issue and pipes are one: an instruction takes its place in both at the same time. A
launch takes `Device.least` at least, and waits for the one before: `Device.launch`, which is added
to both.

In a step a kernel is cold: others have run since, and its code is in level 2. Lines of it are asked
for some ahead of the one that a warp runs. What one warp that runs it once waits for them, all
warps wait, and this is added too (`cold`).

Work that is divided among multiprocessors counts as on the busiest one: if blocks do not fill them,
or the last turn does not, the others are idle. What is bound by multiprocessors that hold fewer
than `FEW_WARPS` warps each, on the mean, is said to be bound by occupancy.
"""

from __future__ import annotations

import dataclasses
import math

from benchmarks.predictions import devices, sass
from benchmarks.predictions.counts import Counts
from benchmarks.predictions.devices import Device

FEW_WARPS = 8
"""Two for each scheduler: with fewer, most cycles have none that can go on."""
HIDDEN = 0.7
"""What takes at most this share of the longest bound is hidden behind it; more is added to it."""
_APART = ("bandwidth", "level 2", "memory pipe", "latency")
"""Bounds that are added; the others are of instructions, and are one."""


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A predicted time.

    Attributes:
      seconds: of the launch.
      lower: seconds that it takes at least, by the longest bound alone.
      bound: what it waits for; two with a plus where they are added.
      bounds: seconds of each.
      cold: those of the seconds that it waits for its code.
      resident: blocks of a multiprocessor at a time.
      waves: turns of blocks on a multiprocessor.
      idle: multiprocessors without a block.
    """

    seconds: float
    lower: float
    bound: str
    bounds: dict[str, float]
    cold: float
    resident: int
    waves: float
    idle: int


def resident_blocks(device: Device, kernel, warps: int) -> int:
    """Return how many blocks of a kernel a multiprocessor holds at a time."""
    unit = devices.REGISTER_UNIT
    registers = -(-kernel.registers * 32 // unit) * unit * warps
    shared = kernel.shared_bytes + devices.SHARED_PER_BLOCK
    found = min(
        devices.BLOCKS,
        devices.WARPS // warps,
        devices.REGISTERS // registers,
        device.shared // shared,
    )
    return max(1, found)


def together(bounds: dict[str, float]) -> tuple[float, tuple[str, ...]]:
    """Return the seconds of what is waited for together, and the names of one bound or of two."""
    found = {name: bounds[name] for name in _APART if name in bounds}
    if own := {name: seconds for name, seconds in bounds.items() if name not in _APART}:
        name = max(own, key=own.get)
        found[name] = own[name]
    first, *others = sorted(found, key=found.get, reverse=True)
    if others and found[others[0]] > HIDDEN * found[first]:
        return found[first] + found[others[0]], (first, others[0])
    return found[first], (first,)


def predict(counts: Counts, device: Device, is_cold: bool = False) -> Prediction:
    """Return the predicted time of a launch on a device.

    Args:
      is_cold: whether others run between two of its launches, as in a step.
    """
    resident = resident_blocks(device, counts.kernel, counts.warps)
    each = counts.blocks / device.processors
    waves = each / resident
    uneven = math.ceil(each) / each  # blocks of the busiest by those of the mean
    bounds = {name: uneven * seconds for name, seconds in _throughput(counts, device).items()}
    bounds["latency"] = math.ceil(waves) * latency(counts, device)
    sparse = min(each, resident) * counts.warps < FEW_WARPS
    own = max(bounds.values())
    bounds["bandwidth"] = counts.missed_bytes / device.bandwidth
    bounds["level 2"] = counts.sector_bytes / device.cache_bandwidth
    seconds, names = together(bounds)
    code = cold(counts, device) if is_cold else 0.0
    is_few = sparse and bounds[names[0]] == own
    return Prediction(
        seconds=max(seconds + code, device.least) + device.launch,
        lower=max(bounds.values()) + device.launch,
        bound=" + ".join(("occupancy" if is_few else names[0], *names[1:])),
        bounds=bounds,
        cold=code,
        resident=resident,
        waves=waves,
        idle=max(device.processors - counts.blocks, 0),
    )


def _throughput(counts: Counts, device: Device) -> dict[str, float]:
    """Return seconds of what multiprocessors do, if all have as much of it."""
    cycles = device.processors * device.clock
    found = {"issue": counts.instructions / devices.SCHEDULERS / cycles}
    for pipe, instructions in counts.pipes.items():
        if pipe == "matrix":
            found[pipe] = multiplied(counts) / device.lanes[pipe] / cycles
        elif pipe != "memory":
            found[pipe] = instructions * 32 / device.lanes[pipe] / cycles
    found["memory pipe"] = sum(counts.wavefronts.values()) / cycles
    return found


def multiplied(counts: Counts) -> float:
    """Return the multiply-adds of the matrix unit, as `Device.lanes` counts them."""
    each = sum(times * sum(code.multiplied for code in codes) for times, codes in counts.parts)
    return each * counts.blocks * counts.warps


def latency(counts: Counts, device: Device) -> float:
    """Return the seconds of the block that has most edges, each warp alone on its scheduler."""
    load, total = _load(counts, device), 0.0
    for times, codes in counts.parts:
        turn = sass.cycles(codes, device.latency, load)
        total += turn * times * (counts.longest if times > 1 else 1.0)
    return total / device.clock


def cold(counts: Counts, device: Device) -> float:
    """Return the seconds that one warp, which runs the code once, waits for it."""
    load, total, line = _load(counts, device), 0.0, device.latency["level 2"]
    for n, (times, codes) in enumerate(counts.parts):
        first = line if n == 0 else 0
        fetch = sass.Fetch(devices.LINE, devices.LINES_AHEAD, line, first)
        warm = sass.cycles(codes, device.latency, load)
        total += min(times, 1.0) * (sass.cycles(codes, device.latency, load, fetch) - warm)
    return total / device.clock


def _load(counts: Counts, device: Device) -> int:
    """Return the cycles of a load: of level 2 or memory, by the share of sectors that miss."""
    missing = min(counts.missed_bytes / max(counts.sector_bytes, 1), 1)
    near, far = device.latency["level 2"], device.latency["memory"]
    return round(near + missing * (far - near))
