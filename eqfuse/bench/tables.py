"""Results as lines of Markdown tables, as they come."""

from __future__ import annotations

OURS = "eqfuse"

COLUMNS = {
    "compile": ("kernels", "dtype", "number", "wall, s", "sum, s", "spilled, bytes"),
    "ahead": (
        "case",
        "order",
        "dtype",
        "kernels",
        "registers",
        "spilled, bytes",
        "kernels, s",
        "launches",
        "scratch, MB",
    ),
    "machine": ("measured", "us", "of"),
    "parity": ("case", "nodes / edges", "dtype", "forward", "backward", "double"),
    "kernels": (
        "case",
        "nodes / edges",
        "order",
        "dtype",
        "side",
        "ms (quartiles)",
        "ms, predicted",
        "times eqfuse",
        "of bandwidth",
        "of rate",
        "compile, s",
    ),
    "steps": (
        "model",
        "nodes / edges",
        "side",
        "ms (quartiles)",
        "ms, predicted",
        "times eqfuse",
        "compile, s",
        "scratch, GB",
        "peak, GB",
    ),
}


class Tables:
    """Prints each result below the header of its table, which is repeated where the table changes.

    Args:
      write: prints a line.
    """

    def __init__(self, write):
        self._write, self._group = write, None

    def add(self, result: dict) -> None:
        """Print a result."""
        group = result["group"]
        if group != self._group:
            self._group = group
            self._write("")
            self._line(COLUMNS[group])
            self._write("|" + "---|" * len(COLUMNS[group]))
        for cells in lines(result):
            self._line(cells)

    def _line(self, cells) -> None:
        self._write(f"| {' | '.join(map(str, cells))} |")


def lines(result: dict) -> list[tuple]:
    """Return the cells of each line of a result; those of what was not measured say why."""
    group = result["group"]
    head = tuple(_cell(result, name) for name in _HEADS[group])
    width = len(COLUMNS[group])
    for word in ("error", "skipped"):
        if word in result:
            cells = (*head, f"{word}: {result[word]}")
            return [cells + ("",) * (width - len(cells))]
    return [(*head, *cells) for cells in _BODIES[group](result)]


_HEADS = {
    "compile": ("case", "dtype"),
    "ahead": ("case", "order", "dtype"),
    "machine": (),
    "parity": ("case", "size", "dtype"),
    "kernels": ("case", "size", "order", "dtype"),
    "steps": ("case", "size"),
}


def _cell(result: dict, name: str) -> str:
    if name == "size":
        return " / ".join(map(str, result.get("size", ())))
    if name == "case" and not result.get("recorded", True):
        return f"{result['case']}, command buffers off"
    return str(result.get(name, ""))


def _compile(result):
    yield (
        result["kernels"],
        f"{result['wall_s']:.1f}",
        f"{result['compile_s']:.1f}",
        result["spilled_bytes"],
    )


def _ahead(result):
    scratch = result.get("scratch_bytes")
    yield (
        result["kernels"],
        result["registers"],
        result["spilled_bytes"],
        f"{result['compile_s']:.1f}",
        "" if result["launches"] is None else result["launches"],
        "" if scratch is None else f"{scratch / 1e6:.1f}",
    )


def _parity(result):
    yield tuple(
        f"{order['error']:.0e} ({order['share']:.2f})"
        + ("" if order["repeatable"] else ", not repeatable")
        for order in result["orders"].values()
    )


def _machine(result):
    yield result["what"], f"{result['us']:.3g}", result["of"]


def _kernels(result):
    for name, side in result["sides"].items():
        if "error" in side:
            yield (name, side["error"], "", "", "", "", "")
            continue
        shares = (_percent(side.get(key)) for key in ("bandwidth_share", "rate_share"))
        yield (name, *_times(side, _predicted(result, name)), *shares, f"{side['compile_s']:.1f}")


def _steps(result):
    for name, side in result["sides"].items():
        if "error" in side:
            yield (name, side["error"], "", "", "", "", "")
            continue
        memory = (_giga(side.get(key)) for key in ("scratch_bytes", "peak_bytes"))
        yield (name, *_times(side, _predicted(result, name)), f"{side['compile_s']:.1f}", *memory)


_BODIES = {
    "compile": _compile,
    "ahead": _ahead,
    "machine": _machine,
    "parity": _parity,
    "kernels": _kernels,
    "steps": _steps,
}


def _predicted(result, name: str) -> str:
    """Return the predicted time, which is of eqfuse alone."""
    return f"{result['predicted_ms']:.3g}" if name == OURS and "predicted_ms" in result else ""


def _times(side, predicted: str) -> tuple[str, str, str]:
    ms, ratio = side["ms"], side["ratio"]
    return (
        f"{ms.median:.3g} ({ms.low:.3g} to {ms.high:.3g})",
        predicted,
        f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})",
    )


def _percent(share) -> str:
    return f"{100 * share:.0f} %" if share else ""


def _giga(number) -> str:
    return f"{number / 1e9:.2f}" if number else ""
