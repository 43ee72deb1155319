"""The command line: `mambanorm study | verdicts | record | calibrate | sweep | train | explore | tasks | …`.

Exit codes: 0 all that was asked for is done; 1 a run or a notebook failed; 2 something asked for does not exist or does
not make sense (one line on stderr says what would); 130 interrupted, with every finished run kept.

Only the standard library is imported here; each command imports what it needs, so that neither `--help` nor a mistake
in the arguments waits for it.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
import warnings
from collections.abc import Sequence

from mambanorm.basics.errors import VARIABLE, unknown
from mambanorm.basics.settings import check_environment
from mambanorm.cli import diagnose, store, study, teaching, training  # noqa: F401 (each registers its commands)
from mambanorm.cli.arguments import COMMANDS, ELSEWHERE, Parser, place
from mambanorm.cli.printing import say, without_repeats

ORDER = (
    "study verdicts record calibrate sweep compare card train plan "
    "notebooks explore sheet slides tasks runs diagnose bench"
)
"""In which the help lists the commands."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    with warnings.catch_warnings():
        warnings.showwarning = without_repeats(lambda message, *_args, **_keywords: say(f"warning: {message}"))
        try:
            options = _parse(argv)
            if options.debug:
                os.environ[DEBUG] = "1"
            check_environment()
            if options.imports or os.environ.get(VARIABLE):
                from mambanorm.basics.extensions import set_imports

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
    if isinstance(error, OSError) and error.strerror:  # without its number
        error = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    say(str(error) or type(error).__name__)
    return code


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="mambanorm",
        description="A study kit on normalization in Mamba: train, compare, and re-do the paper's study.",
        epilog="each command has examples: mambanorm study --help",
        allow_abbrev=False,
    )
    _add_everywhere(parser, imports="imports", debug=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in ORDER.split():
        run, add, examples = COMMANDS[name]
        said = run.__doc__
        command = commands.add_parser(
            name,
            help=f"{said[0].lower()}{said[1:-1]}",
            description=said,
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
    from mambanorm.config import NAMES

    options = [name for name in parser._option_string_actions if name.startswith("--")]
    flag = given.partition("=")[0]
    field = flag.lstrip("-").replace("-", "_")
    if given.startswith("-") and field in NAMES and field not in ELSEWHERE:
        if "--set" in options:
            return ValueError(f"{flag}: say --set {field}=…")
        return ValueError(f"{command} takes no {flag}, its scale decides: train and sweep take --set {field}=…")
    return unknown(f"option of {command}", flag, options)


def _add_everywhere(parser: Parser, *, imports: str, debug: object) -> None:
    """Options that stand before or after the command. A second default would overwrite what was read before it."""
    parser.add_argument(
        "--import",
        type=place,
        action="append",
        default=[],
        dest=imports,
        metavar="FILE",
        help="import my_norm.py, or a module, which registers a norm or a task of your own (also: MAMBANORM_IMPORT)",
    )
    parser.add_argument("--debug", action="store_true", default=debug, help="show where an error comes from")
