"""pytest runs on the CPU, at scale smoke and in a temporary run store, unless
MAMBANORM_TEST_DEVICE, MAMBANORM_SCALE and MAMBANORM_RUNS_DIR say otherwise.

This holds for `pytest --nbval-lax notebooks`, too; tests/conftest.py sets more for the tests.
"""

import os
import tempfile

# Results of a GPU differ in the last digits, and the suite must pass on any machine. This hides the
# GPU before torch is imported, also from the processes that tests start and from the kernels of
# notebooks, which inherit the environment. `make test-gpu` sets MAMBANORM_TEST_DEVICE=cuda.
if os.environ.get("MAMBANORM_TEST_DEVICE") != "cuda":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

os.environ.setdefault("MAMBANORM_SCALE", "smoke")
if not os.environ.get("MAMBANORM_RUNS_DIR"):
    STORE = tempfile.TemporaryDirectory(prefix="mambanorm-notebooks-")  # deleted when pytest ends
    os.environ["MAMBANORM_RUNS_DIR"] = STORE.name
