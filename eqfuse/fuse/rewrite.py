"""`fuse`: fused ops compute what matches in a traced function; a report says what did not."""

from __future__ import annotations

import collections
import contextlib
import functools
import pathlib
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from eqfuse import _jax_compat
from eqfuse.fuse import layers
from eqfuse.fuse.check import differences
from eqfuse.fuse.commute import commuted
from eqfuse.fuse.match import CONVERT
from eqfuse.fuse.moves import fault, guarded, is_strict, outputs_of
from eqfuse.fuse.patch import patched_for
from eqfuse.fuse.reads import columns_read, readers
from eqfuse.fuse.row_polynomials import ARITHMETIC, MOVES, RowPolynomials, products_behind
from eqfuse.ops.primitives.rules import x64_of
from eqfuse.ops.transforms.trace import FLOATS, Node, Trace, bind, needed, traced

OPS = pathlib.Path(__file__).parents[1]
FRAMEWORKS = frozenset(["e3nn_jax", "flax", "haiku", "equinox", "jraph"])
"""The folder, and packages, whose lines are not those of the user."""


def table(entries: list[tuple], closed: ClosedJaxpr, patch: bool = False) -> str:
    """Return the report: a row for each match, and where e3nn-jax's own products are."""
    if not entries:
        return _instead(Trace(closed, {}), patch)
    notes = _own(Trace(closed, {}), patch) if patch else []
    lines = [("where", "pattern", "computed by", "why not, and what to do"), *entries]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = (" | ".join(t.ljust(w) for t, w in zip(line, widths, strict=True)) for line in lines)
    return "\n".join([*(row.rstrip(" |") for row in rows), *notes])


def _instead(trace: Trace, patch: bool) -> str:
    """Say what a trace without products of ops has in their place."""
    names = collections.Counter(node.name for node in trace.nodes)
    found = ", ".join(f"{count} {name}" for name, count in names.most_common(4)) or "nothing"
    said = f"nothing to replace: no ops.tensor_product is in the trace, but {found}"
    return "; ".join([said, *_own(trace, patch)])


def _own(trace: Trace, patch: bool) -> list[str]:
    """Say where e3nn-jax's own products and Linears are: [] or a line."""
    own = {}
    for node in trace.nodes:
        frames = list(_jax_compat.user_frames(node.eqn.source_info))
        e3nns = {f.function_name for f in frames if "e3nn_jax" in f.file_name}
        if (patch and LINEAR in e3nns) or not e3nns.isdisjoint(OF_E3NN):
            own[_where(node)] = None
    why = (
        "it stays, as in a subclass that changes its methods"
        if patch
        else "trace it with patch=True"
    )
    return [f"e3nn-jax's own product or Linear is at {', '.join(own)}: {why}"] if own else []


OF_E3NN = ("tensor_product", "_left_right", "_block_left_right")
"""Functions of e3nn-jax that write products out."""
LINEAR = "FunctionalLinear.__call__"
FITS = "all of it is"
GRADIENT = "the gradient is taken inside: wrap the energy by ops.fuse, and differentiate that"


def rewritten(closed: ClosedJaxpr, arrays, entries: list[tuple], known) -> list:
    """Return the outputs of a traced function, computed by fused ops wherever one matches.

    A line for each match is added to `entries`; `known` are numbers that some of the arguments
    always have, by position.
    """
    found: list[tuple] = []

    def noted(node: Node, reason: str):
        found.append((_where(node), node.name, "as written", reason))

    trace = commuted(closed, known, noted)
    ops = _ops(trace, found)

    def computed(node: Node, given) -> list:
        return _computed(node, given, found, [trace.constant(v) for v in node.inputs])

    outputs = outputs_of(trace, arrays, ops, computed)
    entries += found
    return outputs


