"""The report: trains what the study lacks, executes the notebooks headless, and makes one page of their answers.

    study() → sweep → papermill, two kernels at a time → nbconvert → reports/<scale>/index.html

What a notebook brings along for its card: `# Title` on the first line of its first Markdown cell and a paragraph that
starts with `**Question.**`; a code cell tagged `answer` that displays or prints the answer in Markdown; a code cell
tagged `thumbnail` (else the first picture counts); one `parameters` cell with the names in PARAMETERS.

A failing notebook never stops the others: its card says which cell failed and with what.
"""

from __future__ import annotations

import ast
import base64
import html
import io
import logging
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from string import Template

import nbformat
import papermill as pm
import psutil
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import run_sync
from papermill.exceptions import PapermillExecutionError
from papermill.iorw import papermill_io
from tqdm.auto import tqdm

from mambanorm import machine
from mambanorm.config import ROOT, check_scale, check_seeds, default_scale, study
from mambanorm.errors import unknown
from mambanorm.runs import runs_dir as store_dir
from mambanorm.sweep import missing_runs, spell, sweep
from mambanorm.tasks import TASKS

NOTEBOOKS = ROOT / "notebooks"
REPORTS = ROOT / "reports"
PARAMETERS = ("scale", "seeds", "tasks", "runs_dir", "scheduler")
AT_ONCE = 2  # kernels; more would only share the cores of a laptop
THUMBNAIL_WIDTH = 640
logging.getLogger("papermill").addHandler(logging.NullHandler())  # what it would print is in the outcome


@dataclass(frozen=True)
class NotebookOutcome:
    """One executed notebook: how it went and what its card shows. `question` and `answer` are Markdown."""

    name: str
    status: str = "failed"  # ok | failed
    wall_s: float = 0.0
    notebook: Path | None = None  # executed, as far as it came
    html: Path | None = None
    title: str = ""
    question: str = ""
    answer: str = ""
    thumbnail: bytes | None = None  # PNG
    failed_cell: int | None = None  # the number in its brackets: [5]
    failed_source: str = ""  # first lines
    error: str = ""  # name and message
    failed_runs: int = 0  # runs of this notebook that could not be trained
    earlier: str = ""  # when, if it was not executed this time

    @property
    def ok(self) -> bool:
        return self.status == "ok" and not self.failed_runs

    def __str__(self) -> str:
        text = f"{'ok    ' if self.ok else 'FAILED'}  {self.name}  {spell(self.wall_s)}"
        return text if self.ok else f"{text}  {self.problem}"

    @property
    def problem(self) -> str:
        """What went wrong, in one line; "" if nothing did."""
        if self.status != "ok":
            where = f"cell [{self.failed_cell}]: " if self.failed_cell else ""
            return where + (self.error.splitlines() or ["unknown error"])[0]
        return f"{self.failed_runs} of its runs could not be trained" if self.failed_runs else ""


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
    """Trains what the store lacks, executes the notebooks (all, or those named) and writes the report.

    None = the environment's or the scale's value. ValueError for an unknown scale, task or notebook, before anything
    starts; a run or a notebook that fails is in the outcomes instead.
    """
    start = time.monotonic()
    scale = default_scale() if scale is None else check_scale(scale)
    seeds = seeds if seeds is None or isinstance(seeds, int) else list(seeds)
    paths = find_notebooks(notebooks)
    plan = study_runs(scale, tasks, seeds, [path.stem for path in paths] if notebooks is not None else None)
    given = dict(scale=scale, seeds=seeds, tasks=tasks and list(tasks), runs_dir=runs_dir, scheduler=scheduler)
    parameters = {name: value for name, value in given.items() if value is not None}
    if runs_dir is not None:
        parameters["runs_dir"] = str(store_dir(runs_dir))
    out_dir = Path(out_dir or REPORTS / scale).resolve()

    trained, failed = _train(plan, runs_dir, scheduler, workers, progress)
    outcomes = [
        replace(outcome, failed_runs=sum(config.run_id in failed for config in plan.get(outcome.name, [])))
        for outcome in execute(paths, out_dir, parameters, progress)
    ]
    n_runs = len({config.run_id for configs in plan.values() for config in configs})
    facts = study_facts(scale, tasks, seeds, n_runs, trained, time.monotonic() - start)
    index = write_index(outcomes + _earlier(outcomes, out_dir), out_dir, facts)
    print(f"The report is at {index.as_uri()}")
    return outcomes


