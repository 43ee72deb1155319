"""The decorator of commands, the types of their options, and the options that several share.

A type is a function from the text of an option to its value. It raises ValueError with the text
and the allowed values; `main` prints the message in one line.
"""

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
    """An ArgumentParser that raises its errors as ValueError."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see {self.prog} --help")

    def _get_value(self, action: argparse.Action, text: str) -> object:
        """Convert the text; argparse's own error omits the message of the type."""
        try:
            return self._registry_get("type", action.type, action.type)(text)
        except ValueError as error:
            raise argparse.ArgumentError(action, str(error)) from None

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Raise for an unknown command; argparse's own error has no nearest match."""
        if action.choices is not None and value not in action.choices:
            raise unknown("command", value, action.choices)


class Option(NamedTuple):
    """The arguments of one call of `ArgumentParser.add_argument`."""

    flags: tuple[str, ...]
    settings: dict[str, Any]


class Command(NamedTuple):
    """A command of the command line: `run` takes the parsed options and returns the exit code."""

    run: Callable[[argparse.Namespace], int]
    options: tuple[Option, ...]
    examples: Sequence[str]


# Name → command. A command is registered when its file is imported.
COMMANDS: dict[str, Command] = {}


def option(*flags: str, **settings: Any) -> Option:
    """Return an option of a command; arguments as of `ArgumentParser.add_argument`."""
    return Option(flags, settings)


