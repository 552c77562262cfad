"""A worker of `compile_many`: kernels as lines of JSON in, their names out once they are on disk.

Run as a file, with the folder of the package and the target as arguments.
"""

import os
import sys
import types


def main(package: str, target: str) -> None:
    """Compile what comes in until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what triton prints must not be taken for an answer
    # the packages without their __init__, which would spend seconds on importing JAX
    for name in ("eqfuse", "eqfuse.ops"):
        module = sys.modules[name] = types.ModuleType(name)
        module.__path__ = [os.path.join(package, *name.split(".")[1:])]
    with open(os.path.join(package, "__init__.py")) as file:
        exec(file.read(), sys.modules["eqfuse"].__dict__)
    from eqfuse.ops.backends.triton.compile import compile_kernel
    from eqfuse.ops.backends.triton.spec import KernelSpec

    for line in sys.stdin:
        spec = KernelSpec.from_json(line)
        compile_kernel(spec, target)
        print(spec.name, file=answers, flush=True)


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file, whose names are not meant to be imported bare
    main(*sys.argv[1:])
