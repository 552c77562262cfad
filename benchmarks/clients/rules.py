"""What each rule of `ops.fuse` is worth: forces of public networks without it, in turns.

    python -m benchmarks.clients.rules [NETWORK ...] --folder FOLDER [--seconds 8]

FOLDER is that of `benchmarks.clients.unchanged`. A rule that changes no program is "same".
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import time
from unittest import mock

import jax

from benchmarks import record, turns
from benchmarks.clients.__main__ import graph, tasks
from benchmarks.clients.public_networks import EDGES, NETWORKS, NODES, use
from eqfuse import ops
from eqfuse.fuse import commute, drafts, layers, patch, rewrite
from eqfuse.fuse.polynomials import Unfit
from eqfuse.fuse.row_polynomials import RowPolynomials


def _unfit(*args):
    raise Unfit("without it")


replaced = mock.patch.object
RULES = {
    "Linear of gathered rows": replaced(commute, "linear_of_gathered", lambda *args: None),
    "channels on an axis": replaced(RowPolynomials, "_group_of_product", lambda *args: None),
    "columns that are read": replaced(rewrite, "columns_read", lambda *args: set()),
    "gate": replaced(layers, "gates_behind", lambda *args: []),
    "layers": mock.patch.dict(rewrite.MATCHERS, eqfuse_linear_form=_unfit),
    "rows beside the product": replaced(drafts, "_beside", _unfit),
    "blocks of equal weights": replaced(drafts, "_blocks_of_equal_weights", lambda *args: []),
    "weighting is arithmetic": replaced(patch, "_is_weighting", lambda *args: False),
    "targets by one sort": replaced(patch, "_distinct", lambda own: own),
}
"""What puts something else in the place of each rule."""


def lowered(apply, args, rule=None):
    """Return forces by `ops.fuse` without a rule, traced."""

    def forces(*args):
        return tasks(ops.fuse(apply, patch=True))["forces"](*args)

    with RULES[rule] if rule else contextlib.nullcontext():
        patch._slots.cache_clear()  # of e3nn-jax's functions and ours
        result = jax.jit(forces).lower(*args)
    patch._slots.cache_clear()
    return result


def measure(name: str, seconds: float) -> list[str]:
    """Return for each rule how many times as long forces take without it."""
    init, apply = NETWORKS[name]()
    given = graph(NODES, EDGES)
    args = jax.jit(init)(jax.random.key(0), *given), *given
    programs = {rule: lowered(apply, args, rule) for rule in (None, *RULES)}
    whole = programs[None].as_text()
    compiled = {r: p.compile() for r, p in programs.items() if not r or p.as_text() != whole}
    for program in compiled.values():
        record.parity(compiled[None](*args), program(*args), 1e-4)
    ratio = turns.interleaved(compiled, args, seconds, clock=time.process_time)["ratio"]
    return [f"{1 / ratio[r].median:.2f}" if r in ratio else "same" for r in RULES]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("networks", nargs="*", choices=[*NETWORKS, []], default=[])
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="of the repositories")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each network")
    options = parser.parse_args()
    use(options.folder)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_default_matmul_precision", "highest")
    print("| network |", " | ".join(RULES), "|")
    print("|---" * (1 + len(RULES)) + "|")
    for name in options.networks or NETWORKS:
        try:
            cells = measure(name, options.seconds)
        except (ImportError, TypeError, record.ParityError) as error:
            cells = [f"{type(error).__name__}: {error}"]
        print(f"| {name} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
