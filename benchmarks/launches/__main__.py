"""Count the GPU launches of JAX functions on an H100, compiled ahead of time: no GPU is needed.

    python -m benchmarks.launches models|tetris|fused|graph_product|optimizer|FILE.py [NAME ...]
        [--account] [--json FILE]

A file defines CASES, a dict {name: () -> (function, args)}; `function` is what would be jitted and
`args` its arrays or jax.ShapeDtypeStructs. It may define `parity(name)`, which returns the
difference of what the case computes from its reference, or raises record.ParityError: then nothing
is reported. Without `parity` no time is reported. The command prints a table in Markdown, and with
--account another of the modules of the network that the launches of each case come from. It needs
jax's CUDA plug-in (`pip install -e ".[launches]"`).
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import runpy
import sys

import jax

from benchmarks import record
from benchmarks.launches import account
from benchmarks.launches.ahead import PluginMissingError, compiled, device


def measure(name: str, case, parity, gpu, with_account: bool) -> dict:
    """Return the numbers of a case, or only an error where its parity is red."""
    try:
        difference = None if parity is None else parity(name)
    except record.ParityError as error:
        return {"case": name, "error": str(error)}
    found = compiled(*case(), gpu)
    result = {"case": name, **dataclasses.asdict(found.launches), "parity": difference}
    if parity is None:
        del result["compile_s"]
    if with_account:
        result["account"] = account.account(found.text, result["launches"])
    return result


def file_of(name: str) -> pathlib.Path:
    """Return the path of a file, or of a module of this folder."""
    own = pathlib.Path(__file__).parent / f"{name}.py"
    return own if own.exists() else pathlib.Path(name)


def main() -> None:
    """Print the counts of the cases in a file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    own = "models, tetris, fused, graph_product or optimizer"
    parser.add_argument("file", help=f"a Python file that defines CASES, or {own} of this folder")
    parser.add_argument("names", nargs="*", help="cases to count; all of them if none is named")
    parser.add_argument("--account", action="store_true", help="print where launches come from")
    record.add_json_option(parser)
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    module = runpy.run_path(str(file_of(options.file)))
    cases = module["CASES"]
    if unknown := set(options.names) - set(cases):
        sys.exit(f"no case {', '.join(sorted(unknown))} in {options.file}; it has {list(cases)}")
    kept = record.Record(options.json)
    try:
        gpu = device()
        print(HEADER, flush=True)
        for name in options.names or cases:
            kept.add(measure(name, cases[name], module.get("parity"), gpu, options.account))
            print(row(kept.results[-1]), flush=True)
    except PluginMissingError as error:
        sys.exit(str(error))
    for result in kept.results:
        if "account" in result:
            print("\n" + account.table(result["case"], result["account"]), flush=True)
    kept.finish()


HEADER = """
| case | launches | of them ours and libraries' | scratch, MB | compile, s | difference |
|---|---|---|---|---|---|"""


def row(result: dict) -> str:
    """Return a line of the table."""
    if "error" in result:
        return f"| {result['case']} | {result['error']} | | | | |"
    difference = result["parity"]
    return (
        f"| {result['case']} | {result['launches']} | {result['custom_calls']} | "
        f"{result['temp_bytes'] / 1e6:.2f} | {result.get('compile_s', '')} | "
        f"{'' if difference is None else f'{difference:.1e}'} |"
    )


if __name__ == "__main__":
    main()
