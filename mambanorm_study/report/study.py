"""The whole study: train the missing runs, execute the notebooks and write the report."""

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from mambanorm.kernels.warm import warm_up
from mambanorm.norms import NORMS
from mambanorm_study.basics.atomic import writable_folder, write_text
from mambanorm_study.basics.settings import WORK, check_source
from mambanorm_study.basics.text import spell
from mambanorm_study.config import RunConfig
from mambanorm_study.report.execute import execute
from mambanorm_study.report.notebooks import NotebookOutcome, find_notebooks, read_outcome
from mambanorm_study.report.page import (
    OPENING,
    figures,
    key_lines,
    markdown,
    navigation,
    page,
    template,
)
from mambanorm_study.report.plan import StudyPlan
from mambanorm_study.runs import machine
from mambanorm_study.runs.grid import unique
from mambanorm_study.runs.store import missing_runs, runs_dir as store_dir
from mambanorm_study.runs.sweep import sweep
from mambanorm_study.tasks import TASKS

REPORTS = WORK / "reports"


def exit_code(outcomes: Iterable[NotebookOutcome]) -> int:
    """Return 0 if every notebook ran without an error and all its runs could be trained, else 1."""
    return int(not all(outcome.ok for outcome in outcomes))


def run_study(
    plan: StudyPlan,
    *,
    scheduler: str | None = None,
    workers: int | str = "auto",
    out_dir: str | Path | None = None,
) -> list[NotebookOutcome]:
    """Train the missing runs, execute the notebooks, write the report, and return the outcomes.

    scheduler, workers: as of `sweep`. out_dir: None = reports/<scale>. OSError for a folder that
    cannot be written to, before anything starts. A run or a notebook that fails is in the outcomes.
    """
    start = time.monotonic()
    for name in plan.left_out:
        print(f"{name} is left out: {', '.join(plan.tasks)} is none of its tasks")
    out_dir = writable_folder(out_dir or REPORTS / plan.scale, "the report")
    facts = study_facts(plan.scale, check_source(), plan.configs, plan.tasks)

    warm_up()  # compile the kernels once, and not in every worker and notebook
    missing = missing_runs(plan.configs_trained_here, plan.runs_dir)
    failed_ids = set()
    if missing:
        frame = sweep(missing, scheduler=scheduler, workers=workers, runs_dir=plan.runs_dir)
        failed_ids = set(frame.run_id[frame.status == "failed"])

    parameters = {
        "scale": plan.scale,
        "seeds": plan.seeds,
        "tasks": plan.tasks,
        "runs_dir": None if plan.runs_dir is None else str(store_dir(plan.runs_dir)),
        "scheduler": scheduler,
    }
    parameters = {name: value for name, value in parameters.items() if value is not None}
    outcomes = []
    for outcome in execute(plan.paths, out_dir, parameters):
        configs = plan.trained_here.get(outcome.name, [])
        failed_runs = sum(config.run_id in failed_ids for config in configs)
        outcomes.append(replace(outcome, failed_runs=failed_runs))

    n_runs = len(unique([*plan.configs, *plan.configs_trained_here]))
    n_trained = len(missing) - len(failed_ids)
    facts["Training runs"] = f"{n_runs}, of which {n_trained or 'none'} trained this time"
    facts["Total time"] = spell(time.monotonic() - start)
    index = write_index(outcomes + earlier_outcomes(plan.paths, out_dir), out_dir, facts)
    print(f"The report is at {index.as_uri()}")
    return outcomes


def earlier_outcomes(executed: Sequence[Path], out_dir: Path) -> list[NotebookOutcome]:
    """Return the outcomes of the notebooks that the folder holds and this study does not execute,
    so that its page shows them too.
    """
    outcomes = []
    for source in find_notebooks():
        path = out_dir / source.name
        if source not in executed and path.is_file():
            time_of_file = datetime.fromtimestamp(path.stat().st_mtime)
            outcomes.append(replace(read_outcome(path), earlier=f"{time_of_file:%d %B %Y, %H:%M}"))
    return outcomes


# --source → how the report says where the runs come from.
SOURCE_WORDS = {
    "auto": (
        "recorded ones are read and compared arms trained once more, the rest is trained here"
    ),
    "recorded": "recorded ones are read, nothing else is trained but a fresh seed",
    "trained": "all are trained here",
}


def study_facts(
    scale: str, source: str, configs: Sequence[RunConfig], tasks: Sequence[str] | None
) -> dict[str, str]:
    """Return what the page says about the study as a whole: label → text. configs: all its runs."""
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
    for name, entry in NORMS.items():
        if entry.doubt:
            facts[f"Norm {name}"] = f"not what it declares: {entry.doubt}"
    return facts


def link_pages(outcomes: Sequence[NotebookOutcome]) -> None:
    """Link the page of each notebook to the page before and the page after it."""
    pages = [outcome for outcome in outcomes if outcome.html]
    links = [None, *((outcome.title, outcome.html.name) for outcome in pages), None]
    for number, outcome in enumerate(pages):
        before, after = links[number], links[number + 2]
        text = outcome.html.read_text(encoding="utf-8")
        # a function as replacement, because re.sub would interpret a backslash in a title
        new_links = navigation(before, after)
        text = re.sub(
            '<nav class="pages">.*?</nav>', lambda _, new=new_links: new, text, flags=re.DOTALL
        )
        write_text(outcome.html, text)


def write_index(
    outcomes: Sequence[NotebookOutcome], out_dir: str | Path, facts: dict[str, str] | None = None
) -> Path:
    """Write the first page of the report, link the pages of the notebooks to each other, and return
    its path. The page loads nothing from the network.
    """
    out_dir, facts = Path(out_dir).resolve(), facts or {}
    out_dir.mkdir(parents=True, exist_ok=True)
    outcomes = sorted(outcomes, key=lambda outcome: outcome.name)
    link_pages(outcomes)
    scale = facts.get("Scale", "")
    body = template(
        "index.html",
        outcomes=outcomes,
        bad=[outcome for outcome in outcomes if not outcome.ok],
        facts=facts,
        scale=scale,
        markdown=markdown,
        figures=figures,
        lines=lambda answer: markdown("\n".join(f"- {line}" for line in key_lines(answer))),
        opening=OPENING,
        spell=spell,
    )
    html = page(f"Normalization in Mamba: report at scale {scale}", body, template("index.css"))
    write_text(out_dir / "index.html", html)
    write_text(out_dir / ".nojekyll", "")  # GitHub Pages then serves the folder as it is
    return out_dir / "index.html"
