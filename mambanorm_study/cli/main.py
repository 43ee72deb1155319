"""The command line: `mambanorm study | verdicts | record | calibrate | sweep | train | explore |
tasks | …`.

Exit codes: 0 all that was asked for is done; 1 a run or a notebook failed; 2 something asked for
does not exist or does not make sense (one line on stderr says what would); 130 interrupted, with
every finished run kept.

Only the standard library is imported here; each command imports what it needs, so that neither
`--help` nor a mistake in the arguments waits for it.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

from mambanorm.errors import VARIABLE, brief
from mambanorm_study.cli import store, study, teaching, training  # noqa: F401 (each registers its commands)
from mambanorm_study.cli.arguments import COMMANDS, Parser, file
from mambanorm_study.cli.printing import say, warn_once


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    with warnings.catch_warnings():
        warnings.showwarning = warn_once()
        try:
            options = _parse(argv)
            if options.debug:
                os.environ[DEBUG] = "1"
            if options.imports or os.environ.get(VARIABLE):
                from mambanorm_study.basics.extensions import set_imports

                set_imports(options.imports)
            return options.run(options)
        except SystemExit as stop:  # argparse, after --help
            return stop.code or 0
        except KeyboardInterrupt:
            say("interrupted. Finished runs are kept: the same command goes on from there.")
            return 130
        except BrokenPipeError:  # `mambanorm runs | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except (OSError, MemoryError) as error:  # a full disk, a scheduler that does not answer
            return _fail(error, 1)
        except Exception as error:
            if _is_said(error):
                return _fail(error, 1 if isinstance(error, RuntimeError) else 2)
            return _fail(f"unexpected {type(error).__name__}: {error}; --debug shows where", 1)


DEBUG = "MAMBANORM_DEBUG"
"""The environment variable that --debug sets, for workers too: errors are then shown with where
they came from."""


def _is_said(error: Exception) -> bool:
    """Return whether the kit raised the error itself, in words for its user. Another one is a
    mistake in code, such as a norm of the user's that raises TypeError, or that the kit calls with
    arguments which it does not take."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    packages = {command.run.__module__.partition(".")[0] for command in COMMANDS.values()}
    packages |= {"mambanorm", "benchmarks"}
    folders = [Path(sys.modules[name].__file__).parent for name in packages if name in sys.modules]
    if set(folders).isdisjoint(Path(last.filename).parents):
        return False
    raised = isinstance(error, TypeError | RuntimeError) and last.line.startswith("raise ")
    return raised or isinstance(error, ValueError)


def _fail(error: object, code: int) -> int:
    if os.environ.get(DEBUG):
        traceback.print_exc()
    if isinstance(error, OSError) and error.strerror:  # without its number
        error = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    say(str(error) or type(error).__name__)
    return code


def _parse(argv: list[str]) -> argparse.Namespace:
    everywhere = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    said = "import my_norm.py, which registers a norm or a task of your own; may be repeated (also: MAMBANORM_IMPORT)"
    everywhere.add_argument(
        "--import", type=file, action="append", dest="imports", metavar="FILE", help=said
    )
    everywhere.add_argument("--debug", action="store_true", help="show where an error comes from")
    parser = Parser(
        prog="mambanorm",
        description="A study kit on normalization in Mamba: train, compare, and re-do the paper's study.",
        epilog="each command has examples: mambanorm study --help",
        parents=[everywhere],
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for plugin in entry_points(group="mambanorm.commands"):
        plugin.load()  # registers commands of another package
    for name in sorted(COMMANDS):
        run, add, examples = COMMANDS[name]
        said = run.__doc__
        command = commands.add_parser(
            name,
            help=f"{said[0].lower()}{said[1:-1]}",
            description=said,
            epilog="examples:\n"
            + "\n".join(f"  mambanorm {name} {example}".rstrip() for example in examples),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            parents=[everywhere],
            allow_abbrev=False,
        )
        add(command)
        command.set_defaults(run=run)
    options, left = parser.parse_known_args(argv, argparse.Namespace(imports=[], debug=False))
    if left:
        how = f"see mambanorm {options.command} --help; a field of RunConfig is changed by --set FIELD=VALUE"
        raise ValueError(f"{options.command} takes no {brief(left[0])}: {how}")
    return options
