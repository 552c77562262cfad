"""The products to measure: those of the peers' models and of their benchmarks."""

import dataclasses

import e3nn_jax as e3nn

from eqfuse.ops.ir import products
from eqfuse.ops.ir.form import Form, derivatives
from eqfuse.ops.ir.products import contraction

SH2, SH3 = "0e+1o+2e", "0e+1o+2e+3o"
BOTH2 = "0o+0e+1o+1e+2o+2e"
BOTH3 = f"{BOTH2}+3o+3e"


@dataclasses.dataclass(frozen=True)
class Case:
    """A product on a graph: x per node, y (and a weight for each irrep of the output) per edge."""

    irreps_x: str
    irreps_y: str
    keep: str  # irreps of the output
    weighted: bool = True

    @property
    def filter_ir_out(self) -> tuple[e3nn.Irrep, ...]:
        return tuple(ir for _, ir in e3nn.Irreps(self.keep))

    def product(self) -> products.Product:
        return products.tensor_product(
            e3nn.Irreps(self.irreps_x),
            e3nn.Irreps(self.irreps_y),
            self.filter_ir_out,
            "component",
            weighted=self.weighted,
            on_graph=True,
        )

    def forms(self) -> dict[str, Form]:
        """Return the form ("forward"), its backward pass and that pass's ("double")."""
        return derivatives(self.product().form)


@dataclasses.dataclass(frozen=True)
class Contraction:
    """A symmetric contraction of three factors, of 128 channels; each irrep is named once."""

    irreps: str
    irreps_out: str

    def forms(self) -> dict[str, Form]:
        sides = (tuple(ir for _, ir in e3nn.Irreps(i)) for i in (self.irreps, self.irreps_out))
        return derivatives(contraction(*sides, mul=128, correlation=3))


class Channelwise(Case):
    """The product of features of edges with the environment of their receivers."""

    def product(self) -> products.Product:
        irreps = e3nn.Irreps(self.irreps_x), e3nn.Irreps(self.irreps_y)
        return products.channelwise_tensor_product(
            *irreps, self.filter_ir_out, "component", on_graph=True
        )


def times(mul: int, irreps: str) -> str:
    return "+".join(f"{mul}x{ir}" for ir in irreps.split("+"))


TETRIS_HIDDEN = "32x0e+32x0o+8x1e+8x1o+8x2e+8x2o"

CASES = {
    "nequip-32-l2": Case(times(32, BOTH2), SH2, BOTH2),
    "nequip-64-l2": Case(times(64, BOTH2), SH2, BOTH2),
    "mace-large": Case(times(128, "0e+1o+2e"), SH3, SH3),
    "nequip-benzene-64-l3": Case(times(64, BOTH3), SH3, BOTH3),
    "mace-contraction-l0": Contraction(SH3, "0e"),
    "mace-contraction-l1": Contraction(SH3, "0e+1o"),
    "mace-contraction-l2": Contraction(SH3, "0e+1o+2e"),
    "allegro-64-l2": Channelwise(times(64, BOTH2), times(64, SH2), SH2),
    "allegro-128-l3": Channelwise(times(128, BOTH3), times(128, SH3), SH3),
    "mixed": Case("128x0e+64x1o+32x2e+32x3o", SH3, SH3),
    "tetris-1": Case("0e", "1o+2e+3o", BOTH2, weighted=False),
    "tetris-2": Case(TETRIS_HIDDEN, "1o+2e+3o", BOTH2, weighted=False),
}
