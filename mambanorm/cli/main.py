"""The command line: `mambanorm study | verdicts | record | sweep | train | tasks | runs | plan | bench`.

Exit codes: 0 all that was asked for is done; 1 a run or a notebook failed; 2 something asked for does not exist or does
not make sense (one line on stderr says what would); 130 interrupted, with every finished run kept.

Only the standard library is imported here; each command imports what it needs, so that neither `--help` nor a mistake
in the arguments waits for it.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any, NoReturn

from mambanorm.errors import VARIABLE


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are ValueErrors, told like all the others."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """argparse's own message has no nearest match."""
        from mambanorm.errors import unknown

        if action.choices is not None and value not in action.choices:
            raise unknown("command", value, action.choices)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    with warnings.catch_warnings():
        warnings.showwarning = _once(lambda message, *_args, **_keywords: _say(f"warning: {message}"))
        try:
            options = _parse(argv)
            if options.debug:
                os.environ[DEBUG] = "1"
            if options.imports or os.environ.get(VARIABLE):
                from mambanorm.extensions import set_imports

                set_imports(options.imports)
            return options.run(options)
        except SystemExit as stop:  # argparse, after --help
            return stop.code or 0
        except KeyboardInterrupt:
            _say("interrupted. Finished runs are kept: the same command goes on from there.")
            return 130
        except BrokenPipeError:  # `mambanorm runs | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except (ValueError, TypeError) as error:
            return _fail(error, 2)
        except (OSError, RuntimeError, MemoryError) as error:  # a full disk, a scheduler that does not answer
            return _fail(error, 1)
        except Exception as error:
            return _fail(f"unexpected {type(error).__name__}: {error}; --debug shows where", 1)


DEBUG = "MAMBANORM_DEBUG"
"""The environment variable that --debug sets, for workers too: errors are then shown with where they came from."""


def _fail(error: object, code: int) -> int:
    if os.environ.get(DEBUG):
        traceback.print_exc()
    if isinstance(error, OSError) and error.filename is None:
        error = error.strerror or error  # without its number
    _say(str(error) or type(error).__name__)
    return code


def _once(say: Callable[..., None]) -> Callable[..., None]:
    """Says the same no second time: several steps of a command look at the same store."""
    said: set[str] = set()

    def say_once(message: object, *args: object, **keywords: object) -> None:
        if str(message) not in said:
            said.add(str(message))
            say(message, *args, **keywords)

    return say_once


def _say(message: object) -> None:
    print(f"mambanorm: {' '.join(str(message).split())}", file=sys.stderr)


# ---------------------------------------------------------------------------------------------------------------------
# the commands


def run_study(options: argparse.Namespace) -> int:
    from mambanorm.report import execute as report
    from mambanorm.training.sweep import plural

    if options.dry_run:
        paths = report.find_notebooks(options.notebooks)
        names = [path.stem for path in paths] if options.notebooks else None
        plan = report.study_runs(options.scale, options.tasks, options.seeds, names)
        _announce([config for configs in plan.values() for config in configs], options)
        print(f"Then {plural(len(paths), 'notebook')} executed: {', '.join(path.stem for path in paths)}")
        return 0
    asked = {name: getattr(options, name) for name in ("scale", "tasks", "seeds", "runs_dir", "scheduler", "notebooks")}
    return report.exit_code(report.run_study(**asked, out_dir=options.out, workers=options.workers))


def run_sweep(options: argparse.Namespace) -> int:
    from mambanorm.errors import unknown
    from mambanorm.model import arms as lists
    from mambanorm.training import config

    grids = {
        "type": lists.TYPE_ARMS,
        "position": [lists.Arm("None", "None"), *lists.BEFORE_ARMS, *lists.AFTER_ARMS],
        "grid": lists.GRID_ARMS,
        "normvary": lists.NORMVARY_ARMS,
    }
    if options.grid is not None and options.grid not in grids:
        raise unknown("grid", options.grid, grids)
    changes = parse_changes(options.set)
    arms = grids[options.grid] if options.grid else [lists.Arm.parse(arm) for arm in options.arms]
    tasks = _check_tasks(options.tasks or ["digits"])
    configs = config.grid(arms, tasks, scale=options.scale, seeds=options.seeds, **changes)
    if options.dry_run:
        _announce(configs, options)
        return 0
    from mambanorm.training.sweep import sweep

    frame = sweep(configs, scheduler=options.scheduler, workers=options.workers, runs_dir=options.runs_dir)
    _print_arms(frame)
    return _report_failed(frame)


