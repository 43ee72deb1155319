"""`mambanorm calibrate`: how often the verdicts' rule is wrong, by made-up studies through the rule's own functions."""

from __future__ import annotations

import argparse

from mambanorm.cli import arguments as arg
from mambanorm.cli.arguments import Parser

SUMMARY = "simulate studies and print how often the verdicts are wrong, and what they find"
EXAMPLES = [
    "--claims H8s --studies 200",
    '--claims H1s,H8s --scenarios "tied rates,t3" --studies 1000',
    "--studies 4000 --record",
]


def add(command: Parser) -> None:
    command.add_argument("--claims", type=arg.names, metavar="IDS", help="only these: H1s,H8s (default: all)")
    command.add_argument("--scenarios", type=arg.names, metavar="NAMES", help="only these (default: all)")
    command.add_argument("--studies", type=arg.positive, default=1_000, metavar="N", help="a cell (default: 1000)")
    command.add_argument("--record", action="store_true", help="write the table of the repository")


def run(options: argparse.Namespace) -> int:
    from mambanorm.basics.settings import CHECKOUT
    from mambanorm.claims import calibration

    if options.record and (options.claims or options.scenarios):
        raise ValueError("--record writes the whole table: leave --claims and --scenarios out")
    if options.record and not CHECKOUT:
        raise ValueError("--record writes a table of the project's repository: it needs a checkout")
    frame = calibration.calibrate(calibration.cells(options.claims, options.scenarios, options.studies))
    print(calibration.calibration_text(frame))
    if options.record:
        print("\n".join(map(str, calibration.record_calibration(frame))))
    return 0
