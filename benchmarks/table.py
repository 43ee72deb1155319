"""Rows → tables and targets: what is printed, what the Markdown file says, which target is reached.

A ratio is a row's median over the median of another row of its group: `÷ floor` 2.3 is 2.3 times
the floor, and a peer's `÷ ours` 20 is 20 times as slow as ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from benchmarks.cases import NAIVE, NORMS_AT_EVERY_SITE, shape_text
from benchmarks.timing import Row
from mambanorm_study.basics.text import plural

# cases that others are compared with, in the order of the columns
BASES = ("floor", "ours", "None>SSM>None", "LN", "NormVary")


@dataclass(frozen=True)
class TargetResult:
    """A target and what was measured: `measured` and the limit are ratios."""

    target: str
    wanted: str
    measured: float
    reached: bool


@dataclass(frozen=True)
class Target:
    """A ratio, and the most or the least it should be."""

    text: str
    measure: Callable[[Sequence[Row]], float | None]
    limit: float
    at_least: bool = False

    def check(self, rows: Sequence[Row]) -> TargetResult | None:
        """Return what the rows say about the target; None if it was not measured."""
        measured = self.measure(rows)
        if measured is None:
            return None
        reached = measured >= self.limit if self.at_least else measured <= self.limit
        wanted = f"{'≥' if self.at_least else '≤'} {self.limit:g}×"
        return TargetResult(self.text, wanted, measured, reached)


def ratio(
    section: str, name: str, base: str, shape: tuple[int, ...], group: str = ""
) -> Callable[[Sequence[Row]], float | None]:
    """Return a function from rows to the ratio of two cases of one shape on two threads."""

    def measure(rows: Sequence[Row]) -> float | None:
        for row in rows:
            same = (row.section, row.name, row.shape, row.threads) == (section, name, shape, 2)
            if same and row.group.startswith(group):
                return row.ratios.get(base)
        return None

    return measure


def variation(column: str, group: str) -> Callable[[Sequence[Row]], float | None]:
    """Return a function from rows to the highest over the lowest value per token, from length 512
    to 8192; None unless both ends were measured.
    """

    def measure(rows: Sequence[Row]) -> float | None:
        rows = [row for row in rows if row.section == "length" and row.group.endswith(group)]
        values = {row.shape[1]: getattr(row, column) for row in rows}
        if values.get(512) is None or values.get(8192) is None:
            return None
        measured = [v for n, v in values.items() if 512 <= n <= 8192 and v is not None]
        return max(measured) / min(measured)

    return measure


SMALL, MIDDLE, LARGE = (64, 64, 32, 16), (32, 256, 64, 16), (16, 512, 128, 16)
SCAN, NORM = (16, 256, 128, 16), (32, 256, 128, 16)


def step_targets() -> list[Target]:
    """Return the targets of the training step, beside its floor and beside mambapy."""
    targets = []
    for shape, limit in ((SMALL, 3.5), (MIDDLE, 2.4), (LARGE, 2.0)):
        text = f"step by its floor, {shape_text(shape[:3])}"
        targets.append(Target(text, ratio("step", "ours", "floor", shape), limit))
    for shape, limit in ((SMALL, 15), (MIDDLE, 20), (LARGE, 30)):
        text = f"mambapy's step by ours, {shape_text(shape[:3])}"
        targets.append(Target(text, ratio("step", "mambapy", "ours", shape), limit, True))
    return targets


def length_targets() -> list[Target]:
    """Return the targets of the cost per token of longer sequences."""
    targets = []
    for column, cost in (("us_per_token", "time"), ("kb_per_token", "peak memory")):
        for group, words in (("a batch", "tokens fixed"), ("one row", "one row")):
            text = f"{cost} per token from length 512 to 8192, {words}"
            targets.append(Target(text, variation(column, group), 1.5))
    return targets


def site_targets() -> list[Target]:
    """Return the targets of a norm at a site inside the block."""
    targets = []
    for norm in NORMS_AT_EVERY_SITE:
        for site in ("gated", "B", "C", "delta", "branch"):
            one = f"one block with {norm} at {site} by one with it after the SSM"
            arm, base = f"None>SSM>None+{site}:{norm}", f"None>SSM>{norm}"
            measure = ratio("norms", arm, base, MIDDLE, f"one block, {norm} at")
            targets.append(Target(f"{one}, {shape_text(MIDDLE[:3])}", measure, 1.2))
    return targets


TARGETS = (
    *step_targets(),
    Target(
        f"mambapy's scan by ours, forward + backward, {shape_text(SCAN)}",
        ratio("scan", "mambapy", "ours", SCAN, "forward + backward"),
        30,
        True,
    ),
    *length_targets(),
    *site_targets(),
    Target(
        f"step under watch by itself, {shape_text(MIDDLE[:3])}",
        ratio("watch", "watched", "ours", MIDDLE),
        1.03,
    ),
    Target(
        f"NormVary by LN, forward + backward, {shape_text(NORM[:3])}",
        ratio("norms", "NormVary", "LN", NORM),
        2.0,
    ),
)


def check_targets(rows: Sequence[Row]) -> list[TargetResult]:
    """Return the result of every target that was measured."""
    results = [target.check(rows) for target in TARGETS]
    return [result for result in results if result is not None]


# --------------------------------------------------------------------------------------------------
# tables as lists of lines of cells, the header first


def heading(rows: Sequence[Row]) -> str:
    """Return the heading of a group's table."""
    return f"{rows[0].section} · {rows[0].group} · {plural(rows[0].threads, 'thread')}"


