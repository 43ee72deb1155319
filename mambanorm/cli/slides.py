"""`mambanorm slides`: a slide deck of each notebook that opens offline."""

from __future__ import annotations

import argparse

from mambanorm.cli import arguments as arg
from mambanorm.cli.arguments import Parser

SUMMARY = "make a slide deck of each notebook's questions and figures, one file that opens offline"
EXAMPLES = ["", "--notebooks 03,04 --out /tmp/lesson", "--from reports/evening"]


def add(command: Parser) -> None:
    names = "only these, by name or its beginning: 03,05_combination"
    command.add_argument("--notebooks", type=arg.names, metavar="NAMES", help=names)
    source = "a folder of executed notebooks, such as a report's (default: the kit's own)"
    command.add_argument("--from", type=arg.folder, dest="source", metavar="DIR", help=source)
    command.add_argument("--out", type=arg.folder, metavar="DIR", help="where they go (default: reports/teaching)")


def run(options: argparse.Namespace) -> int:
    from mambanorm.basics.settings import TEACHING
    from mambanorm.report.slides import make_slides

    for path in make_slides(options.notebooks, options.out or TEACHING, options.source):
        print(path)
    return 0
