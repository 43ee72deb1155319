"""`python -m mambanorm` is `mambanorm`."""

from mambanorm.cli import main

raise SystemExit(main())
