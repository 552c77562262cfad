"""Compare and time what `prebuild` compiled, on this device; needs JAX and NumPy alone.

Each result is appended to results.jsonl of the folder when it is there, so that a cut-off loses
nothing. A case that dies, or of which a side takes `PATIENCE_S`, is an error, and the next process
goes on behind it; one that the minutes cut off is measured by the next call. A side that differs is
not timed. Of the others:

    ms         of a call, with quartiles: batches of 10 ms, in turns with the other sides
    device_us  µs that kernels of a call run, by the profiler, and `launches`, how many they are
    ratio      of the first side's time, turn by turn
"""

from __future__ import annotations

import collections
import functools
import io
import json
import lzma
import math
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

PATIENCE_S, RESERVE_S = 75, 5
CHILD = f"import sys; from {__name__} import child; child(*sys.argv[1:])"
BATCH_S, MOST_CALLS, TURNS, TRACED = 0.010, 200, 7, 4


def run(folder: pathlib.Path, minutes: float = 9.0, only: str = "") -> None:
    """Measure in processes of their own until all is measured, or the minutes have passed."""
    end = time.monotonic() + 60 * minutes
    while (left := end - time.monotonic()) > RESERVE_S:
        command = [sys.executable, "-c", CHILD, str(folder), str(left), only]
        child = subprocess.Popen(command, start_new_session=True)
        if (why := _watched(child, folder, end)) == "" or time.monotonic() > end:
            break
        if pending := [key for key in _lines(folder / "started") if key not in _done(folder)]:
            append(folder, _named(pending[-1], _entry(folder, pending[-1])) | {"error": why})
        else:
            raise RuntimeError(f"nothing can be measured here: {why}")
    if left := len([*_waiting(folder, only)]):
        print(f"{left} cases are left: the same command goes on with them", flush=True)


def _watched(child, folder: pathlib.Path, end: float) -> str:
    """Return why a process ended early, or ""."""
    started, progress = time.time(), folder / "started"
    while True:
        try:
            code = child.wait(timeout=0.5)
            return "" if code == 0 else f"the process died ({code})"
        except subprocess.TimeoutExpired:
            last = max(started, progress.stat().st_mtime if progress.exists() else 0)
            if time.time() - last > PATIENCE_S or time.monotonic() > end:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
                return f"stopped after {time.time() - last:.0f} s"


