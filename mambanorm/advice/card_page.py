"""What a card says and how it is shown: its sentences, the page, the head of it as a picture, JSON, the terminal.

said, words     the answer in sentences, by topic; all of them, the first ones first
as_html         the card as a notebook shows it;   save: the page, which opens offline, its head as PNG, and JSON
as_text         for a terminal;   cards_html: several cards, folded
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mambanorm.basics.atomic import writable_folder, write_bytes, write_text
from mambanorm.basics.text import plural, spell
from mambanorm.claims.evidence import Evidence, kind_of, label
from mambanorm.claims.protocol import VERSION
from mambanorm.claims.ranking import tuned_arms
from mambanorm.config import RunConfig
from mambanorm.norms import NORMS
from mambanorm.runs import machine
from mambanorm.runs.grid import base_config, relative_cost
from mambanorm.runs.recorded_results import own_rate, recorded, recorded_path
from mambanorm.study.experiments import model_of

REFERENCE = "RMSN>SSM>None"
"""Mamba's own arm, beside which every other stands."""
LAST_TEST_SEED = 99
LOOKS_AHEAD = "does a later position change an earlier output"
WORDS = ("better", "alike", "worse", "open", "not judged")


# -------------------------------------------------------------------------------------------------------- in words


def said(card: Any) -> dict[str, list[str]]:
    """Topic → sentences: who it is; at each place whether it is better; whether it may stand in a language model; what
    is wrong with it; whether it trains; what it costs; what would settle what is open; what could not be done."""
    topics = dict(who=_who, better=_better, best=_against_best, causal=_causal, wrong=_wrong, trains=_trains)
    topics |= dict(costs=_cost, open=_open, notes=lambda card: list(card.notes))
    return {topic: sentences(card) for topic, sentences in topics.items()}


def words(card: Any) -> list[str]:
    """All sentences, the first ones first."""
    return [line for lines in said(card).values() for line in lines]


def _who(card: Any) -> list[str]:
    if card.same:
        said = f"{card.name} is the same as {card.same} to 1e-6: nothing was trained"
        return [f"{said}, and what stands below of runs is the record of {card.same}."]
    learns = "but it learns other parameters"
    return [f"{card.name} starts the same as {card.starts} to 1e-6, {learns}."] if card.starts else []


def _better(card: Any) -> list[str]:
    """A sentence a place, against the arm that it stands beside: what is told, then what is not."""
    if not len(card.verdicts):
        return ["Whether it is better is not known: it has not been trained on these tasks."]
    lines, rows = [], card.verdicts[card.verdicts.against == card.against]
    if card.sketch:
        few = f"at the rate of {label(card.against)} and with few seeds: it judges nothing, `--seeds 8` does"
        lines.append(f"A sketch, {few}.")
    for place, arm in card.arms.items():
        mine = list(rows[rows.place == place].itertuples())
        told = [_told(row) for row in mine if row.word in ("better", "worse", "alike")]
        parts = [f"{card.same or card.name} is {', and '.join(told)}"] if told else []
        if open_ones := [f"on {row.task} ({_amount(row)})" for row in mine if row.word == "open"]:
            parts.append(f"we cannot tell {' nor '.join(open_ones)}")
        parts += [f"on {row.task} {_amount(row)}" for row in mine if row.word == "sketch"]
        why = lambda row: row.said.removeprefix("not judged: ").partition(" (")[0]  # noqa: E731
        parts += [f"not judged on {row.task}, {why(row)} ({_amount(row)})" for row in mine if row.word == "not judged"]
        if arm == card.against:
            lines.append(f"{place.capitalize()} it is {label(arm)}, beside which the others stand.")
        else:
            lines.append(f"{place.capitalize()} {'; '.join(parts) or 'it has not been trained'}.")
    return lines


def _amount(row: Any, sign: int = 0) -> str:
    """`+0.7 points, −1.5 to 2.9`; with a sign that of the side that is ahead: `0.7 points`, `(−1.5 to 2.9)`."""
    digits, unit = (1, "points") if row.unit == "pp" else (3, row.unit)
    if not row.n:
        return "no pair of runs finished"
    span = [f"{end:.{digits}f}" for end in sorted((sign or 1) * np.array([row.low, row.high]))]
    mean = f"{row.effect:+.{digits}f} {unit}" if not sign else f"{abs(row.effect):.{digits}f} {unit}"
    return (mean + (f", {span[0]} to {span[1]}" if np.isfinite(row.low) else "")).replace("-", "−")


