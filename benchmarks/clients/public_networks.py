"""Public networks on e3nn-jax, imported from their own packages and repositories, as they are.

Each function returns (init, energy), functions of (key or parameters, positions, species, senders,
receivers). Repositories lie in the folder that `use` is given, under the names that git gives them;
`SOURCES` has the commands.
"""

from __future__ import annotations

import functools
import importlib
import pathlib
import sys
import types

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import jax.numpy as jnp

NODES, EDGES, SPECIES, CUTOFF, CHANNELS = 128, 2560, 4, 4.0, 32
NEIGHBORS = EDGES / NODES
HIDDEN = CHANNELS * e3nn.Irreps("0e+1o+2e")
REPOSITORIES = {
    "nequip-jax": "mariogeiger/nequip-jax",
    "allegro-jax": "mariogeiger/allegro-jax",
    "symphony": "atomicarchitects/symphony",
    "PriceofFreedom": "atomicarchitects/PriceofFreedom",
    "materials_discovery": "google-deepmind/materials_discovery",
    "lagrangebench": "tumaer/lagrangebench",
    "eqnn-jax": "smsharma/eqnn-jax",
    "nequix": "atomicarchitects/nequix",
    "e3nn-jax/examples": "e3nn/e3nn-jax",
}
SOURCES = "\n".join(f"    git clone https://github.com/{r}" for r in REPOSITORIES.values())
SOURCES += "\n    ln -s freedom PriceofFreedom/src\n    pip install mlip==0.1.9 jax-md"
"""SimpleNetwork imports itself as `src`, the name that its folder had before."""


def use(folder: pathlib.Path) -> None:
    """Import the networks from the repositories in a folder."""
    if not hasattr(jax, "tree_map"):
        jax.tree_map = jax.tree.map  # packages that lagrangebench imports ask for it
    sys.path += [str(folder / name) for name in REPOSITORIES]


def _graph(nodes, positions, species, senders, receivers, edges=None):
    import jraph

    counts = jnp.array([NODES]), jnp.array([EDGES])
    return jraph.GraphsTuple(nodes, edges, receivers, senders, None, *counts)


def _of_haiku(energy):
    import haiku as hk

    network = hk.without_apply_rng(hk.transform(energy))
    return network.init, network.apply


def _of_flax(network, arguments):
    """Return the network and the sum of its results; `arguments` makes them from a graph."""

    def energy(params, *graph):
        result = network.apply(params, *arguments(*graph))
        return jnp.sum(getattr(result, "array", result))

    return lambda key, *graph: network.init(key, *arguments(*graph)), energy


def _vectors(positions, species, senders, receivers):
    return e3nn.IrrepsArray("1o", positions[senders] - positions[receivers])


def _jax_md_or_gnome(module):
    network = module.NequIPEnergyModel(
        graph_net_steps=3,
        use_sc=True,
        nonlinearities={"e": "raw_swish", "o": "tanh"},
        n_elements=SPECIES,
        hidden_irreps=str(HIDDEN),
        sh_irreps="0e+1o+2e",
        n_neighbors=NEIGHBORS,
    )

    def arguments(*graph):
        edges = _vectors(*graph).array
        return (_graph(jax.nn.one_hot(graph[1], SPECIES), *graph, edges=edges),)

    return _of_flax(network, arguments)


def jax_md_nequip():
    from jax_md._nn import nequip

    return _jax_md_or_gnome(nequip)


def gnome_nequip():
    from model import nequip

    return _jax_md_or_gnome(nequip)


def _nequip_jax(layer, linear, embed):
    def energy(*graph):
        vectors, [_, species, *ends] = _vectors(*graph) / CUTOFF, graph
        x = e3nn.IrrepsArray(f"{2 * CHANNELS}x0e", embed(SPECIES, 2 * CHANNELS)(species))
        for irreps in (2 * HIDDEN, 2 * CHANNELS * e3nn.Irreps("0e")):
            made = layer(NEIGHBORS, SPECIES, max_ell=2, output_irreps=irreps)
            x = made(vectors, x, species, *ends)
        return jnp.sum(linear("0e")(x).array)

    return energy


def nequip_jax_flax():
    import nequip_jax

    class Network(nn.Module):
        @nn.compact
        def __call__(self, *graph):
            layer = nequip_jax.NEQUIPLayerFlax
            return _nequip_jax(layer, e3nn.flax.Linear, nn.Embed)(*graph)

    network = Network()
    return network.init, network.apply


def nequip_jax_haiku():
    import haiku as hk
    import nequip_jax

    layer = nequip_jax.NEQUIPLayerHaiku
    return _of_haiku(_nequip_jax(layer, e3nn.haiku.Linear, hk.Embed))


def allegro_jax():
    import allegro_jax

    network = allegro_jax.Allegro(
        avg_num_neighbors=NEIGHBORS,
        max_ell=2,
        irreps=HIDDEN,
        mlp_n_hidden=128,
        mlp_n_layers=2,
        radial_cutoff=CUTOFF,
        num_layers=2,
    )

    def arguments(*graph):
        return jax.nn.one_hot(graph[1], SPECIES), _vectors(*graph), *graph[2:]

    return _of_flax(network, arguments)


