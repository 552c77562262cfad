"""Compute what leaderboards ask of a potential without data of their own, on one CPU core.

    python -m benchmarks.clients.leaderboards MATBENCH NETWORK ... [--only SYMBOL,...]

MATBENCH is a clone of github.com/janosh/matbench-discovery. Its own functions compute the metrics
of its diatomics (`matbench_discovery/metrics/diatomics`), with its PBE curves, from energies and
forces of eqfuse. It needs pandas, pymatviz 0.18.0 and ruamel.yaml.
"""

import argparse
import importlib
import json
import os
import sys
import time
import types
from pathlib import Path

import ase
import numpy as np
from ase.data import chemical_symbols

import eqfuse

DISTANCES = np.geomspace(0.1, 6.0, 119)
"""Lengths in Å: the defaults of matbench-discovery's `models/run_diatomics.py`."""


def metrics_of(clone: Path):
    """Return the module of matbench-discovery's metrics of diatomics."""
    sys.path.insert(0, str(clone))
    # Its data are downloaded on import, and these metrics do not use them.
    data = types.ModuleType("matbench_discovery.data")
    for name in ("FileRef", "file_ref_name", "file_ref_url", "make_file_ref", "update_yaml_file"):
        setattr(data, name, dict)
    metrics = types.ModuleType("matbench_discovery.metrics")
    metrics.__path__ = [str(clone / "matbench_discovery" / "metrics")]
    sys.modules |= {data.__name__: data, metrics.__name__: metrics}
    return importlib.import_module("matbench_discovery.metrics.diatomics")


def curve(calculator, symbol: str) -> dict:
    """Return energies (eV) and forces (eV/Å) of two atoms in a box of 50 Å at all distances."""
    energies, forces = [], []
    atoms = ase.Atoms([symbol] * 2, np.full((2, 3), 25.0), cell=[50] * 3, pbc=True)
    for distance in DISTANCES:
        atoms.positions[1, 0] = 25 + distance
        energies.append(calculator.get_potential_energy(atoms))
        forces.append(calculator.get_forces(atoms).tolist())
    return {"distances": DISTANCES.tolist(), "energies": energies, "forces": forces}


def diatomics(module, calculator, only=()) -> dict:
    """Return means over elements of the metrics of matbench-discovery, and seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    symbols = only or [chemical_symbols[z] for z in calculator.species if z <= 92]
    curves = {f"{symbol}-{symbol}": curve(calculator, symbol) for symbol in symbols}
    seconds = {"wall_s": time.perf_counter() - wall, "processor_s": time.process_time() - cpu}
    predicted = module.DiatomicCurves.from_dict(
        {"homo-nuclear": curves, "distances": DISTANCES.tolist()}
    )
    rows = module.calc_diatomic_metrics(
        module.load_dft_reference_curves("PBE"), predicted, interpolate=200
    ).values()
    found = {}
    for name in sorted(module.DIATOMIC_METRIC_KEYS):
        values = [row[name] for row in rows if name in row and np.isfinite(row[name])]
        found[name] = float(f"{np.mean(values):.4}") if values else None
    return {"elements": len(curves), **seconds, **found}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("matbench", type=Path, help="clone of matbench-discovery")
    parser.add_argument("networks", nargs="+", help="such as nequix-mp-1, 7net-0 or a run")
    parser.add_argument("--only", default="", help="symbols of elements, for a trial")
    parser.add_argument("--dtype", default="float64")
    options = parser.parse_args(arguments)
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    module = metrics_of(options.matbench)
    for name in options.networks:
        calculator = eqfuse.Calculator(name, dtype=options.dtype)
        found = diatomics(module, calculator, [s for s in options.only.split(",") if s])
        print(name, json.dumps(found, indent=1), flush=True)


if __name__ == "__main__":
    main()