def command(*options: Option, examples: Sequence[str] = ("",)) -> Callable:
    """Register the decorated function as the command of its name; its docstring is the help."""

    def register(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
        COMMANDS[run.__name__] = Command(run, options, examples)
        return run

    return register


# Fields of RunConfig that have their own option.
FIELDS_WITH_OPTIONS = {
    "task": "--tasks or --task",
    "arm": "--arms or --arm",
    "scale": "--scale",
    "seed": "--seeds or --seed",
}


def parse_changes(pairs: Sequence[str]) -> dict[str, Any]:
    """Return `["lr=1e-3", "n_layers=8"]` as fields of RunConfig and their values. ValueError for an
    unknown field and for one that is given twice.
    """
    from mambanorm_study.config import DEFAULTS, NAMES
    from mambanorm_study.runs.grid import check_once

    changes = {}
    check_once("--set", [pair.partition("=")[0].strip() for pair in pairs])
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = name.strip()
        if name in FIELDS_WITH_OPTIONS:
            raise ValueError(f"{name} is not set by --set but by {FIELDS_WITH_OPTIONS[name]}")
        if name not in NAMES:
            fields = [field for field in NAMES if field not in FIELDS_WITH_OPTIONS]
            raise unknown("field of RunConfig", name, fields)
        if not equals:
            raise ValueError(f"--set takes {name}=VALUE, got {brief(pair)}")
        changes[name] = _value(text, getattr(DEFAULTS, name))
    return changes


def _value(text: str, default: Any) -> Any:
    """Return the value of a JSON text; for a field of type str, and for text that is not JSON, the
    text itself, which RunConfig then checks.
    """
    import json

    if isinstance(default, str):
        return text
    try:
        return json.loads(text.lower() if isinstance(default, bool) else text)
    except (ValueError, RecursionError):  # RecursionError: nested too deeply
        return text


def check_tasks(names: Collection[str]) -> list[str]:
    """Return the names of tasks as a list. ValueError for an unknown task."""
    from mambanorm_study.runs.grid import check_task

    return [check_task(name) for name in names]


def chosen_scale(options: argparse.Namespace) -> str:
    """Return the scale of --scale, or else of the environment."""
    return check_scale(options.scale) if options.scale else default_scale()


def engine(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of TRAINING, and the run store, as arguments of `sweep`."""
    return dict(scheduler=options.scheduler, workers=options.workers, runs_dir=options.runs_dir)


# ------------------------------------------------------------------------------------- types


def names(text: str) -> list[str]:
    """Return names separated by commas as a list."""
    from mambanorm_study.runs.grid import check_once

    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ValueError(f"{brief(text)} lacks a name: give names separated by commas")
    check_once("name", parts)
    return parts


SPAN = r"([0-9]{1,15})(?:-([0-9]{1,15}))?"


def seeds(text: str) -> int | list[int]:
    """Return `8` as 8, which stands for 0…7; `0,3,8-15` as a list of seeds."""
    spans = []
    for part in text.removesuffix(",").split(","):
        span = re.fullmatch(SPAN, part.strip())
        first, last = (int(span[1]), int(span[2] or span[1])) if span else (1, 0)
        if last < first:
            raise ValueError(
                f"{brief(text)} is neither a number of seeds nor a list such as 0,3,200 or 8-15"
            )
        spans.append(range(first, last + 1))
    from mambanorm_study.runs.grid import check_seeds  # here: it imports torch

    if text.isdigit():
        check_seeds(int(text), "smoke")
        return int(text)
    return check_seeds(chain.from_iterable(spans), "smoke")


def folder(text: str) -> str:
    """Return the path of a folder, which need not exist."""
    if not text or (os.path.exists(text) and not os.path.isdir(text)):
        raise ValueError(f"{brief(text)} is no name of a folder")
    return text


def file(text: str) -> str:
    """Return the path of a file, which need not exist."""
    if not text or os.path.isdir(text):
        raise ValueError(f"{brief(text)} is no name of a file")
    return text


def whole(least: int, most: float = inf) -> Callable[[str], int]:
    """Return the type of whole numbers from `least` to `most`."""

    def convert(text: str) -> int:
        if not re.fullmatch("[0-9]{1,15}", text) or not least <= int(text) <= most:
            limit = f" to {most:,}" if most < inf else ""
            raise ValueError(f"{brief(text)} is no whole number from {least:,}{limit}")
        return int(text)

    return convert


def workers(text: str) -> int | str:
    """Return "auto" or the number of workers."""
    return text if text == "auto" else whole(0)(text)


# --------------------------------------------------------- options that several commands share

NOTEBOOKS = option(
    "--notebooks",
    type=names,
    metavar="NAMES",
    help="only these, by name or its beginning: 03,05_combination",
)
SET = option(
    "--set",
    action="append",
    default=[],
    metavar="KEY=VALUE",
    help="change a field of RunConfig, such as lr=1e-3 or n_layers=8; may be repeated",
)
RUNS_DIR = option(
    "--runs-dir",
    type=folder,
    metavar="DIR",
    help="the run store (default: MAMBANORM_RUNS_DIR, else runs/)",
)

# The options of every command that trains.
TRAINING = (
    option("--scheduler", metavar="ADDRESS", help="a Dask scheduler to train on, tcp://…"),
    option(
        "--workers",
        type=workers,
        default="auto",
        metavar="N",
        help="auto (one for each core; this process where there is a GPU), 0 (this process) or N",
    ),
    option(
        "--dry-run",
        action="store_true",
        help="only print how many runs there are and how long they take",
    ),
    option("--yes", action="store_true", help="train for more than an hour without asking"),
)

SEEDS_HELP = "8 stands for 0…7; or a list: 0,3,200 or 8-15"
JUDGED_SEEDS_HELP = (
    "test seeds: 8 stands for the first eight, 52 to 59; or a list: 60-67 (default: 8, at scale "
    "evening the seeds of the protocol). Only these are judged, so that seeds which are added "
    "because a verdict could not tell are judged alone"
)


def scale(default: str = "MAMBANORM_SCALE, else quick") -> Option:
    """Return the option --scale."""
    scales = f"{', '.join(SCALES[:-1])} or {SCALES[-1]}"
    return option("--scale", type=check_scale, help=f"{scales} (default: {default})")


def which_runs(
    seeds_help: str = SEEDS_HELP, default_scale: str = "MAMBANORM_SCALE, else quick"
) -> tuple[Option, ...]:
    """Return the options --scale, --tasks, --seeds and --runs-dir."""
    return (
        scale(default_scale),
        option("--tasks", type=names, metavar="A,B", help="tasks, separated by commas"),
        option("--seeds", type=seeds, metavar="N", help=seeds_help),
        RUNS_DIR,
    )


def out(help_text: str) -> Option:
    """Return the option --out for a folder."""
    return option("--out", type=folder, metavar="DIR", help=help_text)
