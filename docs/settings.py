"""Write reference/settings.md from the dataclasses of the configuration.

python docs/settings.py            # write it
python docs/settings.py --check    # fail where it is not what would be written
"""

import argparse
import sys
from pathlib import Path

from eqfuse.train.settings.config import sections
from eqfuse.train.settings.options import OTHER_NAMES, SHORTHANDS, choices, presets

PAGE = Path(__file__).parent / "reference" / "settings.md"
_HEAD = """\
# Settings

<!-- written by docs/settings.py -->

Write settings as `name=value`, in any order, after `eqfuse train`. Unknown names and impossible
values are refused, with the nearest names. `eqfuse train --cfg ...` prints all settings of a run.
`config=FILE` reads the settings of a YAML file, such as `config.yaml` of a run; settings on the
command line override them. `seeds=4` trains four runs, in `RUN/seed=0` and so on.

Some settings have a short name: {shorthands}.
"""


def page() -> str:
    """Return the page."""
    shorthands = ", ".join(f"`{short}` is `{full}`" for short, full in SHORTHANDS.items())
    parts = [_HEAD.replace("{shorthands}", shorthands)]
    for group, rows in choices().items():
        rows = [(f"`{choice}`", text) for choice, text in rows.items()]
        parts.append(_table(f"Choices of `{group}`", ("setting", "is"), rows))
    rows = [(f"`{preset}`", text) for preset, text in presets().items()]
    note = (
        "A preset is a group of settings; a setting that you give overrides it. Numbers of\n"
        "parameters are for three elements. This prints all settings of one:\n"
        "`eqfuse train model=mace preset=small data=FILE --cfg`."
    )
    parts.append(_table("Presets", ("preset", "is"), rows, note))
    for title, rows in sections().items():
        rows = [(f"`{name}`", text, f"`{default}`") for name, text, default in rows]
        parts.append(_table(f"Settings of {title}", ("setting", "is", "default"), rows))
    names = {}
    for theirs, ours in OTHER_NAMES.items():
        if ours.startswith("nothing") or ours.rpartition(".")[2] == f"{theirs}=":
            continue
        names.setdefault(ours, []).append(f"`{theirs}`")
    rows = "\n".join(f"- {', '.join(theirs)}: {ours}" for ours, theirs in names.items())
    note = (
        "Options of `mace_run_train` (0.3.16) and nequip, and the setting here. Where there is\n"
        "only a name, its values are the same. `eqfuse train` answers all options, also those\n"
        "without a counterpart."
    )
    parts.append(f"## Names of mace and nequip\n\n{note}\n\n{rows}\n")
    return "\n".join(parts)


def _table(title: str, columns, rows, note: str = "") -> str:
    lines = [f"## {title}\n", *([note + "\n"] if note else [])]
    lines += [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    if not parser.parse_args().check:
        PAGE.write_text(page(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page():
        sys.exit(f"{PAGE} is out of date; run python docs/settings.py")


if __name__ == "__main__":
    main()
