"""Imports run one way: ops <- models <- train <- inference, data <- train.

Inside of ops: ir <- backends <- primitives <- transforms <- the public ops.
"""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "eqfuse"

ALLOWED = {
    "ops": {"_e3nn_jax", "ops", "_jax_compat"},
    "graph": {"ops"},
    "models": {"ops", "graph", "models"},
    "data": {"ops", "graph", "data"},
    "plots": set(),
    "train": {"ops", "graph", "models", "data", "plots", "train"},
    "inference": {"graph", "ops", "data", "models", "train", "plots", "inference"},
    "certify": {"ops", "data", "train", "inference", "plots", "certify"},
    "convert": {"ops", "graph", "data", "models", "train", "inference", "certify", "convert"},
    "md": {"ops", "data", "models", "train", "inference", "plots", "md"},
    "lammps": {"data", "models", "train", "inference", "lammps"},
    "export": {"ops", "data", "models", "train", "inference", "export"},
    "bench": {"ops", "graph", "models", "train", "bench"},
    "cli": {"export", "bench", "ops", "train", "inference", "convert", "md", "lammps", "certify"},
    "jax_md": {"ops", "data", "inference"},
    "torch_sim": {"data", "inference"},
    "_startup": {"_jax_compat"},
    "_jax_compat": set(),
    "_e3nn_jax": set(),
}
# The layers of ops: what each may import of the others; modules that are not listed are public ops,
# which may import all. The backends do not import each other.
LAYERS = {
    "ir": {"ir"},
    "_host": set(),
    "_edges": set(),
    "backends": {"ir", "backends", "_host"},
    "_backend": {"backends"},
    "primitives": {"ir", "backends", "primitives", "_backend", "_edges"},
    "transforms": {"ir", "backends", "primitives", "transforms", "_backend", "_edges"},
    "_reference": {"ir"},
}
LONGEST_CHAIN = 12
# The files that talk to Triton; each imports it when it is needed, not when it is imported.
LAUNCHERS = {
    f"eqfuse/ops/backends/triton/{name}.py" for name in ("compile", "runtime", "interpret")
}


def imports_of(source: str, module: str) -> list[str]:
    """Absolute names of what a module imports, at any depth of its code."""
    names = []
    package = module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module.split(".") if node.module else []
            if node.level:
                base = package[: len(package) - node.level + 1] + base
            names += [".".join([*base, alias.name]) for alias in node.names]
    return names


def part_of(name: str) -> str | None:
    """Return the part of the package that a module is in (ops, models, ...), or None."""
    words = name.split(".")
    return words[1] if words[0] == "eqfuse" and len(words) > 1 else None


def violations(source: str, module: str) -> list[str]:
    """Return imports that the rule forbids."""
    allowed = ALLOWED.get(part_of(module))
    found = []
    for name in imports_of(source, module):
        part = part_of(name)
        if allowed is not None and part in ALLOWED and part not in allowed:
            found.append(f"{module} imports {name}")
        if name == "train" or name.startswith(("benchmarks", "tests")):
            found.append(f"{module} imports {name}")
    return found


def layer_of(name: str) -> str | None:
    """Return the module or folder directly in ops that a module belongs to; None outside of ops."""
    words = name.split(".")
    return words[2] if words[:2] == ["eqfuse", "ops"] and len(words) > 2 else None


def layer_violations(source: str, module: str) -> list[str]:
    """Return imports that the layers of ops forbid."""
    allowed = LAYERS.get(layer_of(module))
    if allowed is None:
        return []
    layers = {name: layer_of(name) for name in imports_of(source, module)}
    return [
        f"{module} imports {name}"
        for name, layer in layers.items()
        if layer is not None and layer not in allowed
    ]


def graph(package: Path = PACKAGE / "ops") -> dict[str, set[str]]:
    """Return the modules of a package that each of them imports, at any depth of its code."""
    paths = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for path in package.rglob("*.py")
        if path.name != "__init__.py"
    }
    found = {}
    for module, path in paths.items():
        names = imports_of(path.read_text(encoding="utf-8"), module)
        names += [name.rpartition(".")[0] for name in names]
        found[module] = (set(names) & set(paths)) - {module}
    return found


