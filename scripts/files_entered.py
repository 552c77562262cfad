"""Print the files of `eqfuse/ops` that a call runs through: what a reader has to hold.

python scripts/files_entered.py          # both cases, on this machine's default backend

Files are counted while the function is traced, lowered, compiled and run; imports are not.
"""

import sys
from pathlib import Path

import e3nn_jax as e3nn
import jax

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from eqfuse import ops


def entered(function, *args) -> dict[str, set[str]]:
    """Return the functions of each file of `eqfuse/ops` that a call enters."""
    folder, found = f"{ROOT / 'eqfuse' / 'ops'}/", {}

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


def show(title: str, found: dict[str, set[str]]) -> None:
    print(f"{title}: {len(found)} files, {sum(map(len, found.values()))} functions")
    for file, names in sorted(found.items()):
        print(f"  {file} ({len(names)})")


def main() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    x = e3nn.normal("8x0e + 8x1o", keys[0], (16,))
    y = e3nn.normal("0e + 1o", keys[1], (16,))
    show("jit(tensor_product)", entered(jax.jit(ops.tensor_product), x, y))
    layer = ops.TensorProductLinearGate("16x0e + 8x1o")
    parameters = layer.init(keys[2], x, y)

    def loss(parameters, x):
        return (layer.apply(parameters, x, y).array ** 2).sum()

    jax.clear_caches()
    gradient = jax.jit(jax.grad(loss, argnums=(0, 1)))
    show("gradient of TensorProductLinearGate", entered(gradient, parameters, x))


if __name__ == "__main__":
    main()
