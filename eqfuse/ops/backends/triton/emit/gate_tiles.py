"""The gate of rows whose pre-activation is in memory, and its derivative, a tile at a time."""

import dataclasses

from eqfuse.ops.backends.triton.emit.elementwise import activated
from eqfuse.ops.ir.gates import IDENTITY, Part, Tile
from eqfuse.ops.ir.linear_form import Block


@dataclasses.dataclass(frozen=True)
class Place:
    """Columns of a part of rows: where a component of them lies.

    Args:
      t: the emitter; it has the variable `row` of the rows and `columns` at a time, whose numbers
        `column` gives, and `mask_of` says which of them a part has.
      part: of the pre-activation.
      v: the columns.
    """

    t: object
    part: Part
    v: str

    @property
    def block(self) -> Block:
        return self.t.linear.blocks_out[self.part.block]

    @property
    def mask(self) -> str:
        return self.t.mask_of(self.v, self.part.mul)

    def of_z(self, prefix: str, k: int) -> str:
        """Return the address in an array of the pre-activation or of its cotangents."""
        array = self.t.linear.array_of(self.part.block)
        size = self.t.linear.linear_form.outputs[array].size
        name = {"": self.t.fused.arrays[array], "ct_": f"ct_{self.t.fused.arrays[array]}"}
        pointer = name.get(prefix, prefix)
        offset = self.block.offset + self.part.first * self.block.dim
        return (
            f"{pointer}_ptr + {self.t.row} * {size} + {offset} + {self.v} * {self.block.dim} + {k}"
        )

    def of_out(self, pointer: str, tile: Tile, k: int) -> str:
        """Return the address in the gated row or in its cotangent."""
        place = f"{tile.offset} + {self.v} * {self.block.dim} + {k}"
        return f"{pointer}_ptr + {self.t.row} * {self.t.fused.sizes[0]} + {place}"

    def load(self, address: str) -> str:
        return self.t.load(address, self.mask)

    def store(self, address: str, value: str):
        self.t.emit(f"tl.store({address}, {value}, mask={self.mask})")


def _columns(t, tile: Tile):
    return t.block(f"for column in tl.range(0, {tile.part.mul}, {t.columns}, num_stages=1):")


def write_gated(t, tile: Tile):
    """Write a tile of the output, from the pre-activation in memory."""
    with _columns(t, tile):
        v = t.column(0)
        place = Place(t, tile.part, v)
        values = [place.load(place.of_z("", k)) for k in range(place.block.dim)]
        if tile.gate:
            gate = Place(t, tile.gate, v)
            act = activated(t, tile.act, gate.load(gate.of_z("", 0)))
            values = [f"{act} * {value}" for value in values]
        else:
            values = [activated(t, tile.act, value) for value in values]
        for k, value in enumerate(values):
            place.store(place.of_out("out", tile, k), value)


def write_cotangent(t, tile: Tile, has_ct_z: bool):
    """Write the cotangent of the parts of the pre-activation that a tile is made of."""
    with _columns(t, tile):
        v = t.column(0)
        place = Place(t, tile.part, v)
        components = range(place.block.dim)
        cts = [place.load(place.of_out("ct_out", tile, k)) for k in components]
        if tile.act == IDENTITY and tile.gate is None:
            results = [(place, cts)]
        else:
            z = [place.load(place.of_z("z", k)) for k in components]
            if tile.gate is None:
                slopes = [activated(t, tile.act, x, True) for x in z]
                pairs = zip(cts, slopes, strict=True)
                results = [(place, [f"{ct} * {slope}" for ct, slope in pairs])]
            else:
                gate = Place(t, tile.gate, v)
                x = gate.load(gate.of_z("z", 0))
                act, slope = activated(t, tile.act, x), activated(t, tile.act, x, True)
                total = " + ".join(f"{ct} * {value}" for ct, value in zip(cts, z, strict=True))
                results = [(place, [f"{ct} * {act}" for ct in cts])]
                results.append((gate, [f"({total}) * {slope}"]))
        for at, values in results:
            for k, value in enumerate(values):
                more = f" + {at.load(at.of_z('ct_', k))}" if has_ct_z else ""
                at.store(at.of_z("dz", k), value + more)
