"""Compute structures with a calculator of ASE, in a process of its own.

Any Python runs this file: it needs ase and numpy, and imports nothing of eqfuse. Requests and
replies are lines of JSON, in which floating-point numbers keep all of their bits.
"""

import ast
import contextlib
import functools
import importlib
import importlib.metadata
import json
import os
import platform
import sys

import ase
import numpy as np
from ase import units
from ase.calculators.calculator import PropertyNotImplementedError
from ase.md.velocitydistribution import Stationary
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


def energy_of(atoms: ase.Atoms) -> float:
    """Return the energy (eV) whose slope forces are: where electrons are smeared, the free one."""
    energy = atoms.get_potential_energy()
    return float(getattr(atoms.calc, "results", {}).get("free_energy", energy))


def compute(calculator, atoms: ase.Atoms) -> dict:
    """Return energy (eV), forces (eV/Å) and, where there is one, stress (eV/Å^3, 6 numbers)."""
    atoms = atoms.copy()
    atoms.calc = calculator
    results = {"energy": energy_of(atoms), "forces": atoms.get_forces()}
    if atoms.pbc.all() and atoms.cell.rank == 3:
        with contextlib.suppress(PropertyNotImplementedError):
            results["stress"] = atoms.get_stress()
    return {name: np.array(value, np.float64) for name, value in results.items()}


def repeat(calculator, atoms: ase.Atoms, count: int) -> dict:
    """Return the results of several calculations of one structure, each a list."""
    results = []
    for _ in range(count):
        calculator.reset()
        results.append(compute(calculator, atoms))
    return {name: [one[name] for one in results] for name in results[0]}


def relax(calculator, atoms: ase.Atoms, steps: int) -> dict:
    """Return the positions after so many steps towards a minimum of the energy."""
    atoms.calc = calculator
    FIRE(atoms, logfile=None).run(fmax=0.1, steps=steps)
    return {"positions": atoms.positions}


def dynamics(calculator, atoms: ase.Atoms, timestep: float, steps: int, temperature: float) -> dict:
    """Run NVE dynamics.

    Returns:
      energies [steps] eV, velocities and forces [steps, n_atoms, 3] in ASE's units, after each
      step; fewer where the dynamics end with an error.
    """
    normal = np.random.default_rng(0).standard_normal((len(atoms), 3))  # old ASE has another name
    atoms.set_momenta(normal * np.sqrt(units.kB * temperature * atoms.get_masses())[:, None])
    Stationary(atoms)
    atoms.calc = calculator
    verlet = VelocityVerlet(atoms, timestep * units.fs)
    rows = []
    for _ in range(steps):
        try:
            verlet.run(1)
            energy = energy_of(atoms) + atoms.get_kinetic_energy()
            rows.append((energy, atoms.get_velocities(), atoms.get_forces()))
        except Exception as error:  # of any calculator, for positions that are not finite
            print(f"dynamics ended after {len(rows)} steps: {error}", file=sys.stderr)
            break
    energies, velocities, forces = zip(*rows, strict=True) if rows else ([], [], [])
    return {"energies": energies, "velocities": velocities, "forces": forces}


def versions(calculator, atoms: ase.Atoms, modules) -> dict:
    """Return the versions of what computes here, and the devices that it sees."""
    known = {"python": platform.python_version(), "ase": ase.__version__, "numpy": np.__version__}
    distributions = importlib.metadata.packages_distributions()
    # an editable install by a path has no list of its modules: its name is that of the module
    for distribution in (d for name in modules for d in distributions.get(name, (name,))):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            known[distribution] = importlib.metadata.version(distribution)
    if (torch := sys.modules.get("torch")) is not None:
        has_gpu = torch.cuda.is_available()
        device = torch.cuda.get_device_name() if has_gpu else "cpu"
        known |= {"torch": torch.__version__, "torch device": device}
    if (jax := sys.modules.get("jax")) is not None:
        known |= {"jax": jax.__version__, "jax device": jax.devices()[0].device_kind}
    return known


_TASKS = {task.__name__: task for task in (compute, repeat, relax, dynamics, versions)}


def answer(calculator, kind: str, atoms: dict, new=None, fresh: bool = False, **options) -> dict:
    """Return what a task gives for atoms; `error` is a text where the calculator raises.

    `new` returns another calculator of this kind, for tasks that ask for a fresh one.
    """
    try:
        calculator = new() if fresh and new is not None else calculator
        if atoms.get("info"):  # without which ASE's calculators compare atoms
            calculator.reset()
        return _TASKS[kind](calculator, ase.Atoms(**atoms), **options)
    except Exception as error:  # of any calculator, which is told to who asks
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}


def as_line(message: dict) -> str:
    """Return a message as a line of JSON; `json.loads` has lists in the place of its arrays."""
    return json.dumps(message, default=lambda array: array.tolist()) + "\n"


def serve():
    """Answer the requests on standard input until it ends; calculators neither read nor answer."""
    requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.path.insert(0, os.getcwd())

    def reply(message: dict):
        replies.write(as_line(message))
        replies.flush()

    try:
        calculator = build(sys.argv[1])
    except Exception as error:
        reply({"error": f"{type(error).__name__}: {error}"})
        return
    reply({"ready": True})
    new = functools.cache(lambda: build(sys.argv[1]))
    for line in requests:
        reply(answer(calculator, new=new, **json.loads(line)))


if __name__ == "__main__":
    serve()
