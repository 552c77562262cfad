"""`benchmarks.gpu` with two peers beside e3nn-jax: cuEquivariance-JAX and OpenEquivariance-JAX.

    python -m benchmarks.gpu peers FOLDER

A peer is called in its own layout of arrays, as in a model built on it: `Side` says which columns
of ours its columns are. A peer that is not installed or has no such op is a result that says so.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import math
import os
import pathlib
from collections.abc import Callable

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu.cases import Case
from benchmarks.gpu.measure import append, compared
from benchmarks.gpu.problems import ORDERS, PROBLEMS, Problem, derivative
from benchmarks.record import ParityError
from eqfuse.ops.ir.form import Form, Index, Operand

# for each order of derivative, what arguments and results are like: the floats, or the output
ARGUMENTS = {"forward": "F", "backward": "FO", "double": "FOF"}
RESULTS = {"forward": "O", "backward": "F", "double": "FO"}


class MissingError(ParityError):
    """A peer is not installed, or does not compute this."""


@dataclasses.dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Attributes:
      function: (floats, integers) -> array, as `Problem.function` gives it.
      inputs, output: for each float and for the result, the column of ours that is each column of
        theirs; None where they are the same.
    """

    function: Callable
    inputs: tuple[np.ndarray | None, ...] | None = None
    output: np.ndarray | None = None

    def arguments(self, order: str, arguments):
        """Return our arguments of an order of derivative in the layout of this side."""
        return self._moved(ARGUMENTS[order], arguments, lambda columns: columns)

    def results(self, order: str, results):
        """Return results of this side in our layout."""
        return self._moved(RESULTS[order], results, np.argsort)

    def _moved(self, kinds: str, values, order_of):
        if self.inputs is None:
            return values

        def moved(array, columns):
            return array if columns is None else jnp.take(array, order_of(columns), axis=-1)

        return tuple(
            moved(value, self.output)
            if kind == "O"
            else tuple(moved(a, c) for a, c in zip(value, self.inputs, strict=True))
            for kind, value in zip(kinds, values, strict=True)
        )


def cuequivariance(problem: Problem, dtype: str) -> Side:
    """Return cuEquivariance-JAX's segmented polynomial, gathering and scattering in its kernel.

    It is the CUDA kernel "uniform_1d"; on a CPU "naive", in jax.numpy.

    Raises:
      MissingError: it is not installed, or the problem is more than a product.
    """
    if not problem.forms:
        raise MissingError("no such op in one call")
    cuex = _installed("cuequivariance_jax")
    method = "naive" if jax.default_backend() == "cpu" else "uniform_1d"
    if method == "uniform_1d":
        _installed("cuequivariance_ops_jax")
    form = problem.forms["forward"]
    polynomial, columns = segmented_polynomial(form)

    def function(floats, integers):
        indices = [None if i is None else jnp.asarray(i) for i in _indices(form, integers)]
        rows = integers.num_nodes if indices[-1] is not None else problem.rows
        out = jax.ShapeDtypeStruct((rows, form.outputs[0].size), dtype)
        return cuex.segmented_polynomial(
            polynomial, list(floats), [out], indices, method=method, name="product"
        )[0]

    return Side(function, tuple(columns[:-1]), columns[-1])


def _indices(form: Form, integers) -> list:
    """Return the index of the rows of each operand, inputs then outputs, or None."""
    if not form.on_graph:
        return [None, integers, None]  # a contraction: weights of each species
    nodes = {Index.SENDER: integers.senders, Index.RECEIVER: integers.receivers}
    return [nodes.get(operand.index) for operand in form.inputs + form.outputs]


