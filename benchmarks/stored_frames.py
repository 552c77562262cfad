"""Frames on disk: memory for each frame, and the CPU time of batches, against frames in memory.

    python -m benchmarks.stored_frames [--frames 100000]

Frames are those of the embedded ethanol with noise on the positions. Memory is what the process
owns: pages of mapped files are the system's, which takes them back when it needs them.
"""

import argparse
import contextlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.record import Spread, environment
from eqfuse.data import Batcher, Dataset, Structure, read_embedded
from eqfuse.data.checks import find_problems
from eqfuse.data.store import StoredStructures, lists_of, write_frames

CUTOFF, BATCH = 5.0, 10


def synthetic(count: int) -> Iterator[Structure]:
    """Yield frames of nine atoms with energies and forces."""
    rng, frames = np.random.default_rng(0), read_embedded("ethanol")
    for k in range(count):
        frame = frames[k % len(frames)]
        moved = frame.positions + rng.normal(scale=0.02, size=frame.positions.shape)
        yield Structure(frame.numbers, moved, energy=frame.energy, forces=frame.forces)


def owned() -> int:
    """Return the bytes that this process owns, mapped files apart."""
    with open("/proc/self/status", encoding="ascii") as file:
        [line] = [line for line in file if line.startswith("RssAnon")]
    return 1024 * int(line.split()[1])


@contextlib.contextmanager
def peak(record: list):
    """Context that appends the most bytes that were owned at once."""
    done, most = threading.Event(), [owned()]

    def watch():
        while not done.wait(0.002):
            most[0] = max(most[0], owned())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        record.append(max(most[0], owned()))


def memory(folder: Path) -> None:
    """Print the most memory while stored frames are prepared, checked and cut into batches."""
    peaks: list[int] = []
    with peak(peaks):
        structures = StoredStructures(folder)
        dataset = Dataset.build(structures, cutoff=CUTOFF, val_size=100)
    with peak(peaks):
        find_problems(dataset, structures)
    with peak(peaks):
        batcher = Batcher(dataset.train, BATCH)
        for _ in batcher.batches():
            pass
    print(*peaks)


def per_frame(folder: Path, count: int) -> list[float]:
    """Return bytes of each frame, in the steps of `memory`: of many frames over those of 2,000."""
    results = []
    for number in (2000, count):
        made = folder / str(number)
        made.mkdir()
        write_frames(made, {"frames": synthetic(number)})
        lists_of(StoredStructures(made), CUTOFF)
        command = [sys.executable, "-m", "benchmarks.stored_frames", "--memory", str(made)]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        results.append(np.array(out.split(), float))
    return ((results[1] - results[0]) / (count - 2000)).tolist()


def batch_times(folder: Path, epochs: int = 25) -> np.ndarray:
    """Return CPU times of batches from memory and from disk, in turns, [2, epochs] s."""
    frames = list(synthetic(1000))
    folder.mkdir()
    write_frames(folder, {"frames": frames})
    batchers = [
        Batcher(Dataset.build(each, cutoff=CUTOFF).train, BATCH)
        for each in (frames, StoredStructures(folder))
    ]
    times = np.zeros((2, epochs))
    for epoch in range(epochs):
        for k in (0, 1) if epoch % 2 else (1, 0):
            start = time.process_time()
            count = sum(1 for _ in batchers[k].batches(epoch))
            times[k, epoch] = (time.process_time() - start) / count
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--memory", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory:
        memory(arguments.memory)
        return
    print(environment())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        times = batch_times(folder / "few")
        ratio = Spread.of(times[1] / times[0])
        print(
            f"a batch of {BATCH}, CPU: {1e6 * np.median(times[0]):.0f} us from memory, "
            f"{1e6 * np.median(times[1]):.0f} us from disk; ratio {ratio.median:.2f} "
            f"({ratio.low:.2f} to {ratio.high:.2f})",
            flush=True,
        )
        names = "prepared", "checked", "an epoch of batches"
        for step, number in zip(names, per_frame(folder, arguments.frames), strict=True):
            print(f"{step:20} {number:6.0f} bytes a frame at {arguments.frames:,} frames")


if __name__ == "__main__":
    main()
