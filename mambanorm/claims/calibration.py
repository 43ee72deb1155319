"""The table of how often the verdicts are wrong, and of what they find: claims × scenarios, effects and seeds.

jobs, calibrate                    the cells, and the share of each verdict in them
errors, power, controls            three views of it; calibration_text: all of them as Markdown
worst                              the worst claim of each scenario
recorded_calibration               the table of the repository
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
from tqdm.auto import tqdm

from mambanorm.basics.atomic import replacing
from mambanorm.basics.errors import unknown
from mambanorm.claims.bounds import Noise, Risk, half_width
from mambanorm.claims.calibrate import BOUNDARY, BROKEN, CONTROLS, INSIDE, SCENARIOS, STUDIES, printed_arms, simulate
from mambanorm.claims.evidence import splits_of
from mambanorm.claims.hypotheses import CLAIMS, Claim, find_claim
from mambanorm.claims.protocol import BOUNDS, ONE_SIDED, PROTOCOL, fingerprint
from mambanorm.claims.verdict import VERDICTS
from mambanorm.training.recorded_results import RESULTS

EFFECTS = (1.0, 2.0, 4.0, 8.0)
"""× the threshold, of every deciding comparison."""

SEEDS = (6, 8, 12, 16, 32)

WHO = [name for name in CLAIMS if name.endswith("s")] + ["H2v"]
"""The claims that are simulated: the others about images are judged as those about sequences are, norm for norm, and
A1v to A3v as H8s is, A3v twice."""


def jobs(
    claims: Iterable[str] | None = None,
    scenarios: Iterable[str] | None = None,
    seeds: Iterable[int] = SEEDS,
    studies: int = STUDIES,
) -> list[dict]:
    """The cells of the table: errors at the boundary in every scenario (8 seeds), power, and the controls.

    ValueError for an unknown claim or scenario."""
    if wrong := [name for name in scenarios or () if name not in SCENARIOS]:
        raise unknown("scenario", wrong[0], SCENARIOS)
    return [
        {"claim": name, "studies": studies} | cell
        for name in (WHO if claims is None else claims)
        for cell in _cells(find_claim(name), list(scenarios or SCENARIOS), list(seeds))
    ]


def _cells(claim: Claim, scenarios: list[str], seeds: list[int]) -> list[dict]:
    tuned = claim.runs == "tuned"
    other = {name for name in scenarios if SCENARIOS[name].task and claim.kind == "vision"}
    mine = [name for name in scenarios if name in INSIDE or (tuned and name not in other)]
    cells = [dict(truth=truth, scenario=name, seeds=8) for name in mine for truth in BOUNDARY]
    cells += [dict(truth=effect, scenario="plain", seeds=n) for n in seeds for effect in EFFECTS]
    cells += [dict(truth="equal", scenario="equal", seeds=8)] if tuned else []
    printed = tuned and not claim.paper.startswith("no ") and printed_arms(claim)
    return cells + [dict(truth="paper", scenario="paper", seeds=n) for n in (8, 16) if printed]


def _run(cell: dict) -> dict:
    asked = {name: cell[name] for name in ("seeds", "studies")}
    return cell | simulate(cell["claim"], cell["truth"], cell["scenario"], **asked)


def calibrate(cells: list[dict], workers: int = 1, progress: bool = True, keep: Path | None = None) -> pd.DataFrame:
    """One row a cell of `jobs`: claim, scenario, truth, seeds, studies, and the share of each verdict.

    `keep`: a file in which every finished cell is noted, so that the same call goes on where it was broken off."""
    noted = _noted(keep)
    todo = [cell for cell in cells if _key(cell) not in noted]
    with ExitStack() as stack:
        made = map(_run, todo)
        if workers > 1:
            made = stack.enter_context(ProcessPoolExecutor(workers, mp_context=get_context("spawn"))).map(_run, todo)
        file = stack.enter_context(keep.open("a", encoding="utf-8")) if keep else None
        bar = tqdm(made, initial=len(cells) - len(todo), total=len(cells), unit="cell", disable=not progress)
        for cell, row in zip(todo, bar, strict=True):
            noted[_key(cell)] = row
            if file is not None:
                print("\n" + json.dumps([_key(cell), row]), file=file, flush=True)  # behind a line that was broken off
    frame = (
        pd.DataFrame([noted[_key(cell)] for cell in cells])
        .reindex(columns=[*COLUMNS, *VERDICTS])
        .fillna(dict.fromkeys(VERDICTS, 0.0))
    )
    return frame.assign(truth=frame.truth.map(lambda truth: truth if isinstance(truth, str) else f"{truth:g} ×"))


def _key(cell: dict) -> str:
    """A cell, the rule it was simulated with, and what its scenario was."""
    rule, scenario = fingerprint([find_claim(cell["claim"])]), (SCENARIOS | CONTROLS)[cell["scenario"]]
    return json.dumps([rule, repr(scenario), cell], sort_keys=True)


def _noted(keep: Path | None) -> dict[str, dict]:
    """The cells noted in a file; a last line that was broken off does not count."""
    if keep is None or not keep.is_file():
        return {}
    found = {}
    for line in keep.read_text("utf-8").splitlines():
        with suppress(ValueError):
            key, row = json.loads(line)
            found[key] = row
    return found


COLUMNS = ["claim", "scenario", "truth", "seeds", "studies"]
RECORDED = RESULTS / f"calibration-{BOUNDS}.csv"
UNFINISHED = RECORDED.with_suffix(".unfinished")
READABLE = PROTOCOL.with_name("CALIBRATION.md")


def recorded_calibration() -> pd.DataFrame:
    """The table of the repository, of the version in force; empty if it was not made."""
    return pd.read_csv(RECORDED) if RECORDED.is_file() else pd.DataFrame(columns=[*COLUMNS, *VERDICTS])


def record_calibration(frame: pd.DataFrame) -> tuple[Path, Path]:
    """Writes the table of the repository, as data and to read; returns where."""
    for path, text in ((RECORDED, frame.to_csv(index=False)), (READABLE, calibration_text(frame))):
        with replacing(path) as temporary:
            temporary.write_text(text, "utf-8")
    UNFINISHED.unlink(missing_ok=True)
    return RECORDED, READABLE


def errors(frame: pd.DataFrame) -> pd.DataFrame:
    """claim × scenario: how often a verdict at the boundary is wrong, per cent, "reproduced / contradicted"."""
    found: dict[str, dict[str, str]] = {}
    for (claim, scenario), rows in frame[frame.truth.isin(BOUNDARY)].groupby(["claim", "scenario"], sort=False):
        share = {row["truth"]: 100 * row[BOUNDARY[row["truth"]]] for row in rows.to_dict("records")}
        found.setdefault(claim, {})[scenario] = " / ".join(
            f"{share[truth]:.1f}" for truth in BOUNDARY if truth in share
        )
    return pd.DataFrame.from_dict(found, orient="index").fillna("")


def worst(frame: pd.DataFrame) -> pd.DataFrame:
    """scenario × word: how often a verdict at the boundary is wrong for the claim where it is so most often, per cent;
    and whether what the rule takes for granted holds in the scenario, and what the scenario is. No row for no cell."""
    edge = frame[frame.truth.isin(BOUNDARY)]
    wrong = edge.assign(share=[100 * row[BOUNDARY[row["truth"]]] for row in edge.to_dict("records")])
    table = wrong.pivot_table(index="scenario", columns="truth", values="share", aggfunc="max", sort=False).round(1)
    table = table.rename(columns={truth: f"falsely {word}" for truth, word in BOUNDARY.items()})
    table["what the rule takes for granted"] = ["broken" if name in BROKEN else "given" for name in table.index]
    return table.assign(studies=[SCENARIOS[name].what for name in table.index])


def power(frame: pd.DataFrame) -> pd.DataFrame:
    """claim × seeds: how often it is reproduced, per cent, if every comparison is 1 / 2 / 4 / 8 × its threshold."""
    found: dict[str, dict[int, str]] = {}
    for (claim, seeds), rows in frame[frame.truth.str.endswith("×")].groupby(["claim", "seeds"], sort=False):
        found.setdefault(claim, {})[seeds] = " / ".join(f"{100 * share:.0f}" for share in rows.reproduced)
    return pd.DataFrame.from_dict(found, orient="index").fillna("")


def controls(frame: pd.DataFrame) -> pd.DataFrame:
    """claim × control: how often it is reproduced / contradicted, per cent, with the paper's numbers and equal arms."""
    found: dict[str, dict[str, str]] = {}
    for row in frame[frame.scenario.isin(CONTROLS)].to_dict("records"):
        name = f"the paper's numbers, {row['seeds']} seeds" if row["truth"] == "paper" else "all arms equal"
        share = [f"{100 * row[word]:.1f}" for word in ("reproduced", "contradicted")]
        found.setdefault(row["claim"], {})[name] = " / ".join(share)
    return pd.DataFrame.from_dict(found, orient="index").fillna("")