def study_runs(scale, tasks, seeds, notebooks: Sequence[str] | None = None) -> dict[str, list]:
    """`config.study(...)`, of the named notebooks only if names are given. ValueError for an unknown task."""
    for task in tasks or ():
        if task not in TASKS:
            raise unknown("task", task, TASKS)
    plan = study(scale, tasks, seeds)
    return plan if notebooks is None else {name: runs for name, runs in plan.items() if name in notebooks}


def _train(plan: dict[str, list], runs_dir, scheduler, workers, progress: bool) -> tuple[int, set[str]]:
    """How many runs were missing, and the ids of those that could not be trained."""
    missing = missing_runs((config for configs in plan.values() for config in configs), runs_dir)
    if not missing:
        return 0, set()
    frame = sweep(missing, scheduler=scheduler, workers=workers, runs_dir=runs_dir, progress=progress)
    return len(missing), set(frame.loc[frame["status"] == "failed", "run_id"])


def find_notebooks(wanted: str | Sequence[str] | None = None) -> list[Path]:
    """The notebooks in teaching order: all, or those named or begun (`"03,05_combination"` or a list).

    ValueError for an unknown one, with the nearest.
    """
    found = sorted(path for path in NOTEBOOKS.glob("*.ipynb") if not path.name.startswith("."))
    if not found:
        raise ValueError(f"no notebooks in {NOTEBOOKS}: the study runs from a checkout of the project")
    if wanted is None:
        return found
    wanted = wanted.split(",") if isinstance(wanted, str) else wanted
    chosen = set()
    for name in (str(name).strip().removesuffix(".ipynb") for name in wanted):
        matches = [path for path in found if path.stem == name] or [
            p for p in found if name and p.stem.startswith(name)
        ]
        if not matches:
            raise unknown("notebook", name, [path.stem for path in found])
        chosen.update(matches)
    return sorted(chosen)


# ---------------------------------------------------------------------------------------------------------------------
# executing


