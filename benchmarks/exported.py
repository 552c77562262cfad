"""Time exported programs in C++ without Python: the kernels of eqfuse against XLA's, in turns.

python -m benchmarks.exported RUN PLUGIN [--cells 3 5 8] [--turns 7] [--json FILE]
"""

import argparse
import pathlib
import subprocess
import tempfile

import ase.build
import ase.io
import numpy as np

import eqfuse.export
from benchmarks.record import Record, Spread, add_json_option, parity
from eqfuse.export import export_folder
from eqfuse.export.command import sizes_for
from eqfuse.inference.network import Network

SOURCE = pathlib.Path(eqfuse.export.__file__).with_name("eqfuse_run.cpp")
BACKENDS = "xla", "llvm"


class Host:
    """The C++ program with a folder, in a process that computes once more when it is asked to."""

    def __init__(self, program, folder, plugin, file, count: int):
        command = [program, folder, plugin, file, "--again"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, **pipes)
        lines = [self.process.stdout.readline().split() for _ in range(count + 2)]
        self.forces = np.array([line[1:] for line in lines[2:]], float)

    def seconds(self) -> float:
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline().split()[1])

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def measure(run, plugin, cells: int, turns: int, element: str, constant: float, dtype) -> dict:
    """Return milliseconds of a step with each backend, their ratio, and how far forces differ."""
    atoms = ase.build.bulk(element, "diamond", a=constant, cubic=True) * (cells, cells, cells)
    atoms.rattle(0.05, seed=0)
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        file, program = place / "start.xyz", place / "run"
        ase.io.write(file, atoms, format="extxyz")
        command = ["g++", "-O2", "-std=c++17", SOURCE, "-o", program, "-ldl", "-pthread"]
        subprocess.run(command, check=True)
        sizes, hosts = sizes_for(file, Network(run).cutoff), {}
        for backend in BACKENDS:
            options = {"engine": "pjrt", "sizes": sizes, "dtype": dtype, "backend": backend}
            folder = export_folder(run, place / backend, **options)
            hosts[backend] = Host(program, folder, plugin, file, len(atoms))
        times = {backend: [] for backend in hosts}
        for _ in range(turns + 1):
            for backend, host in hosts.items():
                times[backend].append(1e3 * host.seconds())
        for host in hosts.values():
            host.end()
    forces = [host.forces for host in hosts.values()]
    # float32: sums of some hundred terms each
    difference = parity(*forces, tolerance=1e-12 if dtype == "float64" else 1e-4)
    ratio = np.array(times["xla"]) / np.array(times["llvm"])
    return {
        "atoms": len(atoms),
        "edges": sizes[0][1],
        "ms": {backend: Spread.of(np.array(t), 1) for backend, t in times.items()},
        "ratio": Spread.of(ratio, 1),
        "difference": difference,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("plugin", help="XLA's PJRT plug-in for CPUs")
    parser.add_argument("--cells", type=int, nargs="+", default=[3, 5, 8], help="along a side")
    parser.add_argument("--element", default="Si")
    parser.add_argument("--constant", type=float, default=5.43, help="of the diamond lattice, Å")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--turns", type=int, default=7)
    add_json_option(parser)
    options = parser.parse_args()
    record = Record(options.json)
    for cells in options.cells:
        kind = options.element, options.constant, options.dtype
        row = measure(options.run, options.plugin, cells, options.turns, *kind)
        record.add(row)
        xla, own = (row["ms"][backend].median for backend in BACKENDS)
        ratio = row["ratio"]
        print(
            f"{row['atoms']} atoms, room for {row['edges']} edges: XLA {xla:.1f} ms, own "
            f"{own:.1f} ms, {ratio.median:.2f} times ({ratio.low:.2f} to {ratio.high:.2f}); "
            f"forces differ by {row['difference']:.1e}",
            flush=True,
        )


if __name__ == "__main__":
    main()