def _ops(trace: Trace, entries: list[tuple]) -> dict[int, object]:
    """Return the ops that compute values of a trace, by value."""
    rows = RowPolynomials(trace)
    if not any(map(rows.is_product, trace.nodes)):
        return {}
    ops: dict[int, object] = {}
    reasons: dict[Node, str] = {}
    behind_of: dict[int, set[Node]] = {}
    for node in trace.nodes:
        if node.name not in MATCHERS:
            continue
        found = behind_of[node.outputs[0]] = products_behind(trace, rows, node)

        def unfit(reason: str, found=found, node=node):
            between = _between(trace, rows, node)
            if not between or node.name == "scatter-add":  # else others read the rows
                reasons.update(dict.fromkeys(found, f"{reason}{between}"))

        with guarded(unfit):
            ops |= dict(MATCHERS[node.name](trace, rows, node))
    values, nodes = _without_twice(trace, ops)
    ops = {value: op for value, op in ops.items() if value in values}
    read = {v for op in ops.values() for v in op.inputs}.union(trace.outputs)
    fused: set[Node] = set()
    for value, op in ops.items():
        entries.append((_where(trace.producer[value]), op.pattern, op.name, FITS))
        fused = fused.union(*(behind_of.get(v, ()) for v in (value, *op.inside)))
        if hasattr(op, "restricted"):
            with guarded(lambda reason: None):  # then all columns are computed
                if columns := columns_read(rows, value, nodes, read):
                    ops[value] = op.restricted(columns)
    for node in filter(rows.is_product, nodes):
        [value] = node.outputs
        reason = "its rows are read elsewhere too" if node in fused else reasons.get(node)
        if reason is None:
            names = {n.name for n in readers(rows, value, nodes)[1]}
            names = ", ".join(sorted(names)).replace("eqfuse_linear_form", "a Linear")
            names = names or "the result"
            reason = f"its rows go to {names}, not to a sum"
        entries.append((_where(node), "product of rows", "as written", reason))
    gradients = list(filter(rows.is_gradient, nodes))
    if gradients:
        where, many = _where(gradients[0]), len(gradients)
        pattern = f"{many} product{'s' * (many > 1)} of a gradient"
        entries.append((where, pattern, "as written", GRADIENT))
    return ops


def _without_twice(trace: Trace, ops: dict[int, object]) -> tuple[set[int], list[Node]]:
    """Drop ops that compute what another one computes too; return values and nodes still needed.

    Rows of a product that are read elsewhere too are computed twice: on a CPU that takes less time
    than to read them again.
    """
    values, nodes = needed(trace, ops)
    for value in sorted(ops, reverse=True):
        if value in values and values.intersection(ops[value].inside).intersection(ops):
            del ops[value]
            values, nodes = needed(trace, ops)
    return values, nodes


MATCHERS = {"scatter-add": layers.graph_products, "eqfuse_linear_form": layers.layers}
"""By primitive: what matches the patterns that begin with it: [(value, op that computes it)]."""


def _between(trace: Trace, rows: RowPolynomials, node: Node) -> str:
    """Return the primitives between a product and a sum that are not followed, for the report."""

    def follow(node):
        return bool(products_behind(trace, rows, node))

    names = {n.name for n in trace.behind(node.inputs, follow) if follow(n)}
    names = ", ".join(sorted(names - MOVES - ARITHMETIC - {"scatter-add", "eqfuse_form"}))
    advice = f": {CONVERT}" if names == "convert_element_type" else ""
    return f" ({names} between them){advice}" if names else ""


def _where(node: Node) -> str:
    for frame in _jax_compat.user_frames(node.eqn.source_info):
        path = pathlib.PurePath(frame.file_name)
        if not path.is_relative_to(OPS) and FRAMEWORKS.isdisjoint(path.parts):
            return f"{path.name}:{frame.start_line}"
    return ""


def _computed(node: Node, arrays, entries: list[tuple], constants: list) -> list:
    """Return the outputs of an equation, the functions in it rewritten.

    `constants` has the operands that are known numbers, and None for the others.
    """
    eqn, name, params = node.eqn, node.name, dict(node.params)
    with _jax_compat.same_source(eqn.source_info), eqn.ctx.manager:
        if name in ("remat2", "checkpoint", "remat"):
            function = _replaced(ClosedJaxpr(params["jaxpr"], ()), entries, constants)
            options = {"prevent_cse": params["prevent_cse"], "policy": params["policy"]}
            return list(jax.checkpoint(function, **options)(*arrays))
        if name == "scan":
            always = constants[: _jax_compat.num_scan_constants(params)]
            params["jaxpr"] = _retraced(params["jaxpr"], entries, always)
        elif name == "while":
            first = params["cond_nconsts"]
            always = constants[first : first + params["body_nconsts"]]
            params["body_jaxpr"] = _retraced(params["body_jaxpr"], entries, always)
        elif name == "cond":
            branches = params["branches"]
            params["branches"] = tuple(_retraced(b, entries, constants[1:]) for b in branches)
        return bind(node, arrays, params)  # `jit` with shardings of its own stays as it is


def _retraced(closed: ClosedJaxpr, entries: list[tuple], constants: list) -> ClosedJaxpr:
    return jax.make_jaxpr(_replaced(closed, entries, constants))(*closed.in_avals)