def execute(paths: Sequence[Path], out_dir: Path, parameters: dict, progress: bool = True) -> list[NotebookOutcome]:
    """Executes notebooks, at most AT_ONCE at a time with the cores split among them; outcomes in their order."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    at_once = max(1, min(AT_ONCE, cores, len(paths)))
    kernels, pool = Kernels(max(1, cores // at_once)), ThreadPoolExecutor(at_once)
    outcomes = {}
    layout = "{desc} |{bar}| {n_fmt}/{total_fmt}, {elapsed}{postfix}"
    with tqdm(total=len(paths), desc="notebooks", bar_format=layout, disable=not progress) as bar:
        futures = {pool.submit(_run_safely, path, out_dir, parameters, kernels): path for path in paths}
        try:
            for future in as_completed(futures):
                outcome = outcomes[futures[future]] = future.result()
                if progress or not outcome.ok:
                    bar.write(str(outcome))
                bar.update()
        finally:  # on an interrupt no kernel is left behind, and no thread waits for one
            pool.shutdown(wait=False, cancel_futures=True)
            kernels.stop()
            pool.shutdown()
            # papermill's threads can leave their working directory behind as everybody's
            papermill_io.get_handler("local").cwd(None)
    return [outcomes[path] for path in paths]


def _run_safely(path: Path, out_dir: Path, parameters: dict, kernels: Kernels) -> NotebookOutcome:
    try:
        return run_notebook(path, out_dir, parameters, kernels=kernels)
    except Exception as error:  # not even started: a damaged file, a parameter it does not know
        return NotebookOutcome(path.stem, title=path.stem, error=f"{type(error).__name__}: {error}")


def run_notebook(
    path: str | Path, out_dir: str | Path, parameters: dict | None = None, *, kernels: Kernels | None = None
) -> NotebookOutcome:
    """Executes one notebook with parameters into `out_dir/<name>.ipynb` and `.html`; a cell that fails is an outcome.

    A relative path is looked for in this folder and among the study's notebooks. ValueError for a path that is no
    notebook and for a parameter that the notebook does not have, with the nearest.
    """
    path, out_dir = _locate(path), Path(out_dir).resolve()
    check_parameters(path, parameters or {})
    out_dir.mkdir(parents=True, exist_ok=True)
    unfinished, final = out_dir / f".unfinished-{path.name}", out_dir / path.name
    crash, kernels = "", kernels or Kernels()
    try:
        with kernels.start(path.parent) as kernel:
            # papermill formats its paths: braces in a folder's name must be doubled
            names = [str(name).replace("{", "{{").replace("}", "}}") for name in (path, unfinished)]
            options = dict(kernel_name="python3", language="python", progress_bar=False)
            pm.execute_notebook(*names, parameters=parameters, km=kernel, **options)
    except PapermillExecutionError:
        pass  # the notebook holds it, see read_outcome
    except Exception as error:  # the kernel died or never came up
        crash = f"{type(error).__name__}: {error}"
    if kernels.stopped:  # what an earlier study has made of this notebook stays
        unfinished.unlink(missing_ok=True)
        raise InterruptedError(f"{path.name} was interrupted")
    if not unfinished.exists():
        return NotebookOutcome(path.stem, title=path.stem, error=crash)
    nb = nbformat.read(unfinished, as_version=4)
    nb.metadata.papermill |= {"input_path": path.name, "output_path": path.name, "crash": crash}
    write_text(final, nbformat.writes(nb))
    unfinished.unlink()
    outcome = read_outcome(final)
    write_text(final.with_suffix(".html"), to_html(nb, outcome.title))
    return replace(outcome, html=final.with_suffix(".html"))


def _locate(path: str | Path) -> Path:
    path = Path(path)
    for candidate in (path, NOTEBOOKS / path, NOTEBOOKS / f"{path}.ipynb"):
        if candidate.is_file():
            return candidate.resolve()
    raise unknown("notebook", str(path), [found.stem for found in sorted(NOTEBOOKS.glob("*.ipynb"))])


def check_parameters(path: Path, parameters: dict) -> None:
    """ValueError for a parameter that the notebook's `parameters` cell does not name (papermill would only warn)."""
    try:
        cells = nbformat.read(path, as_version=4).cells
    except Exception as error:
        raise ValueError(f"{path} cannot be read as a notebook: {error}") from None
    valid = parameter_names(next((cell.source for cell in cells if "parameters" in _tags(cell)), ""))
    for name in parameters:
        if name not in valid:
            raise unknown(f"parameter of {path.name}", name, valid or ["none: it has no cell tagged 'parameters'"])


def parameter_names(source: str) -> list[str]:
    """The names that a cell assigns. papermill.inspect_notebook passes over a line whose comment holds another `=`."""
    names = []
    for line in ast.parse(source).body:
        targets = line.targets if isinstance(line, ast.Assign) else [getattr(line, "target", None)]
        names += [target.id for target in targets if isinstance(target, ast.Name)]
    return names


class Kernel(AsyncKernelManager):
    """A kernel that remembers its client: nbclient leaves it open where the kernel is not its own."""

    def client(self, **options):
        self.last_client = super().client(**options)
        return self.last_client

    def close(self) -> None:
        if hasattr(self, "last_client"):
            self.last_client.stop_channels()
        run_sync(self._async_shutdown_kernel)(now=True)