def table(rows: Sequence[Row]) -> list[list[str]]:
    """Return one group as cells."""
    if rows[0].section == "length":
        return _length_table(rows)
    if rows[0].section == "runs":
        return _runs_table(rows)
    names = {row.name for row in rows}
    bases = [name for name in BASES if name in names]
    if NAIVE not in names and "NormVary" in bases:
        bases.remove("NormVary")  # the base of its naive twin only
    lines = [["", "ms", "quartiles", *(f"÷ {base}" for base in bases), "peak MB", "runs"]]
    for row in rows:
        ratios = row.ratios | {row.name: 1.0 if row.median_ms else None}
        cells = [_times(ratios.get(base)) for base in bases]
        lines.append([row.name, *_time_cells(row), *cells, _number(row.peak_mb), _runs(row)])
    return lines


def _length_table(rows: Sequence[Row]) -> list[list[str]]:
    costs = ["µs per token", "peak MB", "kB per token"]
    lines = [["rows × length", "ms", "quartiles", *costs, "runs"]]
    for row in rows:
        size = f"{row.shape[0]:,} × {row.shape[1]:,}"
        cells = map(_number, (row.us_per_token, row.peak_mb, row.kb_per_token))
        lines.append([size, *_time_cells(row), *cells, _runs(row)])
    return lines


def _runs_table(rows: Sequence[Row]) -> list[list[str]]:
    lines = [["", "ms a run", "quartiles", "runs an hour", "judged by"]]
    for row in rows:
        lines.append([row.name, *_time_cells(row), _number(row.runs_per_hour), _runs(row)])
    return lines


def target_table(results: Sequence[TargetResult]) -> list[list[str]]:
    """Return the targets as cells."""
    lines = [["target", "wanted", "measured", ""]]
    for result in results:
        reached = "reached" if result.reached else "NOT YET"
        lines.append([result.target, result.wanted, _times(result.measured), reached])
    return lines


def _time_cells(row: Row) -> list[str]:
    spread = "" if row.low_ms is None else f"{_number(row.low_ms)}–{_number(row.high_ms)}"
    return [_number(row.median_ms), spread]


def _runs(row: Row) -> str:
    """Return how often a case was timed, or why it was not."""
    return str(row.repeats) if row.status == "ok" else f"{row.status}: {row.note}"


def _number(value: float | None) -> str:
    """Return about three digits, and nothing for None."""
    if value is None:
        return ""
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def _times(value: float | None) -> str:
    return "" if value is None else f"{_number(value)}×"


def as_text(lines: Sequence[Sequence[str]]) -> str:
    """Return aligned columns."""
    header, *body = lines
    return pd.DataFrame(body, columns=header).to_string(index=False)


def as_markdown(lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    header, *body = lines
    rule = ["---", *["---:"] * (len(header) - 2), "---"]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *body))


def report(head: dict, measured: Sequence[Sequence[Row]], pictures: Sequence[str] = ()) -> str:
    """Return the whole measurement as a Markdown page; `measured` has a list of rows a group."""
    facts = "\n".join(f"- {name}: {value}" for name, value in head.items())
    parts = ["# What it costs", facts]
    results = check_targets([row for rows in measured for row in rows])
    if results:
        parts += ["## Targets", as_markdown(target_table(results))]
    parts += [f"![{name}]({name})" for name in pictures]
    for rows in measured:
        parts += [f"## {heading(rows)}", as_markdown(table(rows))]
    return "\n\n".join(parts) + "\n"