def smallest_effects(
    sds: tuple[float, ...] = (0.5, 1.4, 4.0), levels: tuple[int, ...] = (30, 50, 80, 95)
) -> pd.DataFrame:
    """How far above its threshold the mean difference of two arms must lie, in points, for one comparison to hold.

    By the accuracy of the better arm and the noise of a run, at 8 / 12 / 16 / 32 seeds; digits, no divergence seen.
    """
    ratio, found = splits_of("digits", "quick").ratio, {}
    for level in levels:
        for sd in sds:
            risks = {n: (Risk(level - 10.0, 0.0, 0.0, 0, 3 * n),) for n in (8, 12, 16, 32)}
            told = [half_width(Noise(sd * 2**0.5, ratio, 0.0), n, ONE_SIDED, risks[n]) for n in risks]
            found.setdefault(f"at {level} %", {})[f"noise {sd:g}"] = " / ".join(f"{width:.1f}" for width in told)
    return pd.DataFrame.from_dict(found, orient="index")


def calibration_text(frame: pd.DataFrame) -> str:
    """All of it as Markdown."""
    broken = frame.scenario.isin(BROKEN)
    studies = ", ".join(f"{n:,}" for n in dict.fromkeys(frame.studies))
    parts = [
        f"# How often the verdicts are wrong, protocol {BOUNDS}",
        f"Whole made-up studies through the same code as real ones, {studies} a cell: `mambanorm calibrate`. "
        "The claims about images are judged as those about sequences; H2v alone is another.",
    ]
    tables = {
        "Wrong at the boundary: reproduced / contradicted, per cent, 8 seeds": errors(frame[~broken]),
        "The same where runs do not fail as the rule takes for granted": errors(frame[broken]),
        "Found: reproduced, per cent, where every comparison is 1 / 2 / 4 / 8 × its threshold, by seeds": power(frame),
        "Controls: reproduced / contradicted, per cent": controls(frame),
    }
    parts += [f"## {title}\n\n{as_table(table)}" for title, table in tables.items() if len(table)]
    parts.append(f"## Told at 8, 12, 16 and 32 seeds\n\n{as_table(smallest_effects())}")
    asked = [f"- {name}: {SCENARIOS[name].what}" for name in dict.fromkeys(frame.scenario) if name in SCENARIOS]
    plain = SCENARIOS["plain"]
    noise = f"Noise of a run {plain.sd} points, of a seed {plain.shared}; arms at 50 %, chance 10 %."
    return "\n\n".join([*parts, "## Scenarios\n\n" + "\n".join(asked), noise]) + "\n"


def as_table(table: pd.DataFrame) -> str:
    """A Markdown table with its index as the first column."""
    head = [["claim", *map(str, table.columns)], ["---"] * (1 + len(table.columns))]
    rows = [[index, *map(str, row)] for index, *row in table.itertuples()]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [*head, *rows])
