"""From counts to a predicted time, and what bounds it.

A launch takes as long as the slowest of what it waits for, each as if it were alone:

    bandwidth     bytes that miss level 2, at the bandwidth that a copy reaches
    level 2       sectors, at the bandwidth of level 2
    issue         an instruction of a warp per cycle and scheduler
    fp32, ...     instructions of one pipe, at its width
    memory pipe   a wavefront per cycle and multiprocessor, in global and in shared memory
    latency       the blocks of a multiprocessor, as many at a time as fit, one after the other;
                  each as long as one warp takes alone, with the loop of the block that has most
                  edges. A load takes what level 2 or memory takes, by the share of sectors that
                  miss

Work that is divided among multiprocessors counts as on the busiest one: if blocks do not fill them,
or the last turn does not, the others are idle. What is bound by multiprocessors that hold fewer
than `FEW_WARPS` warps each, on the mean, is said to be bound by occupancy. A launch also waits for
the one before: `Device.launch`, which is added.
"""

from __future__ import annotations

import dataclasses
import math

from benchmarks.predictions import devices, sass
from benchmarks.predictions.counts import Counts
from benchmarks.predictions.devices import Device

FEW_WARPS = 8
"""Two for each scheduler: with fewer, most cycles have none that can go on."""


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A predicted time.

    Attributes:
      seconds: of the launch.
      bound: what it waits for.
      bounds: seconds of each.
      resident: blocks of a multiprocessor at a time.
      waves: turns of blocks on a multiprocessor.
      idle: multiprocessors without a block.
    """

    seconds: float
    bound: str
    bounds: dict[str, float]
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


def predict(counts: Counts, device: Device) -> Prediction:
    """Return the predicted time of a launch on a device."""
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
    bound = max(bounds, key=bounds.get)
    return Prediction(
        seconds=bounds[bound] + device.launch,
        bound="occupancy" if sparse and bounds[bound] == own else bound,
        bounds=bounds,
        resident=resident,
        waves=waves,
        idle=max(device.processors - counts.blocks, 0),
    )


def _throughput(counts: Counts, device: Device) -> dict[str, float]:
    """Return seconds of what multiprocessors do, if all have as much of it."""
    cycles = device.processors * device.clock
    found = {"issue": counts.instructions / devices.SCHEDULERS / cycles}
    for pipe, instructions in counts.pipes.items():
        if pipe != "memory":
            found[pipe] = instructions * 32 / device.lanes[pipe] / cycles
    found["memory pipe"] = sum(counts.wavefronts.values()) / cycles
    return found


def latency(counts: Counts, device: Device) -> float:
    """Return the seconds of the block that has most edges, each warp alone on its scheduler."""
    missing = min(counts.missed_bytes / max(counts.sector_bytes, 1), 1)
    level = device.latency
    load = round(level["level 2"] + missing * (level["memory"] - level["level 2"]))
    total = 0.0
    for times, codes in counts.parts:
        turn = sass.cycles(codes, level, load)
        total += turn * times * (counts.longest if times > 1 else 1.0)
    return total / device.clock