class Kernels:
    """Starts kernels of this very Python with a share of the cores, and can stop all of them at once."""

    def __init__(self, threads: int | None = None):
        self.threads, self.running, self.stopped = threads, set(), False
        self.lock = threading.Lock()

    @contextmanager
    def start(self, folder: Path) -> Iterator[Kernel]:
        """A running kernel whose working directory is `folder`; it is shut down when done."""
        with tempfile.TemporaryDirectory(prefix="mambanorm-") as private:
            # sockets in a private folder: kernels started side by side would pick the same TCP ports
            sockets = dict(transport="ipc", ip=f"{private}/k") if os.name == "posix" and len(private) < 90 else {}
            kernel = Kernel(kernel_name="python3", connection_file=f"{private}/kernel.json", **sockets)
            # a user's own "python3" kernel may be another Python, without this package
            kernel.kernel_spec.argv[0] = sys.executable
            with self.lock:
                if self.stopped:
                    raise RuntimeError("interrupted")
                run_sync(kernel._async_start_kernel)(env=self._environment(), cwd=str(folder))
                self.running.add(kernel)
            try:
                yield kernel
            finally:
                with self.lock:
                    self.running.discard(kernel)
                kernel.close()

    def _environment(self) -> dict[str, str]:
        env = dict(os.environ)
        env.pop("MPLBACKEND", None)  # a backend chosen for scripts would swallow the figures
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
        if self.threads:
            names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
            env |= dict.fromkeys(names, str(self.threads))
        return env

    def stop(self) -> None:
        """Kills what runs, with the processes it started; its notebook then ends with an error."""
        with self.lock:
            self.stopped = True
            for kernel in self.running:
                try:
                    process = psutil.Process(kernel.provisioner.pid)
                    for one in (*process.children(recursive=True), process):
                        one.kill()
                except psutil.NoSuchProcess:
                    continue


# ---------------------------------------------------------------------------------------------------------------------
# reading an executed notebook


def read_outcome(path: Path) -> NotebookOutcome:
    """The outcome that an executed notebook holds."""
    nb = nbformat.read(path, as_version=4)
    run = nb.metadata.get("papermill", {})
    cells = [cell for cell in nb.cells if cell.cell_type == "code" and cell.source.strip()]
    page = path.with_suffix(".html")
    return NotebookOutcome(
        name=path.stem,
        wall_s=run.get("duration") or 0.0,
        notebook=path,
        html=page if page.exists() else None,
        **_heading(nb, path.stem),
        answer="\n\n".join(filter(None, map(_text, _outputs(_tagged(cells, "answer"))))),
        thumbnail=_picture(_tagged(cells, "thumbnail")) or _picture(cells),
        **_failure(cells, run.get("crash", "")),
    )


def _heading(nb: nbformat.NotebookNode, name: str) -> dict[str, str]:
    own = (c for c in nb.cells if c.cell_type == "markdown" and "papermill-error-cell-tag" not in _tags(c))
    opening = next((cell.source for cell in own), "")
    title = re.match(r"#\s+(.+)", opening)
    question = re.search(r"^\*\*Question\.?\*\*\.?\s*(.+?)(?:\n\s*\n|\Z)", opening, re.MULTILINE | re.DOTALL)
    return {"title": title[1].strip() if title else name, "question": question[1].strip() if question else ""}


def _failure(cells: list, crash: str) -> dict:
    """Status, and for a failure the number, source and error of its cell."""
    failed = [i for i, cell in enumerate(cells) if any(o.output_type == "error" for o in cell.outputs)]
    if not failed and not crash:
        return {"status": "ok"}
    # a dead kernel leaves no error in a cell: it was the last one to be started
    started = [i for i, cell in enumerate(cells) if cell.metadata.get("papermill", {}).get("start_time")]
    where = (failed[:1] or started[-1:] or [None])[0]
    if where is None:
        return {"status": "failed", "error": crash}
    found = [f"{o.ename}: {o.evalue}" for o in cells[where].outputs if o.output_type == "error"]
    error = re.sub(r"\x1b\[[0-9;]*m", "", (found or [crash])[0])[:600]
    source = "\n".join(cells[where].source.strip().splitlines()[:4])
    return {"status": "failed", "failed_cell": where + 1, "failed_source": source, "error": error}


