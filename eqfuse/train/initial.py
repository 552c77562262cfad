"""The parameters that training begins with."""

import jax

from eqfuse.graph import Graph


def initial_parameters(module, seed: int, graph: Graph, dtype: str) -> dict:
    """Return the variables of a network for a seed.

    Args:
      module: a network of `eqfuse.models` or a `Potential`.
      seed: of the random numbers.
      graph: any one of the data's.
      dtype: of the parameters.
    """
    # A program of random numbers that runs once: optimised, XLA takes three times longer to
    # compile it for a CPU than the training step.
    on_cpu = jax.default_backend() == "cpu"
    options = {"xla_backend_optimization_level": 0} if on_cpu else None
    init = jax.jit(module.init, compiler_options=options)
    params = init(jax.random.key(seed), graph.vectors, graph.species, graph.edges)
    return jax.tree.map(lambda p: p.astype(dtype), params)
