"""What notebook 12, the command and the report show of the verdicts, but for the HTML table (verdict_html.py).

runs_to_judge   which runs: the recorded ones of a scale, or the reader's own
headline        a verdict for each claim, on models that were trained to the end
verdict_table   one row a claim;   describe, one_line: a verdict on a terminal
task_by_task    the verdicts of each task alone;   basis: what they stand on, in a line
words_of        the words of claims, and their bounds, at other seeds or with another threshold
lines_of_runs   how long the runs behind the verdicts trained
trained_inside  the recorded runs of trained models of §4.6, with what they kept of their inside
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from mambanorm.basics.settings import STUDY_SCALE, check_source, study_scale
from mambanorm.basics.text import plural
from mambanorm.claims.evidence import Evidence
from mambanorm.claims.frames import LOOKED_AT, recorded_under
from mambanorm.claims.hypotheses import CLAIMS
from mambanorm.claims.needed import runs_behind
from mambanorm.claims.protocol import VERSION
from mambanorm.claims.summaries import with_summaries
from mambanorm.claims.verdict import Verdict, judge
from mambanorm.runs import recorded_results
from mambanorm.runs.grid import base_config, check_seeds
from mambanorm.runs.store import load_runs
from mambanorm.study.experiments import failing_runs, failure_runs, growth_runs

NO_RUNS = pd.DataFrame(columns=[*LOOKED_AT, "arm"])
NOT_RECORDED = "Models trained to the end are not recorded here yet: `mambanorm record --scale evening` adds them."


@dataclass(frozen=True)
class RunsToJudge:
    """`frame`: the runs that are judged. `mine`: those of the reader's store at this scale."""

    frame: pd.DataFrame
    mine: pd.DataFrame
    scale: str
    source: str

    def __str__(self) -> str:
        """How many runs, made with what, under which protocol."""
        if self.source == "trained":
            return f"{len(self.mine)} runs of your store"
        described = recorded_results.describe_recorded(self.frame)
        return f"{self.scale}: {described}; {recorded_under(self.frame)}"


def runs_to_judge(
    scale: str | None = None,
    source: str | None = None,
    seeds: int | Iterable[int] | None = None,
    runs_dir: str | Path | None = None,
) -> RunsToJudge:
    """The runs that the verdicts of a scale stand on (None = the environment's, else trained models). `source` None =
    "recorded" where the kit has results of the scale, else "trained". `seeds` as in `of_seeds`, None = all. ValueError
    for an unknown scale or source."""
    scale = study_scale(scale)
    if (source := check_source(source)) == "auto":
        source = "recorded" if recorded_results.recorded_path(scale).is_file() else "trained"
    mine = of_seeds(with_summaries(load_runs(runs_dir, scale=scale), runs_dir), seeds, scale)
    frame = mine if source == "trained" else of_seeds(recorded_results.recorded(scale), seeds, scale)
    return RunsToJudge(frame, mine, scale, source)


def of_seeds(frame: pd.DataFrame, seeds: int | Iterable[int] | None, scale: str | None = None) -> pd.DataFrame:
    """The runs of the first `seeds` seeds, or of the seeds in a list; None = all of them."""
    if seeds is None or not len(frame):
        return frame
    if isinstance(seeds, int):
        return frame[frame.seed.rank(method="dense") <= seeds]
    return frame[frame.seed.isin(check_seeds(seeds, scale))]


def headline(frame: pd.DataFrame, scale: str = STUDY_SCALE, tasks: Iterable[str] | None = None) -> list[Verdict]:
    """A verdict for each claim of the study's sources."""
    evidence, tasks = Evidence(frame, scale), None if tasks is None else list(tasks)
    return [judge(name, evidence, scale=scale, tasks=tasks) for name in CLAIMS]


def verdict_table(
    frame: pd.DataFrame,
    claims: Iterable[str] | None = None,
    *,
    scale: str | None = None,
    tasks: Iterable[str] | None = None,
) -> pd.DataFrame:
    """One row a claim: id, claim, verdict, effect, low, high, unit, threshold, decided_by, paper, seeds, seeds_to_tell,
    protocol, fidelity, caveats. None = every claim."""
    rows, tasks, read = [], None if tasks is None else list(tasks), Evidence(frame, scale)
    for claim_id in CLAIMS if claims is None else claims:
        v = judge(claim_id, read, scale=read.scale, tasks=tasks)
        facts = dict(id=v.claim.id, claim=v.claim.words, verdict=v.said, effect=v.effect, low=v.ci[0], high=v.ci[1])
        facts |= dict(unit=v.unit, threshold=v.threshold, decided_by=v.decided_by, paper=v.paper, seeds=v.n_seeds)
        facts |= dict(seeds_to_tell=v.seeds_to_tell, protocol=v.protocol)
        rows.append(facts | dict(fidelity=v.fidelity, caveats="; ".join(v.caveats)))
    return pd.DataFrame(rows)


