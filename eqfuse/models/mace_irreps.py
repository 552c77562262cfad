"""The irreps of MACE's layers: those that can be reached and that the output needs."""

import e3nn_jax as e3nn

from eqfuse import ops
from eqfuse.models.irreps import SCALAR, allowed, harmonics, products, require_at_least, unreachable


def feature_irreps(
    irreps_out: str,
    *,
    layers: int,
    channels: int,
    lmax: int,
    hidden_lmax: int,
    correlation: int,
    parity: bool,
) -> list[tuple[e3nn.Irreps, e3nn.Irreps]]:
    """Return the irreps of the atomic basis A and of the node features of each layer.

    A has every irrep up to `lmax` that the features before it can become in a product with the
    spherical harmonics, and that can be a factor of the features after it. Features have those up
    to `hidden_lmax` that a symmetric product of A can become; the last ones only what the readout
    of `irreps_out` needs.

    Args:
      irreps_out: what the network predicts per node.
      layers, channels, lmax, hidden_lmax, correlation: see `eqfuse.models.MACE`.
      parity: True for A and features of both parities, False for natural parity, (-1)^l, only.
    Returns:
      One (A, features) per layer.
    Raises:
      ValueError: settings out of range, or an output that this network cannot reach.
    """
    require_at_least(
        layers=(layers, 1),
        channels=(channels, 1),
        lmax=(lmax, 0),
        hidden_lmax=(hidden_lmax, 0),
        correlation=(correlation, 1),
    )
    sh, within, hidden = harmonics(lmax), allowed(lmax, parity), allowed(hidden_lmax, parity)
    wanted = {ir for _, ir in e3nn.Irreps(irreps_out)}

    features, pairs = {SCALAR}, []
    for k in range(layers):
        basis = within & products(features, sh)
        wishes = hidden if k < layers - 1 else wanted | _gates(wanted)
        features = {ir for ir in wishes if _contracts(basis, ir, correlation)}
        pairs.append((_needed(basis, features, correlation), features))
    if missing := wanted - features:
        settings = {"layers": layers, "lmax": lmax, "correlation": correlation, "parity": parity}
        raise unreachable(irreps_out, missing, **settings)
    return [
        tuple(e3nn.Irreps([(channels, ir) for ir in sorted(irs)]) for irs in pair) for pair in pairs
    ]


def _gates(irs) -> set[e3nn.Irrep]:
    """Return the irreps of the gates in the last readout."""
    return {SCALAR} if any(ir.l > 0 for ir in irs) else set()


def _contracts(basis, ir, correlation: int) -> bool:
    """Return whether a symmetric product of up to `correlation` factors of `basis` gives `ir`."""
    irreps = e3nn.Irreps([(1, b) for b in sorted(basis)])
    try:
        ops.symmetric_contraction_paths(irreps, [(1, ir)], correlation)
    except ValueError:
        return False
    return True


def _needed(basis, features, correlation: int):
    """Return the irreps of `basis` that can be a factor of an irrep of `features`."""
    others = {SCALAR}
    for _ in range(correlation - 1):
        others |= {out for ir in others for b in basis for out in ir * b}
    return {b for b in basis if any(out in features for ir in others for out in ir * b)}