def _tags(cell: nbformat.NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def _tagged(cells: list, tag: str) -> list:
    return [cell for cell in cells if tag in _tags(cell)]


def _outputs(cells: list) -> list:
    return [output for cell in cells for output in cell.outputs]


def _text(output: nbformat.NotebookNode) -> str:
    """The Markdown of an output; lines of plain text stay lines."""
    data = output.get("data", {})
    if "text/markdown" in data:
        return data["text/markdown"].strip()
    plain = output.text if output.output_type == "stream" and output.name == "stdout" else data.get("text/plain", "")
    return plain.strip().replace("\n", "  \n")


def _picture(cells: list) -> bytes | None:
    found = (output.data["image/png"] for output in _outputs(cells) if "image/png" in output.get("data", {}))
    return next((base64.b64decode(picture) for picture in found), None)


def _earlier(outcomes: Sequence[NotebookOutcome], out_dir: Path) -> list[NotebookOutcome]:
    """What the folder holds of notebooks that were not executed this time, so that the page stays whole."""
    done, found = {outcome.name for outcome in outcomes}, []
    for source in NOTEBOOKS.glob("*.ipynb"):
        path = out_dir / source.name
        if source.stem not in done and path.is_file():
            when = datetime.fromtimestamp(path.stat().st_mtime)
            found.append(replace(read_outcome(path), earlier=f"{when:%d %B %Y, %H:%M}"))
    return found


# ---------------------------------------------------------------------------------------------------------------------
# writing


def write_text(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o644)  # mkstemp's files are the owner's alone; a report is to be passed on
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def to_html(nb: nbformat.NotebookNode, title: str) -> str:
    """The notebook as a page, with a way back to the index and its links to other notebooks led to their pages."""
    from nbconvert import HTMLExporter  # takes a second to import; by now a kernel is at work

    page, _ = HTMLExporter().from_notebook_node(nb, resources={"metadata": {"name": title}})
    page = re.sub(r'(href="[\w-]+)\.ipynb(["#])', r"\1.html\2", page)
    back = '<p style="font:14px system-ui,sans-serif;margin:16px 5em 0"><a href="index.html">← all notebooks</a></p>'
    return re.sub(r"(<body[^>]*>)", lambda match: match[1] + back, page, count=1)


def study_facts(scale, tasks, seeds, n_runs: int, trained: int, wall_s: float) -> dict[str, str]:
    """What the page says about the run as a whole: label → text."""
    names = tuple(tasks or dict.fromkeys(c.task for runs in study(scale, tasks, seeds).values() for c in runs))
    return {
        "Scale": scale,
        "Seeds": ", ".join(map(str, check_seeds(seeds, scale))),
        "Tasks": "; ".join(f"{name} ({TASKS[name].title})" if name in TASKS else name for name in names),
        "Training runs": f"{n_runs}, of which {trained} trained this time"
        if trained
        else f"{n_runs}, all in the store",
        "Total time": spell(wall_s),
        "Date": f"{datetime.now().astimezone():%d %B %Y, %H:%M %Z}",
        "Machine": machine.machine(),
        "Code": f"commit {machine.git_commit() or 'unknown'}, {machine.versions()}",
    }


def write_index(outcomes: Sequence[NotebookOutcome], out_dir: str | Path, facts: dict[str, str] | None = None) -> Path:
    """Writes the page of cards, with its thumbnails beside it, and returns its path. It needs no network."""
    out_dir = Path(out_dir).resolve()
    out_dir.mkdir(parents=True, exist_ok=True)
    outcomes = sorted(outcomes, key=lambda outcome: outcome.name)
    bad = [outcome for outcome in outcomes if not outcome.ok]
    links = ", ".join(f'<a href="#{_attribute(o.name)}">{html.escape(o.name)}</a>' for o in bad)
    status = (
        f"{len(bad)} of {len(outcomes)} notebooks failed: {links}"
        if bad
        else f"{len(outcomes)} of {len(outcomes)} notebooks ran through"
    )
    page = PAGE.substitute(
        scale=html.escape((facts or {}).get("Scale", "")),
        status=status,
        state="bad" if bad else "good",
        facts="".join(
            f"<div><dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd></div>" for k, v in (facts or {}).items()
        ),
        cards="\n".join(_card(outcome, out_dir) for outcome in outcomes),
    )
    write_text(out_dir / "index.html", page)
    return out_dir / "index.html"


def _card(outcome: NotebookOutcome, out_dir: Path) -> str:
    number = re.match(r"\d+", outcome.name)
    link = _attribute(outcome.html.name) if outcome.html else ""
    picture = _thumbnail(outcome, out_dir)
    image = (
        f'<img src="{_attribute(picture)}" alt="" loading="lazy">'
        if picture
        else f"<b>{number[0] if number else '·'}</b>"
    )
    title = f'<a href="{link}">{html.escape(outcome.title)}</a>' if link else html.escape(outcome.title)
    parts = [
        f'<div class="picture{"" if picture else " empty"}">{image}</div><div class="text">',
        f'<p class="name">{html.escape(outcome.name)}</p><h2>{title}</h2>',
        f'<div class="question">{markdown(outcome.question)}</div>' if outcome.question else "",
        "" if outcome.ok else _failure_note(outcome),
        f'<div class="answer">{markdown(outcome.answer)}</div>' if outcome.answer else "",
        f'<p class="foot"><span>{spell(outcome.wall_s)}{_since(outcome)}</span>{_links(outcome, link)}</p></div>',
    ]
    state = "ok" if outcome.ok else "failed"
    return f'<article id="{_attribute(outcome.name)}" class="{state}">{"".join(parts)}</article>'


def _since(outcome: NotebookOutcome) -> str:
    return f" · executed earlier, {html.escape(outcome.earlier)}" if outcome.earlier else ""


def _links(outcome: NotebookOutcome, link: str) -> str:
    source = f'<a href="{_attribute(outcome.notebook.name)}">.ipynb</a>' if outcome.notebook else ""
    return f'<span>{source}<a class="go" href="{link}">Read on →</a></span>' if link else ""


def _failure_note(outcome: NotebookOutcome) -> str:
    if outcome.status == "ok":
        return f'<div class="failure"><strong>{html.escape(outcome.problem)}.</strong></div>'
    where = f"Failed in cell [{outcome.failed_cell}]" if outcome.failed_cell else "Failed before its first cell"
    source = f"<pre>{html.escape(outcome.failed_source)}</pre>" if outcome.failed_source else ""
    return f'<div class="failure"><strong>{where}</strong>{source}<p>{html.escape(outcome.error)}</p></div>'


def _attribute(text: str) -> str:
    return html.escape(text, quote=True)


def _thumbnail(outcome: NotebookOutcome, out_dir: Path) -> str:
    """Writes the picture, at most THUMBNAIL_WIDTH pixels wide, and returns its file name; "" if there is none."""
    if outcome.thumbnail is None:
        return ""
    from PIL import Image

    try:
        image = Image.open(io.BytesIO(outcome.thumbnail)).convert("RGBA")
    except (OSError, ValueError):  # a picture that cannot be read is not worth a report
        return ""
    image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    if image.width > THUMBNAIL_WIDTH:
        height = max(1, round(image.height * THUMBNAIL_WIDTH / image.width))
        image = image.resize((THUMBNAIL_WIDTH, height), Image.Resampling.LANCZOS)
    png = io.BytesIO()
    image.save(png, "PNG", optimize=True)
    write_bytes(out_dir / f"{outcome.name}.png", png.getvalue())
    return f"{outcome.name}.png"


def markdown(text: str) -> str:
    """Markdown → HTML; HTML within it is shown, not obeyed."""
    import mistune

    page = mistune.create_markdown(escape=True, plugins=["table"])(text)
    return re.sub(r'(href="[\w-]+)\.ipynb(["#])', r"\1.html\2", page)


PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Normalization in Mamba: report at scale $scale</title>
<style>
:root {
  --page: #f6f5f1; --card: #fff; --ink: #1d2129; --soft: #5d6573; --line: #e2e0d8; --accent: #2c5f8a; --wash: #eef3f7;
  --good: #2f7d4f; --bad: #b3362b; --bad-wash: #fbeeec; --plate: #fff;
  --shadow: 0 1px 2px #0000000d, 0 6px 20px #0000000d;
  --serif: Charter, "Iowan Old Style", "Source Serif 4", Georgia, serif;
  --mono: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171c; --card: #1d2128; --ink: #e6e8ec; --soft: #9aa3b0; --line: #2e343e; --accent: #86b8e0;
    --wash: #222b35; --good: #6cc492; --bad: #ff8d80; --bad-wash: #34211f; --plate: #e9eaec; --shadow: none;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
main { max-width: 1180px; margin: 0 auto; padding: 56px 24px 72px; }
a { color: var(--accent); text-decoration: none; }
a:hover { text-decoration: underline; }
a:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; border-radius: 3px; }
code { font: .9em var(--mono); }
pre { margin: 8px 0; font: 13px/1.45 var(--mono); white-space: pre-wrap; overflow-wrap: anywhere; }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 10px 3px 0; text-align: left; border-bottom: 1px solid var(--line); }