def _told(row: Any) -> str:
    """`1.2 points better than RMSN→None on curves (0.3 to 2.1)`"""
    if row.word == "alike":
        limit = "one point" if row.unit == "pp" else "0.01 bits a character"
        text = f"within {limit} of {label(row.against)} on {row.task} ({_amount(row)})"
    else:
        amount, _, span = _amount(row, -1 if row.word == "worse" else 1).partition(", ")
        text = f"{amount} {row.word} than {label(row.against)} on {row.task} ({span})"
    return text + (f", but {row.diverged} of its runs diverged" if row.diverged else "")


def _against_best(card: Any) -> list[str]:
    if not len(card.verdicts) or not card.verdicts.best.any():
        return []
    rows = card.verdicts[card.verdicts.best]
    arms = ", ".join(f"{label(a)} on {task}" for task, a in rows.groupby("task", sort=False).against.first().items())
    counts = rows.word.value_counts()
    told = ", ".join(f"{word} in {counts[word]}" for word in WORDS if word in counts)
    return [f"Against the best recorded arm ({arms}): {told} of {plural(len(rows), 'comparison')}."]


def sees_ahead(card: Any) -> str:
    """ "no", or which position sees which; the error of a norm that fails."""
    return card.checks.set_index("question").found[LOOKS_AHEAD]


def _causal(card: Any) -> list[str]:
    seen = sees_ahead(card)
    if seen == "no":
        tried = len(card.verdicts) and (card.verdicts.unit != "pp").any()
        return [] if tried else ["It is causal: it may stand in a language model, where it has not been tried here."]
    return [f"In a language model it must not stand: {seen}."] if "sees" in seen else []


def _wrong(card: Any) -> list[str]:
    bad = card.checks[card.checks.told == "bad"]
    each = "; ".join(f"{row.question}: {row.found}" for row in bad.itertuples())
    return [f"What is wrong: {each}."] if each else []


def _trains(card: Any) -> list[str]:
    if not len(card.training):
        return []
    lines, rates = [], card.training.dropna(subset=["rate"])
    if len(rates):
        each = ", ".join(f"{row.rate:.2g} {row.place}" for row in rates.itertuples())
        own = card.training.rate_reference.iloc[0]
        beside = f"; of {label(card.against)} it is {own:.2g}" if np.isfinite(own) else ""
        lines.append(f"The highest learning rate that trains it is {each}{beside}.")
    runs = [counts for by_rate in card.training.diverged for counts in by_rate.values()]
    if runs:
        lost, n = (sum(column) for column in zip(*runs, strict=True))
        rates = "at its one rate" if card.sketch else "at all rates"
        lines.append(f"{lost or 'None'} of its {n} runs on {card.training.task.iloc[0]}, {rates}, diverged.")
    room = card.training.dropna(subset=["headroom"])
    if len(room):
        each = ", ".join(f"{row.headroom:+.1f} {row.place}" for row in room.itertuples()).replace("-", "−")
        lines.append(f"Head-room of the scan in float16, decades in a trained model of eight blocks: {each}.")
    return lines


def _cost(card: Any) -> list[str]:
    if not len(card.costs):
        return []
    cost = card.costs.iloc[min(1, len(card.costs) - 1)]
    size = f"({cost['shape']}; {cost.ms:.2g} ms)"
    return [f"Forward and backward take {cost.over_rmsn:.2g} times as long as RMSN {size}."]


USUAL_S = 4e-6
"""Seconds of a unit of `relative_cost` where no run of the task is recorded."""


def run_seconds(config: RunConfig) -> float:
    """About how long a run takes, judged by the recorded ones of its task."""
    path = recorded_path(config.scale)
    unit = _unit_s(config.scale, config.task, path.stat().st_mtime_ns) if path.is_file() else USUAL_S
    return unit * relative_cost(config)


@lru_cache(maxsize=64)
def _unit_s(scale: str, task: str, mtime_ns: int) -> float:
    """The least of each arm, because some were recorded while the machine did other things as well; their median."""
    runs = recorded(scale).query("task == @task and status == 'ok'")
    work = runs.steps * runs.n_layers * (runs.d_model + 16) * base_config(task, scale).batch_size
    return float((runs.wall_s / work).groupby(runs.arm).min().median()) if len(runs) else USUAL_S


