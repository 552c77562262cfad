"""Which irreps the layers of NequIP have: what the input can reach and the output needs."""

import e3nn_jax as e3nn

from eqfuse import ops
from eqfuse.models.irreps import SCALAR, allowed, harmonics, products, require_at_least, unreachable


def hidden_irreps(
    irreps_out: str,
    *,
    layers: int,
    channels: int,
    lmax: int,
    parity: bool,
    so3: bool = False,
    hidden: str | None = None,
    keep_all: bool = False,
) -> list[e3nn.Irreps]:
    """Return the irreps of the features after each layer, those that the output needs.

    An irrep of layer k is kept if the scalars that a network starts from can become it in k
    products with the spherical harmonics, and if it can become one of `irreps_out`, or a gate, in
    the layers that are left. All others are zero or unused. (A network of three layers for an
    energy has no use for 1e and 2o, whatever `parity`; one of four has.)

    Args:
      irreps_out: what the network predicts per node.
      layers: number of layers.
      channels: multiplicity of each irrep.
      lmax: largest l of features and spherical harmonics.
      parity: True for features of both parities, False for natural parity, (-1)^l, only.
      so3: whether all irreps are even, for a network that is equivariant under rotations only.
      hidden: irreps with their multiplicities, instead of `channels` and those that `lmax` and
        `parity` allow, such as "128x0e+64x1o+32x2e"; for all layers, or for each, with commas.
      keep_all: whether all layers but the last keep what nobody reads, too.
    Returns:
      One Irreps per layer.
    Raises:
      ValueError: settings out of range, or an output that this network cannot reach.
    """
    require_at_least(layers=(layers, 1), channels=(channels, 1), lmax=(lmax, 0))
    sh = sphere(lmax, so3)
    muls = _multiplicities(hidden, layers, channels, sh if so3 else allowed(lmax, parity))
    wanted = {ir for _, ir in e3nn.Irreps(irreps_out)}

    reachable = [{SCALAR}]
    for mul in muls:
        reachable.append(set(mul) & products(reachable[-1], sh))
    if missing := wanted - reachable[-1]:
        raise unreachable(irreps_out, missing, layers=layers, lmax=lmax, parity=parity)

    kept, needed = [], wanted
    for k in reversed(range(layers)):
        kept.append(reachable[k + 1] if keep_all and k + 1 < layers else reachable[k + 1] & needed)
        sources = {ir for _, ir in gated([(1, ir) for ir in kept[-1]])}
        needed = {ir for ir in muls[k - 1] if products([ir], sh) & sources}
    return [
        e3nn.Irreps([(mul[ir], ir) for ir in sorted(irs)])
        for mul, irs in zip(muls, reversed(kept), strict=True)
    ]


def _multiplicities(hidden: str | None, layers: int, channels: int, irs) -> list[dict]:
    """Return the multiplicity of each irrep that a layer may have, for each layer."""
    if hidden is None:
        return [dict.fromkeys(irs, channels)] * layers
    parts = hidden.split(",")
    parts = parts * layers if len(parts) == 1 else parts
    if len(parts) != layers:
        raise ValueError(
            f"hidden must be irreps, or irreps for each of the {layers} layers with commas, got "
            f"{hidden!r}"
        )
    return [{ir: mul for mul, ir in e3nn.Irreps(part).regroup()} for part in parts]


def sphere(lmax: int, so3: bool) -> list[e3nn.Irrep]:
    """Return the irreps of spherical harmonics: of parity (-1)^l, or all even for SO(3) alone."""
    return [e3nn.Irrep(ir.l, 1) for ir in harmonics(lmax)] if so3 else harmonics(lmax)


def gated(irreps) -> e3nn.Irreps:
    """Return the input irreps of `e3nn.gate` for an output: scalars, gates, gated irreps.

    Args:
      irreps: after the gate; each irrep once.
    """
    irreps = sorted(((mul, ir) for mul, ir in irreps), key=lambda part: part[1])
    scalars = [(mul, ir) for mul, ir in irreps if ir.l == 0]
    others = [(mul, ir) for mul, ir in irreps if ir.l > 0]
    gates = [(sum(mul for mul, _ in others), SCALAR)] if others else []
    return e3nn.Irreps(scalars + gates + others)


def messages(irreps_in, irreps_sh, irreps_out) -> e3nn.Irreps:
    """Return the irreps of the products of node features and harmonics that a layer needs.

    Args:
      irreps_in, irreps_out: node features before and after the layer.
      irreps_sh: spherical harmonics.
    """
    keep = {ir for _, ir in gated(irreps_out)}
    return ops.tensor_product(irreps_in, irreps_sh, filter_ir_out=sorted(keep))
