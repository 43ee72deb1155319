"""Runs the command `mambanorm` as `python -m mambanorm_study`."""

from mambanorm_study.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