def describe(verdict: Verdict) -> str:
    """The verdict, its number, how often runs diverged and what else to know of it, a few lines."""
    claim = verdict.claim
    lines = [f"{claim.id:<5}{verdict.said:<14} {claim.words} ({claim.where})"]
    if verdict.n_seeds:
        seeds = plural(verdict.n_seeds, "seed")
        lines.append(f"     {verdict.decided_by}: {verdict.amount}, {seeds}, {verdict.fidelity}")
    beside = filter(None, (verdict.stability, *verdict.caveats))
    return "\n".join(lines + [f"     · {caveat}" for caveat in beside])


def one_line(verdict: Verdict) -> str:
    """A row of the table that the command line prints: id, verdict, effect with interval, seeds, what decided it, and
    what it lacks."""
    found = f"{verdict.amount:<46}{plural(verdict.n_seeds, 'seed'):<9}{verdict.decided_by}" if verdict.n_seeds else ""
    lacks = f" ({lack})" if (lack := verdict.reason) else ""
    return f"{verdict.claim.id:<5}{verdict.said:<14} {found}{lacks}".rstrip()


def task_by_task(verdicts: Iterable[Verdict], frame: pd.DataFrame, scale: str | None = None) -> list[Verdict]:
    """Each verdict once more for each of its tasks alone; those that were not run are left out."""
    read = Evidence(frame, scale)
    return [judge(v.claim, read, scale=read.scale, tasks=[task]) for v in verdicts if v.n_seeds for task in v.tasks]


def basis(verdicts: Iterable[Verdict], source: str) -> str:
    """`protocol 10, evening scale, mnist1d, recorded`: the tasks are those that decide a verdict."""
    told = [v for v in verdicts if v.n_seeds]
    tasks, scales = dict.fromkeys(task for v in told for task in v.tasks), dict.fromkeys(v.scale for v in told)
    return f"protocol {VERSION}, {', '.join(scales) or 'no'} scale, {', '.join(tasks) or 'nothing yet'}, {source}"


def words_of(
    verdicts: Iterable[Verdict], frame: pd.DataFrame, *, seeds: int | None = None, threshold: float | None = None
) -> pd.DataFrame:
    """One row a claim: its verdict, and what the same runs say with these seeds alone, or at another threshold: claim,
    scale, said, then, effect (as text, with its bounds), changed (bool)."""
    few, rows, verdicts = of_seeds(frame, seeds), [], list(verdicts)
    read = {scale: Evidence(few, scale) for scale in {v.scale for v in verdicts}}
    for v in verdicts:
        claim = v.claim if threshold is None else replace(v.claim, threshold=threshold)
        then = judge(claim, read[v.scale], scale=v.scale, tasks=v.tasks)
        facts = dict(claim=v.claim.id, scale=v.scale, said=v.verdict, then=then.verdict, effect=then.amount)
        rows.append(facts | dict(changed=then.verdict != v.verdict))
    return pd.DataFrame(rows, columns=["claim", "scale", "said", "then", "effect", "changed"])


def lines_of_runs(verdicts: Iterable[Verdict], frame: pd.DataFrame) -> list[str]:
    """A line for each scale and task: how many runs stand behind the decisions, how long they took, how many weights
    their models have, and how many epochs they trained. Runs that diverged are left out."""
    told = [v for v in verdicts if v.n_seeds]
    read = {scale: Evidence(frame, scale) for scale in {v.scale for v in told}}
    behind = [runs_behind(v, frame, read[v.scale]) for v in told]
    if not behind:
        return []
    runs = pd.concat(behind).drop_duplicates("run_id")
    places = runs[runs.status == "ok"].groupby(["scale", "task"])
    return [_line(task, scale, mine) for (scale, task), mine in places]


def _line(task: str, scale: str, runs: pd.DataFrame) -> str:
    from mambanorm.tasks import load_task

    config = base_config(task, scale)
    rows = config.train_rows or len(load_task(task, scale, 0).train)
    weights = " to ".join(_each({runs.parameters.min(), runs.parameters.max()}, ","))
    epochs = " and ".join(_each(runs.steps * config.batch_size / rows, ".2g"))
    return (
        f"{task}, scale {scale}: {len(runs)} runs of {runs.wall_s.median():.1f} s (median), {weights} weights, "
        f"{epochs} epochs of {rows:,} rows"
    )


def _each(values: Iterable[float], form: str) -> list[str]:
    return list(dict.fromkeys(format(value, form) for value in sorted(values)))


def trained_inside(norm: str = "BN") -> tuple[pd.DataFrame, dict[str, dict[str, np.ndarray]]]:
    """The recorded runs of §4.6 of trained models (`failure_runs`, `growth_runs`, `failing_runs`), and by run id what
    they kept (`recorded_inside`). Empty where they are not recorded."""
    if not (path := recorded_results.recorded_path(STUDY_SCALE)).is_file():
        return NO_RUNS, {}
    frame = recorded_results.recorded(STUDY_SCALE)
    seeds = sorted({int(seed) for seed in frame.seed})
    lists = failure_runs(STUDY_SCALE, seeds), growth_runs(STUDY_SCALE, norm, seeds), failing_runs(STUDY_SCALE, seeds)
    asked = {config.run_id for configs in lists for config in configs}
    return frame[frame.run_id.isin(asked)].reset_index(drop=True), recorded_results.recorded_inside(path)
