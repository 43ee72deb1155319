"""What notebook 12, the command and the report show of the verdicts: as tables, as lines, and as one HTML table, which
folds out to what stands beside a word, its figure, its caveats and its command."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd

from mambanorm.basics.settings import STUDY_SCALE, check_source, study_scale
from mambanorm.basics.text import plural
from mambanorm.claims.evidence import Evidence, tasks_of
from mambanorm.claims.frames import LOOKED_AT, of_seeds, recorded_under
from mambanorm.claims.hypotheses import CLAIMS, find_claim
from mambanorm.claims.needed import VERDICT_TASKS
from mambanorm.claims.protocol import FIRST_CLAIMS, TRAINED_TASKS, VERSION, planned_seeds
from mambanorm.claims.rule import RISING, VERDICTS, levels
from mambanorm.claims.verdict import Verdict, judge
from mambanorm.runs import recorded_results
from mambanorm.runs.grid import base_config
from mambanorm.runs.presets import LANGUAGE_TASKS
from mambanorm.runs.store import load_runs
from mambanorm.study.experiments import BUDGETS, at_budget, failing_runs, failure_runs, growth_runs, inside_task
from mambanorm.study.summaries import with_summaries

NO_RUNS = pd.DataFrame(columns=[*LOOKED_AT, "arm"])
NOT_RECORDED = "Trained models are not recorded here yet: `mambanorm record --scale evening` adds them."


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
    "recorded" where the kit has results of the scale, else "trained". `seeds` as in `of_seeds`."""
    scale = study_scale(scale)
    if (source := check_source(source)) == "auto":
        source = "recorded" if recorded_results.recorded_path(scale).is_file() else "trained"
    mine = of_seeds(with_summaries(load_runs(runs_dir, scale=scale), runs_dir), seeds)
    frame = mine if source == "trained" else of_seeds(recorded_results.recorded(scale), seeds)
    return RunsToJudge(frame, mine, scale, source)


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


def basis(verdicts: Iterable[Verdict], source: str) -> str:
    """`protocol 11, evening scale, curves, recorded`: the tasks are those that decide a verdict."""
    told = [v for v in verdicts if v.n_seeds]
    tasks, scales = dict.fromkeys(task for v in told for task in v.tasks), dict.fromkeys(v.scale for v in told)
    return f"protocol {VERSION}, {', '.join(scales) or 'no'} scale, {', '.join(tasks) or 'nothing yet'}, {source}"


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


def over_budget(frame: pd.DataFrame, claims: Iterable[str] | None = None, scale: str = STUDY_SCALE) -> pd.DataFrame:
    """Fast or good? A row for each claim (None = those of FIRST_CLAIMS), each of its tasks in the frame and each share
    of BUDGETS with runs, if there are two: the verdict there, and the comparison that decides at all steps, with its
    state and bounds. Where all steps have not been run, it is the one that decides there, and `decided` is False. Each
    share has a schedule and a choice of rates of its own. ValueError for a claim of §4.6, which has no budget."""
    evidence, rows = Evidence(frame, scale), []
    asked = [name for name in CLAIMS if name[:-1] in FIRST_CLAIMS] if claims is None else claims
    for claim in map(find_claim, asked):
        for task in tasks_of(claim, evidence.tasks, scale):
            settings = {share: at_budget(task, scale, share) for share in BUDGETS}
            found = {
                share: judge(claim, evidence, scale=scale, tasks=[task], changes=changes)
                for share, changes in settings.items()
            }
            if sum(verdict.n_seeds > 0 for verdict in found.values()) < 2:
                continue
            whole = found[BUDGETS[-1]].decided_by
            for share, verdict in found.items():
                row = next((row for row in verdict.records if row["comparison"] == whole), verdict.turns_on)
                facts = dict(claim=claim.id, task=task, share=share, verdict=verdict.verdict)
                facts |= dict(steps=base_config(task, scale, **settings[share]).steps, decided=bool(whole))
                rows += [facts | {name: row[name] for name in OF_ROW}] if verdict.n_seeds else []
    return pd.DataFrame(rows, columns=["claim", "task", "share", "steps", "verdict", "decided", *OF_ROW])


OF_ROW = ("comparison", "state", "effect", "low", "high", "n", "threshold", "unit")


def still_rising(frame: pd.DataFrame, scale: str = STUDY_SCALE) -> pd.DataFrame:
    """A row for each task and arm: its runs with all steps, at its rate, that did not diverge, and the share of them
    whose best step, by validation, lies in the last tenth (`late`). On a plateau it is about a tenth by chance;
    `RISING` is the most that the protocol lets pass as trained. A loss falls a little for as long as its schedule
    lasts; so of language models it is the share to which the last tenth was worth the smallest effect of interest
    (`late_gain` of summaries.py). NaN where that is not known."""
    evidence, rows = Evidence(frame, scale), []
    for task in evidence.tasks:
        for arm in dict.fromkeys(frame.arm[frame.task == task]):
            runs = evidence.tuned((arm,), task)
            if not runs.gaps and runs.whole_seeds:
                known, late = int(np.isfinite(runs.at("late")).sum()), float(runs.late[0])
                rows.append(dict(task=task, arm=arm, runs=known, late=late, trained=late <= RISING))
    return pd.DataFrame(rows, columns=["task", "arm", "runs", "late", "trained"])


