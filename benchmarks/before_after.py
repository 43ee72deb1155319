"""A training step of this checkout beside that of an earlier commit, in one run.

    python -m benchmarks.before_after 30bb0ef
    python -m benchmarks.before_after 30bb0ef --blocks mamba2 vision --rounds 60

Each of the two has a process of its own. They take turns, a step each, so that a busy moment of the
machine meets both. What counts is the processor's time of a whole step (forward, backward, AdamW)
on one thread, and its median; the table says this checkout's by the earlier one's. `floors` are the
three sizes of cpu.md's targets, on two threads, by the clock. The earlier commit is unpacked into a
temporary folder. Results go to benchmarks/results/before_after.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
ARMS = ("RMSN>SSM>None", "RMSN>SSM>GN", "NormVary>SSM>GN", "LN>SSM>LN", "None>SSM>None")
SIZES = {
    "mamba": ((32, 40, 32), (64, 64, 32), (32, 256, 64)),
    "mamba2": ((64, 64, 32), (32, 256, 64)),
    "vision": ((32, 64, 32), (32, 256, 64)),  # images of 8×8 and 16×16 positions
    "floors": ((64, 64, 32), (32, 256, 64), (16, 512, 128)),
}
"""(B, L, D) of a step, by what the blocks are."""
LAYERS = 4
ROUNDS, STEPS = 40, 3  # turns of each process, and steps a turn: the fastest of them counts


def packages() -> tuple:
    """Return the package of the sequence models and that of the image models.

    Commits before 2026-11-26 have one package.
    """
    import mambanorm as mn

    if hasattr(mn, "ImageClassifier"):
        return mn, mn
    import mambanorm_study as study

    study.Mamba2Block  # noqa: B018 (importing it registers "mamba2")
    return mn, study


def step_of(block: str, arm: str, batch: int, length: int, width: int):
    """A function that makes one training step of a classifier; by public names, which both
    checkouts have.
    """
    import torch
    import torch.nn.functional as F

    mn, study = packages()
    torch.set_num_threads(2 if block == "floors" else 1)
    torch.manual_seed(0)
    if block == "vision":
        side = int(length**0.5)
        model, x = (
            study.ImageClassifier(10, in_channels=1, d_model=width, n_layers=LAYERS, arm=arm),
            (side, side, 1),
        )
    else:
        model = "mamba" if block == "floors" else block
        model = mn.SequenceClassifier(
            10, in_features=1, d_model=width, n_layers=LAYERS, arm=arm, model=model
        )
        x = length, 1
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x, labels = torch.randn(batch, *x), torch.randint(10, (batch,))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()

    return step


def serve() -> None:
    """The process of one checkout: a line in, [block, arm, B, L, D, steps]; a line out, seconds of
    the fastest step.
    """
    import time

    ready = {}
    for line in sys.stdin:
        *case, steps = json.loads(line)
        key = tuple(case)
        if key not in ready:
            ready.clear()  # one model at a time
            ready[key] = step_of(*key)
            for _ in range(3):
                ready[key]()
        seconds, clock = [], time.perf_counter if key[0] == "floors" else time.process_time
        for _ in range(steps):
            start = clock()
            ready[key]()
            seconds.append(clock() - start)
        print(min(seconds), flush=True)


def started(checkout: Path) -> subprocess.Popen:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from runpy import run_path; "
        "run_path(sys.argv[2])['serve']()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, str(checkout), str(Path(__file__).resolve())],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
    )  # fmt: skip


def asked(process: subprocess.Popen, *request) -> float:
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def compare(earlier: Path, blocks: list[str], arms: list[str], rounds: int) -> pd.DataFrame:
    """One row a case: milliseconds of both, and their ratio."""
    processes, rows = [started(earlier), started(ROOT)], []
    for block in blocks:
        for size in SIZES[block]:
            for arm in arms[:1] if block == "floors" else arms:
                seconds = [], []
                for _ in range(rounds):
                    for process, found in zip(processes, seconds, strict=True):
                        found.append(asked(process, block, arm, *size, STEPS))
                before, after = (1000 * statistics.median(found) for found in seconds)
                sign = "(" + ", ".join(map(str, size)) + ")"
                rows.append(
                    dict(
                        block=block,
                        size=sign,
                        arm=arm,
                        before=before,
                        after=after,
                        ratio=after / before,
                    )
                )
                print(
                    f"{block:8} {sign:16} {arm:20} {before:8.2f} ms {after:8.2f} ms "
                    f"{after / before:6.3f}",
                    flush=True,
                )
    for process in processes:
        process.stdin.close()
        process.wait()
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("earlier", help="the earlier commit, or the folder of its checkout")
    parser.add_argument("--blocks", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--arms", nargs="+", default=list(ARMS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    earlier = options.earlier
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(earlier)
        if not checkout.is_dir():
            archive = subprocess.run(
                ["git", "archive", earlier], cwd=ROOT, check=True, capture_output=True
            )
            subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
            checkout = Path(folder)
        else:
            said = subprocess.run(
                ["git", "rev-parse", "--short", "HEAD"],
                cwd=checkout,
                capture_output=True,
                text=True,
            )
            earlier = said.stdout.strip()
        table = compare(checkout.resolve(), options.blocks, options.arms, options.rounds)
    text = report(table, earlier, options.rounds)
    (ROOT / "benchmarks" / "results" / "before_after.md").write_text(text)
    print(text)


def report(table: pd.DataFrame, earlier: str, rounds: int) -> str:
    """The page: what ran where, the medians, then every case."""
    from mambanorm_study.runs import machine

    facts = {
        "command": f"python -m benchmarks.before_after {earlier} --rounds {rounds}",
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "machine": machine.machine(),
        "commit": machine.git_commit() or "unknown",
        "versions": machine.versions(),
    }
    lines = ["# A training step, beside that of an earlier commit", ""]
    lines += [f"- {name}: {fact}" for name, fact in facts.items()]
    lines += ["", "| blocks | median | largest | cases |", "| --- | ---: | ---: | ---: |"]
    for block, rows in table.groupby("block", sort=False):
        lines.append(
            f"| {block} | {rows.ratio.median():.3f}× | {rows.ratio.max():.3f}× | {len(rows)} |"
        )
    lines += [
        "",
        "| blocks | (B, L, D) | arm | before, ms | after, ms | after ÷ before |",
        "|" + " --- |" * 6,
    ]
    for row in table.itertuples():
        lines.append(
            f"| {row.block} | {row.size} | {row.arm} | {row.before:.2f} | {row.after:.2f} "
            f"| {row.ratio:.3f}× |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
