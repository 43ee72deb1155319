"""Rows → tables and verdicts: what is printed, what stands in the Markdown file, which target is
reached.

A ratio is a row's median by the median of another row of its group: `÷ floor` 2.3 is 2.3 times the
floor, and a peer's `÷ ours` 20 is 20 times as slow as ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from benchmarks.cases import NAIVE, sign

BASES = ("floor", "ours", "None>SSM>None", "LN", "NormVary")
"""The rows that others are set against, in the order of the columns; a group shows those it has."""


@dataclass(frozen=True)
class Target:
    """Something to reach: a number of the rows, and the most or the least it should be."""

    text: str
    measure: Callable[[list[dict]], float | None]
    limit: float
    at_least: bool = False

    def verdict(self, rows: list[dict]) -> dict:
        """text, wanted, measured (None if the rows do not say), reached."""
        measured = self.measure(rows)
        wanted = f"{'≥' if self.at_least else '≤'} {self.limit:g}×"
        reached = None
        if measured is not None:
            reached = measured >= self.limit if self.at_least else measured <= self.limit
        return {"target": self.text, "wanted": wanted, "measured": measured, "reached": reached}


def ratio(
    section: str, name: str, base: str, *shape: int, threads: int = 2, group: str = ""
) -> Callable:
    """The ratio of two rows of one shape, None where it was not measured."""

    def find(rows: list[dict]) -> float | None:
        for row in rows:
            same = (row["section"], row["name"], tuple(row["shape"]), row["threads"]) == (
                section,
                name,
                shape,
                threads,
            )
            if same and row["group"].startswith(group):
                return row["ratios"].get(base)
        return None

    return find


def variation(column: str, group: str = "", first: int = 512, last: int = 8192) -> Callable:
    """Highest by lowest value per token among the lengths first…last; None unless both ends are
    there."""

    def find(rows: list[dict]) -> float | None:
        lengths = [
            row for row in rows if row["section"] == "length" and row["group"].endswith(group)
        ]
        at = {row["shape"][1]: row[column] for row in lengths if first <= row["shape"][1] <= last}
        found = [value for value in at.values() if value]
        return max(found) / min(found) if at.get(first) and at.get(last) else None

    return find


SMALL, MIDDLE, LARGE = (64, 64, 32, 16), (32, 256, 64, 16), (16, 512, 128, 16)
SCAN, NORM, BLOCK = (16, 256, 128, 16), (32, 256, 128, 16), (32, 256, 64, 16)
TARGETS = (
    Target(f"step by its floor, {sign(SMALL[:3])}", ratio("step", "ours", "floor", *SMALL), 3.5),
    Target(f"step by its floor, {sign(MIDDLE[:3])}", ratio("step", "ours", "floor", *MIDDLE), 2.4),
    Target(f"step by its floor, {sign(LARGE[:3])}", ratio("step", "ours", "floor", *LARGE), 2.0),
    Target(
        f"mambapy's step by ours, {sign(SMALL[:3])}",
        ratio("step", "mambapy", "ours", *SMALL),
        15,
        True,
    ),
    Target(
        f"mambapy's step by ours, {sign(MIDDLE[:3])}",
        ratio("step", "mambapy", "ours", *MIDDLE),
        20,
        True,
    ),
    Target(
        f"mambapy's step by ours, {sign(LARGE[:3])}",
        ratio("step", "mambapy", "ours", *LARGE),
        30,
        True,
    ),
    Target(
        f"mambapy's scan by ours, forward + backward, {sign(SCAN)}",
        ratio("scan", "mambapy", "ours", *SCAN, group="forward + backward"),
        30,
        True,
    ),
    Target(
        "time per token from length 512 to 8192, tokens fixed",
        variation("us_per_token", "a batch"),
        1.5,
    ),
    Target(
        "time per token from length 512 to 8192, one row", variation("us_per_token", "one row"), 1.5
    ),
    Target(
        "peak memory per token from length 512 to 8192, tokens fixed",
        variation("kb_per_token", "a batch"),
        1.5,
    ),
    Target(
        "peak memory per token from length 512 to 8192, one row",
        variation("kb_per_token", "one row"),
        1.5,
    ),
    *(
        Target(
            f"one block with {norm} at {site} by one with it after the SSM, {sign(BLOCK[:3])}",
            ratio(
                "norms",
                f"None>SSM>None+{site}:{norm}",
                f"None>SSM>{norm}",
                *BLOCK,
                group=f"one block, {norm} at",
            ),
            1.2,
        )
        for norm in ("RMSN", "IN")
        for site in ("gated", "B", "C", "delta", "branch")
    ),
    Target(
        f"step under watch by itself, {sign(MIDDLE[:3])}",
        ratio("watch", "watched", "ours", *MIDDLE),
        1.03,
    ),
    Target(
        f"NormVary by LN, forward + backward, {sign(NORM[:3])}",
        ratio("norms", "NormVary", "LN", *NORM),
        2.0,
    ),
)


def verdicts(rows: list[dict]) -> list[dict]:
    """Every target that these rows say something about."""
    found = [target.verdict(rows) for target in TARGETS]
    return [verdict for verdict in found if verdict["measured"] is not None]


# --------------------------------------------------------------------------------------------------
# tables as lists of lines of cells, the header first


def groups_of(rows: Iterable[dict]) -> list[tuple[str, list[dict]]]:
    """(heading, rows) of each group, in order."""
    keyed = groupby(rows, key=lambda row: (row["section"], row["group"], row["threads"]))
    return [
        (f"{section} · {title} · {threads} thread{'s' if threads > 1 else ''}", list(some))
        for (section, title, threads), some in keyed
    ]


def table(rows: Sequence[dict]) -> list[list[str]]:
    """One group as cells: name, median, quartiles, ratios to the rows that others are set against,
    memory, repeats."""
    if rows[0]["section"] == "length":
        return _length_table(rows)
    if rows[0]["section"] == "runs":
        return _runs_table(rows)
    bases = [
        name for name in BASES if any(row["name"] == name for row in rows) and _compares(name, rows)
    ]
    lines = [["", "ms", "quartiles", *(f"÷ {base}" for base in bases), "peak MB", "runs"]]
    for row in rows:
        ratios = [
            _times(1.0 if row["name"] == base and row["median_ms"] else row["ratios"].get(base))
            for base in bases
        ]
        lines.append([row["name"], *_time_cells(row), *ratios, _number(row["peak_mb"]), _runs(row)])
    return lines


def _compares(base: str, rows: Sequence[dict]) -> bool:
    """NormVary is a base for its naive twin only."""
    return base != "NormVary" or any(row["name"] == NAIVE for row in rows)


def _length_table(rows: Sequence[dict]) -> list[list[str]]:
    lines = [
        ["rows × length", "ms", "quartiles", "µs per token", "peak MB", "kB per token", "runs"]
    ]
    for row in rows:
        size = f"{row['shape'][0]:,} × {row['shape'][1]:,}"
        per_token = [
            _number(row["us_per_token"]),
            _number(row["peak_mb"]),
            _number(row["kb_per_token"]),
        ]
        lines.append([size, *_time_cells(row), *per_token, _runs(row)])
    return lines


def _runs_table(rows: Sequence[dict]) -> list[list[str]]:
    lines = [["", "ms a run", "quartiles", "runs an hour", "judged by"]]
    return lines + [
        [row["name"], *_time_cells(row), _number(row["runs_per_hour"]), _runs(row)] for row in rows
    ]


def target_table(found: Sequence[dict]) -> list[list[str]]:
    lines = [["target", "wanted", "measured", ""]]
    for one in found:
        lines.append(
            [
                one["target"],
                one["wanted"],
                _times(one["measured"]),
                "reached" if one["reached"] else "NOT YET",
            ]
        )
    return lines


def _time_cells(row: dict) -> list[str]:
    spread = "" if row["low_ms"] is None else f"{_number(row['low_ms'])}–{_number(row['high_ms'])}"
    return [_number(row["median_ms"]), spread]


def _runs(row: dict) -> str:
    """How often it was timed; where it was not, why."""
    return str(row["repeats"]) if row["status"] == "ok" else f"{row['status']}: {row['note']}"


def _number(value: float | None) -> str:
    """Three digits or so; nothing for what was not measured."""
    if value is None:
        return ""
    return (
        f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
    )


def _times(value: float | None) -> str:
    return "" if value is None else f"{_number(value)}×"


def as_text(lines: Sequence[Sequence[str]]) -> str:
    """Columns aligned: the first and the last to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    last = len(widths) - 1
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in (0, last) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def as_markdown(lines: Sequence[Sequence[str]]) -> str:
    header, *body = lines
    rule = ["---", *["---:"] * (len(header) - 2), "---"]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *body))


def report(head: dict, rows: list[dict], pictures: Sequence[str] = ()) -> str:
    """The whole run as a Markdown page."""
    facts = [f"- {name}: {value}" for name, value in head.items()]
    parts = ["# What it costs", "\n".join(facts)]
    if found := verdicts(rows):
        parts += ["## Targets", as_markdown(target_table(found))]
    parts += [f"![{name}]({name})" for name in pictures]
    for heading, some in groups_of(rows):
        parts += [f"## {heading}", as_markdown(table(some))]
    return "\n\n".join(parts) + "\n"
