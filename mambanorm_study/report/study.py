"""The study: train the missing runs, execute the notebooks and write the report."""

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from mambanorm.kernels.warm import warm_up
from mambanorm.norms import NORMS
from mambanorm_study.basics.atomic import writable_folder, write_text
from mambanorm_study.basics.settings import DEFAULT_MINUTES, WORK, check_source
from mambanorm_study.basics.text import number_text, plural, spell
from mambanorm_study.config import RunConfig
from mambanorm_study.report.execute import execute
from mambanorm_study.report.notebooks import (
    NotebookOutcome,
    earlier_outcome,
    find_notebooks,
    read_outcome,
)
from mambanorm_study.report.page import (
    answer_in_short,
    enlarge_on_click,
    markdown,
    page,
    template,
)
from mambanorm_study.report.plan import StudyPlan
from mambanorm_study.report.up_to_date import (
    inputs_hash,
    is_up_to_date,
    store_hash,
    write_hashes,
)
from mambanorm_study.runs import machine
from mambanorm_study.runs.cluster import count_workers
from mambanorm_study.runs.grid import unique
from mambanorm_study.runs.store import missing_runs, runs_dir as store_dir
from mambanorm_study.runs.sweep import sweep
from mambanorm_study.tables.budget import Budget, earlier_minutes, plan_budget, save_minutes
from mambanorm_study.tables.notebook_runs import EXECUTED_FIRST, EXECUTED_LAST
from mambanorm_study.tasks import TASKS

# In a default study, no notebook starts later than this many seconds after the first one: if the
# study has trained runs, and if it has not.
NOTEBOOK_SECONDS = {"trained": 150.0, "not trained": 60.0}


def run_study(
    plan: StudyPlan,
    *,
    scheduler: str | None = None,
    workers: int | str = "auto",
    out_dir: str | Path | None = None,
    minutes: float | None = DEFAULT_MINUTES,
    all_notebooks: bool = True,
) -> list[NotebookOutcome]:
    """Train the missing runs, execute the notebooks that are not up to date, write the report, and
    return the outcomes.

    minutes: the time limit for training the plan's optional runs; time that earlier studies used
    counts. None means that all are trained. all_notebooks: False means that no notebook is started
    later than NOTEBOOK_SECONDS allow. scheduler, workers: see `sweep`.
    out_dir: None means reports/<scale>. A run or a notebook that fails raises no error; the outcome
    of the notebook reports the failure.

    Raises OSError, before anything is trained, if `out_dir` cannot be written to.
    """
    start = time.monotonic()
    for name in plan.left_out:
        print(f"{name} is left out: it uses none of the tasks {', '.join(plan.tasks)}")
    out_dir = writable_folder(out_dir or WORK / "reports" / plan.scale, "the report")
    facts = study_facts(plan.scale, check_source(), plan.configs, plan.tasks)

    warm_up()  # compile the kernels once instead of in every worker and notebook
    engine = {"scheduler": scheduler, "workers": workers, "runs_dir": plan.runs_dir}
    missing = missing_runs(plan.configs_to_train, plan.runs_dir)
    failed_ids = train_runs(plan, engine, minutes)

    parameters = {
        "scale": plan.scale,
        "seeds": plan.seeds,
        "tasks": plan.tasks,
        "runs_dir": None if plan.runs_dir is None else str(store_dir(plan.runs_dir)),
        "scheduler": scheduler,
    }
    parameters = {name: value for name, value in parameters.items() if value is not None}
    outcomes = []
    has_trained = len(missing_runs(missing, plan.runs_dir)) < len(missing)
    limit = NOTEBOOK_SECONDS["trained" if has_trained else "not trained"]
    seconds = None if all_notebooks else limit
    for outcome in _execute_outdated(plan, out_dir, parameters, seconds):
        configs = plan.to_train.get(outcome.name, [])
        failed_runs = sum(config.run_id in failed_ids for config in configs)
        outcomes.append(replace(outcome, failed_runs=failed_runs))
    # the report also shows the notebooks that an earlier study executed
    earlier = [out_dir / path.name for path in find_notebooks() if path not in plan.paths]
    earlier_outcomes = [read_outcome(path) for path in earlier if path.is_file()]

    facts |= training_facts(plan, missing, failed_ids, minutes)
    if skipped := [outcome.name for outcome in outcomes if outcome.skipped]:
        facts["Not executed"] = (
            f"{plural(len(skipped), 'notebook')}, for lack of time: the next study executes them "
            f"({', '.join(skipped)})"
        )
    facts["Total time"] = spell(time.monotonic() - start)
    index = write_report(outcomes + earlier_outcomes, out_dir, facts)
    print(f"The report is at {index.as_uri()}")
    return outcomes


