"""Reading the arguments: what each kind of option may be, and the options that several commands
share.

A converter raises a ValueError with what was given and what is allowed; `main` prints it in one
line.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Collection, Sequence
from itertools import chain
from math import inf
from typing import Any, NamedTuple, NoReturn

from mambanorm.errors import brief, unknown
from mambanorm_study.basics.settings import SCALES, check_scale, default_scale


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are ValueErrors, told like all the others."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see {self.prog} --help")

    def _get_value(self, action: argparse.Action, text: str) -> object:
        """argparse's own message leaves out what a converter says."""
        try:
            return self._registry_get("type", action.type, action.type)(text)
        except ValueError as error:
            raise argparse.ArgumentError(action, str(error)) from None

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """argparse's own message has no nearest match."""
        if action.choices is not None and value not in action.choices:
            raise unknown("command", value, action.choices)


class Command(NamedTuple):
    """A command: `run` does it and returns the exit code, `add` adds its options."""

    run: Callable[[argparse.Namespace], int]
    add: Callable[[Parser], None]
    examples: tuple[str, ...]


COMMANDS: dict[str, Command] = {}
"""By name; each stands here as soon as its file is imported."""


def command(add: Callable[[Parser], None], *examples: str) -> Callable:
    """Decorator: `mambanorm NAME` is the function of that name, whose docstring is its help."""

    def kept(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
        COMMANDS[run.__name__] = Command(run, add, examples)
        return run

    return kept


ELSEWHERE = {
    "task": "--tasks or --task",
    "arm": "--arms or --arm",
    "scale": "--scale",
    "seed": "--seeds or --seed",
}
"""Fields of RunConfig that have an option of their own."""


def parse_changes(pairs: Sequence[str]) -> dict[str, Any]:
    """`["lr=1e-3", "n_layers=8"]` → fields of RunConfig and their values. ValueError for a field
    that it lacks."""
    from mambanorm_study.config import DEFAULTS, NAMES
    from mambanorm_study.runs.grid import check_once

    changes = {}
    check_once("--set", [pair.partition("=")[0].strip() for pair in pairs])
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = name.strip()
        if name in ELSEWHERE:
            raise ValueError(f"{name} is not set by --set but by {ELSEWHERE[name]}")
        if name not in NAMES:
            raise unknown(
                "field of RunConfig", name, [name for name in NAMES if name not in ELSEWHERE]
            )
        if not equals:
            raise ValueError(f"--set takes {name}=VALUE, got {brief(pair)}")
        changes[name] = _value(text, getattr(DEFAULTS, name))
    return changes


def _value(text: str, default: Any) -> Any:
    """The value in JSON, but of a field of texts the text itself. So is what is no JSON: RunConfig
    refuses it."""
    import json

    try:
        return (
            text
            if isinstance(default, str)
            else json.loads(text.lower() if isinstance(default, bool) else text)
        )
    except (ValueError, RecursionError):  # it may be nested too deep
        return text


def check_tasks(names: Collection[str]) -> list[str]:
    from mambanorm_study.runs.grid import check_task

    return [check_task(name) for name in names]


def chosen_scale(options: argparse.Namespace) -> str:
    """The scale of --scale, else the environment's."""
    return check_scale(options.scale) if options.scale else default_scale()


# what an option may be


def _refused(text: str, why: str) -> ValueError:
    return ValueError(f"{brief(text)} {why}")


def names(text: str) -> list[str]:
    from mambanorm_study.runs.grid import check_once

    names = [part.strip() for part in text.split(",")]
    if not all(names):
        raise _refused(text, "lacks a name: give names separated by commas")
    check_once("name", names)
    return names


SPAN = r"([0-9]{1,15})(?:-([0-9]{1,15}))?"


def seeds(text: str) -> int | list[int]:
    """`8` → 8, which stands for 0…7; `0,3,200` → those; `8-15` → 8…15, in a list too."""
    spans = [re.fullmatch(SPAN, part.strip()) for part in text.removesuffix(",").split(",")]
    bounds = [(int(one[1]), int(one[2] or one[1])) for one in spans if one]
    if len(bounds) < len(spans) or any(last < first for first, last in bounds):
        raise _refused(text, "is neither a number of seeds nor a list such as 0,3,200 or 8-15")
    from mambanorm_study.runs.grid import check_seeds

    if text.isdigit():
        check_seeds(int(text), "smoke")
        return int(text)
    return check_seeds(
        chain.from_iterable(range(first, last + 1) for first, last in bounds), "smoke"
    )


def folder(text: str) -> str:
    """A folder, there or not."""
    if not text or (os.path.exists(text) and not os.path.isdir(text)):
        raise _refused(text, "is no name of a folder")
    return text


def file(text: str) -> str:
    """A file, there or not."""
    if not text or os.path.isdir(text):
        raise _refused(text, "is no name of a file")
    return text


def whole(least: int, most: float = inf) -> Callable[[str], int]:
    """Whole numbers in a range."""

    def converted(text: str) -> int:
        if not re.fullmatch("[0-9]{1,15}", text) or not least <= int(text) <= most:
            limit = f" to {most:,}" if most < inf else ""
            raise _refused(text, f"is no whole number from {least:,}{limit}")
        return int(text)

    return converted


def workers(text: str) -> int | str:
    return text if text == "auto" else whole(0)(text)


# options that several commands share

SOURCE_HELP = "auto (reads recorded runs, trains the rest), recorded or trained (default: MAMBANORM_SOURCE, else auto)"
FRESH_HELP = (
    "how many fresh seeds of each compared arm are trained (default: MAMBANORM_FRESH, else 1)"
)
NOTEBOOKS_HELP = "only these, by name or its beginning: 03,05_combination"


def set_source(options: argparse.Namespace) -> None:
    """Puts --source and --fresh into the environment, for the notebooks' kernels."""
    for variable, value in (
        ("MAMBANORM_SOURCE", options.source),
        ("MAMBANORM_FRESH", options.fresh),
    ):
        if value is not None:
            os.environ[variable] = str(value)


def scale_help(usual: str = "") -> str:
    return f"{', '.join(SCALES[:-1])} or {SCALES[-1]} (default: {usual or 'MAMBANORM_SCALE, else quick'})"


SEEDS_HELP = "8 stands for 0…7; or a list: 0,3,200 or 8-15"
JUDGED_SEEDS_HELP = (
    "test seeds: 8 stands for the first eight, 52 to 59; or a list: 60-67 (default: 8, at scale evening those of the "
    "protocol). Only these are judged, so that seeds which are added because a verdict could not tell are judged alone"
)


def add_common(
    command: Parser, *, several: bool = True, seeds_help: str = SEEDS_HELP, usual: str = ""
) -> None:
    command.add_argument("--scale", type=check_scale, help=scale_help(usual))
    if several:
        command.add_argument(
            "--tasks", type=names, metavar="A,B", help="tasks, separated by commas"
        )
        command.add_argument("--seeds", type=seeds, metavar="N", help=seeds_help)
    command.add_argument(
        "--runs-dir",
        type=folder,
        metavar="DIR",
        help="the run store (default: MAMBANORM_RUNS_DIR, else runs/)",
    )


WORKERS_HELP = "auto (one a core; this process where there is a GPU), 0 (this process) or N"


def add_training(command: Parser) -> None:
    command.add_argument(
        "--scheduler", metavar="ADDRESS", help="a Dask scheduler to train on, tcp://…"
    )
    command.add_argument("--workers", type=workers, default="auto", metavar="N", help=WORKERS_HELP)
    command.add_argument(
        "--dry-run",
        action="store_true",
        help="only say how many runs there are and how long they take",
    )
    command.add_argument(
        "--yes", action="store_true", help="train even for more than an hour, without asking"
    )


def add_set(command: Parser) -> None:
    help_text = "change a field of RunConfig, such as lr=1e-3 or n_layers=8; may be repeated"
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=help_text)
