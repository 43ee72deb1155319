"""`mambanorm notebooks`, `explore`, `sheet` and `slides`: material for learners and teachers."""

import argparse
from pathlib import Path

from mambanorm_study.basics.settings import TEACHING
from mambanorm_study.cli import arguments as arg
from mambanorm_study.cli.printing import say

OUT = arg.option("--out", metavar="DIR", help="the folder to write to (default: reports/teaching)")


@arg.command(
    arg.option(
        "--out",
        metavar="DIR",
        default="notebooks",
        help="the folder to write to (default: notebooks)",
    ),
    arg.option("--force", action="store_true", help="overwrite notebooks that have been changed"),
    arg.option("--student", action="store_true", help="leave out the solutions of the exercises"),
    examples=("", "--out lesson/notebooks --student", "--force"),
)
def notebooks(options: argparse.Namespace) -> int:
    """Copy the notebooks into a folder, to be run and edited in JupyterLab."""
    from mambanorm_study.report.notebooks import copy_notebooks

    folder = Path(options.out)
    skipped = copy_notebooks(folder, force=options.force, student=options.student)
    print(f"The notebooks are in {folder.resolve()}: jupyter lab --notebook-dir {folder}")
    if not skipped:
        return 0
    say(
        f"not overwritten, because they have been changed: {', '.join(skipped)}. "
        "--force overwrites these notebooks, --out names another folder"
    )
    return 1


@arg.command(
    arg.option(
        "--port",
        type=arg.whole_number(1, 65_535),
        help="the port of the page at 127.0.0.1 (default: 8866, or a port near 8866)",
    ),
    arg.option("--no-browser", action="store_true", help="only print the address"),
    examples=("", "--port 8900 --no-browser"),
)
def explore(options: argparse.Namespace) -> int:
    """Open the page of the explorers in the browser: norms, blocks and scans to play with."""
    from mambanorm_study.widgets.page import serve

    message = (
        "The explorers are at {} (Ctrl-C ends the server; each tab takes some seconds to start)"
    )
    serve(
        options.port,
        open_browser=not options.no_browser,
        announce=lambda address: print(message.format(address), flush=True),
    )
    return 0


@arg.command(
    arg.option(
        "--norms",
        type=arg.names,
        metavar="A,B",
        help="only these norms (default: all norms but Constant)",
    ),
    OUT,
    examples=("", "--out /tmp/handout", "--norms BN,LN,RMSN,GN"),
)
def sheet(options: argparse.Namespace) -> int:
    """Write an overview of the norms on one A4 page, as PDF, to print and hand out."""
    from mambanorm_study.figures import save_sheet

    print(save_sheet(options.out or TEACHING, options.norms))
    return 0


@arg.command(
    arg.NOTEBOOKS,
    arg.option(
        "--from",
        dest="source",
        metavar="DIR",
        help="folder of executed notebooks, such as that of a report (default: the kit's folder)",
    ),
    OUT,
    examples=("", "--notebooks 03,04 --out /tmp/lesson", "--from reports/evening"),
)
def slides(options: argparse.Namespace) -> int:
    """Make slides from the questions and figures of each notebook, in one file per notebook."""
    from mambanorm_study.report.slides import make_slides

    print(*make_slides(options.notebooks, options.out or TEACHING, options.source), sep="\n")
    return 0