def run_record(options: argparse.Namespace) -> int:
    from mambanorm import claims
    from mambanorm.training import config
    from mambanorm.training.recorded import describe_recorded, read_results

    scale = config.check_scale(options.scale) if options.scale else config.default_scale()
    tasks = _check_tasks(options.tasks or config.STUDY_TASKS)
    asked = dict(seeds=options.seeds, tasks=tasks, runs_dir=options.runs_dir)
    if options.dry_run:
        _announce(claims.recorded_configs(scale, **asked), options)
        return 0
    engine = dict(scheduler=options.scheduler, workers=options.workers)
    try:
        path = claims.record(scale, **asked, path=options.out, **engine)
    except RuntimeError as error:  # some runs could not be trained; the others are kept
        _say(str(error))
        return 1
    print(f"{path}: {describe_recorded(read_results(path))}")
    return 0


def _report_failed(frame: Any) -> int:
    """Exit code 1 and a line on stderr if some runs could not be trained."""
    from mambanorm.training.sweep import plural

    failed = frame[frame["status"] == "failed"]
    if len(failed):
        _say(f"{len(failed)} of {plural(len(frame), 'run')} could not be trained; the first: {failed['error'].iloc[0]}")
    return int(len(failed) > 0)


def run_verdicts(options: argparse.Namespace) -> int:
    from mambanorm import claims
    from mambanorm.training import config

    ids = [claims.find_claim(name).id for name in options.claims or claims.CLAIMS]
    scale = config.check_scale(options.scale) if options.scale else config.default_scale()
    asked = dict(seeds=options.seeds, tasks=_check_tasks(options.tasks or claims.TASKS), scale=scale)
    if options.dry_run:
        _announce(claims.verdict_runs(ids, **asked, runs_dir=options.runs_dir), options)
        return 0
    engine = dict(scheduler=options.scheduler, workers=options.workers, runs_dir=options.runs_dir)
    frame = claims.train_verdicts(ids, **asked, **engine)
    verdicts = [claims.judge(name, frame, scale=scale) for name in ids]
    print("\n".join(map(claims.describe, verdicts)))
    print("\n" + "\n".join(map(claims.one_line, verdicts)))
    return _report_failed(frame)


def run_train(options: argparse.Namespace) -> int:
    from mambanorm.training import config

    changes = parse_changes(options.set)
    _check_tasks([options.task])
    seed = {} if options.seed is None else {"seed": options.seed}
    asked = config.base_config(options.task, options.scale, arm=options.arm, **seed, **changes)
    if options.dry_run:
        _announce([asked], options)
        return 0
    from mambanorm import find_run

    stored = find_run(asked, options.runs_dir)
    if stored is not None:
        print("In the store already, nothing to train:")
    elif (error := _train(asked, options)) is not None:
        _say(f"this run could not be trained: {error}")
        return 1
    _print_run(stored or find_run(asked, options.runs_dir))
    return 0


def _train(config, options: argparse.Namespace) -> str | None:
    """Trains and stores a run, here with a live line or where the scheduler says; returns the reason if it fails."""
    from tqdm.auto import tqdm

    from mambanorm.training.sweep import sweep, train_one

    if options.scheduler:
        frame = sweep([config], scheduler=options.scheduler, runs_dir=options.runs_dir)
        return None if frame["status"].iloc[0] != "failed" else frame["error"].iloc[0]
    named = f"{config.arm} on {config.task}, seed {config.seed}"
    with tqdm(total=config.steps, desc=named, unit="step", delay=0.1) as bar:  # none before the first step

        def show(step: int, _model: object, loss: float) -> None:
            bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
            bar.update(step - bar.n)  # a run that goes on does not begin at 1

        try:
            train_one(config, options.runs_dir, on_step=show)
        except (RuntimeError, MemoryError) as error:
            return f"{type(error).__name__}: {error}"
    return None


