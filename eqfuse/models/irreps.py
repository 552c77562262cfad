"""Sets of irreps that the models share."""

import e3nn_jax as e3nn

SCALAR = e3nn.Irrep("0e")


def harmonics(lmax: int, so3: bool = False) -> list[e3nn.Irrep]:
    """Return the irreps of spherical harmonics: of parity (-1)^l, or all even for SO(3) alone."""
    return [e3nn.Irrep(l, 1 if so3 else (-1) ** l) for l in range(lmax + 1)]


def allowed(lmax: int, parity: bool) -> set[e3nn.Irrep]:
    """Return the irreps up to lmax, of both parities or of natural parity (-1)^l only."""
    parities = (1, -1) if parity else (1,)
    return {e3nn.Irrep(l, p * (-1) ** l) for l in range(lmax + 1) for p in parities}


def gated(irreps) -> e3nn.Irreps:
    """Return the input irreps of `e3nn.gate` for an output: scalars, gates, gated irreps."""
    irreps = sorted(((mul, ir) for mul, ir in irreps), key=lambda part: part[1])
    scalars = [(mul, ir) for mul, ir in irreps if ir.l == 0]
    others = [(mul, ir) for mul, ir in irreps if ir.l > 0]
    gates = [(sum(mul for mul, _ in others), SCALAR)] if others else []
    return e3nn.Irreps(scalars + gates + others)


def products(irs, others) -> set[e3nn.Irrep]:
    """Return the irreps in the tensor products of two sets of irreps."""
    return {out for a in irs for b in others for out in a * b}


def unreachable(irreps_out, missing, **settings) -> ValueError:
    """Return an error for output irreps that a network with these settings cannot produce."""
    names = " + ".join(str(ir) for ir in sorted(missing))
    given = ", ".join(f"{name}={value}" for name, value in settings.items())
    return ValueError(
        f"irreps_out {irreps_out!r} holds {names}, which {given} cannot produce; use parity=True, "
        "or more layers or a larger lmax"
    )
