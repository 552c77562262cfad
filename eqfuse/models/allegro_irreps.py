"""The irreps of Allegro's layers: those that can be reached and that the output needs."""

import dataclasses

import e3nn_jax as e3nn

from eqfuse.models.irreps import SCALAR, allowed, harmonics, products, require_at_least, unreachable


@dataclasses.dataclass(frozen=True)
class Paths:
    """The irreps of a product of edge features with the environment of their centre.

    Attributes:
      inputs: the edge features.
      environment: the spherical harmonics in the environment.
      products: what is kept of the product.
    """

    inputs: tuple[e3nn.Irrep, ...]
    environment: tuple[e3nn.Irrep, ...]
    products: tuple[e3nn.Irrep, ...]

    @property
    def num_scalars(self) -> int:
        """Return the number of pairs of an input and a spherical harmonic that give a scalar."""
        return sum(SCALAR in ir * y for ir in self.inputs for y in self.environment)


def tensor_paths(irreps_out: str, *, layers: int, lmax: int, parity: bool) -> list[Paths]:
    """Return the paths of each layer's product, and of the readout of irreps other than 0e.

    The first features are spherical harmonics; those after a layer are irreps of its product. A
    product has the scalars, which the latents read, and the irreps that can still become scalars,
    or one of `irreps_out`, in the layers that are left. All others are zero or unused.

    Args:
      irreps_out: what the network predicts per node.
      layers, lmax, parity: see `eqfuse.models.Allegro`.
    Returns:
      `layers + 1` Paths; the last one is empty where `irreps_out` is 0e only.
    Raises:
      ValueError: settings out of range, or an output that this network cannot reach.
    """
    require_at_least(layers=(layers, 1), lmax=(lmax, 0))
    sh, within = harmonics(lmax), allowed(lmax, parity)
    wanted = {ir for _, ir in e3nn.Irreps(irreps_out)} - {SCALAR}

    reachable = [set(sh)]
    for _ in range(layers):
        reachable.append(within & products(reachable[-1], sh))
    if missing := wanted - products(reachable[-1], sh):
        raise unreachable(irreps_out, missing, layers=layers, lmax=lmax, parity=parity)
    paths, needed = [], wanted
    for irs in reversed(reachable):
        inputs = {ir for ir in irs if products([ir], sh) & needed}
        environment = {y for y in sh if products(inputs, [y]) & needed}
        paths.append(Paths(*(tuple(sorted(irs)) for irs in (inputs, environment, needed))))
        needed = inputs | {SCALAR}
    return paths[::-1]