def run_tasks(options: argparse.Namespace) -> int:
    from mambanorm.tasks import TASKS, prepare_task
    from mambanorm.training import config

    if options.prepare:
        scale = options.scale or config.default_scale()
        for name in _check_tasks(options.prepare):
            data = prepare_task(name, scale)
            sizes = ", ".join(f"{len(getattr(data, split)):,} {split}" for split in ("train", "val", "test"))
            kind = "images" if TASKS[name].kind == "image" else "sequences"
            print(f"{name} at scale {scale} is ready: {sizes} {kind}, {data.n_classes} classes")
        return 0
    for task in TASKS.values():
        print(f"{task.name:<18}{task.title}{' (see --prepare)' if task.prepare else ''}")
        if options.scale:
            c = config.base_config(task.name, options.scale)
            size = f"{c.n_layers} layers, width {c.d_model}, {c.steps:,} steps of {c.batch_size}, lr {c.lr:g}"
            print(f"{'':<18}{size}; source: {task.source}")
    if not options.scale:
        print(f"Settings and sources: --scale {', '.join(config.SCALES)}. What you bring: data/README.md")
    return 0


def run_runs(options: argparse.Namespace) -> int:
    from mambanorm import load_runs
    from mambanorm.training import config
    from mambanorm.training.store import runs_dir
    from mambanorm.training.sweep import plural

    if options.check:
        return _check_store(options)
    where: dict[str, Any] = {}
    if options.scale is not None:
        where["scale"] = config.check_scale(options.scale)
    if options.tasks is not None:
        where["task"] = _check_tasks(options.tasks)
    if options.seeds is not None:
        where["seed"] = config.check_seeds(options.seeds, "smoke")
    frame = load_runs(options.runs_dir, **where)
    if options.csv:
        from mambanorm.atomic import write_text

        write_text(_path(options.csv), frame.to_csv(index=False))
        print(f"{plural(len(frame), 'run')} written to {options.csv}")
        return 0
    print(f"{plural(len(frame), 'run')} in {runs_dir(options.runs_dir)}")
    if len(frame):
        brief = frame[["run_id", "task", "scale", "arm", "seed", "n_layers", "lr", "status", "test_accuracy", "wall_s"]]
        print(brief.head(SHOWN).to_string(index=False, float_format=lambda number: f"{number:.4g}"))
    if len(frame) > SHOWN:
        print(f"… and {len(frame) - SHOWN} more: --csv FILE writes all of them, with every column")
    return 0


SHOWN = 40


def _check_store(options: argparse.Namespace) -> int:
    """Reads every file of every run and says which are not what was written; 1 if there are any."""
    from mambanorm.training.store import check_runs, runs_dir
    from mambanorm.training.sweep import plural

    table = check_runs(options.runs_dir)
    bad = table[~table["state"].isin(["whole", "unchecked"])]
    for row in bad.itertuples():
        print(f"{row.run_id}  {row.state}: {row.why}")
    counts = ", ".join(f"{n} {state}" for state, n in table["state"].value_counts().items())
    print(f"{plural(len(table), 'run')} in {runs_dir(options.runs_dir)}{': ' if counts else ''}{counts}")
    if "unchecked" in set(table["state"]):
        print("Unchecked runs are of an earlier version, which kept no checksums: sound as far as can be told.")
    if "damaged" in set(table["state"]):
        print("Move a damaged run's folder away, and what needs it trains it again.")
    return int(len(bad) > 0)


def run_plan(options: argparse.Namespace) -> int:
    from mambanorm.training import config

    changes = parse_changes(options.set)
    scale = config.check_scale(options.scale) if options.scale else config.default_scale()
    seeds = len(config.check_seeds(options.seeds, scale))

    from mambanorm.study.plan import digits, plan_table, shape_of, table_text
    from mambanorm.training import machine
    from mambanorm.training.sweep import plural

    arms = [{"arm": arm} for arm in options.arms or []] or [{}]  # none asked: the preset's own
    tasks = options.tasks or ["digits"]
    configs = [config.base_config(task, scale, **arm, **changes) for task in tasks for arm in arms]
    for asked in configs:
        shape_of(asked)  # an unknown task shall not cost the time of those before it
    table = plan_table(configs, measured=options.measure)
    print(table_text(table))
    runs = f"{plural(len(configs) * seeds, 'run')} ({plural(seeds, 'seed')} each) at scale {scale}"
    if not options.measure:
        print(f"{runs}, not timed")
        return 0
    print(f"{runs}: {digits(seeds * table['hours'].sum())} hours, one after another, on {machine.machine()}")
    return 0


