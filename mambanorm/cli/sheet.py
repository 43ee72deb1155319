"""`mambanorm sheet`: the norms on one A4 page, to print and hand out."""

from __future__ import annotations

import argparse

from mambanorm.cli import arguments as arg
from mambanorm.cli.arguments import Parser

SUMMARY = "write the norms on one A4 page, as PDF and SVG, to print and hand out"
EXAMPLES = ["", "--out /tmp/handout", "--norms BN,LN,RMSN,GN"]


def add(command: Parser) -> None:
    command.add_argument("--norms", type=arg.names, metavar="A,B", help="only these norms, by name (default: all)")
    command.add_argument("--out", type=arg.folder, metavar="DIR", help="where it goes (default: reports/teaching)")


def run(options: argparse.Namespace) -> int:
    from mambanorm.basics.settings import TEACHING
    from mambanorm.figures import save_sheet

    for path in save_sheet(options.out or TEACHING, options.norms):
        print(path)
    return 0