def fuse(
    function: Callable | None = None,
    *,
    report: bool = False,
    patch: bool = False,
    check: bool = False,
) -> Callable:
    """Compute a function by fused ops wherever it writes out what they compute.

    The function is traced, with the shapes of its arguments, before anything differentiates it.
    Where the trace gathers node features by an index array, multiplies them with features of edges
    by `ops.tensor_product`, and sums the products to nodes by another index array, one
    `ops.graph_tensor_product` takes their place, and with an `ops.Linear` and a gate behind it one
    `TensorProductLinearGate`. What is between belongs to it: features of either end beside the
    product or in a difference, channels on an axis, other orders of components, weights of channels
    or irreps, constants, masks, a wider dtype for the sum. All else is computed as it was. Nothing
    is replaced whose value could differ but by rounding. What fails to be replaced stays as it is,
    and the report has the reason: `fuse` raises no errors of its own.

    What is returned is an ordinary JAX function: `jit`, `vmap`, `grad` of every order and control
    flow work on it and in it. It is traced whenever it is called, so call it under `jit`. Wrap what
    computes an energy or a layer, and differentiate what `fuse` returns: in a function that takes
    a gradient itself, the gradient is traced already and stays as it is, as the report notes. In
    a method of a flax module, JAX cannot trace; wrap its `apply` (Haiku: the `apply` of the
    transformed function), or a function that calls an Equinox module. `init` stays as it is, and so
    do the parameters.

    Args:
      function: of any arguments. JAX arrays in them (leaves of pytrees, such as an IrrepsArray's)
        are traced; all other leaves, NumPy's arrays too, are passed to it as they are. A function
        that needs numbers of a traced array, as in `if x.sum() > 0`, is called as it is.
      report: print, whenever the function is traced, a table of what was replaced, by what, and
        what was not, why, and what to do about it; and, where the arguments are numbers, the
        differences that `check` looks for.
      patch: trace the function within `ops.patched()`, so that code which calls e3nn-jax's products
        and Linears needs no change.
      check: compute the function as it is written too, on the arguments of each call, and compare
        values, and gradients by all floating arguments. The call must not be within `jit`, `vmap`
        or `grad`, where arguments have no numbers; a warning says so there.
    Returns:
      The function. Without a `function`, a decorator.
    Raises:
      ValueError: with `check`, a difference beyond rounding.

    Example:
      >>> def messages(x, y, senders, receivers):
      ...     products = e3nn.tensor_product(x[senders], y)
      ...     return e3nn.scatter_sum(products, dst=receivers, output_size=x.shape[0])
      >>> x = e3nn.IrrepsArray("8x0e+8x1o", jnp.ones((3, 32)))
      >>> y = e3nn.IrrepsArray("1o", jnp.eye(3))
      >>> ends = jnp.array([0, 1, 2]), jnp.array([1, 2, 1])
      >>> ops.fuse(messages, patch=True, check=True)(x, y, *ends).shape  # one kernel
      (3, 96)
    """
    if function is None:
        return functools.partial(fuse, report=report, patch=patch, check=check)

    @functools.wraps(function)
    def fused(*args, **kwargs):
        with patched_for("fuse") if patch else contextlib.nullcontext():
            try:
                closed, arrays, result_of = traced(function, args, kwargs)
            except NEEDS_NUMBERS as error:
                closed, needs = None, str(error).partition("\n")[0]
            if closed is None:
                if report:
                    print(f"nothing is replaced: the function needs numbers of arrays: {needs}")
                return function(*args, **kwargs)
        entries: list[tuple] = []
        outputs = _replaced(closed, entries)(*arrays)
        if report:
            with guarded(print):
                print(table(entries, closed, patch))
        if report or check:
            _compare(closed, arrays, report, check)
        return result_of(outputs)

    return fused


NEEDS_NUMBERS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


def _replaced(closed: ClosedJaxpr, entries: list[tuple], constants=()) -> Callable:
    """Return what computes a traced function by fused ops, or as it is where that fails."""
    known = {n: a for n, a in enumerate(constants) if a is not None}

    def replaced(*arrays):
        try:
            found: list[tuple] = []
            with x64_of(*Trace(closed, {}).avals):
                outputs = rewritten(closed, arrays, found, known)
        except Exception as error:
            if is_strict():
                raise
            outputs, found = None, [("", "the whole function", "as written", fault(error))]
        entries.extend(found)
        return jaxpr_as_fun(closed)(*arrays) if outputs is None else outputs

    return replaced


def _compare(closed: ClosedJaxpr, arrays, report: bool, check: bool):
    """Print or raise the differences of a function and its replacement."""
    if any(isinstance(a, jax.core.Tracer) for a in (*arrays, *closed.consts)):
        if check:
            warnings.warn(
                "ops.fuse(check=True) compares numbers: call it without jit", stacklevel=3
            )
        return
    dtypes = {str(getattr(a, "dtype", "")) for a in Trace(closed, {}).avals}
    eps = max((float(jnp.finfo(d).eps) for d in dtypes & FLOATS), default=0.0)
    if jax.default_backend() != "cpu":
        eps = max(eps, 2.0**-17)  # matmuls may be in TF32
    with guarded(print) if report and not check else contextlib.nullcontext():
        said, same = differences(jaxpr_as_fun(closed), _replaced(closed, []), arrays, eps)
        if report:
            print(said)
        if check and not same:
            raise ValueError(f"ops.fuse changes the results: {said}")
