"""Compute structures with a calculator of ASE, in a process of its own.

Any Python runs this file: it needs ase and numpy, and imports nothing of eqfuse.
"""

import ast
import contextlib
import functools
import importlib
import importlib.metadata
import io
import json
import os
import platform
import struct
import sys

import ase
import numpy as np
from ase import units
from ase.calculators.calculator import PropertyNotImplementedError
from ase.md.velocitydistribution import Stationary, thermalize_momenta
from ase.md.verlet import VelocityVerlet
from ase.optimize import FIRE


def build(name: str):
    """Return the calculator that `module:function(arguments)` names; arguments are literals."""
    module, _, call = name.partition(":")
    node, arguments, named = ast.parse(call, mode="eval").body, [], {}
    if isinstance(node, ast.Call):
        arguments = [ast.literal_eval(argument) for argument in node.args]
        named = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords}
        node = node.func
    target = importlib.import_module(module)
    for part in ast.unparse(node).split("."):
        target = getattr(target, part)
    return target(*arguments, **named)


def compute(calculator, atoms: ase.Atoms) -> dict:
    """Return energy (eV), forces (eV/Å) and, where there is one, stress (eV/Å^3, 6 numbers)."""
    atoms = atoms.copy()
    atoms.calc = calculator
    results = {"energy": float(atoms.get_potential_energy()), "forces": atoms.get_forces()}
    if atoms.pbc.all() and atoms.cell.rank == 3:
        with contextlib.suppress(PropertyNotImplementedError):
            results["stress"] = atoms.get_stress()
    return {name: np.array(value, np.float64) for name, value in results.items()}


def repeat(calculator, atoms: ase.Atoms, count: int) -> list[dict]:
    """Return the results of several calculations of one structure."""
    results = []
    for _ in range(count):
        calculator.reset()
        results.append(compute(calculator, atoms))
    return results


def relax(calculator, atoms: ase.Atoms, steps: int) -> dict:
    """Return the positions after so many steps towards a minimum of the energy."""
    atoms = atoms.copy()
    atoms.calc = calculator
    FIRE(atoms, logfile=None).run(fmax=0.1, steps=steps)
    return {"positions": atoms.positions}


def dynamics(calculator, atoms: ase.Atoms, timestep: float, steps: int, temperature: float) -> dict:
    """Run NVE dynamics.

    Returns:
      energies [steps] eV, velocities and forces [steps, n_atoms, 3] in ASE's units, after each
      step; fewer where the dynamics end with an error.
    """
    atoms = atoms.copy()
    thermalize_momenta(atoms, temperature, rng=np.random.default_rng(0))
    Stationary(atoms)
    atoms.calc = calculator
    verlet = VelocityVerlet(atoms, timestep * units.fs)
    rows = []
    for _ in range(steps):
        try:
            verlet.run(1)
            rows.append((atoms.get_total_energy(), atoms.get_velocities(), atoms.get_forces()))
        except Exception as error:  # of any calculator, for positions that are not finite
            print(f"dynamics ended after {len(rows)} steps: {error}", file=sys.stderr)
            break
    energies, velocities, forces = zip(*rows, strict=True) if rows else ([], [], [])
    return {"energies": energies, "velocities": velocities, "forces": forces}


def versions(modules) -> dict:
    """Return the versions of what computes here, and the devices that it sees."""
    known = {"python": platform.python_version(), "ase": ase.__version__, "numpy": np.__version__}
    distributions = importlib.metadata.packages_distributions()
    for name in modules:
        for distribution in distributions.get(name, ()):
            known[distribution] = importlib.metadata.version(distribution)
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None:
        known["torch"] = torch.__version__
        has_gpu = torch.cuda.is_available()
        known["torch device"] = torch.cuda.get_device_name() if has_gpu else "cpu"
    if jax is not None:
        known |= {"jax": jax.__version__, "jax device": jax.devices()[0].device_kind}
    return known


def packed(arrays: dict) -> bytes:
    """Return named arrays as bytes that `unpacked` reads."""
    data = io.BytesIO()
    np.savez(data, **{name: np.asarray(value) for name, value in arrays.items()})
    return data.getvalue()


def unpacked(data: bytes) -> dict:
    """Return the arrays of `packed`."""
    with np.load(io.BytesIO(data)) as file:
        return {name: file[name] for name in file.files}


def send(file, arrays: dict):
    """Write arrays to a pipe."""
    data = packed(arrays)
    file.write(struct.pack("<q", len(data)) + data)
    file.flush()


def receive(file) -> dict | None:
    """Read arrays from a pipe; None where it ends."""
    head = file.read(8)
    if len(head) < 8:
        return None
    [size] = struct.unpack("<q", head)
    data = file.read(size)
    return unpacked(data) if len(data) == size else None


def arrays_of(atoms: ase.Atoms) -> dict:
    """Return what a structure is made of."""
    cell = atoms.cell.array
    return {"numbers": atoms.numbers, "positions": atoms.positions, "cell": cell, "pbc": atoms.pbc}


def answer(calculator, request: dict, new=None) -> dict:
    """Return the arrays that a request asks for; `error` is a text where the calculator raises.

    `new` returns another calculator of this kind, for tasks that ask for a fresh one.
    """
    task = json.loads(str(request.pop("task")))
    kind = task.pop("kind")
    try:
        if task.pop("fresh", False) and new is not None:
            calculator = new()
        if kind == "versions":
            return {"versions": json.dumps(versions(**task))}
        atoms = ase.Atoms(**request)
        if kind == "repeat":
            rows = repeat(calculator, atoms, **task)
            return {name: np.array([row[name] for row in rows]) for name in rows[0]}
        return {"compute": compute, "relax": relax, "dynamics": dynamics}[kind](
            calculator, atoms, **task
        )
    except Exception as error:  # of any calculator, which is told to who asks
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}


def serve():
    """Answer the requests on standard input until it ends; what calculators print is no answer."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.path.insert(0, os.getcwd())
    name, threads = sys.argv[1], int(sys.argv[2])
    if threads:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    try:
        calculator = build(name)
    except Exception as error:
        send(replies, {"error": f"{type(error).__name__}: {error}"})
        return
    new = functools.cache(lambda: build(name))
    send(replies, {"ready": True})
    while (request := receive(sys.stdin.buffer)) is not None:
        send(replies, answer(calculator, request, new))


if __name__ == "__main__":
    serve()
