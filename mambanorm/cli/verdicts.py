"""`mambanorm verdicts`: trains what the paper's claims lack and prints a verdict for each."""

from __future__ import annotations

import argparse

from mambanorm.cli import arguments as arg
from mambanorm.cli.arguments import Parser
from mambanorm.cli.printing import confirm, print_dry_run, report_failed

SUMMARY = "train what the claims of the paper lack and print a verdict for each"
EXAMPLES = [
    "--seeds 8 --tasks digits",
    "--seeds 3 --dry-run",
    "--claims H1s,H3s --tasks digits,listops",
    "--claims H1s --seeds 8-15",
]


def add(command: Parser) -> None:
    command.add_argument("--claims", type=arg.names, metavar="IDS", help="only these: H1s,H3s (default: all)")
    arg.add_common(command, seeds_help=arg.JUDGED_SEEDS_HELP)
    arg.add_training(command)


def run(options: argparse.Namespace) -> int:
    from mambanorm import claims
    from mambanorm.claims.protocol import DATE, PROTOCOL, VERSION

    ids = [claims.find_claim(name).id for name in options.claims or claims.CLAIMS]
    scale = arg.chosen_scale(options)
    asked = dict(seeds=options.seeds, tasks=arg.check_tasks(options.tasks) if options.tasks else None, scale=scale)
    configs = claims.verdict_runs(ids, **asked, runs_dir=options.runs_dir)
    if options.dry_run:
        print_dry_run(configs, options)
        return 0
    confirm(configs, options)
    engine = dict(scheduler=options.scheduler, workers=options.workers, runs_dir=options.runs_dir)
    frame = claims.train_verdicts(ids, **asked, **engine)
    verdicts = [claims.judge(name, frame, scale=scale) for name in ids]
    print(f"Protocol {VERSION} of {DATE}, scale {scale}; the rule in words: {PROTOCOL}\n")
    print("\n".join(map(claims.describe, verdicts)))
    print("\n" + "\n".join(map(claims.one_line, verdicts)))
    return report_failed(frame)