def run_bench(options: argparse.Namespace) -> int:
    from mambanorm.training.config import ROOT

    if not (ROOT / "benchmarks" / "run.py").is_file():
        raise ValueError(f"no benchmarks in {ROOT / 'benchmarks'}: bench runs from a checkout of the project")
    if str(ROOT) not in sys.path:  # the benchmarks stand beside the package, not in it
        sys.path.insert(0, str(ROOT))
    from benchmarks.run import bench
    from benchmarks.timing import Limits

    only = [name for part in options.only for name in part] if options.only else None
    limits = Limits(options.repeats, options.budget, full=options.full)
    try:
        return bench(only, limits, threads=options.threads, out_dir=options.out)
    except KeyboardInterrupt:
        _say("interrupted: nothing was written")
        return 130


# ---------------------------------------------------------------------------------------------------------------------
# what is printed


def _announce(configs: list, options: argparse.Namespace) -> None:
    """What a dry run prints: how many runs are asked for, stored and missing, and how long the missing ones take."""
    from mambanorm.study.estimate import dry_run

    _check_tasks({config.task for config in configs})
    print(dry_run(configs, runs_dir=options.runs_dir, workers=options.workers, scheduler=options.scheduler))


def _print_arms(frame) -> None:
    """Mean ± sd over the seeds, one row an arm, one table a task."""
    from mambanorm.study.tables import describe_frame, percent, summarize
    from mambanorm.training.sweep import plural

    table = summarize(frame)
    width = max(map(len, table["arm"]))
    for task, rows in table.groupby("task", sort=False):
        print(f"{task}: test accuracy, chance is {percent(rows['chance'].iloc[0])}")
        for row in rows.itertuples():
            note = f", {row.diverged} diverged" if row.diverged else ""
            mean = f"{100 * row.mean:.1f} ± {100 * row.sd:.1f} %" if row.n > 1 else percent(row.mean)
            print(f"  {row.arm:<{width}}  {mean:<14} ({plural(row.n, 'run')}{note})")
    print(describe_frame(frame))


def _print_run(run) -> None:
    from mambanorm.study.tables import percent
    from mambanorm.training.sweep import spell

    config, facts = run.config, run.facts
    print(f"{config.arm} on {config.task}, seed {config.seed}, scale {config.scale}")
    print(f"  test accuracy   {percent(facts['test_accuracy'])} (chance is {percent(facts['chance'])})")
    if facts["status"] == "diverged":
        where = f"at step {facts['first_nonfinite_step']}, first in {facts['first_nonfinite_site']}"
        print(f"  diverged        {where}: scored as chance")
    else:
        best = percent(facts["best_val_accuracy"])
        print(f"  weights of      step {facts['best_step']} of {facts['steps']}, best on validation ({best})")
    print(f"  time            {spell(facts['wall_s'])}, {facts['tokens_per_s']:,.0f} tokens/s")
    print(f"  run folder      {run.path}")


# ---------------------------------------------------------------------------------------------------------------------
# reading the arguments


ELSEWHERE = {"task": "--tasks or --task", "arm": "--arms or --arm", "scale": "--scale", "seed": "--seeds or --seed"}
"""Fields of RunConfig that have an option of their own."""


def parse_changes(pairs: Sequence[str]) -> dict[str, Any]:
    """`["lr=1e-3", "n_layers=8"]` → the values by the type of RunConfig's field. ValueError for anything else."""
    from mambanorm.errors import unknown
    from mambanorm.training.config import check_once

    defaults, changes = _defaults(), {}
    check_once("--set", [pair.partition("=")[0].strip() for pair in pairs])
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = name.strip()
        if name in ELSEWHERE:
            raise ValueError(f"{name} is not set by --set but by {ELSEWHERE[name]}")
        if name not in defaults:
            raise unknown("field of RunConfig", name, [name for name in defaults if name not in ELSEWHERE])
        if not equals:
            raise ValueError(f"--set takes {name}=VALUE, got {pair!r}")
        changes[name] = _value(name, text, type(defaults[name]))
    return changes


def _defaults() -> dict[str, Any]:
    """RunConfig's fields and their defaults."""
    from dataclasses import MISSING, fields

    from mambanorm.training.config import RunConfig

    made = fields(RunConfig)
    return {field.name: field.default_factory() if field.default is MISSING else field.default for field in made}


