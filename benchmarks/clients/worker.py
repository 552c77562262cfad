"""Compute moving atoms with one program, as often as its parent asks; see `.side_by_side`.

    PYTHON -m benchmarks.clients.worker PROGRAM FILE STRUCTURE DTYPE

It runs in the environment of that program. For each line that it reads, it displaces the atoms by
hundredths of an Å, the same for all programs, and prints JSON: energy (eV), forces (eV/Å), and the
seconds of a processor and of the clock. What is read back from memory that another program has used
is not timed: of several calls in a row, it is the last.
"""

import os

os.environ.setdefault("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # mace's own import needs it

import argparse
import json
import resource
import sys
import time
import warnings

import ase.io
import numpy as np

STEP = 0.01
"""Displacements, Å: a standard deviation."""
CALLS, LARGE = 3, 1.0
"""Calls in a row, and seconds of a call that is timed without others before it."""


class Calculator:
    """A program through its calculator of ASE: energy, forces and stress, with its list."""

    def __init__(self, calculator):
        self.calculator = calculator

    def prepare(self, atoms):
        self.atoms = atoms

    def compute(self):
        self.calculator.calculate(self.atoms, ["energy", "forces", "stress"], ["positions"])

    def results(self):
        results = self.calculator.results
        return results["energy"], results["forces"]


class Alone:
    """The evaluator of symmetrix on pairs that are at hand: energies and forces of pairs."""

    def __init__(self, calculator):
        self.evaluator = calculator.evaluator

    def prepare(self, atoms):
        from matscipy.neighbours import neighbour_list

        known, count = self.evaluator.atomic_numbers, len(atoms)
        types = np.searchsorted(known, atoms.numbers).astype(np.int32)
        i, j, lengths, vectors = neighbour_list("ijdD", atoms, self.evaluator.r_cut)
        neighbours = np.bincount(i, minlength=count).astype(np.int32)
        self.ends = i, j
        self.arguments = count, types, neighbours, j.astype(np.int32), types[j]
        self.arguments += vectors.ravel(), lengths

    def compute(self):
        self.evaluator.compute_node_energies_forces(*self.arguments)

    def results(self):
        i, j = self.ends
        pairs = np.reshape(self.evaluator.node_forces, (-1, 3))[: len(i)]
        forces = np.zeros((self.arguments[0], 3))
        np.add.at(forces, j, pairs)
        np.add.at(forces, i, -pairs)
        return np.sum(self.evaluator.node_energies[: len(forces)]), forces


class ForcesOnly:
    """A network of mace-torch on a batch that is at hand: energy and forces."""

    def __init__(self, calculator):
        self.made, self.network = calculator, calculator.models[0]

    def prepare(self, atoms):
        self.batch = self.made._atoms_to_batch(atoms).to_dict()

    def compute(self):
        self.found = self.network(self.batch, compute_stress=False)

    def results(self):
        return tuple(self.found[name].detach().numpy() for name in ("energy", "forces"))


class TrainingInTorch:
    """A step of training: the loss of energies and forces, its gradient, and Adam that stays.

    Labels are zero, and so is the learning rate, for steps of the same network in all programs.
    """

    def __init__(self, network, batch_of, forward):
        import torch

        self.network, self.batch_of, self.forward = network.train(), batch_of, forward
        parameters = [p.requires_grad_() for p in network.parameters()]
        self.optimizer = torch.optim.Adam(parameters, lr=0.0)

    def prepare(self, atoms):
        self.batch = self.batch_of(atoms)

    def compute(self):
        self.optimizer.zero_grad()
        energy, forces = self.found = self.forward(self.network, self.batch)
        loss = (energy / len(forces)).square().mean() + forces.square().mean()
        loss.backward()
        self.optimizer.step()

    def results(self):
        energy, forces = (found.detach().numpy() for found in self.found)
        return energy.sum(), forces


class TrainingInJax:
    """The same step in JAX; graphs have room for a tenth more edges than the first."""

    def __init__(self, params, graph_of, forward, reference=lambda numbers: 0.0):
        import jax
        import optax

        optimizer = optax.adam(0.0)

        def step(params, state, graph, count):
            def loss_of(params):
                energy, forces = forward(params, graph)
                loss = (energy[0] / count) ** 2 + (forces**2).sum() / (3 * count)
                return loss, (energy[0], forces)

            (_, found), gradient = jax.value_and_grad(loss_of, has_aux=True)(params)
            updates, state = optimizer.update(gradient, state, params)
            return optax.apply_updates(params, updates), state, found

        self.state, self.step = (params, optimizer.init(params)), jax.jit(step)
        self.graph_of, self.reference, self.room = graph_of, reference, None

    def prepare(self, atoms):
        import jax

        self.graph, self.room = self.graph_of(atoms, self.room)
        self.graph = jax.block_until_ready(jax.device_put(self.graph))
        self.count, self.constant = float(len(atoms)), self.reference(atoms.numbers)

    def compute(self):
        import jax

        found = self.step(*self.state, self.graph, self.count)
        *self.state, self.found = jax.block_until_ready(found)

    def results(self):
        energy, forces = self.found
        return energy + self.constant, forces[: int(self.count)]


def _edges_with_room(count: int, room: int | None) -> int:
    return room or 64 * (count * 11 // 640 + 1)


def _training(file, dtype, backend=None):
    import jax

    jax.config.update("jax_enable_x64", dtype == "float64")
    from eqfuse import models
    from eqfuse.data import Shape, collate
    from eqfuse.data.readers.ase_files import of_atoms
    from eqfuse.data.samples import prepare_samples
    from eqfuse.runs.checkpoint import load_run

    module, params, metadata = load_run(file, backend=backend)
    references = metadata["reference_energies"]

    def graph_of(atoms, room):
        samples = prepare_samples([of_atoms(atoms)], module.model.cutoff, metadata["species"], None)
        room = _edges_with_room(samples[0].num_edges, room)
        return collate(samples, Shape(len(atoms) + 1, room, 2), dtype).graph, room

    def forward(params, graph):
        found = models.predict(module, params, graph)
        return found.energy, found.forces

    params = jax.tree.map(lambda p: p.astype(dtype), params)
    constant = lambda numbers: sum(references[str(z)] for z in numbers)  # noqa: E731
    return TrainingInJax(params, graph_of, forward, constant)


def _mace_training(file, dtype):
    calculator = _mace(file, dtype)

    def forward(network, batch):
        found = network(batch, training=True, compute_stress=False)
        return found["energy"], found["forces"]

    batch_of = lambda atoms: calculator._atoms_to_batch(atoms).to_dict()  # noqa: E731
    return TrainingInTorch(calculator.models[0], batch_of, forward)


def _sevennet_training(file, dtype):
    import sevenn._keys as keys
    from sevenn.atom_graph_data import AtomGraphData
    from sevenn.train.dataload import unlabeled_atoms_to_graph

    calculator = _sevennet(file, dtype).calculator

    def batch_of(atoms):
        return AtomGraphData.from_numpy_dict(unlabeled_atoms_to_graph(atoms, calculator.cutoff))

    def forward(network, batch):
        found = network(batch)
        return found[keys.PRED_TOTAL_ENERGY], found[keys.PRED_FORCE]

    return TrainingInTorch(calculator.model, batch_of, forward)


def _nequix_training(file, dtype):
    import equinox
    import jraph
    from nequix.calculator import dict_to_graphstuple, preprocess_graph

    calculator = _nequix(file, dtype)
    params, static = equinox.partition(calculator.model, equinox.is_inexact_array)

    def graph_of(atoms, room):
        made = preprocess_graph(atoms, calculator.atom_indices, calculator.cutoff, False)
        graph = dict_to_graphstuple(made)
        room = _edges_with_room(int(graph.n_edge[0]), room)
        return jraph.pad_with_graphs(graph, len(atoms) + 1, room, 2), room

    def forward(params, graph):
        energy, forces, _ = equinox.combine(params, static)(graph)
        return energy, forces

    return TrainingInJax(params, graph_of, forward)


def _mlip_training(file, dtype):
    """Train a MACE of mlip in the shape of a run, of its config.yaml, with random weights."""
    import jax
    import yaml

    jax.config.update("jax_enable_x64", dtype == "float64")
    from mlip.data import DatasetInfo
    from mlip.data.chemical_system import ChemicalSystem
    from mlip.data.helpers.dynamically_batch import dynamically_batch
    from mlip.graph import Graph
    from mlip.models import ForceField, Mace

    with open(file, encoding="utf-8") as text:
        shape = yaml.safe_load(text)["model"]
    cutoff = shape["cutoff"]
    info = DatasetInfo(
        atomic_energies_map=dict.fromkeys((z for z in range(1, 95) if not 84 <= z <= 88), 0.0),
        graph_cutoff_angstrom=cutoff,
        avg_num_neighbors=shape["avg_num_neighbors"],
    )
    config = Mace.Config(
        num_layers=shape["layers"],
        num_channels=shape["channels"],
        l_max=shape["lmax"],
        node_symmetry=shape["hidden_lmax"],
        correlation=shape["correlation"],
        num_rbf=shape["num_bessel"],
        radial_mlp_hidden=[shape["radial_hidden"]] * shape["radial_layers"],
    )
    made = ForceField.from_mlip_network(Mace(config, info))

    def graph_of(atoms, room):
        system = ChemicalSystem.from_ase_atoms(atoms, get_property_fields=False)
        graph = Graph.from_chemical_system(system, cutoff)
        room = _edges_with_room(len(graph.senders), room)
        return next(dynamically_batch([graph], len(atoms) + 1, room, 2)), room

    def forward(params, graph):
        found = made.predictor.apply(params, graph).to_prediction()
        return found.energy, found.forces

    params = jax.tree.map(lambda p: p.astype(dtype), made.params)
    return TrainingInJax(params, graph_of, forward)


def _eqfuse(file, dtype):
    import eqfuse

    return Calculator(eqfuse.Calculator(file, dtype=dtype))


def _mace(file, dtype, **options):
    import torch
    from mace.calculators import MACECalculator

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    return MACECalculator(model_paths=file, device="cpu", default_dtype=dtype, **options)


def _sevennet(file, dtype):
    import torch
    from sevenn.calculator import SevenNetCalculator

    _only(dtype, "float32")
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    return Calculator(SevenNetCalculator(file, device="cpu"))


def _nequip(file, dtype):
    import torch
    from nequip.integrations.ase import NequIPCalculator

    _only(dtype, "float32")
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    return Calculator(NequIPCalculator.from_compiled_model(file, device="cpu"))


def _nequix(file, dtype):
    from nequix.calculator import NequixCalculator

    _only(dtype, "float32")
    return NequixCalculator(model_path=file, use_kernel=False)


def _symmetrix(file, dtype, kokkos=True):
    from symmetrix import Symmetrix

    return Symmetrix(file, dtype=dtype, use_kokkos=kokkos)


def _only(dtype: str, known: str):
    if dtype != known:
        raise ValueError(f"computes in {known}")


PROGRAMS = {
    "eqfuse": _eqfuse,
    "symmetrix": lambda file, dtype: Calculator(_symmetrix(file, dtype)),
    "symmetrix, evaluator": lambda file, dtype: Alone(_symmetrix(file, dtype)),
    "symmetrix, serial evaluator": lambda *given: Alone(_symmetrix(*given, kokkos=False)),
    "mace-torch": lambda file, dtype: Calculator(_mace(file, dtype)),
    "mace-torch, forces only": lambda file, dtype: ForcesOnly(_mace(file, dtype)),
    "mace-torch, compiled": lambda *given: Calculator(
        _mace(*given, compile_mode="default", fullgraph=False)
    ),
    "sevenn": _sevennet,
    "nequip, compiled": _nequip,
    "nequix": lambda *given: Calculator(_nequix(*given)),
    "eqfuse, training": _training,
    "e3nn-jax, training": lambda *given: _training(*given, backend="e3nn"),
    "mace-torch, training": _mace_training,
    "sevenn, training": _sevennet_training,
    "nequix, training": _nequix_training,
    "mlip, training": _mlip_training,
}
"""What computes, by name: functions of a file and a dtype."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", choices=PROGRAMS)
    for name in ("file", "structure", "dtype"):
        parser.add_argument(name)
    options = parser.parse_args()
    results, sys.stdout = sys.stdout, sys.stderr  # programs print, too
    warnings.simplefilter("ignore")
    atoms = ase.io.read(options.structure)
    side = PROGRAMS[options.program](options.file, options.dtype)
    start = atoms.positions.copy()
    seconds = (0.0, 0.0)
    for turn, _ in enumerate(sys.stdin):
        for call in reversed(range(CALLS if seconds[1] < LARGE else 1)):
            rng = np.random.default_rng([turn, call])
            atoms.positions = start + STEP * rng.normal(size=start.shape)
            side.prepare(atoms)
            before = time.process_time(), time.perf_counter()
            side.compute()
            seconds = time.process_time() - before[0], time.perf_counter() - before[1]
        energy, forces = side.results()
        line = {"energy": float(np.sum(energy)), "forces": np.asarray(forces).tolist()}
        line |= dict(zip(("processor", "clock"), seconds, strict=True))
        line["peak"] = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes
        print(json.dumps(line), file=results, flush=True)


if __name__ == "__main__":
    main()
