"""pytest runs at scale smoke and in a temporary run store, unless MAMBANORM_SCALE and
MAMBANORM_RUNS_DIR say otherwise.

This holds for `pytest --nbval-lax notebooks`, too; tests/conftest.py sets more for the tests.
"""

import os
import tempfile

os.environ.setdefault("MAMBANORM_SCALE", "smoke")
if not os.environ.get("MAMBANORM_RUNS_DIR"):
    STORE = tempfile.TemporaryDirectory(prefix="mambanorm-notebooks-")  # deleted when pytest ends
    os.environ["MAMBANORM_RUNS_DIR"] = STORE.name
