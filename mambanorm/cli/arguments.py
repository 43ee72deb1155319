"""Reading the arguments: what each kind of option may be, and the options that several commands share.

A converter raises a ValueError with what was given and what is allowed; `main` prints it in one line.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from math import inf
from typing import Any, NamedTuple, NoReturn

from mambanorm.basics.errors import brief, unknown
from mambanorm.basics.settings import SCALES, check_scale, default_scale


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


ELSEWHERE = {"task": "--tasks or --task", "arm": "--arms or --arm", "scale": "--scale", "seed": "--seeds or --seed"}
"""Fields of RunConfig that have an option of their own."""


def parse_changes(pairs: Sequence[str]) -> dict[str, Any]:
    """`["lr=1e-3", "n_layers=8"]` → fields of RunConfig and their values. ValueError for a field that it lacks."""
    from mambanorm.config import DEFAULTS, NAMES
    from mambanorm.runs.grid import check_once

    changes = {}
    check_once("--set", [pair.partition("=")[0].strip() for pair in pairs])
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = name.strip()
        if name in ELSEWHERE:
            raise ValueError(f"{name} is not set by --set but by {ELSEWHERE[name]}")
        if name not in NAMES:
            raise unknown("field of RunConfig", name, [name for name in NAMES if name not in ELSEWHERE])
        if not equals:
            raise ValueError(f"--set takes {name}=VALUE, got {brief(pair)}")
        changes[name] = _value(text, getattr(DEFAULTS, name))
    return changes


WHOLE, NUMBER = re.compile(r"[+-]?[0-9]{1,4000}"), re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
"""How numbers are written here; Python also reads 1_0, ' 1 ' and digits of other scripts, but not 5,000 digits."""


def _value(text: str, default: Any) -> Any:
    """The value in JSON, but of a field of texts the text itself. So is what is no JSON: RunConfig refuses it."""
    import json

    if isinstance(default, float) and NUMBER.fullmatch(text):
        return float(text)
    try:
        return text if isinstance(default, str) else json.loads(text.lower() if isinstance(default, bool) else text)
    except (ValueError, RecursionError):  # it may be nested too deep
        return text


def check_tasks(names: Collection[str]) -> list[str]:
    from mambanorm.runs.grid import check_task

    return [check_task(name) for name in names]


def chosen_scale(options: argparse.Namespace) -> str:
    """The scale of --scale, else the environment's."""
    return check_scale(options.scale) if options.scale else default_scale()


# what an option may be


def _refused(text: str, why: str) -> ValueError:
    return ValueError(f"{brief(text)} {why}")


def names(text: str) -> list[str]:
    from mambanorm.runs.grid import check_once

    names = [part.strip() for part in text.split(",")]
    if not all(names):
        raise _refused(text, "lacks a name: give names separated by commas")
    check_once("name", names)
    return names


def seeds(text: str) -> int | list[int]:
    """`8` → 8, which stands for 0…7; `0,3,200` → those; `8-15` → 8…15, in a list too."""
    from mambanorm.runs.grid import check_seeds

    if WHOLE.fullmatch(text):
        check_seeds(int(text), "smoke")
        return int(text)
    parts = [_span(part.strip(), text) for part in text.removesuffix(",").split(",")]
    return check_seeds(chain.from_iterable(parts), "smoke")


def _span(part: str, text: str) -> Iterable[int]:
    """`3` → 3; `8-15` → 8…15."""
    if WHOLE.fullmatch(part):
        return [int(part)]
    if not (ends := re.fullmatch("([0-9]{1,4000})-([0-9]{1,4000})", part)):
        raise _refused(text, "is neither a number of seeds nor a list such as 0,3,200 or 8-15")
    first, last = map(int, ends.groups())
    if last < first:
        raise _refused(part, f"counts backwards: write {last}-{first}")
    return range(first, last + 1)


def seed(text: str) -> int:
    """One seed, not a number of them."""
    if not WHOLE.fullmatch(text):
        raise _refused(text, "is no seed: one whole number")
    return seeds(f"{text},")[0]


