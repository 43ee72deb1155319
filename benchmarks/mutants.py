"""Do a room's tests notice a change of its code? Small changes, drawn at random, test the tests.

    python -m benchmarks.mutants                      # 80 with seed 35, twelve rooms: half an hour
    python -m benchmarks.mutants --again              # the survivors once more, after new tests
    python -m benchmarks.mutants --claims --mutations 40    # of claims/ alone: ten minutes
    python -m benchmarks.mutants --seed 36 --mutations 24

A mutation swaps an operator or the sides of a choice, changes a number or a truth value, removes a
`not`, a minus, an argument or a statement; not in texts, annotations and raised errors. The room's
tests run in a copy of the checkout, the quick ones first, until one fails: the mutant is killed.
Each result is written at once to results/mutants.json and .md (another seed's to
`mutants-<seed>`). Why a mutant survives is written into the JSON by hand, as `reason`, and is kept.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path

from benchmarks.provenance import provenance
from benchmarks.table import as_markdown
from mambanorm_study.basics.atomic import write_text
from mambanorm_study.basics.settings import ROOT

RESULTS = Path(__file__).with_name("results")
LEASES = (
    "lease or died or one_process or user or dies or line or shown_to or full_disk or goes_on_from"
    " or another_store"
)
ROOMS = {
    "norms": (
        "mambanorm/norms/*.py",
        (
            "tests/mambanorm/norms/test_norms.py",
            "tests/mambanorm/norms/test_behaviour.py",
            "tests/test_bad_input.py",
        ),
    ),
    "block": (
        "mambanorm/block.py",
        (
            "tests/mambanorm/test_block.py",
            "tests/mambanorm/test_arms.py",
            "tests/test_bad_input.py",
        ),
    ),
    "store": ("mambanorm_study/runs/store.py", ("tests/mambanorm_study/runs/test_store.py",)),
    "stored run": ("mambanorm_study/runs/result.py", ("tests/mambanorm_study/runs/test_store.py",)),
    "leases": (
        "mambanorm_study/runs/worker.py",
        (
            "tests/mambanorm_study/runs/test_sweep.py",
            "tests/mambanorm_study/runs/test_training_state.py",
            "tests/mambanorm_study/runs/test_store.py",
            f"-k={LEASES}",
        ),
    ),
    "rule": (
        "mambanorm_study/claims/rule.py",
        (
            "tests/mambanorm_study/claims/test_rule.py",
            "tests/mambanorm_study/claims/test_claims.py",
        ),
    ),
    "verdict": (
        "mambanorm_study/claims/verdict.py",
        (
            "tests/mambanorm_study/claims/test_claims.py",
            "tests/mambanorm_study/claims/test_evidence.py",
            "tests/mambanorm_study/claims/test_rule.py",
        ),
    ),
    "evidence": (
        "mambanorm_study/claims/evidence.py",
        (
            "tests/mambanorm_study/claims/test_evidence.py",
            "tests/mambanorm_study/claims/test_claims.py",
            "tests/mambanorm_study/claims/test_other_sources.py",
        ),
    ),
    "scan reference": (
        "mambanorm/operations/reference.py",
        ("tests/mambanorm/operations/test_scan.py",),
    ),
    "evaluation": (
        "mambanorm_study/runs/evaluation.py",
        ("tests/mambanorm_study/runs/test_run.py",),
    ),
    "schedule": ("mambanorm/loop.py", ("tests/mambanorm_study/runs/test_run.py",)),
    "loop": ("mambanorm/loop.py", ("tests/mambanorm_study/runs/test_run.py",)),
}
"""Room → its code, and the tests that judge it and nothing else. Of loop.py, SCHEDULE is a room of
its own."""
OF_CLAIMS = (
    *(
        f"tests/mambanorm_study/claims/test_{name}.py"
        for name in (
            "rule",
            "claims",
            "evidence",
            "protocol",
            "needed_runs",
            "other_sources",
        )
    ),
    "tests/mambanorm_study/report/test_verdict_page.py",
    "tests/mambanorm_study/tables/test_summaries.py",
    "tests/mambanorm_study/advice/test_which_arm.py",
)
SCHEDULE = {"SCHEDULES", "learning_rate"}

PAIRS = [
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
]
PAIRS += [(ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.BitAnd, ast.BitOr), (ast.And, ast.Or)]
SWAPPED = {a: b for pair in PAIRS for a, b in (pair, pair[::-1])} | {
    ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult,
}


@dataclass
class Mutant:
    """One changed place, and what became of it: the test that killed it at first, and now; "" for a
    survivor.
    """

    room: str
    where: str
    before: str
    after: str
    span: list[int]
    first: str | None = None
    now: str | None = None
    reason: str = ""


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Every mutation of a node itself."""
    but = partial(type(node), **vars(node))
    match node:
        case ast.Compare(ops=ops):
            yield from (
                but(ops=[*ops[:i], SWAPPED[type(op)](), *ops[i + 1 :]]) for i, op in enumerate(ops)
            )
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in SWAPPED:
            yield but(op=SWAPPED[type(op)]())
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.IfExp(body=body, orelse=orelse):
            yield but(body=orelse, orelse=body)
        case ast.Constant(value=bool() | int() | float() as v):
            yield but(
                value=not v
                if isinstance(v, bool)
                else v + 1
                if isinstance(v, int) or not v
                else v * 2
            )
        case ast.Call(args=args, keywords=keywords):
            yield from (
                but(keywords=keywords[:i] + keywords[i + 1 :])
                for i, k in enumerate(keywords)
                if k.arg
            )
            if len(args) > 1:
                yield but(args=args[:-1])
        case (
            ast.Expr(value=ast.Call())
            | ast.Assign(targets=[ast.Attribute() | ast.Subscript()])
            | ast.AugAssign()
        ):
            yield ast.Pass()
        case ast.Raise() | ast.Return(value=None) | ast.Break():
            yield ast.Pass()