def _open(card: Any) -> list[str]:
    """What would settle what is open, and what it takes; the cheapest first, at most two."""
    if not len(card.verdicts):
        return []
    rows = card.verdicts[(card.verdicts.against == card.against) & card.verdicts.new_seeds.notna()]
    lines = []
    for row in rows.sort_values("new_seeds").head(2).itertuples():
        known = own_rate(row.task, card.against, card.scale)
        seeds, first = int(row.new_seeds), max(*card.seeds[row.task], *(known[1] if known else ())) + 1
        one = sum(run_seconds(base_config(row.task, card.scale, arm=arm)) for arm in (row.arm, card.against))
        takes = f"about {plural(seeds, 'new seed')}, {spell(3 * seeds * one / 2)} on two cores"
        last, what = first + seeds - 1, f"To settle {label(row.arm)} on {row.task}"
        how = f"mambanorm card {card.which or card.name} --tasks {row.task} --seeds {first}-{last}"
        how = f": `{how}`" if last <= LAST_TEST_SEED else ", more than there are seeds for"
        lines.append(f"{what}: {takes}{how}.")
    return lines


# ---------------------------------------------------------------------------------------------------------- the page


def as_html(card: Any, *, brief: bool = False, alone: bool = False) -> str:
    """The card as HTML, for a notebook with its style. brief: one of several, without style and picture. alone: on a
    page of its own, which has the style."""
    from mambanorm.report.page import mathml, template

    entry = NORMS[card.name]
    picture = None if brief or not card.strips else head(card)
    body = template(
        "card.html",
        equation=mathml(entry.equation) if entry.equation and alone else "",
        axes=" · ".join(entry.axes) or "nothing",
        causal=entry.causal,
        learns=entry.learnable,
        source=entry.source,
        doubt=entry.doubt,
        words=[re.sub("`(.*?)`", r"<code>\1</code>", html.escape(line)) for line in words(card)],
        picture=base64.b64encode(picture._repr_png_()).decode() if picture is not None else "",
        alt=picture.get_label() if picture is not None else "",
        verdicts=[_shown(row) for row in card.verdicts.itertuples()],
        training=[_trained(row) for row in card.training.itertuples()],
        beside=label(card.against),
        inside=card.training.task.iloc[0] if len(card.training) else "",
        checks={group: rows.to_dict("records") for group, rows in card.checks.groupby("group", sort=False)},
        costs=[_cost_row(row) for row in card.costs.itertuples()],
        basis=f"{basis(card)} · {datetime.now():%d %B %Y}, {machine.versions()}, {machine.machine()}",
    )
    return body if brief or alone else f"<style>\n{template('card.css')}</style>\n{body}"


def basis(card: Any) -> str:
    """On what it stands."""
    seeds = sorted({len(own) for own in card.seeds.values()})
    return f"{card.scale} scale · {', '.join(card.tasks)} · {' or '.join(map(str, seeds))} seeds · " + (
        f"a sketch, every arm at the learning rate of {label(card.against)}"
        if card.sketch
        else f"rule of protocol {VERSION}, each arm at its own learning rate, each comparison by itself at 95 %, "
        "corrected for no other"
    )


def _shown(row: Any) -> dict[str, Any]:
    digits = 1 if row.unit == "pp" else 3
    numbers = [
        f"{value:+.{digits}f}".replace("-", "−") if np.isfinite(value) else "–"
        for value in (row.effect, row.low, row.high)
    ]
    return dict(
        place=row.place, task=row.task, against=label(row.against), best=row.best, word=row.word, effect=numbers[0],
        interval=f"{numbers[1]} to {numbers[2]}" if np.isfinite(row.low) else "–", n=row.n, said=row.said,
        diverged=f"{row.diverged} against {row.diverged_against}" if row.diverged or row.diverged_against else "none",
    )  # fmt: skip


def _cost_row(row: Any) -> dict[str, str]:
    kept = f"{row.kept:.2g} × the input (RMSN: {row.kept_rmsn:.2g})"
    times = dict(ms=f"{row.ms:.3g}", over_rmsn=f"{row.over_rmsn:.2f}", over_ln=f"{row.over_ln:.2f}")
    return dict(shape=row.shape, kept=kept, **times)


def _trained(row: Any) -> dict[str, str]:
    def number(value: float) -> str:
        return f"{value:.2f}".replace("-", "−") if np.isfinite(value) else "–"

    rate = f"{row.rate:.2g} ({row.rate_reference:.2g})" if np.isfinite(row.rate) else "–"
    lost = ", ".join(f"{k} of {n} at {lr}" for lr, (k, n) in row.diverged.items() if k)
    runs = sum(n for _, n in row.diverged.values())
    numbers = dict(start=number(row.start), trained=number(row.trained), headroom=number(row.headroom))
    return dict(place=row.place, rate=rate, diverged=lost or (f"none of {runs}" if runs else "–"), **numbers)