WHOLE, NUMBER = re.compile(r"[+-]?[0-9]+"), re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
"""How numbers are written here; Python also reads 1_0, ' 1 ' and digits of other scripts."""


def _value(name: str, text: str, kind: type) -> Any:
    import json

    kinds: dict[type, tuple[str, Callable]] = {
        int: ("a whole number", lambda text: int(_match(WHOLE, text))),
        float: ("a number", lambda text: float(_match(NUMBER, text))),
        dict: ('JSON such as {"groups": 8}', json.loads),
        tuple: ("a list such as [2, 4]", json.loads),
        str: ("text", str),
    }
    wanted, read = kinds[kind]
    try:
        value = read(text)
    except ValueError:
        value = None
    value = tuple(value) if kind is tuple and isinstance(value, list) else value
    if not isinstance(value, kind):
        raise ValueError(f"{name} must be {wanted}, got {text!r}")
    return value


def _match(pattern: re.Pattern, text: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError(text)
    return text


def _path(text: str):
    from pathlib import Path

    return Path(text).resolve()


def _check_tasks(names: Collection[str]) -> list[str]:
    from mambanorm.tasks import check_task

    return [check_task(name) for name in names]


def _said(read: Callable, *given: object) -> Any:
    """`read(*given)`, whose ValueError argparse shall tell as it is, with the option's name."""
    try:
        return read(*given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _list(text: str) -> list[str]:
    from mambanorm.training.config import check_once

    names = [part.strip() for part in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} lacks a name: give names separated by commas")
    _said(check_once, "name", names)
    return names


def _scale(text: str) -> str:
    from mambanorm.training.config import check_scale

    return _said(check_scale, text)


def _seeds(text: str) -> int | list[int]:
    """`8` → 8, which stands for 0…7; `0,3,200` → those."""
    from mambanorm.training.config import check_seeds

    parts = [part.strip() for part in text.removesuffix(",").split(",")]
    if not all(map(WHOLE.fullmatch, parts)):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of seeds nor a list such as 0,3,200")
    seeds = [int(part) for part in parts] if "," in text else int(text)
    _said(check_seeds, seeds, "smoke")
    return seeds


def _seed(text: str) -> int:
    """One seed, not a number of them."""
    if not WHOLE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no seed: one whole number")
    return _seeds(f"{text},")[0]


def _folder(text: str) -> str:
    """A folder, there or not."""
    if not text:
        raise argparse.ArgumentTypeError("'' names no folder")
    if os.path.exists(text) and not os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"{text!r} is a file: needed is a folder")
    return text


def _file(text: str) -> str:
    """A file, there or not."""
    if not text:
        raise argparse.ArgumentTypeError("'' names no file")
    if os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"{text!r} is a folder: needed is the name of a file in it")
    return text


def _place(text: str) -> str:
    if not text.strip(", "):
        raise argparse.ArgumentTypeError(f"{text!r} names neither a file nor a module")
    return text


def _workers(text: str) -> int | str:
    if text == "auto":
        return text
    if not re.fullmatch(r"[0-9]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is none of auto, 0 (in this process) or a whole number")
    return int(text)