def _execute_outdated(
    plan: StudyPlan, out_dir: Path, parameters: dict[str, Any], seconds: float | None
) -> list[NotebookOutcome]:
    """Execute the plan's notebooks, except those that are up to date in `out_dir`; return the
    outcomes of all. seconds: see `execute`.
    """
    inputs = {path.stem: inputs_hash(path, parameters) for path in plan.paths}

    def hashes() -> dict[str, dict[str, str]]:
        store = store_hash(plan.runs_dir)
        return {name: {"inputs": value, "store": store} for name, value in inputs.items()}

    before = hashes()
    earlier = {
        path: earlier_outcome(out_dir / path.name) or NotebookOutcome(path.stem)
        for path in plan.paths
    }
    current = [path for path in earlier if is_up_to_date(earlier[path], before[path.stem])]
    if current:
        print(
            f"{plural(len(current), 'notebook')} up to date in {out_dir}, "
            "not executed again (delete them there to execute them)"
        )

    def order(path: Path) -> tuple:
        """Never executed first, then the page of the verdicts, then the longest ago."""
        executed, is_first = earlier[path].executed, path.stem in EXECUTED_FIRST
        return bool(executed), path.stem in EXECUTED_LAST, not is_first, executed

    outcomes = [earlier[path] for path in current]
    outdated = sorted((path for path in plan.paths if path not in current), key=order)
    if outdated:
        executed = execute(outdated, out_dir, parameters, seconds)
        outcomes += executed
        skipped = {outcome.name for outcome in executed if outcome.skipped}
        paths = [out_dir / path.name for path in plan.paths if path.stem not in skipped]
        write_hashes(paths, hashes())
    return outcomes


def train_runs(plan: StudyPlan, engine: dict[str, Any], minutes: float | None) -> set[str]:
    """Train the missing runs of a study: the required runs, then the optional runs that end within
    `minutes`; the time that earlier studies used counts. Return the run_ids of the failed runs.

    engine: the arguments scheduler, workers and runs_dir of `sweep`.
    """
    required, optional = (
        missing_runs(configs, plan.runs_dir) for configs in (plan.required, plan.optional)
    )
    frames = [sweep(required, **engine)] if required else []
    if optional:
        n_workers = count_workers(optional, engine["workers"], engine["scheduler"])
        is_first = len(optional) == len(plan.optional)  # or the store has been emptied
        spent = 0.0 if is_first else earlier_minutes(plan.optional, plan.runs_dir)
        budget = plan_budget(optional, minutes, n_workers, plan.runs_dir, spent)
        print(budget.sentence())
        if budget.n_fit:
            frames.append(_train_within(budget, optional, plan, engine))
    return {run_id for frame in frames for run_id in frame.run_id[frame.status == "failed"]}


def _train_within(
    budget: Budget, configs: list[RunConfig], plan: StudyPlan, engine: dict[str, Any]
) -> pd.DataFrame:
    """Train the runs within the budget, store how much of the limit is used, and return their run
    frame.
    """
    start, used = time.monotonic(), budget.spent
    seconds = None if budget.limit is None else budget.limit - budget.spent
    try:
        frame = sweep(configs, **engine, expected=budget.seconds, seconds=seconds)
        if budget.limit is not None and len(frame) < len(configs):
            used = budget.limit  # what is left of it is too short for the next run
        return frame
    finally:
        used = max(used, budget.spent + time.monotonic() - start)
        save_minutes(plan.optional, used / 60, plan.runs_dir)


