"""`mambanorm explore`: all explorers as one page on this machine."""

from __future__ import annotations

import argparse

from mambanorm.cli.arguments import Parser

SUMMARY = "play with norms, blocks and scans on one page, in the browser"
EXAMPLES = [
    "",
    "--port 8900 --no-browser",
]


def add(command: Parser) -> None:
    command.add_argument("--port", type=port, help="where it is served at 127.0.0.1 (default: 8866, or one near it)")
    command.add_argument("--no-browser", action="store_true", help="only print the address")


def port(text: str) -> int:
    """A port. argparse's own error for anything else."""
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65_535):
        raise argparse.ArgumentTypeError(f"a port is a whole number from 1 to 65535, got {text!r}")
    return int(text)


def run(options: argparse.Namespace) -> int:
    from mambanorm.widgets.page import serve

    serve(options.port, open_browser=not options.no_browser, tell=told)
    return 0


def told(address: str) -> None:
    print(f"The explorers are at {address} (Ctrl-C ends them; each tab takes some seconds to start)", flush=True)
