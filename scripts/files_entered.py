"""Print the files of `eqfuse/ops` that a call runs through: what a reader has to hold.

python scripts/files_entered.py          # each case in a process of its own

Files are counted while the function is traced, lowered, compiled and run, not those imported alone.
"""

import subprocess
import sys
from pathlib import Path

import e3nn_jax as e3nn
import jax

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from eqfuse import ops


def entered(function, *args) -> dict[str, set[str]]:
    """Return the functions of each file of `eqfuse/ops` that a call enters."""
    folder, found = f"{Path(ops.__file__).parent}/", {}

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(folder) and code.co_name != "<module>":
            file = code.co_filename.removeprefix(folder)
            found.setdefault(file, set()).add(code.co_qualname)

    sys.setprofile(note)
    try:
        jax.block_until_ready(function(*args))
    finally:
        sys.setprofile(None)
    return found


def product() -> dict[str, set[str]]:
    """Call `jit(tensor_product)`."""
    return entered(jax.jit(ops.tensor_product), *operands())


def gradient() -> dict[str, set[str]]:
    """Take the gradient of a `TensorProductLinearGate`."""
    x, y = operands()
    irreps = "16x0e + 8x1o"
    parameters = ops.TensorProductLinearGate(irreps, backend="e3nn").init(jax.random.key(2), x, y)

    def loss(parameters, x):
        return (ops.TensorProductLinearGate(irreps).apply(parameters, x, y).array ** 2).sum()

    return entered(jax.jit(jax.grad(loss, argnums=(0, 1))), parameters, x)


def operands():
    keys = jax.random.split(jax.random.key(0))
    return e3nn.normal("8x0e + 8x1o", keys[0], (16,)), e3nn.normal("0e + 1o", keys[1], (16,))


CASES = {"product": product, "gradient": gradient}


def main() -> None:
    if len(sys.argv) == 1:  # each in a process of its own, in which nothing is cached
        for name in CASES:
            subprocess.run([sys.executable, __file__, name], check=True)
        return
    found = CASES[sys.argv[1]]()
    functions = sum(map(len, found.values()))
    print(f"{CASES[sys.argv[1]].__doc__} {len(found)} files, {functions} functions:")
    for file, names in sorted(found.items()):
        print(f"  {file} ({len(names)})")


if __name__ == "__main__":
    main()
