"""The decorator that registers a command, types of options, and options that commands share.

The type of an option is a function that converts the option's text to a value. For a wrong text the
function raises ValueError. The message names the text and the allowed values, and `main` prints the
message in one line.
"""

import argparse
import re
from collections.abc import Callable, Sequence
from itertools import chain
from math import inf
from typing import Any, NoReturn

from mambanorm.errors import brief, unknown
from mambanorm_study.basics.settings import SCALES, check_scale


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises ValueError for a wrong argument instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see {self.prog} --help")

    def _get_value(self, action: argparse.Action, text: str) -> object:
        """Return the value to which the option's type converts the text.

        A ValueError of the type keeps its message, which argparse itself would omit.
        """
        try:
            return self._registry_get("type", action.type, action.type)(text)
        except ValueError as error:
            raise argparse.ArgumentError(action, str(error)) from None

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Raise ValueError, which names the nearest choice, if the value is none of the choices."""
        if action.choices is not None and value not in action.choices:
            raise unknown(action.dest, value, action.choices)


# Map from the name of a command to a function that takes the parsed options and returns the exit
# code. A command is registered when its module is imported.
COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {}


def option(*flags: str, **settings: Any) -> Callable[[argparse.ArgumentParser], object]:
    """Return a function that adds an option to a parser.

    flags, settings: the arguments of the parser's method `add_argument`.
    """
    return lambda parser: parser.add_argument(*flags, **settings)


def command(*options: Callable, examples: Sequence[str] = ("",)) -> Callable:
    """Return a decorator that registers a function as a command.

    The docstring of the function is the help text. options: results of `option`. examples: texts
    such as "--seeds 8", which the help text shows after the name of the command.
    """

    def register(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
        run.options = options
        run.examples = examples
        COMMANDS[run.__name__] = run
        return run

    return register


def sweep_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options --scheduler, --workers and --runs-dir as keyword arguments of `sweep`."""
    return dict(scheduler=options.scheduler, workers=options.workers, runs_dir=options.runs_dir)


# ------------------------------------------------------------------------------------- types


def names(text: str) -> list[str]:
    """Return the names in a text of names separated by commas: "a, b" → ["a", "b"].

    A comma inside brackets, as in the settings of a cell, separates no names.
    """
    from mambanorm_study.runs.grid import check_once

    parts = [part.strip() for part in re.split(r",(?![^\[{]*[\]}])", text)]
    if not all(parts):
        raise ValueError(f"{brief(text)} lacks a name: give names separated by commas")
    check_once("name", parts)
    return parts


# Pattern of one seed, such as `3`, or of a range with its first and last seed, such as `8-15`.
SPAN = r"[0-9]{1,15}(-[0-9]{1,15})?"


def seeds(text: str) -> int | list[int]:
    """Return the number of seeds for a text such as `8`, or a list of seeds for `0,3,8-15`."""
    text = text.replace(" ", "")
    spans = [part.split("-") for part in text.removesuffix(",").split(",")]
    if not re.fullmatch(f"{SPAN}(,{SPAN})*,?", text) or any(
        int(span[0]) > int(span[-1]) for span in spans
    ):
        raise ValueError(
            f"{brief(text)} is neither a number of seeds nor a list such as 0,3,200 or 8-15"
        )
    from mambanorm_study.runs.grid import check_seeds  # imported here, because it loads torch

    if text.isdigit():
        return len(check_seeds(int(text), "smoke"))
    ranges = (range(int(span[0]), int(span[-1]) + 1) for span in spans)
    return check_seeds(chain.from_iterable(ranges), "smoke")


def whole_number(minimum: int, maximum: float = inf) -> Callable[[str], int]:
    """Return the type of an option whose value is a whole number from `minimum` to `maximum`.

    The type is a function that converts the option's text to the number.
    """

    def convert(text: str) -> int:
        if not re.fullmatch("[0-9]{1,15}", text) or not minimum <= int(text) <= maximum:
            limit = f" to {maximum:,}" if maximum < inf else " on"
            raise ValueError(f"{brief(text)} is no whole number from {minimum:,}{limit}")
        return int(text)

    return convert


def fresh(text: str) -> int | str:
    """Return "all", or the number of fresh seeds in a text."""
    return text if text == "all" else whole_number(0, 100)(text)


def minutes(text: str) -> float:
    """Return the number of minutes in a text such as `4` or `0.5`."""
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,3})?", text):
        raise ValueError(f"{brief(text)} is no number of minutes such as 4 or 0.5")
    return float(text)


def workers(text: str) -> int | str:
    """Return "auto" for the text "auto", or the number of workers for a text such as "4"."""
    return text if text == "auto" else whole_number(0)(text)


# --------------------------------------------------------- options that several commands share

NOTEBOOKS = option(
    "--notebooks",
    type=names,
    metavar="NAMES",
    help="only notebooks whose names begin with one of these: 03,05_combination",
)
SET = option(
    "--set",
    action="append",
    default=[],
    metavar="KEY=VALUE",
    help="change a field of RunConfig: lr=1e-3, n_layers=8, …; may be repeated",
)
RUNS_DIR = option(
    "--runs-dir",
    metavar="DIR",
    help="folder of the run store (default: MAMBANORM_RUNS_DIR, else runs/)",
)

# The options of every command that trains.
TRAINING = (
    option(
        "--scheduler",
        metavar="ADDRESS",
        help="address of a Dask scheduler whose workers train, tcp://…",
    ),
    option(
        "--workers",
        type=workers,
        default="auto",
        metavar="N",
        help="worker processes: auto (one per core; none with a GPU), a number, or 0 (train here)",
    ),
    option(
        "--dry-run",
        action="store_true",
        help="only print how many runs are missing and how long they take; train nothing",
    ),
)

SEEDS_HELP = "number of seeds (8 means 0…7), or a list: 0,3,200 or 8-15"
TEST_SEEDS_HELP = (
    "number of test seeds (8 means the first eight, 52 to 59), or a list: 60-67 (default: 8; at "
    "scale evening, the seeds of the protocol). The verdict uses only these seeds: if the verdict "
    "was 'cannot tell', give new seeds"
)


def scale_option(default: str = "MAMBANORM_SCALE, else quick") -> Callable:
    """Return the option --scale. default: what the help text names as the default scale."""
    scales = f"{', '.join(SCALES[:-1])} or {SCALES[-1]}"
    return option("--scale", type=check_scale, help=f"{scales} (default: {default})")


def selection_options(
    seeds_help: str = SEEDS_HELP, default_scale: str = "MAMBANORM_SCALE, else quick"
) -> tuple[Callable, ...]:
    """Return the options that select runs: --scale, --tasks, --seeds and --runs-dir.

    seeds_help: the help text of --seeds. default_scale: what the help text names as the default
    scale.
    """
    return (
        scale_option(default_scale),
        option("--tasks", type=names, metavar="A,B", help="tasks, separated by commas"),
        option("--seeds", type=seeds, metavar="N", help=seeds_help),
        RUNS_DIR,
    )
