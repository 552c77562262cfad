"""Run by primitives/test_sharding.py in a process with four host devices."""

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from eqfuse import ops
from tests.ops.transforms.test_places import NATIVE, arrays, close, gradients, layer

SEVERAL = "as written: on several devices"
MESH = "as written: inside shard_map, or on a mesh of explicit axes"


def sequenced(what):
    """Return a sequence, and what its report says."""
    said = []
    return ops.sequence(what("llvm"), report=said.append), said


def main():
    assert jax.device_count() == 4
    args = [np.concatenate([a, 2 * a], 0)[:8] for a in arrays()]
    expected = gradients("e3nn")(*args)
    devices = np.array(jax.devices())
    mesh = Mesh(devices, ("data",))
    for spec in (P("data"), P(None)):
        function, said = sequenced(gradients)
        placed = [jax.device_put(a, NamedSharding(mesh, spec)) for a in args]
        close(function(*placed), expected)
        assert said[-1] == SEVERAL, said

    function, said = sequenced(gradients)  # on one of several
    close(function(*(jax.device_put(a, devices[2]) for a in args)), expected)
    assert [line[: len(NATIVE)] for line in said] == [NATIVE]

    function, said = sequenced(layer)
    mapped = jax.shard_map(function, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    close(jax.jit(mapped)(*args), layer("e3nn")(*args))
    assert said == [MESH], said

    explicit = Mesh(devices, ("data",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(explicit):
        function, said = sequenced(layer)
        close(function(*args), layer("e3nn")(*args))
        assert said == [MESH], said

    def within(backend):
        spec = {"mesh": mesh, "in_specs": P("data"), "out_specs": P("data")}
        return lambda x, y: jax.shard_map(layer(backend), **spec)(layer(backend)(x, y), y)

    function, said = sequenced(within)
    close(function(*args), layer("e3nn")(layer("e3nn")(*args), args[1]))
    assert said == ["as written: it decides where arrays lie (shard_map)"], said

    def constrained(backend):
        by_row = NamedSharding(mesh, P("data"))
        return lambda x, y: layer(backend)(jax.lax.with_sharding_constraint(x, by_row), y)

    function, said = sequenced(constrained)
    close(function(*args), layer("e3nn")(*args))
    assert said == ["as written: it decides where arrays lie (sharding_constraint)"], said
    print("sharded ok")


if __name__ == "__main__":
    main()