def longest_chain(imports: dict[str, set[str]]) -> list[str]:
    """Return the longest chain of modules each of which imports the next.

    Raises:
      AssertionError: a circle, naming it.
    """
    on_the_way: list[str] = []

    @functools.cache
    def chain(module: str) -> list[str]:
        circle = " -> ".join([*on_the_way, module])
        assert module not in on_the_way, f"modules import each other in a circle: {circle}"
        on_the_way.append(module)
        following = max((chain(name) for name in sorted(imports[module])), key=len, default=[])
        on_the_way.pop()
        return [module, *following]

    return max((chain(module) for module in imports), key=len)


def modules() -> list[tuple[str, Path]]:
    return [
        (".".join(path.relative_to(ROOT).with_suffix("").parts), path)
        for path in sorted(PACKAGE.rglob("*.py"))
    ]


@pytest.mark.parametrize(("module", "path"), modules(), ids=lambda value: str(value))
def test_imports_run_one_way(module, path):
    source = path.read_text(encoding="utf-8")
    assert violations(source, module) + layer_violations(source, module) == []


def test_every_layer_is_there():
    assert set(LAYERS) <= {p.stem for p in (PACKAGE / "ops").iterdir()}


def test_no_long_chain_of_imports_and_no_circle():
    chain = longest_chain(graph())
    assert len(chain) <= LONGEST_CHAIN, "\n".join(chain)


def test_a_circle_is_found():
    with pytest.raises(AssertionError, match="a -> b -> a"):
        longest_chain({"a": {"b"}, "b": {"a"}})
    assert longest_chain({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == ["a", "b", "c"]


def test_the_ir_is_pure_python():
    """It imports neither JAX nor a compiler; of e3nn_jax only names that are data."""
    for path in (PACKAGE / "ops" / "ir").glob("*.py"):
        names = {name.split(".")[0] for name in imports_of(path.read_text("utf-8"), "x")}
        assert not names & {"jax", "jaxlib", "flax", "triton", "llvmlite"}, path


def test_every_part_has_a_rule():
    parts = {part_of(module) for module, _ in modules()}
    assert parts - {"__init__"} <= set(ALLOWED)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("eqfuse.ops._x", "from eqfuse import models"),
        ("eqfuse.ops._x", "def f():\n    import eqfuse.graph"),
        ("eqfuse.models.x", "from ..train import loop"),
        ("eqfuse.data.x", "from eqfuse.models import build"),
        ("eqfuse.train.x", "import train"),
        ("eqfuse.inference.x", "from eqfuse.md import run"),
        ("eqfuse.ops.ir.x", "from eqfuse.ops import backends"),
        ("eqfuse.ops.ir.x", "from eqfuse.ops.backends.triton import form"),
        ("eqfuse.ops.backends.triton.x", "from eqfuse.ops.primitives import layer"),
        ("eqfuse.ops.backends.xla.x", "from eqfuse.ops import _backend"),
        ("eqfuse.ops.primitives.x", "def f():\n    from eqfuse.ops import _tensor_product"),
    ],
)
def test_the_rule_sees_a_violation(module, source):
    assert len(violations(source, module) + layer_violations(source, module)) == 1


def test_one_module_uses_what_is_private_in_jax():
    using = [path.name for _, path in modules() if "jax._src" in path.read_text("utf-8")]
    assert using == ["_jax_compat.py"]


def test_ops_import_nothing_that_only_training_needs():
    heavy = ("ase", "matplotlib", "optax", "safetensors", "vesin")
    code = f"import sys, eqfuse.ops; print([n for n in {heavy} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_only_launchers_import_triton():
    for module, path in modules():
        if str(path.relative_to(ROOT)) in LAUNCHERS:
            continue
        # one runs in the environment of another program, the other is a model of a torch program
        if module in ("eqfuse.convert.original", "eqfuse.torch_sim"):
            continue
        names = {name.split(".")[0] for name in imports_of(path.read_text("utf-8"), module)}
        assert not names & {"triton", "jax_triton", "torch"}, module


def test_launchers_import_triton_lazily():
    for path in LAUNCHERS:
        for node in ast.parse((ROOT / path).read_text("utf-8")).body:
            top = ast.unparse(node) if isinstance(node, ast.Import | ast.ImportFrom) else ""
            assert "triton" not in top.replace("eqfuse.ops.backends.triton", ""), f"{path}: {top}"
