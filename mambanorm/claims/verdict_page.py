"""What notebook 12 reads, and the small tables and lines that stand beside its verdicts.

runs_to_judge   which runs: the recorded ones of these scales, or the reader's own
of_seeds        the part of a run frame that some seeds have
splits_table    how far the seeds of a task share their rows, and how much wider that makes an interval
task_by_task    the verdicts of each task alone;   basis: what they stand on, in a line
words_of        the words of claims, and their bounds, at other seeds or with another threshold
lines_of_runs   how long the runs behind the verdicts trained
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from mambanorm.basics.settings import check_scale, check_source, default_scale
from mambanorm.claims.evidence import Evidence, splits_of
from mambanorm.claims.frames import recorded_under
from mambanorm.claims.headline import headline_scales
from mambanorm.claims.needed import runs_behind
from mambanorm.claims.protocol import VERSION
from mambanorm.claims.summaries import with_summaries
from mambanorm.claims.verdict import Verdict, judge
from mambanorm.training import recorded_results
from mambanorm.training.grid import base_config, check_seeds
from mambanorm.training.store import load_runs


@dataclass(frozen=True)
class RunsToJudge:
    """`frame`: the runs that are judged. `mine`: those of the reader's store at this scale. `scales`: trained models
    first."""

    frame: pd.DataFrame
    mine: pd.DataFrame
    scale: str
    scales: tuple[str, ...]
    source: str

    def __str__(self) -> str:
        """A line for each scale: how many runs, made with what, under which protocol."""
        if self.source == "trained":
            return f"{len(self.mine)} runs of your store"
        described = recorded_results.describe_recorded
        by_scale = self.frame.groupby("scale") if len(self.frame) else ()
        return "\n\n".join(f"{name}: {described(runs)}; {recorded_under(runs)}" for name, runs in by_scale)


def runs_to_judge(
    scale: str | None = None,
    source: str | None = None,
    seeds: int | Iterable[int] | None = None,
    runs_dir: str | Path | None = None,
) -> RunsToJudge:
    """The runs that the verdicts of a scale stand on (None = the environment's). `source` None = "recorded" where the
    kit has results of the scale, else "trained". `seeds` as in `of_seeds`, None = all. ValueError for an unknown scale
    or source."""
    scale = check_scale(scale) if scale else default_scale()
    known = recorded_results.recorded_path(scale).is_file()
    if (source := check_source(source)) == "auto":
        source = "recorded" if known else "trained"
    scales = headline_scales(scale) if source == "recorded" else (scale,)
    mine = of_seeds(with_summaries(load_runs(runs_dir, scale=scale), runs_dir), seeds, scale)
    if source == "trained":
        return RunsToJudge(mine, mine, scale, scales, source)
    frame = pd.concat(map(recorded_results.recorded, scales), ignore_index=True)
    return RunsToJudge(of_seeds(frame, seeds, scale), mine, scale, scales, source)


def of_seeds(frame: pd.DataFrame, seeds: int | Iterable[int] | None, scale: str | None = None) -> pd.DataFrame:
    """The runs of the first `seeds` seeds of each scale, or of the seeds in a list; None = all of them."""
    if seeds is None or not len(frame):
        return frame
    if isinstance(seeds, int):
        return frame[frame.groupby("scale").seed.transform(lambda seed: seed.rank(method="dense")) <= seeds]
    return frame[frame.seed.isin(check_seeds(seeds, scale))]


def splits_table(frame: pd.DataFrame, counts: Sequence[int] = (8, 32)) -> pd.DataFrame:
    """One row a task and scale of the frame: its test rows, r = test rows / rows that a seed may train on, by how much
    the overlap of the splits widens an interval of so many seeds (√(1 + n·r)), and what the seeds share."""
    pairs = sorted(set(zip(frame.scale, frame.task, strict=True))) if len(frame) else []
    splits = {f"{task}, {scale}": splits_of(task, scale) for scale, task in pairs}
    rows = {"test rows": [one.test_rows for one in splits.values()]}
    rows |= {"test rows / rows to train on": [round(one.ratio, 2) for one in splits.values()]}
    rows |= {f"× as wide, {n} seeds": [round((1 + n * one.ratio) ** 0.5, 2) for one in splits.values()] for n in counts}
    return pd.DataFrame(rows | {"seeds share": [one.shared for one in splits.values()]}, index=list(splits))


def task_by_task(verdicts: Iterable[Verdict], frame: pd.DataFrame, scales: Sequence[str]) -> list[Verdict]:
    """Each verdict once more for each of its tasks alone, scale by scale; those that were not run are left out."""
    told = sorted((v for v in verdicts if v.n_seeds), key=lambda v: scales.index(v.scale))
    read = {scale: Evidence(frame, scale) for scale in {v.scale for v in told}}
    return [judge(v.claim, read[v.scale], scale=v.scale, tasks=[task]) for v in told for task in v.tasks]


def basis(verdicts: Iterable[Verdict], scale: str, source: str) -> str:
    """`protocol 7, evening scale, mnist1d, recorded`: the tasks are those of the verdicts that stand on this scale."""
    tasks = dict.fromkeys(task for v in verdicts if v.n_seeds and v.scale == scale for task in v.tasks)
    return f"protocol {VERSION}, {scale} scale, {', '.join(tasks) or 'nothing yet'}, {source}"


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
