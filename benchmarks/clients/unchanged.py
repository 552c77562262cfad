"""Public networks on e3nn-jax as they are installed, without and with `ops.fuse(patch=True)`.

    python -m benchmarks.clients.unchanged [NETWORK ...] [--seconds 4]

They are jax-md's NequIP (the package jax-md) and the transformer of e3nn-jax. Times are those of a
processor, of all threads, in turn in one process, after energies and forces were compared.
"""

from __future__ import annotations

import argparse
import time

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp

from benchmarks import record, turns
from benchmarks.clients.__main__ import graph, tasks
from eqfuse import ops

NODES, EDGES, SPECIES, CUTOFF, CHANNELS = 128, 2560, 4, 4.0, 32
TOLERANCE = 1e-4


def jax_md_nequip():
    """Return (init, apply) of jax-md's NequIP, three layers."""
    import jraph
    from jax_md._nn.nequip import NequIPEnergyModel

    network = NequIPEnergyModel(
        graph_net_steps=3,
        use_sc=True,
        nonlinearities={"e": "raw_swish", "o": "tanh"},
        n_elements=SPECIES,
        hidden_irreps=f"{CHANNELS}x0e+{CHANNELS}x1o+{CHANNELS}x2e",
        sh_irreps="0e+1o+2e",
        n_neighbors=EDGES / NODES,
    )

    def graph_of(positions, species, senders, receivers):
        return jraph.GraphsTuple(
            nodes=jax.nn.one_hot(species, SPECIES),
            edges=positions[senders] - positions[receivers],
            senders=senders,
            receivers=receivers,
            globals=None,
            n_node=jnp.array([NODES]),
            n_edge=jnp.array([EDGES]),
        )

    return (
        lambda key, *given: network.init(key, graph_of(*given)),
        lambda params, *given: jnp.sum(network.apply(params, graph_of(*given))),
    )


def transformer():
    """Return (init, apply) of two layers of `e3nn_jax.experimental.transformer`."""
    import haiku as hk
    from e3nn_jax.experimental.transformer import Transformer

    def energy(positions, species, senders, receivers):
        vectors = e3nn.IrrepsArray("1o", positions[senders] - positions[receivers])
        lengths = e3nn.norm(vectors).array[:, 0]
        scalars = e3nn.IrrepsArray("8x0e", e3nn.bessel(lengths, 8, CUTOFF))
        y = e3nn.concatenate([scalars, e3nn.spherical_harmonics("1o+2e", vectors, True)])
        x = e3nn.IrrepsArray(f"{CHANNELS}x0e", hk.Embed(SPECIES, CHANNELS)(species))
        for irreps in (CHANNELS * e3nn.Irreps("0e+1o+2e"), f"{CHANNELS}x0e"):
            layer = Transformer(irreps, [64], jax.nn.silu, num_heads=4)
            x = layer(senders, receivers, e3nn.poly_envelope(5, 2, CUTOFF)(lengths), y, x)
        return jnp.sum(x.array)

    network = hk.without_apply_rng(hk.transform(energy))
    return network.init, network.apply


NETWORKS = {"jax-md's NequIP": jax_md_nequip, "e3nn-jax's transformer": transformer}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("networks", nargs="*", choices=[*NETWORKS, []], default=[])
    parser.add_argument("--seconds", type=float, default=4.0, help="of each comparison")
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_default_matmul_precision", "highest")
    print("| network | task | e3nn-jax, ms | fuse, ms | times as fast | scratch, MB | differ by |")
    print("|---|---|---|---|---|---|---|")
    for name in options.networks or NETWORKS:
        init, apply = NETWORKS[name]()
        given = graph(NODES, EDGES)
        args = jax.jit(init)(jax.random.key(0), *given), *given
        sides = {"fused": tasks(ops.fuse(apply, patch=True)), "e3nn-jax": tasks(apply)}
        for task in ("energy", "forces"):
            found = {s: turns.compiled(t[task], args) for s, t in sides.items()}
            compiled = {s: function for s, (function, *_) in found.items()}
            differ = record.parity(compiled["e3nn-jax"](*args), compiled["fused"](*args), TOLERANCE)
            times = turns.interleaved(compiled, args, options.seconds, clock=time.process_time)
            ms, ratio = times["ms"], times["ratio"]["e3nn-jax"]
            times_as_fast = f"{1 / ratio.median:.1f} ({1 / ratio.high:.1f} to {1 / ratio.low:.1f})"
            memory = ", ".join(f"{found[s][-1] / 1e6:.0f}" for s in ("e3nn-jax", "fused"))
            cells = f"{ms['e3nn-jax'].median:.1f} | {ms['fused'].median:.1f} | {times_as_fast}"
            print(f"| {name} | {task} | {cells} | {memory} | {differ:.0e} |", flush=True)


if __name__ == "__main__":
    main()
