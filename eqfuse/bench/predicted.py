"""What `python -m benchmarks.predictions --json` predicted, beside what is measured."""

from __future__ import annotations

import collections
import json
import pathlib

FILE = pathlib.Path(__file__).parents[2] / "benchmarks" / "results" / "predictions.json"
"""Those of the repository; they are not in a wheel."""
MEASURED = "ieee"
"""The precision of matmuls in which `eqfuse bench` measures times."""


class Predictions:
    """The predicted times of cases and of training steps on one GPU.

    Args:
      device: name of the GPU, as JAX gives it; there are predictions for A100, H100 and H200.
      file: that `benchmarks.predictions` wrote; nothing is predicted if there is none.
    Raises:
      ValueError: a file of something else.
    """

    def __init__(self, device: str, file: pathlib.Path = FILE):
        self._ms: dict[tuple, float] = collections.defaultdict(float)
        if not file.exists():
            return
        try:
            results = json.loads(file.read_text())["results"]
            for result in results:
                if MEASURED not in result.get("precisions", [MEASURED]):
                    continue
                if result.get("radial", "auto") != "auto":
                    continue
                for name, seconds in result["predicted_seconds"].items():
                    if name.split()[0] in device.replace("-", " ").split():
                        self._ms[_key(result)] += 1e3 * seconds
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{file} holds no predictions of benchmarks.predictions") from error

    def add(self, result: dict) -> dict:
        """Return a result with "predicted_ms" of eqfuse, if there is a prediction for it."""
        if result.get("group") not in ("kernels", "steps") or "sides" not in result:
            return result
        if result.get("dtype", "float32") != "float32" or _key(result) not in self._ms:
            return result
        return result | {"predicted_ms": self._ms[_key(result)]}


def _key(result: dict) -> tuple:
    """Return what identifies a case, its order, and its size; a step has no order."""
    return result["case"], result.get("order", "step"), tuple(result["size"])