def places(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below one that may be changed: no text, no annotation, no decorator, and nothing of
    what is said.
    """
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "warnings.warn":
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list") and not isinstance(
            node, ast.Raise | ast.JoinedStr
        ):
            for child in value if isinstance(value, list) else [value]:
                yield from places(child) if isinstance(child, ast.AST) else ()


def candidates(room: str) -> list[Mutant]:
    """All mutations of a room, in order."""
    found = []
    for path in sorted(ROOT.glob(ROOMS[room][0])):
        source = path.read_bytes()
        lines = [0, *(at.end() for at in re.finditer(b"\n", source))]  # columns count bytes
        for top in ast.parse(source).body:
            scheduling = bool(
                {getattr(top, "name", ""), getattr(getattr(top, "target", 0), "id", "")} & SCHEDULE
            )
            if path.name == "loop.py" and scheduling != (room == "schedule"):
                continue
            for node in places(top):
                for changed in changes(node):
                    span = [
                        lines[node.lineno - 1] + node.col_offset,
                        lines[node.end_lineno - 1] + node.end_col_offset,
                    ]
                    where = f"{path.relative_to(ROOT)}:{node.lineno}"
                    found.append(Mutant(room, where, ast.unparse(node), ast.unparse(changed), span))
    return found


def sample(seed: int, n: int) -> list[Mutant]:
    """`n` mutations, of each room as many; the rooms that stand first have one more if it does not
    come out even.
    """
    generator = random.Random(seed)
    sizes = [n // len(ROOMS) + (i < n % len(ROOMS)) for i in range(len(ROOMS))]
    return [
        one
        for room, size in zip(ROOMS, sizes, strict=True)
        for one in generator.sample(candidates(room), size)
    ]


def ignored(folder: str, names: list[str]) -> set[str]:
    """What a copy of the checkout does without; a room of the package is called `runs`, too."""
    return {".git", ".venv", "runs", "reports"} & set(names) if Path(folder) == ROOT else set()


def altered(mutant: Mutant) -> bytes:
    """The mutant's file."""
    source, (start, end) = (ROOT / mutant.where.partition(":")[0]).read_bytes(), mutant.span
    after = mutant.after if mutant.after == "pass" else f"({mutant.after})"
    return source[:start] + after.encode() + source[end:]


def run_tests(root: Path, *arguments: str, limit_s: float) -> tuple[int | None, str]:
    """Exit code of pytest in a copy, None if it took too long, and what it said."""
    env = os.environ | dict(PYTHONPATH=str(root), OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-rfE",
        "--tb=no",
        "-p",
        "no:cacheprovider",
        *arguments,
    ]
    with tempfile.TemporaryFile("w+") as said:
        run = subprocess.Popen(
            command, cwd=root, env=env, stdout=said, stderr=said, start_new_session=True
        )
        with suppress(subprocess.TimeoutExpired):
            run.wait(limit_s)
        code = run.poll()
        with suppress(ProcessLookupError):  # what the tests started goes with them
            os.killpg(run.pid, signal.SIGKILL)
        run.wait()
        said.seek(0)
        return code, said.read()


@cache
def unchanged(root: Path, tests: tuple[str, ...]) -> tuple[str, float]:
    """The tests of a room on code as it is, all of which pass: a file that names them, quick ones
    first; seconds.
    """
    start, took = time.monotonic(), {}
    code, said = run_tests(root, *tests, "--durations=0", "--durations-min=0", limit_s=3600)
    if code != 0:
        raise SystemExit(f"the tests {tests} fail without any mutation:\n{said[-2000:]}")
    for seconds, name in re.findall(
        r"^([\d.]+)s (?:setup|call|teardown) +(\S.*?) *$", said, re.MULTILINE
    ):
        took[name] = took.get(name, 0.0) + float(seconds)
    (root / "order").write_text("\n".join(sorted(took, key=took.get)))
    return (root / "order").rename(
        root / f"{Path(tests[0]).stem}.order"
    ).name, time.monotonic() - start


def judge(root: Path, mutant: Mutant) -> str:
    """The test that kills it in this copy, or ""."""
    order, seconds = unchanged(root, ROOMS[mutant.room][1])
    path = root / mutant.where.partition(":")[0]
    path.write_bytes(altered(mutant))
    code, said = run_tests(root, f"@{order}", limit_s=3 * seconds + 60)
    path.write_bytes((ROOT / path.relative_to(root)).read_bytes())
    failed = re.search(r"^(?:FAILED|ERROR) tests/\S*?::(\w+)", said, re.MULTILINE)
    return "" if code == 0 else "time out" if code is None else failed[1] if failed else "import"


def page(head: dict, mutants: list[Mutant]) -> str:
    """The results as Markdown."""

    def code(text: str) -> str:
        return (
            "`"
            + textwrap.shorten(text, 90, placeholder="…").replace("|", "\\|").replace("`", "'")
            + "`"
        )

    def fate(m: Mutant) -> str:
        if not m.now:
            return "not judged yet" if m.now is None else f"**nothing**: {m.reason or 'a hole'}"
        return m.now if m.first else f"{m.now} (added for it)"

    counts = [["room", "mutations", "killed at first", "killed now", "by"]]
    for room, (_, tests) in (ROOMS | {"all": ("", ())}).items():
        some = [m for m in mutants if room in (m.room, "all")]
        cells = (len(some), sum(bool(m.first) for m in some), sum(bool(m.now) for m in some))
        counts.append([room, *map(str, cells), ", ".join(tests).replace("tests/", "")])
    lines = [["where", "is", "becomes", "killed by"]]
    lines += [
        [m.where.removeprefix("mambanorm/"), code(m.before), code(m.after), fate(m)]
        for m in mutants
    ]
    facts = "\n".join(f"- {name}: {value}" for name, value in head.items())
    parts = [
        "# Code changed at random, and the tests that notice",
        facts,
        as_markdown(counts),
        as_markdown(lines),
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=35)
    parser.add_argument("--mutations", type=int, default=80)
    parser.add_argument("--workers", type=int, default=1, help="so many rooms at a time")
    parser.add_argument("--again", action="store_true", help="only those that survived")
    parser.add_argument("--rooms", nargs="+", choices=ROOMS, default=list(ROOMS), metavar="ROOM")
    parser.add_argument("--claims", action="store_true", help="of claims/ alone, by its own tests")
    options = parser.parse_args()
    stem = "mutants-claims" if options.claims else "mutants"
    if options.claims:
        ROOMS.clear()
        ROOMS["claims"] = (
            "mambanorm_study/claims/*.py",
            OF_CLAIMS,
        )
        options.rooms = ["claims"]
    stored = (
        RESULTS / f"{stem}.json" if options.seed == 35 else RESULTS / f"{stem}-{options.seed}.json"
    )
    known = [Mutant(**facts) for facts in json.loads(stored.read_text())] if stored.exists() else []
    mutants = sample(options.seed, options.mutations)
    mutants = [
        next((k for k in known if (k.where, k.span, k.after) == (m.where, m.span, m.after)), m)
        for m in mutants
    ]
    command = "--claims" if options.claims else f"--seed {options.seed}"
    head = provenance(f"python -m benchmarks.mutants {command} --mutations {options.mutations}")

    def write() -> None:
        write_text(
            stored, json.dumps([asdict(m) for m in mutants], indent=1, ensure_ascii=False) + "\n"
        )
        write_text(stored.with_suffix(".md"), page(head, mutants))

    def judge_room(room: str) -> None:
        todo = [
            m
            for m in mutants
            if m.room == room and (m.first is None or (options.again and not m.now))
        ]
        with tempfile.TemporaryDirectory() as folder:
            if todo:
                root = shutil.copytree(ROOT, Path(folder) / "kit", ignore=ignored)
            for mutant in todo:
                mutant.now = judge(root, mutant)
                mutant.first = mutant.now if mutant.first is None else mutant.first
                write()
                print(
                    f"{mutant.where}: {mutant.before} → {mutant.after}: {mutant.now or 'SURVIVES'}",
                    flush=True,
                )

    with ThreadPoolExecutor(options.workers) as pool:
        list(pool.map(judge_room, options.rooms))
    write()  # reasons may have come


if __name__ == "__main__":
    main()
