"""`mambanorm notebooks`, `explore`, `sheet` and `slides`: what is opened, edited, shown and handed
out."""

from __future__ import annotations

import argparse
from pathlib import Path

from mambanorm_study.cli import arguments as arg
from mambanorm_study.cli.arguments import Parser
from mambanorm_study.cli.printing import say


def add_notebooks(command: Parser) -> None:
    help_text = "where they go (default: notebooks)"
    command.add_argument(
        "--out", type=arg.folder, metavar="DIR", default="notebooks", help=help_text
    )
    command.add_argument(
        "--force", action="store_true", help="overwrite notebooks that have been changed"
    )


@arg.command(add_notebooks, "", "--out lesson/notebooks", "--force")
def notebooks(options: argparse.Namespace) -> int:
    """Copy the notebooks into a folder, to be run and edited in JupyterLab."""
    from mambanorm_study.report.notebooks import copy_notebooks

    folder = Path(options.out)
    kept = copy_notebooks(folder, force=options.force)
    print(f"The notebooks are in {folder.resolve()}: jupyter lab --notebook-dir {folder}")
    if kept:
        say(
            f"changed, and left as they are: {', '.join(kept)}. --force overwrites them, --out names another folder"
        )
    return int(bool(kept))


def add_explore(command: Parser) -> None:
    port = "the port of the page at 127.0.0.1 (default: 8866, or one near it)"
    command.add_argument("--port", type=arg.whole(1, 65_535), help=port)
    command.add_argument("--no-browser", action="store_true", help="only print the address")


@arg.command(add_explore, "", "--port 8900 --no-browser")
def explore(options: argparse.Namespace) -> int:
    """Play with norms, blocks and scans on one page, in the browser."""
    from mambanorm_study.widgets.page import serve

    def told(address: str) -> None:
        print(
            f"The explorers are at {address} (Ctrl-C ends them; each tab takes some seconds to start)",
            flush=True,
        )

    serve(options.port, open_browser=not options.no_browser, tell=told)
    return 0


def add_sheet(command: Parser) -> None:
    command.add_argument(
        "--norms",
        type=arg.names,
        metavar="A,B",
        help="only these norms (default: all but Constant)",
    )
    command.add_argument(
        "--out", type=arg.folder, metavar="DIR", help="where it goes (default: reports/teaching)"
    )


@arg.command(add_sheet, "", "--out /tmp/handout", "--norms BN,LN,RMSN,GN")
def sheet(options: argparse.Namespace) -> int:
    """Write the norms on one A4 page, as PDF and SVG, to print and hand out."""
    from mambanorm_study.basics.settings import TEACHING
    from mambanorm_study.figures import save_sheet

    print(*save_sheet(options.out or TEACHING, options.norms), sep="\n")
    return 0


def add_slides(command: Parser) -> None:
    command.add_argument("--notebooks", type=arg.names, metavar="NAMES", help=arg.NOTEBOOKS_HELP)
    source = "a folder of executed notebooks, such as a report's (default: the kit's own)"
    command.add_argument("--from", type=arg.folder, dest="source", metavar="DIR", help=source)
    command.add_argument(
        "--out", type=arg.folder, metavar="DIR", help="where they go (default: reports/teaching)"
    )


@arg.command(add_slides, "", "--notebooks 03,04 --out /tmp/lesson", "--from reports/evening")
def slides(options: argparse.Namespace) -> int:
    """Make a slide deck of each notebook's questions and figures, one file that opens offline."""
    from mambanorm_study.basics.settings import TEACHING
    from mambanorm_study.report.slides import make_slides

    print(*make_slides(options.notebooks, options.out or TEACHING, options.source), sep="\n")
    return 0
