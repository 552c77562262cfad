"""Rewrite a traced function: what is found is computed by fused ops, the rest as it was."""

from __future__ import annotations

import dataclasses
import pathlib

import jax
from jax._src import source_info_util
from jax.extend.core import ClosedJaxpr

from eqfuse.ops.primitives.rewriting import graphs
from eqfuse.ops.primitives.rewriting.layouts import Unfit
from eqfuse.ops.primitives.rewriting.polynomials import TooLargeError
from eqfuse.ops.primitives.rewriting.program import Node, Program, Replacement, evaluate
from eqfuse.ops.primitives.rewriting.rows import ARITHMETIC, MOVES, Rows

OPS = pathlib.Path(__file__).parents[2]
"""The folder whose lines are not those of the user."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """A line of the report.

    Attributes:
      where: file and line of the code.
      found: what stands there.
      op: what computes it now; "" if it is as it was.
      reason: why nothing took its place.
    """

    where: str
    found: str
    op: str
    reason: str


def rewritten(closed: ClosedJaxpr, arrays, entries: list[Entry]) -> list:
    """Return the outputs of a traced function, computed by fused ops where any is found.

    Args:
      arrays: its arguments.
      entries: to which what was found is added.
    """
    program = Program(closed)
    replaced = _replacements(program, entries)
    return evaluate(program, arrays, replaced, lambda eqn, given: _bind(eqn, given, entries))


def _replacements(program: Program, entries: list[Entry]) -> dict[int, Replacement]:
    rows = Rows(program)
    products = [n for n in range(len(program.nodes)) if rows.is_product(n)]
    if not products:
        return {}
    shared: dict = {}
    replaced, used = {}, set()
    reasons: dict[int, str] = {}
    for number, node in enumerate(program.nodes):
        if node.name != "scatter-add":
            continue
        try:
            found = graphs.graph_product(program, rows, number)
        except (Unfit, TooLargeError) as error:
            for product in _products_behind(program, rows, number):
                reasons[product] = f"{error}{_between(program, rows, number)}"
            continue
        replaced[node.outputs[0]] = _replacement(found, shared)
        used |= _products_behind(program, rows, number)
        entries.append(Entry(_where(node), "gather, product, sum", "graph_tensor_product", ""))
    for number in products:
        if number not in used:
            reason = reasons.get(number, "its rows are not summed to nodes")
            entries.append(Entry(_where(program.nodes[number]), "product of rows", "", reason))
    return replaced


def _replacement(found, shared: dict) -> Replacement:
    inputs = found.inputs

    def compute(*arrays):
        return found.compute(dict(zip(inputs, arrays, strict=True)), shared)

    return Replacement(inputs, compute)


def _products_behind(program: Program, rows: Rows, number: int) -> set[int]:
    """Return the products over rows that a node is computed from, through any primitives."""
    seen, todo, found = set(), [number], set()
    while todo:
        n = todo.pop()
        for value in program.nodes[n].inputs:
            made = program.producer.get(value)
            if made is None or made[0] in seen:
                continue
            seen.add(made[0])
            if rows.is_product(made[0]):
                found.add(made[0])
            elif program.nodes[made[0]].name != "scatter-add":
                todo.append(made[0])
    return found


def _between(program: Program, rows: Rows, number: int) -> str:
    """Return, for the report, what primitives stand between a product and a sum."""
    seen, todo, names = set(), [number], set()
    while todo:
        n = todo.pop()
        for value in program.nodes[n].inputs:
            made = program.producer.get(value)
            if made is None or made[0] in seen or not _products_behind(program, rows, made[0]):
                continue
            seen.add(made[0])
            todo.append(made[0])
            names.add(program.nodes[made[0]].name)
    names = sorted(names - MOVES - ARITHMETIC - {"scatter-add", "eqfuse_form"})
    return f" ({', '.join(names)} between them)" if names else ""


def _where(node: Node) -> str:
    for frame in source_info_util.user_frames(node.eqn.source_info.traceback):
        path = pathlib.PurePath(frame.file_name)
        if not path.is_relative_to(OPS) and "e3nn_jax" not in path.parts:
            return f"{path.name}:{frame.start_line}"
    return ""


def _bind(eqn, arrays, entries: list[Entry]) -> list:
    """Return the outputs of an equation, the functions in it rewritten."""
    info = eqn.source_info
    stack = source_info_util.current_name_stack() + info.name_stack
    with source_info_util.user_context(info.traceback, name_stack=stack), eqn.ctx.manager:
        name, params = eqn.primitive.name, dict(eqn.params)
        if name == "remat2" or name == "checkpoint":
            found = _checkpointed(params, arrays, entries)
        elif name in ("jit", "pjit"):
            found = jax.jit(_function(params["jaxpr"], entries))(*arrays)
        else:
            if name == "scan":
                params["jaxpr"] = _retraced(params["jaxpr"], entries)
            elif name == "while":
                params["body_jaxpr"] = _retraced(params["body_jaxpr"], entries)
            elif name == "cond":
                params["branches"] = tuple(_retraced(b, entries) for b in params["branches"])
            found = eqn.primitive.bind(*arrays, **eqn.primitive.get_bind_params(params))
    return list(found) if eqn.primitive.multiple_results else [found]


def _function(closed: ClosedJaxpr, entries: list[Entry]):
    return lambda *arrays: rewritten(closed, arrays, entries)


def _retraced(closed: ClosedJaxpr, entries: list[Entry]) -> ClosedJaxpr:
    """Return a traced function, rewritten."""
    return jax.make_jaxpr(_function(closed, entries))(*closed.in_avals)


def _checkpointed(params, arrays, entries: list[Entry]):
    function = _function(ClosedJaxpr(params["jaxpr"], ()), entries)
    remat = jax.checkpoint(function, prevent_cse=params["prevent_cse"], policy=params["policy"])
    return remat(*arrays)