def segmented_polynomial(form: Form):
    """Return a form as cuEquivariance writes it, and the columns of each operand.

    Every component of a block is a segment of its own, of all its channels; where multiplicities
    differ, of as many channels as divide them all, as "uniform_1d" demands.
    """
    cue = _installed("cuequivariance")
    everything = form.inputs + form.outputs
    size = math.gcd(*(s.mul for o in everything if o.channels for s in o.segments))
    places, columns, operands = [], [], []
    for operand in everything:
        place, column = _segments(operand, size)
        places.append(place)
        columns.append(column)
        segments = [(size,)] * (operand.size // size) if operand.channels else [()] * operand.size
        operands.append(cue.SegmentedOperand(segments, ndim=int(operand.channels)))
    paths: dict[tuple[int, ...], list] = {}
    for path in form.paths:
        slots = [(s.operand, s.segment) for s in path.factors]
        slots.append((len(form.inputs) + path.output.operand, path.output.segment))
        found = paths.setdefault(tuple(operand for operand, _ in slots), [])
        muls = [everything[o].segments[s].mul for o, s in slots if everything[o].channels]
        for components, coefficient in path.terms:
            for part in range(muls[0] // size):
                keys = [(s, i, part) for (_, s), i in zip(slots, components, strict=True)]
                index = [places[o][key] for (o, _), key in zip(slots, keys, strict=True)]
                found.append((index, coefficient))
    operations = []
    for buffers, found in paths.items():
        sides = [(operands[o], "u" * everything[o].channels) for o in buffers]
        product = cue.SegmentedTensorProduct(sides)
        for index, coefficient in found:
            product.add_path(*index, c=coefficient)
        operations.append((buffers, product))
    inputs, outputs = operands[: len(form.inputs)], operands[len(form.inputs) :]
    return cue.SegmentedPolynomial(inputs, outputs, operations), columns


class _Same(dict):
    """Places of an operand without channels: one for all parts of the channels."""

    def __missing__(self, key):
        return self[key[:2]]


def _segments(operand: Operand, size: int):
    """Return {(block, component, part of the channels): segment}, and the columns."""
    if not operand.channels:
        found = {
            (s, i): segment.element(0, i)
            for s, segment in enumerate(operand.segments)
            for i in range(segment.dim)
        }
        return _Same(found), None
    places, columns = {}, []
    for s, segment in enumerate(operand.segments):
        for part in range(segment.mul // size):
            for i in range(segment.dim):
                places[s, i, part] = len(columns)
                channels = range(part * size, (part + 1) * size)
                columns.append([segment.element(u, i) for u in channels])
    columns = np.concatenate(columns)
    return places, None if np.array_equal(columns, np.arange(operand.size)) else columns


def openequivariance(problem: Problem, dtype: str) -> Side:
    """Return OpenEquivariance-JAX's convolution, without atomics: edges are grouped by receiver.

    Raises:
      MissingError: it is not installed, or has no such product.
    """
    case = problem.case
    if case is None or not case.weighted:
        raise MissingError("it has no such product")
    if dtype not in ("float32", "float64"):
        raise MissingError(f"it has no kernels for {dtype}")
    os.environ.setdefault("OEQ_NOTORCH", "1")  # it would import torch
    package = _installed("openequivariance")
    _installed("openequivariance_extjax")
    irreps_out, instructions = uvu_instructions(case)
    number = np.dtype(dtype).type
    description = package.TPProblem(
        case.irreps_x,
        case.irreps_y,
        str(irreps_out),
        instructions,
        shared_weights=False,
        internal_weights=False,
        path_normalization="none",
        irrep_dtype=number,
        weight_dtype=number,
    )
    convolution = package.jax.TensorProductConv(description, deterministic=True)

    def function(floats, graph):
        edges = (jnp.asarray(i) for i in (graph.receivers, graph.senders, graph.sender_order))
        return convolution(*floats, *edges)

    return Side(function)


def uvu_instructions(case: Case):
    """Return the output irreps block by block, and e3nn's instructions in order."""
    keep = set(case.filter_ir_out)
    sides = (
        sorted(enumerate(e3nn.Irreps(i)), key=lambda block: block[1].ir)
        for i in (case.irreps_x, case.irreps_y)
    )
    x, y = (list(side) for side in sides)
    blocks = [
        (ir, block_x.mul, n, m)
        for n, block_x in x
        for m, block_y in y
        for ir in block_x.ir * block_y.ir
        if ir in keep
    ]
    blocks.sort(key=lambda block: block[0])
    irreps = e3nn.Irreps([(mul, ir) for ir, mul, *_ in blocks])
    return irreps, [(n, m, out, "uvu", True) for out, (_, _, n, m) in enumerate(blocks)]


def _installed(name: str):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingError(f"not installed: {error}") from error


PEERS = {"cuequivariance": cuequivariance, "openequivariance": openequivariance}

PRODUCTS = (("nequip-64-l2", (3_000, 160_000)), ("mace-large", (3_000, 160_000)))


def run(folder: pathlib.Path, named=PRODUCTS) -> None:
    """Append times of products beside e3nn-jax and the peers to the results of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    ours = "llvm" if jax.default_backend() == "cpu" else "triton"
    backends = {"e3nn-jax": "e3nn", "eqfuse": ours}
    with jax.default_matmul_precision("highest"):
        for (name, size), order in itertools.product(named, ORDERS):
            problem, case = PROBLEMS[name](*size), f"{name}, {order}, {size[1]:,} edges"
            arguments = random_arrays(problem.arguments(order, "float32"))
            makers = {
                side: functools.partial(made, problem, order, arguments, peer)
                for side, peer in (backends | PEERS).items()
            }
            # of two sums of n products, whose rounding errors are random walks
            products = problem.products(order)
            most = [8 * 2.0**-23 * math.sqrt(max(products))] * len(products)
            found = {"sides": compared(makers, lambda _, most=most: most)}
            print(case, found, flush=True)
            append(folder, {"key": f"peers {case}", "group": "peers", "case": case} | found)


def made(problem: Problem, order: str, arguments, peer):
    """Return a side as `compared` takes it, from a backend of ours or from a peer."""
    side = peer(problem, "float32") if callable(peer) else Side(problem.function(peer))
    given = side.arguments(order, arguments), jax.tree.map(jnp.asarray, problem.integers)
    compiled = jax.jit(derivative(side.function, order)).lower(*given).compile()
    run = functools.partial(compiled, *given)
    scratch = compiled.memory_analysis().temp_size_in_bytes
    return run, lambda: side.results(order, run()), scratch


def random_arrays(shapes):
    """Return normal random numbers of these shapes, made on the device."""
    leaves, tree = jax.tree.flatten(shapes)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    normal = jax.jit(jax.random.normal, static_argnums=(1, 2))
    arrays = [normal(k, leaf.shape, leaf.dtype) for k, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(tree, arrays)
