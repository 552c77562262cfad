"""Imports run one way: ops <- models <- runs <- settings <- convert <- train <- inference <- doors.

Inside of ops: ir <- backends <- primitives <- transforms <- the public ops.
"""

import ast
import graphlib
import itertools
from pathlib import Path

import pytest

from tests.child import ROOT, run_python

PACKAGE = ROOT / "eqfuse"

# What each part of the package may import of the others. Parts of parts, such as the settings of
# train that convert writes, are lower or higher than their package.
ALLOWED = {
    "_jax_compat": "",
    "_e3nn_jax": "",
    "_late": "",
    "_startup": "_jax_compat",
    "ops": "_e3nn_jax _jax_compat",
    "graph": "ops",
    "fuse": "ops _jax_compat",
    "models": "ops graph",
    "data": "ops graph",
    "runs": "ops data models",
    "plots": "runs",
    "train.schedule": "runs",
    "train.dispersion": "data runs",
    "train.sources": "data runs train.dispersion",
    "train.settings": "runs train.schedule train.sources",
    "convert": "ops models data runs train.dispersion train.schedule train.settings train.sources",
    "train": "ops graph models data plots runs convert train.dispersion train.schedule "
    "train.settings train.sources",
    "inference": "graph ops data models runs convert train train.dispersion plots",
    "convert.accelerate": "convert inference runs",
    "convert.command": "convert inference runs",
    "certify": "ops data runs inference plots",
    "md": "ops data models runs train train.dispersion inference plots",
    "distill": "data runs train train.settings inference certify convert md plots",
    "export": "ops data models runs convert train inference",
    "jax_md": "ops data inference",
    "torch_sim": "inference",
    "cli": "export runs train inference convert.command md certify distill",
    "__main__": "cli",
}
# The layers of ops; modules that are not listed are public ops, which may import all. The backends
# do not import each other.
LAYERS = {
    "ops.ir": "",
    "ops._host": "",
    "ops._kept": "",
    "ops._edges": "",
    "ops.backends": "ops.ir ops._host ops._kept",
    "ops._backend": "ops.backends",
    "ops.primitives": "ops.ir ops.backends ops._backend ops._edges ops._host ops._kept",
    "ops.transforms": "ops.ir ops.backends ops.primitives ops._backend ops._edges",
    "ops._reference": "ops.ir",
}
ALLOWED |= {name: f"{names} {ALLOWED['ops']}" for name, names in LAYERS.items()}
ALLOWED = {name: {name, "_late", *names.split()} for name, names in ALLOWED.items()}
for names in ALLOWED.values():
    if "ops" in names:
        names |= {*LAYERS}
# What takes the front of each of these packages alone.
DOORS = ("certify", "distill", "md", "export", "jax_md", "torch_sim")
FRONTS = ("inference", "train", "data", "runs", "models", "ops")
# The files that talk to Triton; each imports it when it is needed, not when it is imported.
LAUNCHERS = {f"eqfuse/ops/backends/triton/{name}.py" for name in ("compile", "runtime")}