def _lines(path: pathlib.Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def results(folder: pathlib.Path) -> list[dict]:
    """Return what was measured, in the order in which it was."""
    return [json.loads(line) for line in _lines(folder / "results.jsonl")]


def _done(folder: pathlib.Path) -> set[str]:
    return {result["key"] for result in results(folder) if "key" in result}


def append(folder: pathlib.Path, result: dict) -> None:
    with open(folder / "results.jsonl", "a") as file:
        file.write(json.dumps(result) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _entry(folder: pathlib.Path, key: str) -> dict:
    return json.loads((folder / "entries" / f"{key}.json").read_text())


def _named(key: str, entry: dict) -> dict:
    return {"key": key, "group": entry["group"], "case": entry["case"]}


def _waiting(folder: pathlib.Path, only: str) -> Iterator[tuple[str, dict]]:
    """Yield what is compiled and not done, in order."""
    done = _done(folder)
    for key in json.loads((folder / "order.json").read_text()):
        if key not in done and (folder / "entries" / f"{key}.json").exists():
            entry = _entry(folder, key)
            if only in f"{entry['group']} {entry['case']}":
                yield key, entry


def child(folder: str, seconds: str, only: str) -> None:
    """Measure what is not done, in a process of its own."""
    folder, end = pathlib.Path(folder), time.monotonic() + float(seconds)
    store = Store(folder)
    if not any("machine" in result for result in results(folder)):  # those of `live` do not say
        append(folder, {"machine": machine()})
    for key, entry in _waiting(folder, only):
        if time.monotonic() > end - RESERVE_S:
            break
        with open(folder / "started", "a") as file:
            file.write(f"{key}\n")
        try:
            found = {"sides": measured(store, entry)}
        except Exception as error:
            found = {"error": first_line(error)}
        append(folder, _named(key, entry) | found)
        print(f"{entry['group']}: {entry['case']}", found.get("error", ""), flush=True)
        for side in found.get("sides", ()):
            print("  ", text_of(side), flush=True)


class Store:
    """Executables and arrays of a folder, loaded onto the device."""

    def __init__(self, folder: pathlib.Path):
        import jax

        self.folder, self.device = folder, jax.devices()[0]
        if self.device.platform == "gpu":
            from jaxlib import gpu_triton  # noqa: F401  (registers what launches Triton's kernels)

    def call(self, side: dict, count: int):
        """Return the executable of a side, as a function of `count` arrays."""
        import jax
        from jax.experimental import serialize_executable

        content = (self.folder / "executables" / side["executable"]).read_bytes()
        trees = (((*range(count),), {}), (*range(side["outputs"]),))
        return serialize_executable.deserialize_and_load(
            lzma.decompress(content),
            *map(jax.tree.structure, trees),
            execution_devices=[self.device],
        )

    def leaves(self, entry: dict) -> list:
        """Return the arguments of a case, on the device."""
        import jax
        import numpy as np

        found, rng = [], np.random.default_rng(0)
        for leaf in entry["leaves"]:
            if "stored" in leaf:
                content = (self.folder / "arrays" / leaf["stored"]).read_bytes()
                array = np.load(io.BytesIO(lzma.decompress(content)))
            elif "zeros" in leaf:
                array = np.zeros(leaf["shape"], leaf["dtype"])
            else:
                array = rng.standard_normal(leaf["shape"], np.float32)
            found.append(jax.device_put(array.astype(leaf["dtype"]), self.device))
        return jax.block_until_ready(found)


def measured(store: Store, entry: dict) -> list[dict]:
    """Return the sides of a case with their differences and times."""
    leaves = store.leaves(entry)

    def made(side: dict):
        if "error" in side:
            raise RuntimeError(side["error"])
        (store.folder / "started").touch()  # patience is with a side
        run = functools.partial(store.call(side, len(leaves)), *leaves)
        return run, run, side["scratch"]

    makers = {side["side"]: functools.partial(made, side) for side in entry["sides"]}
    return compared(makers, functools.partial(_allowed, entry))


def compared(makers: dict[str, Callable], allowed: Callable) -> list[dict]:
    """Return the sides with their differences and times; the first that runs judges the others.

    Args:
      makers: each gives a function to time, one whose results all sides have alike, and bytes.
      allowed: the largest difference of each result, from those of the second side.
    """
    import jax

    ready, judge, rounded = {}, None, None
    sides = {name: {"side": name} for name in makers}
    for name, maker in makers.items():
        found = sides[name]
        try:
            run, alike, found["scratch"] = maker()
            first, again = ([*map(jax.device_get, jax.tree.leaves(alike()))] for _ in range(2))
            found["repeats"] = all(map(_is_same, first, again))
            if judge is None:
                judge = first
            else:
                errors = [difference(a, b) for a, b in zip(judge, first, strict=True)]
                rounded = rounded or errors
                found["difference"], bounds = max(errors), allowed(rounded)
                if any(e > a for e, a in zip(errors, bounds, strict=True)):
                    raise RuntimeError(f"differs by {max(errors):.1e} of the largest element")
                found["allowed"] = max(bounds)
            ready[name] = run
        except Exception as error:
            found["error"] = first_line(error)
    for name, times in in_turns(ready).items():
        sides[name] |= times | _traced(ready[name])
    return list(sides.values())


def _allowed(entry: dict, rounded: list[float]) -> list[float]:
    """Return the largest difference of each result: see `sides.Case`."""
    if entry["tolerance"] is not None:
        return [entry["tolerance"]] * len(rounded)
    roundings = (math.sqrt(n) * 2.0**-24 for n in entry["products"])
    return [max(2 * r, n) for r, n in zip(rounded, roundings, strict=True)]


def _is_same(a, b) -> bool:
    return a.tobytes() == b.tobytes()


def difference(expected, actual) -> float:
    """Return the largest |actual - expected|, by the largest |expected|."""
    import numpy as np

    expected, actual = (np.asarray(a).astype(np.float64) for a in (expected, actual))
    error = float(np.max(np.abs(actual - expected), initial=0.0))
    scale = float(np.max(np.abs(expected), initial=0.0))
    return error / (scale or 1.0) if math.isfinite(error) else math.inf


def in_turns(calls: dict) -> dict[str, dict]:
    """Return the milliseconds of each call, timed in turns, and their ratio to the first's."""
    import jax

    def seconds(call, repeats: int) -> float:
        start, result = time.perf_counter(), None
        for _ in range(repeats):
            result = call()
        jax.block_until_ready(result)
        return (time.perf_counter() - start) / repeats

    repeats = {}
    for name, call in calls.items():
        seconds(call, 2)
        repeats[name] = max(1, min(MOST_CALLS, math.ceil(BATCH_S / seconds(call, 2))))
    turns = [
        {name: seconds(call, repeats[name]) for name, call in calls.items()} for _ in range(TURNS)
    ]
    first = next(iter(calls), None)
    return {
        name: {
            "ms": spread([1e3 * turn[name] for turn in turns]),
            "ratio": spread([turn[name] / turn[first] for turn in turns]),
        }
        for name in calls
    }


def spread(values: list[float]) -> list[float]:
    """Return the quartiles."""
    return statistics.quantiles(values, n=4, method="inclusive")


def _traced(call) -> dict:
    """Return the µs of kernels of a call, by the profiler, and how many they are."""
    import jax

    if jax.default_backend() != "gpu":
        return {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            with jax.profiler.trace(folder):
                jax.block_until_ready([call() for _ in range(TRACED)])
            [file] = pathlib.Path(folder).rglob("*.xplane.pb")
            planes = jax.profiler.ProfileData.from_file(str(file)).planes
        except Exception as error:
            return {"profiler": first_line(error)}
    times = collections.Counter()
    for plane in planes:
        for line in plane.lines if "/device:GPU" in plane.name else ():
            for event in line.events if line.name.startswith("Stream") else ():
                times[event.name[:90]] += event.duration_ns / TRACED / 1e3
                times["launches"] += 1 / TRACED
    launches = times.pop("launches", 0)
    kernels = {name: round(us, 2) for name, us in times.most_common(8)}
    return {"device_us": round(times.total(), 2), "launches": launches, "kernels": kernels}


def machine() -> dict:
    """Return the device, its driver and the versions."""
    import jax

    device = jax.devices()[0]
    found = {
        "date": time.strftime("%d %B %Y"),
        "device": device.device_kind,
        "jax": jax.__version__,
    }
    query = "--query-gpu=driver_version,clocks.max.sm,power.limit", "--format=csv,noheader"
    try:
        done = subprocess.run(["nvidia-smi", *query], capture_output=True, text=True, timeout=10)
        return found | {"driver": done.stdout.strip()}
    except (OSError, subprocess.TimeoutExpired):
        return found | {"driver": "unknown"}


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200]


def text_of(side: dict) -> str:
    """Return a line of a side."""
    if "error" in side:
        return f"{side['side']}: {side['error']}"
    (low, median, high), (_, ratio, _) = side["ms"], side["ratio"]
    text = f"{side['side']}: {median:.4g} ms ({low:.3g} to {high:.3g}), {ratio:.2f} of the first"
    return text + (f", differs by {side['difference']:.0e}" if "difference" in side else "")
