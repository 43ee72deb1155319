"""Claims about docs/clusters.md: its ratios are those of benchmarks/results/gpu.json."""

import json
import re

import pytest

from mambanorm_study.basics.settings import ROOT

ROWS = json.loads((ROOT / "benchmarks/results/gpu.json").read_text(encoding="utf-8"))["rows"]
PAGE = (ROOT / "docs/clusters.md").read_text(encoding="utf-8")
SIZES = {
    "(32, 2048, 256, 64)": "scan (32, 2048, 256, 64), {} by triton",
    "(64, 1024, 128, 16)": "scan (64, 1024, 128, 16), {} by triton",
    "(8, 8192, 256, 16)": "scan (8, 8192, 256, 16), {} by triton",
    "d 128, N 64)": "listops (32, 2048, 128, 64), {}: ours, scan by triton",
    "d 64, N 16)": "cifar10 (64, 1024, 64, 16), {}: ours, scan by triton",
    "8 × 1,024 tokens (d 768)": "130M (8, 1024, 768, 16), {}: ours, scan by triton",
    "2 × 8,192 tokens": "130M long (2, 8192, 768, 16), {}: ours, scan by triton",
}


def measured(case, column):
    return next(row[column] for row in ROWS if row["case"] == case)


@pytest.mark.parametrize("size", SIZES)
def test_the_ratios_to_mamba_ssm_are_the_measured_ones(size):
    line = next(line for line in PAGE.splitlines() if line.startswith("|") and size in line)
    bf16 = "bfloat16" if "scan" in SIZES[size].split(" (")[0] else "bf16"
    for dtype, stated in zip((bf16, "float32"), re.findall(r"\| (\d\.\d\d)", line), strict=True):
        assert f"{measured(SIZES[size].format(dtype), 'of_mamba_ssm'):.2f}" == stated


def test_the_times_of_replayed_steps_are_the_measured_ones():
    for case, text in (
        ("listops at scale lab", "takes {} ms a step instead of {}"),
        ("curves at scale evening", "`curves` at evening {} instead of {}"),
    ):
        times = (f"{measured(case, column):.1f}" for column in ("graph_ms", "ms"))
        assert text.format(*times) in PAGE


def test_all_measured_cases_are_right_and_complete():
    assert {row["status"] for row in ROWS} == {"ok"}
    assert sum(row["part"] == "correctness" for row in ROWS) == 24