class Package:
    """The modules of a package: what the source of each imports, at any depth of its code.

    What a front hands on, an `__init__` by its imports or by its table `_LATE` of the names in
    modules, is imported from the module that has it.
    """

    def __init__(self, sources: dict[str, str]):
        self.trees = {name: ast.parse(text) for name, text in sources.items()}
        self.fronts = {name.rpartition(".")[0] for name in sources} & set(sources)

    @classmethod
    def read(cls, package: Path) -> "Package":
        sources = {}
        for path in sorted(package.rglob("*.py")):
            words = path.relative_to(package.parent).with_suffix("").parts
            sources[".".join(words).removesuffix(".__init__")] = path.read_text("utf-8")
        return cls(sources)

    def handed_on(self, front: str) -> dict[str, str]:
        """Return what a front hands on: whole names of its own names."""
        found = {}
        for node in self.trees[front].body:
            if isinstance(node, ast.ImportFrom):
                found |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_LATE":
                late = ast.literal_eval(node.value)
                found |= {n: f"{module}.{n}" for module in late for n in late[module].split()}
        return found

    def names(self, tree: ast.Module) -> list[str]:
        """Return the whole names of what a module imports, of a front as it hands them on."""
        names, packages = [], {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
                packages |= {name: name for name in names if name in self.fronts}
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    name = f"{node.module}.{alias.name}"
                    packages |= {alias.asname or alias.name: name} if name in self.fronts else {}
                    names.append(self.source_of(name))
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
                names += [a.value for a in node.args[:1] if isinstance(a, ast.Constant)]
        for node in ast.walk(tree):  # ops.fuse, after from eqfuse import ops
            of = node.value if isinstance(node, ast.Attribute) else None
            if isinstance(of, ast.Name) and of.id in packages:
                names.append(self.source_of(f"{packages[of.id]}.{node.attr}"))
        return names

    def source_of(self, name: str) -> str:
        """Return the whole name of what a name of a front is, where it is made."""
        front, _, last = name.rpartition(".")
        if name in self.trees or front not in self.fronts:
            return name
        given = self.handed_on(front).get(last)
        return name if given in (None, name) else self.source_of(given)

    def module_of(self, name: str) -> str | None:
        """Return the module that a name is, or is in; None outside of the package."""
        words = name.split(".")
        starts = (".".join(words[:count]) for count in range(len(words), 0, -1))
        return next((start for start in starts if start in self.trees), None)

    def graph(self) -> dict[str, set[str]]:
        """Return the modules that each module imports; fronts have those of their own code."""
        found = {}
        for module, tree in self.trees.items():  # whose own package is imported before it
            names = [n for n in self.names(tree) if not module.startswith(f"{n}.")]
            found[module] = {self.module_of(name) for name in names} - {None, module}
        return found


OURS = Package.read(PACKAGE)


def part_of(name: str) -> str | None:
    """Return the part of the package that a name is in, the longest in `ALLOWED`; or None."""
    words = name.split(".")
    parts = (".".join(words[1:end]) for end in (3, 2))
    return next((part for part in parts if words[0] == "eqfuse" and part in ALLOWED), None)


def violations(module: str, source: str | None = None) -> list[str]:
    """Return imports that the rules forbid."""
    allowed = ALLOWED.get(part_of(module))
    tree = OURS.trees[module] if source is None else ast.parse(source)
    return [
        f"{module} imports {name}"
        for name in OURS.names(tree)
        if (allowed and part_of(name) not in (None, *allowed))
        or name == "train"
        or name.startswith(("benchmarks", "tests"))
    ]


def past_fronts(module: str, source: str | None = None) -> set[str]:
    """Return the modules behind the fronts of other packages that a module imports from."""
    tree = OURS.trees[module] if source is None else ast.parse(source)
    bases = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    bases |= {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    words = [base.split(".") for base in bases if base]
    return {".".join(w[1:]) for w in words if w[0] == "eqfuse" and len(w) > 2 and w[1] in FRONTS}


def has_circle(graph: dict[str, set[str]]) -> bool:
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        print(*error.args[1], sep=" <- ")
        return True
    return False


def test_imports_run_one_way():
    assert [*itertools.chain(*map(violations, OURS.trees))] == []


def test_doors_use_the_fronts():
    doors = (m for m in OURS.trees if m.split(".")[1:2] in [[door] for door in DOORS])
    assert [m for m in doors if past_fronts(m)] == []
    assert past_fronts("eqfuse.md.x", "from eqfuse.ops._edges import orders") == {"ops._edges"}


def test_every_layer_is_there():
    assert set(LAYERS) <= {f"ops.{p.stem}" for p in (PACKAGE / "ops").iterdir()}


def test_there_is_no_circle():
    assert not has_circle(OURS.graph())
    assert not has_circle({name: others - {name} for name, others in ALLOWED.items()})


@pytest.mark.parametrize(
    "importing",
    [
        "import p.b",
        "def f():\n    from p.b import g",
        "def f():\n    return importlib.import_module('p.b').g",
        "from p import g",
        "from p import own",
        "from p import late",
        "import p\n\ndef f():\n    return p.late()",
        "from p import q\n\ndef f():\n    return q.later()",
    ],
)
def test_a_circle_is_seen(importing):
    """Through functions, texts, and what fronts hand on, at once or late."""
    sources = {
        "p": "from p.b import g\n_LATE = {'p.b': 'late'}\nown = g",
        "p.a": importing,
        "p.b": "from p.a import f",
        "p.q": "_LATE = {'p.b': 'later'}",
        "p.q.c": "import p.a",
    }
    assert has_circle(Package(sources).graph())
    assert not has_circle(Package(sources | {"p.a": "import p.q.d"}).graph())


def test_every_part_has_a_rule():
    assert {module for module in OURS.trees if part_of(module) is None} == {"eqfuse"}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("eqfuse.ops._x", "from eqfuse import models"),
        ("eqfuse.ops._x", "def f():\n    import eqfuse.graph"),
        ("eqfuse.models.x", "from eqfuse.train import loop"),
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
    assert len(violations(module, source)) == 1


def test_one_module_uses_what_is_private_in_jax():
    using = [path.name for path in PACKAGE.rglob("*.py") if "jax._src" in path.read_text("utf-8")]
    assert using == ["_jax_compat.py"]


def test_ops_import_nothing_that_only_training_needs():
    heavy = ("ase", "matplotlib", "optax", "safetensors", "vesin")
    code = f"import sys, eqfuse.ops; print([n for n in {heavy} if n in sys.modules])"
    assert run_python("-c", code).stdout == "[]\n"


@pytest.mark.parametrize(
    ("part", "forbidden"),
    [
        # neither JAX nor a compiler; of e3nn_jax only names that are data
        ("eqfuse.ops.ir", {"jax", "jaxlib", "flax", "triton", "llvmlite"}),
        ("eqfuse", {"triton", "jax_triton", "torch"}),
    ],
)
def test_packages_that_only_some_modules_import(part, forbidden):
    # one that is a model of a torch program imports torch, too
    launchers = {f"{path[:-3].replace('/', '.')}" for path in LAUNCHERS} | {"eqfuse.torch_sim"}
    for module in {m for m in OURS.trees if m.startswith(part)} - launchers:
        names = {name.split(".")[0] for name in OURS.names(OURS.trees[module])}
        assert not names & forbidden, module


def test_launchers_import_triton_lazily():
    for path in LAUNCHERS:
        for node in ast.parse((ROOT / path).read_text("utf-8")).body:
            top = ast.unparse(node) if isinstance(node, ast.Import | ast.ImportFrom) else ""
            assert "triton" not in top.replace("eqfuse.ops.backends.triton", ""), f"{path}: {top}"
