"""A worker of `compile_many`, run as a file: it compiles the kernels of its input to disk."""

import os
import sys
import types


def main(package: str, target: str) -> None:
    """Compile kernels, one line of JSON each; `package` is the folder of eqfuse."""
    # the packages without their __init__, which would spend seconds on importing JAX
    for name in ("eqfuse", "eqfuse.ops"):
        module = sys.modules[name] = types.ModuleType(name)
        module.__path__ = [os.path.join(package, *name.split(".")[1:])]
    with open(os.path.join(package, "__init__.py")) as file:
        exec(file.read(), sys.modules["eqfuse"].__dict__)
    from eqfuse.ops.backends.triton.compile import compile_kernel
    from eqfuse.ops.backends.triton.spec import KernelSpec

    for line in sys.stdin:
        compile_kernel(KernelSpec.from_json(line), target)


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file, whose names are not meant to be imported bare
    main(*sys.argv[1:])
