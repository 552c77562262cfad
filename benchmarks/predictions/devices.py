"""Constants of the GPUs, the only ones that predictions use. A changed constant changes them all.

Written down on 23 November 2026, before a kernel was changed for what they predict; the least time
of a kernel, cold code and the matrix unit on 25 November. None was measured by this project but
`host_launch`, on an H200 by `benchmarks.gpu_costs`.
Sources:

[data sheet] NVIDIA's data sheets and whitepapers of A100 (SXM, 80 GB), H100 (SXM) and H200 (SXM):
    multiprocessors, clock, memory bandwidth, level-2 cache, shared memory, lanes of each pipe (the
    table "throughput of native arithmetic instructions" of the CUDA programming guide for compute
    capabilities 8.0 and 9.0), registers, blocks and warps of a multiprocessor.
[latency] Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via
    Microbenchmarking", arXiv 2402.13499, and its longer version, arXiv 2501.12084: cycles of a load
    from level 1, shared memory, level 2 and memory; rounded to ten. The share of the data sheet's
    rate that the instruction `mma` reaches on an H100; `wgmma`, which reaches more, has it too.
[code] Huerta et al., "Analyzing Modern NVIDIA GPU cores", arXiv 2503.20481: instructions are
    fetched ahead in order, most likely by a stream buffer of 16 lines. That lines are of 128 bytes,
    that code which is not in the caches of a multiprocessor is in level 2, and that each line then
    takes as long as data do, is assumed. `benchmarks.gpu_costs` measures cold code.
[assumed] by us, for want of a measurement: the share of the data sheet's bandwidth that a copy
    reaches, the bandwidth of level 2, cycles of arithmetic, shuffles and barriers, the cost of
    launches, the least time of a kernel, and the share of its peak that a matmul of XLA or cuBLAS
    reaches. `benchmarks.gpu_costs` measures the time from one empty kernel to the next: launch and
    least time.
"""

from __future__ import annotations

import dataclasses

SCHEDULERS = 4  # of a multiprocessor, each issues one instruction of a warp per cycle [data sheet]
REGISTERS = 65536  # of a multiprocessor [data sheet]
REGISTER_UNIT = 256  # registers that are given to a warp at a time [data sheet]
WARPS, BLOCKS = 64, 32  # of a multiprocessor, at most [data sheet]
SHARED_PER_BLOCK = 1024  # bytes of shared memory that the system takes of each block [data sheet]
LINE, LINES_AHEAD = 8, 16  # instructions of a line of code, and lines that are asked for [code]


@dataclasses.dataclass(frozen=True)
class Device:
    """A GPU.

    Attributes:
      name, target: as people and as compilers call it.
      processors: streaming multiprocessors.
      clock: cycles per second under load.
      bandwidth: bytes per second that a copy reaches.
      cache_bandwidth: bytes per second of level 2.
      cache: bytes of level 2.
      shared: bytes of shared memory of a multiprocessor.
      lanes: results of each pipe per cycle and multiprocessor; of the matrix unit multiply-adds of
        16 bits, of which one of TF32 counts as two.
      latency: cycles until the result of a kind of instruction can be used.
      launch: seconds from the end of a kernel to the start of the next, in a command buffer.
      host_launch: seconds of the host for a launch outside a command buffer.
      least, least_matmul: seconds that a kernel takes from its start to its end at least, however
        little it does, and one of XLA or cuBLAS for a matmul.
    """

    name: str
    target: str
    processors: int
    clock: float
    bandwidth: float
    cache_bandwidth: float
    cache: float
    shared: int
    lanes: dict[str, int]
    latency: dict[str, int]
    launch: float = 1.5e-6  # [assumed]
    host_launch: float = 3.8e-6
    least: float = 1e-6  # [assumed]
    least_matmul: float = 2.5e-6  # [assumed]

    def matmul(self, tf32x3: bool) -> float:
        """Return operations per second of a large matmul of XLA's, in float32 or 3 times TF32."""
        share = 0.7  # [assumed]
        lanes = self.lanes["matrix"] / 2 / 3 if tf32x3 else self.lanes["fp32"]
        return share * 2 * lanes * self.processors * self.clock


REACHED = 0.9
"""Share of the data sheet's bandwidth that a copy reaches [assumed]."""

_ARITHMETIC = {"fp32": 4, "fp64": 8, "integer": 4, "special": 20, "shuffle": 24, "matrix": 33}
_ARITHMETIC |= {"barrier": 20, "branch": 8, "other": 4}  # [assumed]
_LANES = {"fp32": 128, "integer": 64, "special": 16, "shuffle": 32, "memory": 32, "other": 64}

A100 = Device(
    "A100 SXM 80 GB",
    "sm_80",
    processors=108,
    clock=1.41e9,
    bandwidth=REACHED * 2.039e12,
    cache_bandwidth=4.0e12,  # [assumed]
    cache=40e6,
    shared=164 * 1024,
    lanes=_LANES | {"fp64": 32, "matrix": 1024},
    latency=_ARITHMETIC | {"level 1": 40, "shared": 30, "level 2": 260, "memory": 470},
)
H100 = Device(
    "H100 SXM",
    "sm_90",
    processors=132,
    clock=1.755e9,
    bandwidth=REACHED * 3.35e12,
    cache_bandwidth=5.5e12,  # [assumed]
    cache=50e6,
    shared=228 * 1024,
    lanes=_LANES | {"fp64": 64, "matrix": 0.63 * 2048},  # of `mma`: [latency]
    latency=_ARITHMETIC | {"level 1": 40, "shared": 30, "level 2": 260, "memory": 480},
)
H200 = dataclasses.replace(H100, name="H200 SXM", bandwidth=REACHED * 4.8e12)
DEVICES = (A100, H100, H200)