def _positive(text: str) -> int:
    if not re.fullmatch(r"[0-9]+", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1")
    return int(text)


def _seconds(text: str) -> float:
    seconds = float(text) if NUMBER.fullmatch(text) else 0.0
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return seconds


def _address(text: str) -> str:
    if not re.fullmatch(r"\w+://.+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no address of a scheduler, such as tcp://10.0.0.1:8786")
    return text


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="mambanorm",
        description="A study kit on normalization in Mamba: train, compare, and re-do the paper's study.",
        epilog="each command has examples: mambanorm study --help",
        allow_abbrev=False,
    )
    _add_everywhere(parser, imports="imports", debug=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (add, run, summary, examples) in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog="examples:\n" + "\n".join(f"  mambanorm {name} {example}".rstrip() for example in examples),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        add(command)
        _add_everywhere(command, imports="more_imports", debug=argparse.SUPPRESS)
        command.set_defaults(run=run)
    options, left = parser.parse_known_args(argv)
    if left:
        raise _not_taken(options.command, left[0], commands.choices[options.command])
    options.imports += options.more_imports
    return options


def _not_taken(command: str, given: str, parser: Parser) -> Exception:
    """The error for what a command does not take; a field of RunConfig is changed by --set."""
    from mambanorm.errors import unknown

    options = [name for name in parser._option_string_actions if name.startswith("--")]
    flag = given.partition("=")[0]
    field = flag.lstrip("-").replace("-", "_")
    if given.startswith("-") and field in _defaults() and field not in ELSEWHERE:
        if "--set" in options:
            return ValueError(f"{flag}: say --set {field}=…")
        return ValueError(f"{command} takes no {flag}, its scale decides: train and sweep take --set {field}=…")
    return unknown(f"option of {command}", flag, options)


def _add_everywhere(parser: Parser, *, imports: str, debug: object) -> None:
    """Options that stand before the command or behind it; a second default would undo what the first has read."""
    parser.add_argument(
        "--import",
        type=_place,
        action="append",
        default=[],
        dest=imports,
        metavar="FILE",
        help="import my_norm.py, or a module, which registers a norm or a task of your own (also: MAMBANORM_IMPORT)",
    )
    parser.add_argument("--debug", action="store_true", default=debug, help="show where an error comes from")


SCALE_HELP = "smoke, quick, lab or paper (default: MAMBANORM_SCALE, else quick)"


def _add_common(command: Parser, *, several: bool = True) -> None:
    command.add_argument(
        "--scale", type=_scale, help="smoke, quick, lab or paper (default: MAMBANORM_SCALE, else quick)"
    )
    if several:
        command.add_argument("--tasks", type=_list, metavar="A,B", help="tasks, separated by commas")
        command.add_argument("--seeds", type=_seeds, metavar="N", help="8 stands for 0…7; or a list: 0,3,200")
    command.add_argument(
        "--runs-dir", type=_folder, metavar="DIR", help="the run store (default: MAMBANORM_RUNS_DIR, else runs/)"
    )


def _add_training(command: Parser) -> None:
    command.add_argument("--scheduler", type=_address, metavar="ADDRESS", help="a Dask scheduler to train on, tcp://…")
    command.add_argument(
        "--workers", type=_workers, default="auto", metavar="N", help="auto (one a core), 0 (in this process) or N"
    )
    command.add_argument(
        "--dry-run", action="store_true", help="only say how many runs there are and how long they take"
    )


def _add_set(command: Parser) -> None:
    help_text = "change a field of RunConfig, such as lr=1e-3 or n_layers=8; may be repeated"
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=help_text)


def _add_study(command: Parser) -> None:
    _add_common(command)
    _add_training(command)
    names = "only these, by name or its beginning: 03,05_combination"
    command.add_argument("--notebooks", type=_list, metavar="NAMES", help=names)
    command.add_argument("--out", type=_folder, metavar="DIR", help="where the report goes (default: reports/<scale>)")


def _add_verdicts(command: Parser) -> None:
    command.add_argument("--claims", type=_list, metavar="IDS", help="only these: H1s,H3s (default: all)")
    _add_common(command)
    _add_training(command)


def _add_record(command: Parser) -> None:
    command.add_argument(
        "--out", type=_file, metavar="FILE", help="where the frame goes (default: data/results/<scale>.parquet)"
    )
    _add_common(command)
    _add_training(command)


def _add_sweep(command: Parser) -> None:
    which = command.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--arms", type=_list, metavar="ARMS", help='arms, separated by commas: "RMSN>SSM>GN,preset:VMamba"'
    )
    which.add_argument("--grid", help="a list of the study: type, position, grid or normvary")
    _add_common(command)
    _add_set(command)
    _add_training(command)


def _add_train(command: Parser) -> None:
    command.add_argument(
        "--arm", required=True, help='the norms, written "RMSN>SSM>GN" (with quotes), or preset:VMamba'
    )
    command.add_argument("--task", "--tasks", default="digits", help="the task (default: digits)")
    command.add_argument("--seed", "--seeds", type=_seed, help="the seed (default: the preset's)")
    _add_common(command, several=False)
    _add_set(command)
    _add_training(command)


def _add_tasks(command: Parser) -> None:
    command.add_argument("--scale", type=_scale, help="only this scale")
    help_text = "download, make or load the data of these tasks now"
    command.add_argument("--prepare", type=_list, metavar="A,B", help=help_text)