def _eqnn(network):
    def arguments(positions, *graph):
        nodes = jnp.concatenate([positions, 0.3 * positions, jnp.ones_like(positions[:, :1])], 1)
        return (_graph(e3nn.IrrepsArray("2x1o+0e", nodes), positions, *graph),)

    def energy(params, *graph):
        return jnp.sum(network.apply(params, *arguments(*graph)).nodes.array ** 2)

    return lambda key, *graph: network.init(key, *arguments(*graph)), energy


def eqnn_nequip():
    from models.nequip import NequIP

    options = {"task": "node", "message_passing_agg": "sum", "r_cutoff": CUTOFF}
    return _eqnn(NequIP(d_hidden=2 * CHANNELS, l_max=1, **options))


def eqnn_segnn():
    """SEGNN of graphs by `get_equivariant_graph`, as that repository's tests make them."""
    from models.segnn import SEGNN
    from models.utils.equivariant_graph_utils import get_equivariant_graph

    network = SEGNN(d_hidden=CHANNELS, task="node", output_irreps=e3nn.Irreps("2x1o+0e"))

    def arguments(positions, species, *ends):
        nodes = jnp.concatenate([positions, 0.3 * positions, jnp.ones_like(positions[:, :1])], 1)
        features = e3nn.IrrepsArray("2x1o+0e", nodes)[None]
        graphs = get_equivariant_graph(
            features,
            features[..., :3],
            features[..., 3:6],
            *(end[None] for end in ends),
            n_node=jnp.array([[NODES]]),
            n_edge=jnp.array([[EDGES]]),
            edges=None,
            globals=None,
            lmax_attributes=1,
        )
        return (jax.tree.map(lambda a: a[0], graphs),)

    def energy(params, *graph):
        return jnp.sum(network.apply(params, *arguments(*graph)).nodes.array ** 2)

    return lambda key, *graph: network.init(key, *arguments(*graph)), energy


def nequix():
    from nequix.model import Nequix

    def init(key, *graph):
        options = {"hidden_irreps": str(HIDDEN), "avg_n_neighbors": NEIGHBORS}
        return Nequix(key, SPECIES, lmax=2, cutoff=CUTOFF, n_layers=3, **options)

    def energy(model, *graph):
        return jnp.sum(model.node_energies(_vectors(*graph).array, *graph[1:]))

    return init, energy


def tetris_point():
    """Return the example of e3nn-jax, on one graph; the energy is the sum of its results."""
    from tetris_point import Model

    network = Model()

    def arguments(positions, *graph):
        return (_graph(positions, positions, *graph),)

    def energy(params, *graph):
        return jnp.sum(network.apply(params, *arguments(*graph)))

    return lambda key, *graph: network.init(key, *arguments(*graph)), energy


def _mlip(kind, **config):
    from mlip.data.dataset_info import DatasetInfo

    info = DatasetInfo(
        atomic_energies_map=dict.fromkeys((1, 6, 7, 8), 0.0),
        cutoff_distance_angstrom=CUTOFF,
        avg_num_neighbors=NEIGHBORS,
        avg_r_min_angstrom=1.0,
    )
    network = kind(kind.Config(num_layers=2, l_max=2, **config), info)
    before = e3nn.config("path_normalization"), e3nn.config("gradient_normalization")

    def restoring(function):
        @functools.wraps(function)
        def called(*args):
            try:
                return function(*args)
            finally:  # mlip changes what all of e3nn-jax does
                for name, value in zip(("path", "gradient"), before, strict=True):
                    e3nn.config(f"{name}_normalization", value)

        return called

    init, energy = _of_flax(network, lambda *g: (_vectors(*g).array, *g[1:]))
    return restoring(init), restoring(energy)


def mlip_mace():
    from mlip.models.mace.models import Mace

    return _mlip(Mace, num_channels=2 * CHANNELS)


def mlip_nequip():
    from mlip.models.nequip.models import Nequip

    return _mlip(Nequip, node_irreps="32x0e+32x0o+16x1o+16x1e+8x2e+8x2o")


def _without_init(package: str, **names) -> None:
    """Let modules of a package be imported without its `__init__`, which has these names.

    That of symphony.models imports all of its training, TensorFlow Probability too, which does not
    run on jax 0.10.
    """
    parent, _, own = package.rpartition(".")
    module = types.ModuleType(package)
    module.__path__ = [f"{p}/{own}" for p in importlib.import_module(parent).__path__]
    sys.modules[package] = module
    for name, file in names.items():
        setattr(module, name, getattr(importlib.import_module(f"{package}.{file}"), name))


def symphony_e3schnet():
    from symphony import datatypes

    _without_init("symphony.models", PeriodicTable="utils.periodic_table")
    from symphony.models.embedders.e3schnet import E3SchNet

    def energy(*graph):
        nodes = datatypes.FragmentsNodes(*graph[:2], None)
        network = E3SchNet(
            CHANNELS,
            2,
            CHANNELS,
            8,
            jax.nn.silu,
            CUTOFF,
            2,
            SPECIES,
            periodic_table_embedding=False,
        )
        return jnp.sum(network(_graph(nodes, *graph)).filter("0e").array)

    return _of_haiku(energy)


