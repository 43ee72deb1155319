"""`mambanorm notebooks`: the study's notebooks in a folder of one's own."""

from __future__ import annotations

import argparse
from pathlib import Path

from mambanorm.cli import arguments as arg
from mambanorm.cli.arguments import Parser
from mambanorm.cli.printing import say

SUMMARY = "copy the notebooks into a folder, to be run and edited in JupyterLab"
EXAMPLES = ["", "--out lesson/notebooks", "--force"]


def add(command: Parser) -> None:
    help_text = "where they go (default: notebooks)"
    command.add_argument("--out", type=arg.folder, metavar="DIR", default="notebooks", help=help_text)
    command.add_argument("--force", action="store_true", help="overwrite notebooks that have been changed")


def run(options: argparse.Namespace) -> int:
    from mambanorm.report.notebooks import copy_notebooks

    folder = Path(options.out)
    kept = copy_notebooks(folder, force=options.force)
    print(f"The notebooks are in {folder.resolve()}: jupyter lab --notebook-dir {folder}")
    if kept:
        say(f"changed, and left as they are: {', '.join(kept)}. --force overwrites them, --out names another folder")
    return int(bool(kept))