def _add_runs(command: Parser) -> None:
    _add_common(command)
    command.add_argument("--csv", type=_file, metavar="FILE", help="write every run and every column to a file instead")
    check = "read every file of every run and say which are not what was written"
    command.add_argument("--check", action="store_true", help=check)


def _add_plan(command: Parser) -> None:
    command.add_argument("--task", "--tasks", dest="tasks", type=_list, metavar="A,B", help="tasks (default: digits)")
    arms = "arms, separated by commas (default: the original, RMSN>SSM>None, of images LN>SSM>LN)"
    command.add_argument("--arm", "--arms", dest="arms", type=_list, help=arms)
    command.add_argument(
        "--scale", type=_scale, help="smoke, quick, lab or paper (default: MAMBANORM_SCALE, else quick)"
    )
    command.add_argument("--seeds", type=_seeds, metavar="N", help="seeds an arm (default: the scale's)")
    command.add_argument("--no-measure", dest="measure", action="store_false", help="count only, time nothing")
    _add_set(command)


def _add_bench(command: Parser) -> None:
    sections = "only these sections: scan, step, norms, length, state, threads"
    command.add_argument("--only", type=_list, nargs="+", metavar="SECTION", help=sections)
    repeats = "times each case is timed (default: 11)"
    command.add_argument("--repeats", type=_positive, default=11, metavar="N", help=repeats)
    budget = "seconds a peer may take in one size; else it runs less often, or is skipped (default: 25)"
    command.add_argument("--budget", type=_seconds, default=25.0, metavar="S", help=budget)
    command.add_argument("--full", action="store_true", help="skip nothing: what is above the budget runs once")
    threads = "threads, at most the cores (default: 2)"
    command.add_argument("--threads", type=_positive, default=2, metavar="N", help=threads)
    command.add_argument(
        "--out", type=_folder, metavar="DIR", help="where the results go (default: benchmarks/results)"
    )


COMMANDS: dict[str, tuple[Callable, Callable, str, list[str]]] = {
    "study": (
        _add_study,
        run_study,
        "train what is missing, execute the notebooks and write the report",
        ["", "--scale smoke --out /tmp/report", "--seeds 8 --dry-run", "--notebooks 03,05_combination --tasks digits"],
    ),
    "verdicts": (
        _add_verdicts,
        run_verdicts,
        "train what the claims of the paper lack and print a verdict for each",
        ["--seeds 8 --tasks digits", "--seeds 3 --dry-run", "--claims H1s,H3s --tasks digits,listops"],
    ),
    "record": (
        _add_record,
        run_record,
        "train all that the study and the verdicts need and record the run frame",
        ["--scale quick --seeds 8", "--scale smoke --seeds 1 --out smoke.parquet"],
    ),
    "sweep": (
        _add_sweep,
        run_sweep,
        "train the missing runs of several arms and print mean ± sd of each",
        [
            '--arms "RMSN>SSM>None,RMSN>SSM>GN" --seeds 5',
            "--grid position --tasks digits,listops --dry-run",
            '--arms "None>SSM>None,preset:VMamba" --set n_layers=8 --set lr=1e-3',
        ],
    ),
    "train": (
        _add_train,
        run_train,
        "train one run, or show it if the store has it",
        [
            '--arm "RMSN>SSM>GN"',
            '--arm "LN>SSM>LN" --task listops --seed 3',
            '--arm preset:VMamba --set norm_options={"eps":1e-6}',
        ],
    ),
    "tasks": (_add_tasks, run_tasks, "list the tasks and the scales", ["", "--prepare listops --scale quick"]),
    "runs": (
        _add_runs,
        run_runs,
        "list the stored runs",
        ["", "--tasks digits --scale quick", "--csv runs.csv", "--check"],
    ),
    "plan": (
        _add_plan,
        run_plan,
        "say what a run costs: parameters, tokens, FLOPs, memory, and hours from a few steps timed now",
        ["--task imdb --scale paper", '--task listops,cifar100 --arm "RMSN>SSM>GN" --scale paper --no-measure'],
    ),
    "bench": (
        _add_bench,
        run_bench,
        "measure scan, step and norms beside a floor and beside their peers",
        ["", "--only step,length", "--only scan --repeats 5 --out /tmp/bench", "--full"],
    ),
}