def freedom_simple_network():
    from freedom.models.simple_network import SimpleNetwork

    class Product(nn.Module):
        def __call__(self, x, y):
            return e3nn.tensor_product(x, y, filter_ir_out=HIDDEN)

    network = SimpleNetwork(
        sh_lmax=2,
        init_embed_dims=CHANNELS,
        max_atomic_number=SPECIES,
        mlp_hidden_dims=CHANNELS,
        mlp_num_layers=2,
        output_irreps_per_layer=[HIDDEN, CHANNELS * e3nn.Irreps("0e")],
        tensor_product_fn=Product,
        readout=lambda x, graph: x.array,
    )

    def arguments(positions, species, *ends):
        nodes = {"positions": positions, "numbers": species}
        return (_graph(nodes, positions, species, *ends),)

    return _of_flax(network, arguments)


def lagrangebench_segnn():
    from lagrangebench.models.segnn import SEGNN

    def energy(positions, species, senders, receivers):
        vectors = positions[senders] - positions[receivers]
        features = {"vel_hist": positions, "senders": senders, "receivers": receivers}
        features |= {"rel_disp": vectors, "rel_dist": jnp.sum(vectors**2, 1, keepdims=True)}
        network = SEGNN(
            node_features_irreps=e3nn.Irreps("1o"),
            edge_features_irreps=e3nn.Irreps("1o+0e"),
            scalar_units=CHANNELS,
            lmax_hidden=1,
            lmax_attributes=1,
            output_irreps=e3nn.Irreps("1o"),
            num_mp_steps=3,
            n_vels=1,
        )
        return jnp.sum(network((features, species))["acc"] ** 2)

    return _of_haiku(energy)


def transformer():
    """Two layers of `e3nn_jax.experimental.transformer`."""
    import haiku as hk
    from e3nn_jax.experimental.transformer import Transformer

    def energy(*graph):
        vectors, ends = _vectors(*graph), graph[2:]
        lengths = e3nn.norm(vectors).array[:, 0]
        scalars = e3nn.IrrepsArray("8x0e", e3nn.bessel(lengths, 8, CUTOFF))
        y = e3nn.concatenate([scalars, e3nn.spherical_harmonics("1o+2e", vectors, True)])
        x = e3nn.IrrepsArray(f"{CHANNELS}x0e", hk.Embed(SPECIES, CHANNELS)(graph[1]))
        for irreps in (HIDDEN, f"{CHANNELS}x0e"):
            layer = Transformer(irreps, [64], jax.nn.silu, num_heads=4)
            x = layer(*ends, e3nn.poly_envelope(5, 2, CUTOFF)(lengths), y, x)
        return jnp.sum(x.array)

    return _of_haiku(energy)


def linear_shtp():
    """Two sums of messages by `e3nn_jax.experimental.linear_shtp`."""
    from e3nn_jax.experimental.linear_shtp import LinearSHTP

    class Network(nn.Module):
        @nn.compact
        def __call__(self, positions, species, senders, receivers):
            vectors = _vectors(positions, species, senders, receivers)
            x = e3nn.IrrepsArray(f"{CHANNELS}x0e", nn.Embed(SPECIES, CHANNELS)(species))
            for irreps in (HIDDEN, CHANNELS * e3nn.Irreps("0e")):
                layer = LinearSHTP(irreps, mix=True)
                messages = jax.vmap(layer.apply, (None, 0, 0))
                first = x[:1][0], vectors[0]
                name = f"shtp_{irreps.lmax}"
                params = self.param(name, lambda key, a=first, made=layer: made.init(key, *a))
                x = e3nn.scatter_sum(
                    messages(params, x[senders], vectors), dst=receivers, output_size=NODES
                )
                x = e3nn.flax.Linear(irreps)(x / NEIGHBORS)
            return jnp.sum(x.array)

    network = Network()
    return network.init, network.apply


NETWORKS = {
    "E3SchNet of symphony": symphony_e3schnet,
    "SimpleNetwork of PriceofFreedom": freedom_simple_network,
    "nequip-jax, flax": nequip_jax_flax,
    "nequip-jax, Haiku": nequip_jax_haiku,
    "jax-md's NequIP": jax_md_nequip,
    "GNoME's NequIP": gnome_nequip,
    "lagrangebench's SEGNN": lagrangebench_segnn,
    "eqnn-jax's NequIP": eqnn_nequip,
    "eqnn-jax's SEGNN": eqnn_segnn,
    "nequix": nequix,
    "tetris_point of e3nn-jax": tetris_point,
    "mlip's MACE": mlip_mace,
    "mlip's NequIP": mlip_nequip,
    "allegro-jax": allegro_jax,
    "e3nn-jax's transformer": transformer,
    "e3nn-jax's linear_shtp": linear_shtp,
}
