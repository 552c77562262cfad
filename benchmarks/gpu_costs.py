"""Measure what the predictions of kernels need of a GPU: launches, cold code, strided stores.

    python -m benchmarks.gpu_costs [--json FILE]

Three numbers, each of small kernels of its own: the time from one kernel to the next, where they do
nothing; how much longer straight-line kernels of 16, 64 and 128 kB take when their code is in no
cache; and stores of e3nn's layout, whose elements of a component are three apart, against stores
that are side by side.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from benchmarks import record
from benchmarks.gpu.measure import in_turns
from eqfuse.ops.backends.triton.primitive import launch
from eqfuse.ops.backends.triton.spec import KernelSpec

INSTRUCTION_BYTES = 16
"""Size of one multiply-add on GPUs of NVIDIA from Volta on."""
CODE_BYTES = (16_384, 65_536, 131_072)
CACHED_BYTES = 262_144
"""Code of this size is larger than the instruction caches of a multiprocessor of an H100."""
CHAIN, CHAINS = 64, 4
"""Kernels in a row; multiply-adds that do not wait for each other, as long as one takes."""
LANES, COMPONENTS, STORED = 128, 3, 2**24
"""Threads of a program that stores, components of a vector, and numbers stored in all."""
_HEAD = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"


def empty_kernel() -> KernelSpec:
    """Return a kernel that copies 32 numbers."""
    lines = [
        "def KERNEL(x_ptr, out_ptr):",
        "    lane = tl.arange(0, 32)",
        "    tl.store(out_ptr + lane, tl.load(x_ptr + lane))",
    ]
    return _spec("empty", lines)


def straight_kernel(code_bytes: int, number: int) -> KernelSpec:
    """Return a kernel of multiply-adds, one after the other.

    They are in chains, side by side, so that a warp could run one in each cycle. In one chain each
    would wait for the one before, longer than for its code.

    Args:
      code_bytes: size of its code, but for some instructions.
      number: kernels of different numbers have different code.
    """
    count = code_bytes // INSTRUCTION_BYTES
    lines = [
        "def KERNEL(x_ptr, out_ptr):",
        "    lane = tl.arange(0, 32)",
        "    b = tl.load(x_ptr + lane)",
        *(f"    a{k} = b" for k in range(CHAINS)),
        *(
            f"    a{n % CHAINS} = a{n % CHAINS} * {0.5 + (number * count + n) * 2.0**-20!r} + b"
            for n in range(count)
        ),
        f"    tl.store(out_ptr + lane, {' + '.join(f'a{k}' for k in range(CHAINS))})",
    ]
    return _spec("straight", lines)


def store_kernel(strided: bool) -> KernelSpec:
    """Return a kernel whose programs store three components of 128 channels each.

    Args:
      strided: whether the components of a channel lie side by side, as in e3nn's arrays, so that
        the threads of a store are three numbers apart.
    """
    place = f"lane * {COMPONENTS} + {{}}" if strided else f"{{}} * {LANES} + lane"
    lines = [
        "def KERNEL(x_ptr, out_ptr):",
        f"    lane = tl.arange(0, {LANES})",
        "    value = tl.load(x_ptr + lane % 32)",
        f"    start = tl.program_id(0).to(tl.int64) * {LANES * COMPONENTS}",
        *(
            f"    tl.store(out_ptr + start + {place.format(k)}, value + {float(k)})"
            for k in range(COMPONENTS)
        ),
    ]
    return _spec("store", lines)


def _spec(stem: str, lines: list[str]) -> KernelSpec:
    return KernelSpec.build(stem, _HEAD + "\n".join(lines) + "\n", ["*fp32"], ["*fp32"])


def chain(specs, x):
    """Run kernels of 32 numbers one after the other, each on the result of the one before."""
    for spec in specs:
        [x] = launch(spec, [x], [(32,)], (), (1,))
    return x


def stores(strided: bool, number: int, x):
    """Store about `number` numbers; returns [programs, 3, 128] or [programs, 128, 3], flat."""
    programs = number // (LANES * COMPONENTS)
    shape = (programs * LANES * COMPONENTS,)
    [out] = launch(store_kernel(strided), [x], [shape], (), (programs,))
    return out


def measure(small: bool) -> Iterator[dict]:
    """Time all of it, or tiny sizes for a dry run: one result for each number."""
    x, count = jnp.full(32, 0.5, jnp.float32), 3 if small else CHAIN
    empty = _times({"empty": functools.partial(chain, [empty_kernel()] * count)}, x)
    gap = 1e3 * empty["empty"] / count
    yield {"what": "from kernel to kernel", "us": gap, "of": f"{count} empty kernels in a row"}
    for size in CODE_BYTES:
        yield _cold(size // 64 if small else size, x, 2 if small else None)
    number = 3 * LANES * COMPONENTS if small else STORED
    sides = {
        n: functools.partial(stores, n == "strided", number) for n in ("contiguous", "strided")
    }
    for name, ms in _times(sides, x).items():
        yield {
            "what": f"{name} stores",
            "us": 1e3 * ms,
            "of": f"{number} numbers, {4 * number} bytes",
        }


def _cold(size: int, x, number: int | None) -> dict:
    number = number or CACHED_BYTES // size
    specs = [straight_kernel(size, n) for n in range(number)]
    sides = {
        "cold": functools.partial(chain, specs),
        "warm": functools.partial(chain, specs[:1] * number),
    }
    found = _times(sides, x)
    us = 1e3 * (found["cold"] - found["warm"]) / number
    text = f"{number} kernels of {size} bytes in turn, against one of them as often"
    return {"what": f"cold code, {size} bytes", "us": us, "of": text}


def _times(sides: dict, x) -> dict[str, float]:
    """Return the median milliseconds of each side, in turns."""
    calls = {}
    for name, function in sides.items():
        compiled = jax.jit(function).lower(x).compile()
        calls[name] = functools.partial(compiled, x)
    return {name: found["ms"][1] for name, found in in_turns(calls).items()}


def main() -> None:
    """Print a table, and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    record.add_json_option(parser)
    options = parser.parse_args()
    kept = record.Record(options.json)
    print("| measured | µs | of |\n|---|---|---|")
    for result in measure(small=False):
        kept.add(result)
        print(f"| {result['what']} | {result['us']:.3g} | {result['of']} |", flush=True)


if __name__ == "__main__":
    main()
