"""The whole study: trains what it lacks, executes the notebooks headless, and makes one page of
their answers."""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain
from pathlib import Path

from mambanorm.kernels.warm import warm_up
from mambanorm.norms import NORMS
from mambanorm_study.basics.atomic import writable_folder, write_text
from mambanorm_study.basics.settings import WORK, check_source, study_scale
from mambanorm_study.basics.text import plural, spell
from mambanorm_study.config import RunConfig
from mambanorm_study.report.execute import execute
from mambanorm_study.report.notebooks import (
    NotebookOutcome,
    find_notebooks,
    read_outcome,
    study_runs,
)
from mambanorm_study.report.page import (
    OPENING,
    figures,
    key_lines,
    markdown,
    navigation,
    page,
    template,
)
from mambanorm_study.runs import machine
from mambanorm_study.runs.grid import check_names, check_seeds, unique
from mambanorm_study.runs.store import missing_runs
from mambanorm_study.runs.store import runs_dir as store_dir
from mambanorm_study.runs.sweep import sweep
from mambanorm_study.tables.notebook_runs import NOTEBOOKS, taken
from mambanorm_study.tables.replication import trained_here
from mambanorm_study.tasks import TASKS

REPORTS = WORK / "reports"
READ_THE_STORE = ("12_verdicts",)
"""Notebooks that ask for no runs of their own, and judge those of the others."""


def exit_code(outcomes: Iterable[NotebookOutcome]) -> int:
    """0 only if every notebook ran through and every run it needs could be trained."""
    return int(not all(outcome.ok for outcome in outcomes))


def run_study(
    scale: str | None = None,
    tasks: Sequence[str] | None = None,
    seeds: int | Iterable[int] | None = None,
    runs_dir: str | Path | None = None,
    scheduler: str | None = None,
    notebooks: str | Sequence[str] | None = None,
    out_dir: str | Path | None = None,
    progress: bool = True,
    *,
    workers: int | str = "auto",
) -> list[NotebookOutcome]:
    """Executes the notebooks (all, or those named) whose runs are there, trains what the store
    lacks, executes the others and writes the report, which is there from the first notebook on.

    ValueError for an unknown scale, task or notebook and OSError for a folder that cannot be
    written to, before anything starts; a run or a notebook that fails is in the outcomes instead.
    """
    start = time.monotonic()
    scale, source = study_scale(scale), check_source()
    seeds = seeds if seeds is None or isinstance(seeds, int) else check_seeds(seeds, scale)
    tasks = None if tasks is None else check_names("tasks", tasks)
    paths = find_notebooks(notebooks)
    plan = study_runs(
        scale, tasks, seeds, [path.stem for path in paths] if notebooks is not None else None
    )
    for path in [path for path in paths if tasks and leaves_all_out(path.stem, plan, tasks, scale)]:
        paths.remove(path)
        print(f"{path.stem} is left out: {', '.join(tasks)} is none of its tasks")
    given = dict(
        scale=scale,
        seeds=seeds,
        tasks=tasks and list(tasks),
        runs_dir=runs_dir,
        scheduler=scheduler,
    )
    parameters = {name: value for name, value in given.items() if value is not None}
    if runs_dir is not None:
        parameters["runs_dir"] = str(store_dir(runs_dir))
    out_dir = writable_folder(out_dir or REPORTS / scale, "the report")

    here = {path.stem: trained_here(plan.get(path.stem, ()), runs_dir) for path in paths}
    lacking = {name: missing_runs(configs, runs_dir) for name, configs in here.items()}
    missing = unique(chain.from_iterable(lacking.values()))
    runs = {config.run_id for configs in (*plan.values(), *here.values()) for config in configs}
    earlier = _earlier([path.stem for path in paths], out_dir)
    about = study_facts(
        scale, source, [config for configs in plan.values() for config in configs], tasks
    )
    outcomes, trained, failed = [], 0, set()

    def shown(outcome: NotebookOutcome) -> None:
        """The page as far as it is."""
        mine = lacking.get(outcome.name, [])
        outcomes.append(
            replace(outcome, failed_runs=sum(config.run_id in failed for config in mine))
        )
        to_come = len(paths) - len(outcomes)
        facts = {"Still to come": plural(to_come, "notebook")} if to_come else {}
        facts |= about | {
            "Training runs": f"{len(runs)}, of which {trained or 'none'} trained this time",
            "Total time": spell(time.monotonic() - start),
        }
        write_index(outcomes + earlier, out_dir, facts)

    warm_up()  # here, on two cores, and not in every notebook
    waits = {
        path: bool(lacking[path.stem] or (missing and path.stem in READ_THE_STORE))
        for path in paths
    }
    execute([path for path in paths if not waits[path]], out_dir, parameters, progress, shown)
    if missing:
        frame = sweep(
            missing, scheduler=scheduler, workers=workers, runs_dir=runs_dir, progress=progress
        )
        failed = set(frame.loc[frame["status"] == "failed", "run_id"])
        trained = len(missing) - len(failed)
    execute([path for path in paths if waits[path]], out_dir, parameters, progress, shown)
    print(f"The report is at {(Path(out_dir) / 'index.html').resolve().as_uri()}")
    return sorted(outcomes, key=lambda outcome: outcome.name)


