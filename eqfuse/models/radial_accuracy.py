"""How far tables of radial functions are from the networks, and how many knots a bound needs."""

import math
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval

from eqfuse.models.radial_choice import KNOTS as DEFAULT
from eqfuse.models.radial_choice import choose
from eqfuse.models.radial_grid import NEAREST
from eqfuse.models.radial_table import COLLECTION, FUNCTIONS
from eqfuse.ops import Edges

KNOTS = (64, 96, 128, 192, 256, 384, 512)
"""Numbers of knots to choose from."""
SHORTEST = 0.1
"""Part of the cutoff from which on errors are measured: no atoms are nearer to each other."""
STEEPEST = 5**-0.5
"""Place between the middle of an interval, 0, and its end, 1, at which slopes differ most."""
MOST_EDGES = 1 << 16
"""Number of lengths, of all pairs of species, at which functions are compared at most."""


def measure(model: nn.Module, params, knots: int) -> float:
    """Return the largest error of the slopes of radial functions from a table, in float64.

    A force is a sum of these slopes, with factors that a table does not change. They are compared
    with the slopes of the networks where they differ most, at both sides of the middle of every
    interval from a tenth of the cutoff on. Values differ most in the middle itself, and less.

    Args:
      model: a network with `radial`.
      params: its parameters, {"embedding": ...}.
      knots: of the table.
    Returns:
      The largest difference for any length and pair of species, as a vector of all functions of a
      network, relative to the largest slope.
    """
    half = (1 - NEAREST) / knots / 2
    middle = NEAREST + half * (2 * np.arange(knots) + 1)
    lengths = np.concatenate([middle - STEEPEST * half, middle + STEEPEST * half])
    lengths = model.cutoff * lengths[lengths > SHORTEST]
    edges, species = _all_pairs(model, len(lengths))
    lengths = np.tile(lengths, edges.num_edges // len(lengths))
    with jax.enable_x64(True):
        params = jax.tree.map(lambda p: jnp.asarray(p, jnp.float64), params)
        slopes = [
            _slopes(model.clone(radial=radial, radial_knots=knots, backend="xla"))(
                params, jnp.asarray(lengths), species, edges
            )
            for radial in ("network", "table")
        ]
    errors = []
    for network, table in zip(*slopes, strict=True):
        size = np.linalg.norm(network, axis=1).max(initial=0.0)
        errors.append(np.linalg.norm(network - table, axis=1).max(initial=0.0) / (size or 1.0))
    return float(max(errors))


def choose_knots(model: nn.Module, params) -> tuple[int, float]:
    """Return how many knots a network needs, and the error with them, see `measure`.

    Returns:
      The smallest of `KNOTS` with errors up to `radial_accuracy`, or the largest of all where none
      has.
    """
    number, bound = KNOTS[0], model.radial_accuracy
    error = measure(model, params, number)
    while error > bound and number < KNOTS[-1]:
        needed = number * (error / bound) ** 0.2  # errors fall with the fifth power
        number = next((k for k in KNOTS if k > number and k >= needed), KNOTS[-1])
        error = measure(model, params, number)
    return number, error


def _all_pairs(model, count: int) -> tuple[Edges, np.ndarray]:
    """Return `count` edges for each pair of species, and the species of the nodes."""
    species = np.arange(model.num_species if model.num_pairs() > 1 else 1, dtype=np.int32)
    receivers, senders = (end.ravel() for end in np.meshgrid(species, species, indexing="ij"))
    most = max(1, MOST_EDGES // count)
    ends = [np.repeat(end[:most], count) for end in (senders, receivers)]
    return Edges.from_arrays(*ends, len(species)), species


def _slopes(model):
    """Return a function of lengths: the slopes of radial functions, [n, width] of each network."""

    def values(params, lengths, species, edges):
        vectors = jnp.stack([lengths, 0 * lengths, 0 * lengths], axis=1)
        _, state = model.apply(
            {"params": params},
            vectors,
            species,
            edges,
            mutable=[FUNCTIONS],
        )
        return jax.tree.leaves(state[FUNCTIONS])

    def slopes(params, lengths, species, edges):
        ones = jnp.ones_like(lengths)
        return jax.jvp(lambda x: values(params, x, species, edges), (lengths,), (ones,))[1]

    return lambda *args: [np.asarray(out) for out in _alone(slopes, args)]


def _alone(function, args):
    """Return the results of a function of which most would not be needed, jitted.

    Of a whole network, kernels would be compiled, too.
    """
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
    wanted = [True] * len(closed.out_avals)
    jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, wanted, instantiate=True)
    run = jax.jit(lambda *leaves: jax.core.eval_jaxpr(jaxpr, closed.consts, *leaves))
    return jax.tree.unflatten(jax.tree.structure(shape), run(*jax.tree.leaves(args)))


def with_tables(potential, variables) -> dict:
    """Return variables of a potential with the tables of its radial functions.

    A potential that is applied to them reads these tables, whatever `radial` is, and makes none.
    They are those of the parameters: after a change of these, make them again.

    Args:
      potential: a `Potential`; its model decides the knots.
      variables: its variables, {"params": ...}.
    Returns:
      {"params": ..., "tables": ...}, tables in the dtype of the parameters.
    """
    params = {"params": variables["params"]}
    dtype = jax.tree.leaves(params)[0].dtype
    model = potential.model.clone(radial="table", backend="xla")
    whole = potential.clone(model=model)
    edges, species = _all_pairs(model, 1)

    def tables(params):
        vectors = jnp.ones((edges.num_edges, 3), dtype) * (model.cutoff / 4)
        return whole.apply(params, vectors, species, edges, mutable=[COLLECTION])[1][COLLECTION]

    return params | {COLLECTION: _alone(tables, (params,))}


class Accuracy(NamedTuple):
    """How exact the tables of a network are.

    Attributes:
      knots: of a table.
      error: of slopes, see `measure`.
      bound: on the error, `radial_accuracy`.
    """

    knots: int
    error: float
    bound: float

    def __str__(self):
        text = f"slopes of tables to {self.error:.0e} of their largest with {self.knots} knots"
        if self.error <= self.bound:
            return text
        needed = self.knots * (self.error / self.bound) ** 0.2
        return f"{text}, more than {self.bound:.0e}: radial_knots={math.ceil(needed)} is enough"


def with_knots(potential, variables, num_edges: int):
    """Return a potential whose tables have as many knots as the bound on their errors asks for.

    Args:
      potential: a `Potential`.
      variables: its variables.
      num_edges: of the largest batch.
    Returns:
      The potential, and the `Accuracy` of its tables; the same potential, where `radial_knots` is
      set; None for the accuracy where it reads no tables.
    """
    model = potential.model
    if not choose(model, num_edges).table:
        return potential, None
    if model.radial_knots is not None:
        return potential, accuracy_of(potential, variables)
    chosen = choose_knots(model, variables["params"]["model"])
    accuracy = Accuracy(*chosen, model.radial_accuracy)
    return potential.clone(model=model.clone(radial_knots=accuracy.knots)), accuracy


def accuracy_of(potential, variables) -> Accuracy:
    """Return the accuracy of the tables of a potential, with the knots that it has."""
    model = potential.model
    knots = model.radial_knots or DEFAULT
    error = measure(model, variables["params"]["model"], knots)
    return Accuracy(knots, error, model.radial_accuracy)
