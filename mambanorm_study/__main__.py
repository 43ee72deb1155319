"""The command `mambanorm`, also `python -m mambanorm_study`."""

import sys


def main() -> int:
    """Run the command line. Ctrl-C ends it with one line of text, even during imports."""
    try:
        from mambanorm_study.cli.main import main as run

        return run()
    except KeyboardInterrupt:  # before the command line itself could answer it, or while it did
        print("mambanorm: interrupted.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
