"""Time what needs eqfuse on the GPU itself: a calculator and dynamics, with CUDA graphs or not.

Each is a process of its own, since XLA reads its flags once. The first call of a calculator, which
measures kernels and compiles, is timed, too.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from benchmarks.gpu.measure import append, spread

FLAGS = {"CUDA graphs": "", "launched one by one": "--xla_gpu_enable_command_buffer="}
CASES = "forces by a calculator", "a step of dynamics"
CALLS, STEPS = 20, 200


def run(folder: pathlib.Path, tiny: bool = False) -> None:
    """Append the results of both settings to those of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    sides = []
    for name, flags in FLAGS.items():
        given = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
        command = [sys.executable, "-c", f"from {__name__} import child; child({tiny})"]
        done = subprocess.run(
            command, capture_output=True, text=True, env=os.environ | {"XLA_FLAGS": given}
        )
        last = done.stdout.strip().rpartition("\n")[2] or done.stderr.strip().rpartition("\n")[2]
        sides.append((name, json.loads(last) if done.returncode == 0 else {"error": last[:200]}))
    for case in CASES:
        found, first = [], None
        for name, times in sides:
            side = {"side": name, "scratch": 0}
            if "error" in times:
                found.append(side | times)
                continue
            first = first or times[case]
            ratio = spread([a / b for a, b in zip(times[case], first, strict=True)])
            found.append(side | {"ms": spread(times[case]), "ratio": ratio})
            found[-1]["side"] += f"; first answer {times['first']:.1f} s"
        append(folder, {"key": f"live {case}", "group": "live", "case": case, "sides": found})
        print(case, json.dumps(found, indent=1), flush=True)


def measured(tiny: bool) -> dict:
    """Return the seconds of the first answer, and the milliseconds of later ones and of steps."""
    import ase.build

    import eqfuse
    from eqfuse import md
    from eqfuse.convert.conversion import write_run
    from eqfuse.convert.untrained import random_network

    with tempfile.TemporaryDirectory() as place:
        network = pathlib.Path(place) / "run"
        fields = {
            "channels": 4 if tiny else 64,
            "lmax": 1 if tiny else 2,
            "num_species": 1,
            "cutoff": 5.0,
            "avg_num_neighbors": 40.0,
        }
        (source := network.with_name("random")).touch()
        write_run([random_network("mace", fields, [14], dtype="float32")], source, network)
        atoms = ase.build.bulk("Si", "diamond", 5.43, cubic=True) * ((1 if tiny else 5,) * 3)
        atoms.rattle(0.02, seed=0)
        start, times = time.perf_counter(), []
        atoms.calc = eqfuse.Calculator(network)
        atoms.get_forces()
        first = time.perf_counter() - start
        for seed in range(3 if tiny else CALLS):
            atoms.rattle(1e-4, seed=seed)
            start = time.perf_counter()
            atoms.get_forces()
            times.append(1e3 * (time.perf_counter() - start))
        steps, taken = 2 if tiny else STEPS, []
        for turn in range(4):  # the first compiles
            start = time.perf_counter()
            where = str(network.with_name(f"md{turn}"))
            md.run(network, atoms, steps=steps, run=where, temperature=1.0, ensemble="nve")
            taken.append(1e3 * (time.perf_counter() - start) / steps)
        return {"first": first, CASES[0]: times, CASES[1]: taken[1:]}


def child(tiny: bool) -> None:
    """Print what was measured in this process."""
    print(json.dumps(measured(tiny)))
