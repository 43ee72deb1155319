"""Threads of the kernels on a machine that others use too."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "passive"}, "None")],
)
def test_threads_that_wait_sleep_soon_unless_the_user_says_otherwise(given, spins):
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in names} | given
    script = "import os, mambanorm; print(os.environ.get('GOMP_SPINCOUNT'))"
    said = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == spins