# ----------------------------------------------------------------------------------------------------- the HTML table


def verdict_html(
    verdicts: Sequence[Verdict], *, beside: Mapping[str, str] | None = None, caption: str = "", pictures: bool = True
) -> str:
    """The table. `beside`: claim id → the word of a last column, such as what the reader's own runs say. In the fold,
    where `pictures`, every comparison drawn."""
    from mambanorm.figures.verdicts import ENDS, STATES, WORDS  # here: a verdict is told without matplotlib
    from mambanorm.report.page import template

    words = Counter(verdict.verdict for verdict in verdicts)
    rows = [
        dict(
            id=v.claim.id,
            word=v.verdict,
            claim=v.claim.words,
            first=_small_print(v),
            fold=_fold(v),
            caveats=v.caveats,
            picture=_picture(v) if pictures and v.n_seeds else "",
            command=command(v),
            effect=v.amount if v.n_seeds else "–",
            last=beside.get(v.claim.id, "–") if beside else _number(v.paper),
        )
        for v in verdicts
    ]
    return template(
        "verdicts.html",
        rows=rows,
        counted=", ".join(f"{words[name]} {name}" for name in VERDICTS if words[name]),
        caption=caption,
        last="your runs" if beside else "paper",
        words=WORDS,
        states=STATES,
        ends=ENDS,
    )


def _small_print(verdict: Verdict) -> list[str]:
    """What must not be missed beside the word of a verdict: why it is not told, each task's own, and how often runs
    diverged."""
    each = ", ".join(f"{task}: {said}" for task, said in verdict.by_task.items())
    lines = [verdict.reason, each if len(verdict.by_task) > 1 else "", verdict.said if "but" in verdict.said else ""]
    lines += [verdict.failed, verdict.stability, verdict.uneven]
    return list(dict.fromkeys(filter(None, lines)))


def _fold(verdict: Verdict) -> dict[str, str]:
    """What a verdict rests on: the first words of a paragraph → the others."""
    claim, decided = verdict.claim, {}
    if verdict.n_seeds:
        by = f"{verdict.decided_by}; {plural(verdict.n_seeds, 'seed')}; {verdict.fidelity}"
        if verdict.plain != verdict.ci:
            low, high = map(_number, verdict.plain)
            by += f". The 95 % interval of its mean is [{low}, {high}]; the bounds have levels of their own"
        decided = {"Decided by": by}
    return decided | {
        "Measured": claim.quantity,
        "Needs": f"{claim.needs}.{_levels(verdict)}",
        "The paper": f"“{claim.quote}” ({claim.where}). In numbers: {claim.paper}.",
    }


def _levels(verdict: Verdict) -> str:
    """The levels of the ends of the intervals; "" for a claim that was not run, or is not judged."""
    m = max((sum(row["decides"] for row in verdict.records if row["task"] == t) for t in verdict.tasks), default=0)
    if not m:
        return ""
    tasks = len({row["task"] for row in verdict.records if row["n"] and row["decides"]})
    low, high = (f"{100 * level:.3g} %" for level in levels(m, verdict.claim.at_least, tasks))
    return f" One-sided levels of the bounds: lower {low}, upper {high}."


def _picture(verdict: Verdict) -> str:
    """The claim's comparisons as the address of an image, small, because a notebook has twenty of them. "" for a single
    comparison, which stands in the picture of all claims, and where nothing is judged: the reasons say more."""
    if len(verdict.records) < 2 or verdict.verdict == VERDICTS[-1]:
        return ""
    from PIL import Image

    from mambanorm.figures import fig_claim

    figure, drawn, small = fig_claim(verdict), BytesIO(), BytesIO()
    figure.supxlabel("")
    figure.savefig(drawn, format="png", dpi=62)
    few = Image.open(drawn).convert("RGB").quantize(8, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.convert("RGB").save(small, format="webp", lossless=True, quality=75, method=4)  # the slowest way saves 0.5 %
    return f"data:image/webp;base64,{base64.b64encode(small.getvalue()).decode()}"


def command(verdict: Verdict) -> str:
    """The command that trains what the claim lacks and prints its verdict."""
    evening = (*TRAINED_TASKS, inside_task("evening"))
    known = evening if verdict.scale == "evening" else (*VERDICT_TASKS, *LANGUAGE_TASKS)
    tasks = ",".join(verdict.tasks or tasks_of(verdict.claim, known, verdict.scale))
    asked = f"--claims {verdict.claim.id} --scale {verdict.scale} --tasks {tasks}"
    seeds = planned_seeds(verdict.claim.id, verdict.scale)
    return f"mambanorm verdicts {asked} --seeds {f'{seeds[0]}-{seeds[-1]}' if seeds[0] else len(seeds)}"


def _number(x: float) -> str:
    return "–" if x != x else f"{x:+.3g}".replace("-", "−")