def strip_of(evidence: Evidence, task: str, mine: Sequence[str], lr: float | None = None) -> pd.DataFrame:
    """Every tuned arm of a task with the mean of its finished runs at its rate, per cent (of language models bits, with
    a minus), best first: arm, mean, n, own. lr: the one rate at which `mine` were run."""
    others = (arm for arm in tuned_arms(kind_of(task)) if model_of([arm]) == "mamba" and arm not in mine)
    known, column = [evidence.tuned(tuple(others), task)], "bits" if kind_of(task) == "language" else "score"
    known.append(evidence.tuned(tuple(mine), task) if lr is None else evidence.at_rates(tuple(mine), task, [lr]))
    rows = [
        dict(arm=arm, mean=float(np.nanmean(scores)), n=int(np.isfinite(scores).sum()), own=arm in mine)
        for runs in known
        for arm, scores in zip(runs.arms, runs.finished(column), strict=True)
        if arm not in runs.gaps and np.isfinite(scores).any()
    ]
    table = pd.DataFrame(rows, columns=["arm", "mean", "n", "own"])
    return table.sort_values("mean", ascending=False, ignore_index=True)


def head(card: Any, *, lines: Sequence[str] = ()) -> Any:
    """The strip of all known norms; with `lines` the head of a card that stands alone."""
    from mambanorm.figures import fig_card

    name, title = card.same or card.name, f"{card.name}: a card" if lines else ""
    rates = "circled ones at one rate, the others each at its own" if card.sketch else "each arm at its own rate"
    caption = f"{card.scale} scale · {plural(max(map(len, card.seeds.values())), 'seed')} · circled: {name}"
    caption += f" · means of the seeds, {rates}; no interval: see the table"
    return fig_card(card.strips, name, caption, title=title, lines=lines)


def cards_html(cards: Iterable[Any]) -> str:
    """Several cards, each folded under its first sentence."""
    from mambanorm.report.page import template

    folds = []
    for card in cards:
        first = next((line for line in words(card) if " is " in line), words(card)[0])
        summary = f"<b>{html.escape(card.name)}</b> {html.escape(first)}"
        folds.append(f"<details><summary>{summary}</summary>{as_html(card, brief=True)}</details>")
    return f'<style>\n{template("card.css")}</style>\n<div class="norm-cards">{"".join(folds)}</div>'


def save(card: Any, folder: str | Path) -> list[Path]:
    """Writes NAME.html, NAME.json and, where something has been run, NAME.png; their paths."""
    from mambanorm.report.page import figures, page, template

    folder = writable_folder(folder, "the card")
    paths = [folder / f"{card.name}.{kind}" for kind in ("html", "json")]
    body = f'<p class="eyebrow">mambanorm · a card for a norm</p><h1>{html.escape(card.name)}</h1>'
    styles = template("index.css"), template("card.css")
    write_text(paths[0], page(f"{card.name}: a card", figures(body + as_html(card, alone=True)), *styles))
    write_text(paths[1], as_json(card))
    if card.strips:
        few = [line for line in words(card) if not line.startswith("To settle")][:6]
        paths.append(folder / f"{card.name}.png")
        write_bytes(paths[2], head(card, lines=few)._repr_png_())
    return paths


def as_json(card: Any) -> str:
    entry, same = NORMS[card.name], ("name", "scale", "tasks", "seeds", "against", "same", "starts", "notes")
    facts: dict[str, Any] = {key: getattr(card, key) for key in same} | dict(words=words(card), protocol=VERSION)
    facts |= dict(versions=machine.versions(), machine=machine.machine())
    declared = ("equation", "source", "axes", "causal", "learnable", "doubt")
    facts["declared"] = {key: getattr(entry, key) for key in declared}
    told = card.verdicts.drop(columns=["verdict", "reverse"]) if len(card.verdicts) else card.verdicts
    tables = dict(checks=card.checks, costs=card.costs, training=card.training, verdicts=told)
    facts |= {name: json.loads(table.to_json(orient="records")) for name, table in tables.items()}
    facts["strips"] = {task: json.loads(table.to_json(orient="records")) for task, table in card.strips.items()}
    return json.dumps(facts, ensure_ascii=False, indent=1)


def as_text(card: Any) -> str:
    lines = [f"{card.name}, scale {card.scale}", *(f"- {line}" for line in words(card))]
    if len(card.verdicts):
        table = pd.DataFrame([_shown(row) for row in card.verdicts.itertuples()])
        lines += ["", table[["place", "task", "against", "word", "effect", "interval", "n"]].to_string(index=False)]
    return "\n".join(lines)