def leaves_all_out(notebook: str, plan: Mapping, tasks: Sequence[str], scale: str) -> bool:
    """Return True if a notebook takes none of the study's tasks."""
    if notebook in plan:
        return plan[notebook] == []
    takes_tasks = notebook in NOTEBOOKS and NOTEBOOKS[notebook].takes
    return bool(takes_tasks) and not taken(notebook, tasks, scale)


def _earlier(names: Sequence[str], out_dir: Path) -> list[NotebookOutcome]:
    """What the folder holds of notebooks that are not executed this time, so that the page stays
    whole."""
    done, found = set(names), []
    for source in find_notebooks():
        path = out_dir / source.name
        if source.stem not in done and path.is_file():
            when = datetime.fromtimestamp(path.stat().st_mtime)
            found.append(replace(read_outcome(path), earlier=f"{when:%d %B %Y, %H:%M}"))
    return found


WHERE_FROM = {
    "auto": "recorded ones are read and compared arms trained once more, the rest is trained here",
    "recorded": "recorded ones are read, nothing else is trained but a fresh seed",
    "trained": "all are trained here",
}


def study_facts(
    scale: str, source: str, configs: Sequence[RunConfig], tasks: Sequence[str] | None
) -> dict[str, str]:
    """What the page says about the study as a whole: label → text. configs: those of its plan."""
    names = tuple(tasks or dict.fromkeys(config.task for config in configs))
    return {
        "Scale": scale,
        "Seeds": ", ".join(map(str, sorted({config.seed for config in configs}))),
        "Source": WHERE_FROM[source],
        "Tasks": "; ".join(
            f"{name} ({TASKS[name].title})" if name in TASKS else name for name in names
        ),
        "Date": f"{datetime.now().astimezone():%d %B %Y, %H:%M %Z}",
        "Machine": machine.machine(),
        "Code": f"commit {machine.git_commit() or 'unknown'}, {machine.versions()}",
    } | {
        f"Norm {name}": f"not what it declares: {entry.doubt}"
        for name, entry in NORMS.items()
        if entry.doubt
    }


# the first page: what was found, the contents, the claims, and one card a notebook; its text is in
# templates/index.html


def link_pages(outcomes: Sequence[NotebookOutcome]) -> None:
    """Links each page to the one before and the one after it."""
    pages = [outcome for outcome in outcomes if outcome.html]
    links = [(outcome.title, outcome.html.name) for outcome in pages]
    for before, here, after in zip([None, *links], pages, [*links[1:], None]):
        text, to = here.html.read_text(encoding="utf-8"), navigation(before, after)
        write_text(
            here.html,
            re.sub('<nav class="pages">.*?</nav>', lambda _, to=to: to, text, flags=re.DOTALL),
        )


def write_index(
    outcomes: Sequence[NotebookOutcome], out_dir: str | Path, facts: dict[str, str] | None = None
) -> Path:
    """Writes the page of cards, links the notebooks' pages to each other, and returns its path. It
    needs no network."""
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
    whole = page(f"Normalization in Mamba: report at scale {scale}", body, template("index.css"))
    write_text(out_dir / "index.html", whole)
    write_text(out_dir / ".nojekyll", "")  # GitHub Pages then serves the folder as it is
    return out_dir / "index.html"