.eyebrow { margin: 0; color: var(--accent); font: 600 13px var(--mono); letter-spacing: .04em; }
h1 { margin: 8px 0 14px; font: 600 clamp(30px, 5vw, 44px)/1.15 var(--serif); letter-spacing: -.01em; }
.lead { max-width: 46em; margin: 0 0 22px; color: var(--soft); font-size: 18px; }
.status {
  display: inline-block; margin: 0 0 26px; padding: 6px 14px; border: 1px solid; border-radius: 8px;
  font-weight: 600; font-size: 15px;
}
.status.good { color: var(--good); }
.status.bad { color: var(--bad); background: var(--bad-wash); }
.status a { color: inherit; text-decoration: underline; }
dl {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(min(230px, 42%), 1fr)); gap: 14px 28px;
  margin: 0 0 44px; padding: 20px 0; border: solid var(--line); border-width: 1px 0;
}
dt { color: var(--soft); font-size: 13px; }
dd { margin: 2px 0 0; font-size: 14.5px; line-height: 1.45; overflow-wrap: anywhere; }

.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 350px), 1fr)); gap: 26px; }
article {
  display: flex; flex-direction: column; overflow: hidden; scroll-margin-top: 20px;
  background: var(--card); border: 1px solid var(--line); border-radius: 14px; box-shadow: var(--shadow);
}
article.failed { border-color: var(--bad); }
.picture {
  position: relative; display: grid; place-items: center; aspect-ratio: 16 / 9;
  background: var(--plate); border-bottom: 1px solid var(--line);
}
.picture img {
  position: absolute; inset: 12px; width: calc(100% - 24px); height: calc(100% - 24px);
  object-fit: contain; mix-blend-mode: multiply;
}
.picture.empty { background: var(--wash); }
.picture b { color: var(--accent); font: 600 64px/1 var(--serif); opacity: .35; }
.text { display: flex; flex-direction: column; flex: 1; padding: 20px 22px 16px; min-width: 0; }
.name { margin: 0; color: var(--soft); font: 12.5px var(--mono); }
h2 { margin: 3px 0 8px; font: 600 22px/1.25 var(--serif); }
h2 a { color: inherit; }
.question { color: var(--soft); font-style: italic; }
.question p { margin: 0; }
.answer, .failure {
  margin-top: 14px; padding: 10px 14px; overflow-x: auto; font-size: 15px;
  background: var(--wash); border-left: 3px solid var(--accent); border-radius: 0 8px 8px 0;
}
.answer p, .answer ul, .answer ol, .answer table { margin: 0 0 8px; }
.answer ul, .answer ol { padding-left: 20px; }
.answer :is(h1, h2, h3) { margin: 0 0 6px; font-size: 16px; font-family: inherit; }
.answer > :last-child { margin-bottom: 0; }
.failure { background: var(--bad-wash); border-color: var(--bad); }
.failure strong, .failure p { color: var(--bad); }
.failure p { margin: 0; overflow-wrap: anywhere; white-space: pre-wrap; }
.foot {
  display: flex; flex-wrap: wrap; justify-content: space-between; gap: 4px 12px;
  margin: auto 0 0; padding-top: 16px; color: var(--soft); font-size: 14px;
}
.foot a + a { margin-left: 14px; }
.go { font-weight: 600; }
@media print { article { break-inside: avoid; box-shadow: none; } }
</style>
</head>
<body>
<main>
<p class="eyebrow">mambanorm · scale $scale</p>
<h1>Normalization in Mamba</h1>
<p class="lead">Which norm does a Mamba block want, and where: before the selective scan, after it, or on both sides?
Each card is one notebook, executed from top to bottom: its question, the answer that these very runs give, and the way
there.</p>
<p class="status $state">$status</p>
<dl>$facts</dl>
<section class="cards">
$cards
</section>
</main>
</body>
</html>
""")
