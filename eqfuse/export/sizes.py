"""Programs of many sizes, few of which are traced.

Where two programs differ only by the numbers of atoms and edges, those of the sizes between them
are the same text with other numbers.
"""

import re
from collections.abc import Callable, Sequence

from jaxlib.mlir.dialects import stablehlo
from jaxlib.mlir.passmanager import PassManager

_NUMBER = re.compile(r"(?<=[<x,: (\[])\d+(?=[x>,: )\]])")
_MARK = re.compile(r"\{\{(\w+)\}\}")


def programs_of(sizes: Sequence[tuple[int, int, int]], lower: Callable) -> list[str]:
    """Return the programs of sizes, in their order.

    Programs change where a kernel is chosen by size, at most once between two sizes whose programs
    agree.

    Args:
      sizes: owned atoms, ghosts and edges of each, ascending.
      lower: returns the MLIR of a size. It is called for few sizes, at least the first and last.
    """
    known = {}

    def fill(first: int, last: int):
        for k in (first, last):
            if k not in known:
                known[k] = _marked(lower(sizes[k]), sizes[k])
        if known[first] == known[last]:
            known.update(dict.fromkeys(range(first, last), known[first]))
        elif last - first > 1:
            fill(first, (first + last) // 2)
            fill((first + last) // 2, last)

    fill(0, len(sizes) - 1)
    return [_filled(known[k], size) for k, size in enumerate(sizes)]


def _numbers(size) -> dict[str, int]:
    owned, ghosts, edges = size
    nodes = owned + ghosts
    counts = {"owned": owned, "nodes": nodes}
    return {"edges": edges, **counts, **{f"{n}_starts": k + 1 for n, k in counts.items()}}


def _marked(text: str, size) -> str:
    """Return the text with names in the place of numbers of the size."""
    names = {str(number): f"{{{{{name}}}}}" for name, number in _numbers(size).items()}
    return _NUMBER.sub(lambda found: names.get(found[0], found[0]), text)


def _filled(text: str, size) -> str:
    numbers = _numbers(size)
    return _MARK.sub(lambda found: str(numbers[found[1]]), text)


def stablehlo_of(lowered) -> str:
    """Return a lowered function in StableHLO alone: artifacts have no CHLO, such as its square."""
    module = lowered.compiler_ir("stablehlo")
    stablehlo.register_stablehlo_passes()
    with module.context:
        passes = PassManager.parse("builtin.module(func.func(chlo-legalize-to-stablehlo))")
        passes.run(module.operation)
    return str(module)


def portable_artifact(text: str) -> bytes:
    """Return MLIR as bytes that later versions of XLA read, as `jax.export` writes them."""
    window = stablehlo.StablehloCompatibilityRequirement.WEEK_4  # as jax.export
    version = stablehlo.get_version_from_compatibility_requirement(window)
    return stablehlo.serialize_portable_artifact_str(text, version)
