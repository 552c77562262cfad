"""Equivariant models of atoms, built from `eqfuse.ops`."""

import collections
import dataclasses
import difflib

import flax.linen as nn
import jax

from eqfuse import ops
from eqfuse._late import late
from eqfuse.graph import Graph
from eqfuse.models import heads
from eqfuse.models.allegro import Allegro
from eqfuse.models.mace import MACE
from eqfuse.models.nequip import NequIP
from eqfuse.models.potential import Potential
from eqfuse.models.radial_table import choose

_LATE = {
    "eqfuse.models.ewald": "Reach",
    "eqfuse.models.pairs": "ZBL",
    "eqfuse.models.potential": "Prediction compile_predict energy_and_gradient predict",
    "eqfuse.models.radial_table": "with_tables",
}
_names, __getattr__, _ = late(__name__, _LATE)
__all__ = [*_names, "MACE", "MODELS", "Allegro", "NequIP", "Potential"]
__all__ += ["build", "ops_summary", "summary"]


def __dir__() -> list[str]:
    return __all__


MODELS = {"nequip": NequIP, "allegro": Allegro, "mace": MACE}


def build(name: str, **fields) -> nn.Module:
    """Make a model by name, a key of `MODELS`, with settings of its class as `fields`.

    Raises:
      ValueError: an unknown model or setting, naming the nearest ones.
    """
    if name not in MODELS:
        raise ValueError(f"model {name!r} is unknown; {_nearest(name, MODELS)}")
    # flax adds `parent` and `name` to the fields of every module.
    known = [f.name for f in dataclasses.fields(MODELS[name]) if f.name not in ("parent", "name")]
    for field in fields:
        if field not in known:
            raise ValueError(f"model {name!r} has no setting {field!r}; {_nearest(field, known)}")
    return MODELS[name](**fields)


def summary(module: nn.Module, params) -> str:
    """Return a text of the irreps of each layer and the number of parameters.

    The module is a model, or a `Potential` around one, and `params` its variables.
    """
    model = module.model if isinstance(module, Potential) else module
    first, *layers, last = model.layer_irreps()
    lines = [f"{type(model).__name__}", f"  input    {first}"]
    lines += [f"  layer {k:<2} {irreps}" for k, irreps in enumerate(layers)]
    lines += [f"  output   {last}"]
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    return "\n".join([*lines, f"  {count:,} parameters"])


def ops_summary(module: nn.Module, params, graph: Graph) -> str:
    """Return a text of the number of ops of each kind in one evaluation, and their backends.

    Where a backend is not the best one for this machine, the line gives the reason. Derivatives run
    on the same backend. Nothing is compiled or computed. The last line is how radial functions are
    computed, see `eqfuse.models.radial_table`. Arguments are as in `summary`, and a `Graph`.
    """
    with ops.recorded() as calls:
        # a new function, since JAX does not trace module.apply again
        operands = graph.vectors, graph.species, graph.edges
        of_nodes = None if graph.heads is None else graph.heads[graph.graph_index]
        jax.eval_shape(lambda p, *g: heads.apply(module, p, *g), params, *operands, of_nodes)
    lines = [
        f"  ops      {count} {op.kind} on {op.backend}{op.why and ', ' + op.why}"
        f"{op.fused and '; ' + op.fused}"
        for op, count in collections.Counter(calls).items()
    ]
    model = module.model if isinstance(module, Potential) else module
    if hasattr(model, "radial"):
        choice = choose(model, graph.edges.num_edges)
        kind = "a table" if choice.table else "networks"
        lines.append(f"  radial   {kind}: {choice.why}")
    return "\n".join(lines)


def _nearest(name: str, known) -> str:
    close = difflib.get_close_matches(name, known, n=3)
    return f"did you mean {' or '.join(close)}?" if close else f"choose one of {', '.join(known)}"