def folder(text: str) -> str:
    """A folder, there or not."""
    if text in ("", "-"):
        raise _refused(text, "names no folder")
    if os.path.exists(text) and not os.path.isdir(text):
        raise _refused(text, "is a file: needed is a folder")
    return text


def file(text: str) -> str:
    """A file, there or not."""
    if text in ("", "-"):
        raise _refused(text, "names no file")
    if os.path.isdir(text):
        raise _refused(text, "is a folder: needed is the name of a file in it")
    return text


def output(text: str) -> str:
    """A file, or `-` for standard output."""
    return "-" if text in ("-", "/dev/stdout") else file(text)


def place(text: str) -> str:
    if not text.strip(", "):
        raise _refused(text, "names neither a file nor a module")
    return text


def workers(text: str) -> int | str:
    if text == "auto":
        return text
    if not WHOLE.fullmatch(text) or int(text) < 0:
        raise _refused(text, "is none of auto, 0 (in this process) or a whole number")
    return int(text)


def positive(text: str) -> int:
    if not WHOLE.fullmatch(text) or int(text) < 1:
        raise _refused(text, "is no whole number from 1")
    return int(text)


def port(text: str) -> int:
    if not WHOLE.fullmatch(text) or not 1 <= int(text) <= 65_535:
        raise ValueError(f"a port is a whole number from 1 to 65535, got {brief(text)}")
    return int(text)


def seconds(text: str) -> float:
    seconds = float(text) if NUMBER.fullmatch(text) else 0.0
    if not 0 < seconds < inf:
        raise _refused(text, "is no number of seconds above 0")
    return seconds


def address(text: str) -> str:
    if not re.fullmatch(r"\w+://.+", text):
        raise _refused(text, "is no address of a scheduler, such as tcp://10.0.0.1:8786")
    return text


# options that several commands share

SOURCE_HELP = "auto (reads recorded runs, trains the rest), recorded or trained (default: MAMBANORM_SOURCE, else auto)"
FRESH_HELP = "how many fresh seeds of each compared arm are trained (default: MAMBANORM_FRESH, else 1)"
NOTEBOOKS_HELP = "only these, by name or its beginning: 03,05_combination"


def set_source(options: argparse.Namespace) -> None:
    """Puts --source and --fresh into the environment, for the notebooks' kernels."""
    for variable, value in (("MAMBANORM_SOURCE", options.source), ("MAMBANORM_FRESH", options.fresh)):
        if value is not None:
            os.environ[variable] = str(value)


def scale_help(usual: str = "quick") -> str:
    return f"{', '.join(SCALES[:-1])} or {SCALES[-1]} (default: MAMBANORM_SCALE, else {usual})"


SEEDS_HELP = "8 stands for 0…7; or a list: 0,3,200 or 8-15"
JUDGED_SEEDS_HELP = (
    f"{SEEDS_HELP} (default: 8, at scale evening those of the protocol). Only these are judged: seeds that are added "
    "because a verdict was open are judged alone, as in 8-15"
)


def add_common(command: Parser, *, several: bool = True, seeds_help: str = SEEDS_HELP, usual: str = "quick") -> None:
    command.add_argument("--scale", type=check_scale, help=scale_help(usual))
    if several:
        command.add_argument("--tasks", type=names, metavar="A,B", help="tasks, separated by commas")
        command.add_argument("--seeds", type=seeds, metavar="N", help=seeds_help)
    command.add_argument(
        "--runs-dir", type=folder, metavar="DIR", help="the run store (default: MAMBANORM_RUNS_DIR, else runs/)"
    )


WORKERS_HELP = "auto (one a core; this process where there is a GPU), 0 (this process) or N"


def add_training(command: Parser) -> None:
    command.add_argument("--scheduler", type=address, metavar="ADDRESS", help="a Dask scheduler to train on, tcp://…")
    command.add_argument("--workers", type=workers, default="auto", metavar="N", help=WORKERS_HELP)
    command.add_argument(
        "--dry-run", action="store_true", help="only say how many runs there are and how long they take"
    )
    command.add_argument("--yes", action="store_true", help="do not ask before a training of more than an hour")


def add_set(command: Parser) -> None:
    help_text = "change a field of RunConfig, such as lr=1e-3 or n_layers=8; may be repeated"
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=help_text)
