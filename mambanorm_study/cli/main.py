"""The entry point of the command line: `mambanorm COMMAND`.

The exit code is 0 if everything was done, 1 if something failed, such as a run or a notebook, 2 if
an argument is wrong (one line on stderr says what is allowed), and 130 if the command was
interrupted (finished runs are stored).

This module imports no large package, and each command imports what it needs itself. So `--help` and
errors in the arguments are printed quickly.
"""

import argparse
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

from mambanorm.errors import VARIABLE, brief
from mambanorm_study.cli import store, study, teaching, training  # noqa: F401 (register commands)
from mambanorm_study.cli.arguments import COMMANDS, Parser
from mambanorm_study.cli.printing import say

# --debug sets this environment variable. This process and its workers then print tracebacks.
DEBUG = "MAMBANORM_DEBUG"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: say(f"warning: {message}")
        try:
            options = _parse(argv)
            if options.debug:
                os.environ[DEBUG] = "1"
            if options.imports or os.environ.get(VARIABLE):
                from mambanorm_study.basics.extensions import set_imports

                set_imports(options.imports)
            if getattr(options, "tasks", None):
                from mambanorm_study.runs.grid import check_task

                options.tasks = [check_task(name) for name in options.tasks]
            return options.run(options)
        except SystemExit as stop:  # argparse exits after --help
            return stop.code or 0
        except KeyboardInterrupt:
            say("interrupted. Finished runs are stored: the same command trains the missing runs.")
            return 130
        except BrokenPipeError:  # the reader has closed the pipe, as in `mambanorm runs | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except (OSError, MemoryError) as error:  # such as a full disk
            return _report_error(error, 1)
        except Exception as error:
            if _is_message_for_user(error):
                return _report_error(error, 1 if isinstance(error, RuntimeError) else 2)
            return _report_error(
                f"unexpected {type(error).__name__}: {error}; --debug shows where", 1
            )


def _is_message_for_user(error: Exception) -> bool:
    """Return True if code of this project raised the error on purpose, to tell the user something.

    Any other error is a mistake in code, such as a TypeError in a norm that a user wrote.
    """
    last = traceback.extract_tb(error.__traceback__)[-1]
    packages = {run.__module__.partition(".")[0] for run in COMMANDS.values()}
    packages.update({"mambanorm", "benchmarks"})
    folders = {Path(sys.modules[name].__file__).parent for name in packages & set(sys.modules)}
    if folders.isdisjoint(Path(last.filename).parents):
        return False
    raised_on_purpose = isinstance(error, TypeError | RuntimeError) and last.line.startswith(
        "raise "
    )
    return raised_on_purpose or isinstance(error, ValueError)


def _report_error(error: object, code: int) -> int:
    """Print the error on stderr and return the exit code `code`."""
    if os.environ.get(DEBUG):
        traceback.print_exc()
    if isinstance(error, OSError) and error.strerror:  # leave out the error number
        error = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    say(str(error) or type(error).__name__)
    return code


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    for plugin in entry_points(group="mambanorm.commands"):
        plugin.load()  # registers the commands of another package, such as the clinic
    shared = _shared_options()
    parser = Parser(
        prog="mambanorm",
        description=(
            "A study kit on normalization in Mamba: train, compare, and repeat the paper's study."
        ),
        epilog="each command has examples: mambanorm study --help",
        parents=[shared],
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, run in sorted(COMMANDS.items()):
        summary = " ".join(run.__doc__.split())
        examples = (f"\n  mambanorm {name} {example}".rstrip() for example in run.examples)
        subparser = commands.add_parser(
            name,
            help=f"{summary[0].lower()}{summary[1:-1]}",
            description=summary,
            epilog=f"examples:{''.join(examples)}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            parents=[shared],
            allow_abbrev=False,
        )
        for add_option in run.options:
            add_option(subparser)
        subparser.set_defaults(run=run)
    options, unknown = parser.parse_known_args(argv, argparse.Namespace(imports=[], debug=False))
    if unknown:
        raise ValueError(
            f"{options.command} takes no {brief(unknown[0])}: see mambanorm {options.command} "
            "--help; a field of RunConfig is changed by --set FIELD=VALUE"
        )
    return options


def _shared_options() -> Parser:
    """Return a parser of the options that may stand before or after the name of any command."""
    shared = Parser(add_help=False, argument_default=argparse.SUPPRESS)
    shared.add_argument(
        "--import",
        action="append",
        dest="imports",
        metavar="FILE",
        help=(
            "import a Python file that registers your norm or task; may be repeated "
            "(or set MAMBANORM_IMPORT)"
        ),
    )
    shared.add_argument("--debug", action="store_true", help="print the traceback of an error")
    return shared