def training_facts(
    plan: StudyPlan, missing: Sequence[RunConfig], failed_ids: set[str], minutes: float | None
) -> dict[str, str]:
    """Return the facts on the trained runs and on those that were left out, label → text. Print the
    latter, too.

    missing: the runs that were missing before the training.
    """
    n_left_out = len(missing_runs(missing, plan.runs_dir)) - len(failed_ids)
    n_runs = len(unique([*plan.configs, *plan.configs_to_train])) - n_left_out
    n_trained = len(missing) - len(failed_ids) - n_left_out
    facts = {"Training runs": f"{n_runs}, of which {n_trained or 'none'} trained this time"}
    if n_left_out:
        facts["Left out"] = (
            f"{plural(n_left_out, 'fresh run')}, because they would not have ended within "
            f"{number_text(minutes)} minutes of training; train them with a larger --minutes"
        )
        print(f"Left out: {facts['Left out']}")
    return facts


# Value of --source → sentence of the report on where the runs come from.
SOURCE_WORDS = {
    "auto": (
        "recorded runs are read; other runs, and one new seed of each compared arm, are trained "
        "here"
    ),
    "recorded": "recorded runs are read; only one new seed of each compared arm is trained here",
    "trained": "all runs are trained here",
}


def study_facts(
    scale: str, source: str, configs: Sequence[RunConfig], tasks: Sequence[str] | None
) -> dict[str, str]:
    """Return the facts on the report's first page, label → text. configs: the study's runs."""
    names = tasks or dict.fromkeys(config.task for config in configs)
    titles = [f"{name} ({TASKS[name].title})" if name in TASKS else name for name in names]
    facts = {
        "Scale": scale,
        "Seeds": ", ".join(map(str, sorted({config.seed for config in configs}))),
        "Source": SOURCE_WORDS[source],
        "Tasks": "; ".join(titles),
        "Date": f"{datetime.now().astimezone():%d %B %Y, %H:%M %Z}",
        "Machine": machine.machine(),
        "Code": f"commit {machine.git_commit() or 'unknown'}, {machine.versions()}",
    }
    doubts = {name: entry.doubt for name, entry in NORMS.items() if entry.doubt}
    facts.update({f"Norm {name}": f"not what it declares: {doubts[name]}" for name in doubts})
    return facts


def write_report(outcomes: Sequence[NotebookOutcome], out_dir: Path, facts: dict[str, str]) -> Path:
    """Write the page of each notebook and the first page; return the path of the first page.

    The pages load nothing from the network.
    """
    # imported here, because importing nbconvert takes a second
    from mambanorm_study.report.notebook_page import to_html

    outcomes = sorted(outcomes, key=lambda outcome: outcome.name)
    for before, outcome, after in zip(
        [None, *outcomes[:-1]], outcomes, [*outcomes[1:], None], strict=True
    ):
        write_text(out_dir / f"{outcome.name}.html", to_html(outcome, before, after))
    scale = facts["Scale"]
    body = template(
        "index.html",
        outcomes=outcomes,
        bad=[outcome for outcome in outcomes if outcome.problem],
        not_executed=[outcome for outcome in outcomes if outcome.skipped or not outcome.executed],
        facts=facts,
        scale=scale,
        markdown=markdown,
        enlarge_on_click=enlarge_on_click,
        answer_in_short=answer_in_short,
        spell=spell,
    )
    html = page(f"Normalization in Mamba: report at scale {scale}", body, template("index.css"))
    write_text(out_dir / "index.html", html)
    write_text(out_dir / ".nojekyll", "")  # GitHub Pages then serves the folder as it is
    return out_dir / "index.html"
