"""NormCard: what is known of a norm, as sentences, as a page, as JSON and for a terminal."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mambanorm.norms import NORMS
from mambanorm_study.advice.which_arm import NOT_FRESH
from mambanorm_study.basics.atomic import writable_folder, write_bytes, write_text
from mambanorm_study.basics.text import plural, spell
from mambanorm_study.claims import rule
from mambanorm_study.claims.evidence import VERSION
from mambanorm_study.config import RunConfig
from mambanorm_study.report.page import add_templates, figures, mathml, page, template
from mambanorm_study.runs import machine
from mambanorm_study.runs.grid import FIRST_TEST_SEED, LAST_TEST_SEED, base_config, relative_cost
from mambanorm_study.runs.recorded_lr import recorded_lr
from mambanorm_study.runs.recorded_results import recorded, recorded_path
from mambanorm_study.tables.intervals import shared_rows
from mambanorm_study.tables.run_tables import label

add_templates(Path(__file__).with_name("templates"))

REFERENCE = "RMSN>SSM>None"
"""Mamba's original arm, with which every other one is compared."""

PLACES = {
    "before the block": "{0}>SSM>None",
    "after the scan": "None>SSM>{0}",
    "on both sides": "{0}>SSM>{0}",
}
LOOKS_AHEAD = "does a later position change an earlier output"
WORDS = ("better", "about the same", "worse", rule.CANNOT_TELL, rule.NO_WORD)
SIGNS = {"good": "✓", "bad": "✗", "": ""}
DECLARED = ("equation", "source", "axes", "causal", "learnable", "doubt")
HEADINGS = dict(
    effect="difference", low="95 % from", high="to", n="seeds", rate="highest rate that trains",
    diverged="diverged", start="growth at start", trained="growth, trained", headroom="head-room in float16",
    shape="B × L × D", over_rmsn="× RMSN", over_ln="× LN", kept="kept / input", kept_rmsn="of RMSN", told="",
)  # fmt: skip
"""Column → its heading."""


@dataclass(frozen=True)
class NormCard:
    """What is known about a norm.

    seeds: task → the seeds that are trained. against: the arm that the norm is compared with.
    checks: group, question, found, told. costs: one row a size (norm_catalog.costs_of). training:
    one row a place (`training_of`). verdicts: one row for each place, task and arm compared with,
    columns of `compare` and place, arm, against, best (whether that is the best recorded arm).
    strips: task → every tuned arm with its mean. notes: what could not be measured. untrained: what
    could not be trained, () = all is.
    """

    name: str
    scale: str
    tasks: tuple[str, ...]
    seeds: dict[str, list[int]]
    against: str = REFERENCE
    checks: pd.DataFrame = field(default_factory=pd.DataFrame)
    costs: pd.DataFrame = field(default_factory=pd.DataFrame)
    same: str = ""  # the norm of the kit that it is
    training: pd.DataFrame = field(default_factory=pd.DataFrame)
    verdicts: pd.DataFrame = field(default_factory=pd.DataFrame)
    strips: dict[str, pd.DataFrame] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    untrained: tuple[str, ...] = ()
    which: str = ""  # the file that registers it

    @property
    def arms(self) -> dict[str, str]:
        """Place → arm; a norm that equals one of the kit's has its arms, because their runs are
        recorded."""
        places = {"nowhere": "None>SSM>None"} if self.name == "None" else PLACES
        return {place: arm.format(self.same or self.name) for place, arm in places.items()}

    @property
    def sketch(self) -> bool:
        """Whether it has too few seeds for a word."""
        return max(map(len, self.seeds.values())) < rule.FEWEST

    @property
    def sees_ahead(self) -> str:
        """Return "no", or which position sees which; the error of a norm that fails."""
        return self.checks.set_index("question").found[LOOKS_AHEAD]

    # ------------------------------------------------------------------------------------- in words

    @property
    def said(self) -> dict[str, list[str]]:
        """Return topic → sentences: whether it equals a norm of the kit; whether it is better at
        each place; whether a language model can have it; what is wrong with it; whether it trains;
        what it costs; how many seeds would tell what we cannot tell; what could not be done."""
        topics = dict(
            who=_who,
            better=_better,
            best=_against_best,
            causal=_causal,
            wrong=_wrong,
            trains=_trains,
        )
        topics |= dict(costs=_cost, open=_open, notes=lambda card: [*card.notes, *card.untrained])
        return {topic: sentences(self) for topic, sentences in topics.items()}

    @property
    def words(self) -> list[str]:
        """All sentences, the first ones first."""
        return [line for lines in self.said.values() for line in lines]

    @property
    def basis(self) -> str:
        """Return what it rests on: scale, tasks, seeds, the rule."""
        how = f"rule of protocol {VERSION}, each arm at its learning rate, plain 95 % intervals"
        if self.sketch:
            how = f"a sketch, every arm at the learning rate of {label(self.against)}"
        return f"{self.scale} scale · {', '.join(self.tasks)} · {self.seed_counts} · {how}"

    @property
    def seed_counts(self) -> str:
        """Return `8 seeds`, or `6 or 8 seeds` if comparisons differ."""
        counts = (
            set(self.verdicts.n)
            if len(self.verdicts)
            else {len(used) for used in self.seeds.values()}
        )
        return f"{' or '.join(map(str, sorted(counts)))} seed{'' if counts == {1} else 's'}"

    # ------------------------------------------------------------------------------ how it is shown

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Return title → table."""
        found = {}
        if len(rows := self.verdicts):
            best = np.where(rows.best, ", the best recorded", "")
            lost = rows.diverged.astype(str) + " against " + rows.diverged_against.astype(str)
            rows = rows.assign(against=rows.against.map(label) + best, diverged=lost)
            shown = [
                "place",
                "task",
                "against",
                "word",
                "effect",
                "low",
                "high",
                "unit",
                "n",
                "diverged",
            ]
            found["Is it better?"] = rows[shown]
        if len(rows := self.training):
            each = rows.diverged.map(
                lambda by: ", ".join(f"{k} of {n} at {lr}" for lr, (k, n) in by.items() if k)
            )
            title, rows = (
                f"Does it train, on {rows.task.iloc[0]}?",
                rows.assign(diverged=each.replace("", "none")),
            )
            rows = rows.drop(columns=["arm", "task"])
            found[title] = rows.rename(columns=dict(rate_reference=f"of {label(self.against)}"))
        for group, rows in self.checks.groupby("group", sort=False):
            found[f"{group.capitalize()}, measured"] = rows[["told", "question", "found"]].replace(
                {"told": SIGNS}
            )
        if len(self.costs):
            found["What it costs, forward and backward"] = self.costs
        return {title: table.rename(columns=HEADINGS) for title, table in found.items()}

    def _html(self, *, picture: bool = True, equation: bool = False) -> str:
        shown = dict(index=False, border=0, na_rep="–", float_format="{:.3g}".format)
        with pd.option_context("display.max_colwidth", None):
            tables = {title: table.to_html(**shown) for title, table in self.tables.items()}
        entry, drawn = NORMS[self.name], self._head() if picture and self.strips else None
        return template(
            "card.html",
            entry=entry,
            equation=mathml(entry.equation) if entry.equation and equation else "",
            words=[re.sub("`(.*?)`", r"<code>\1</code>", html.escape(line)) for line in self.words],
            picture=base64.b64encode(drawn._repr_png_()).decode() if drawn else "",
            alt=drawn.get_label() if drawn else "",
            tables=tables,
            basis=f"{self.basis} · {datetime.now():%d %B %Y}, {machine.versions()}, {machine.machine()}",
        )

    def _repr_html_(self) -> str:
        return f"<style>\n{template('card.css')}</style>\n{self._html()}"

    def _repr_png_(self) -> bytes | None:
        """The strip alone, where HTML is not shown, and for the card of a notebook in the
        report."""
        return self._head()._repr_png_() if self.strips else None

    def __str__(self) -> str:
        lines = [f"{self.name}, scale {self.scale}", *(f"- {line}" for line in self.words)]
        if len(self.verdicts):
            lines += [
                "",
                self.tables["Is it better?"].to_string(index=False, float_format="{:.3g}".format),
            ]
        return "\n".join(lines)

    __repr__ = __str__

    def to_json(self) -> str:
        simple = (
            "name",
            "scale",
            "tasks",
            "seeds",
            "against",
            "same",
            "notes",
            "untrained",
            "words",
        )
        facts: dict[str, Any] = {key: getattr(self, key) for key in simple} | dict(protocol=VERSION)
        facts |= dict(versions=machine.versions(), machine=machine.machine())
        facts["declared"] = {key: getattr(NORMS[self.name], key) for key in DECLARED}
        tables = dict(
            checks=self.checks, costs=self.costs, training=self.training, verdicts=self.verdicts
        )
        facts |= {name: _rows(table) for name, table in tables.items()}
        facts["strips"] = {task: _rows(table) for task, table in self.strips.items()}
        return json.dumps(facts, ensure_ascii=False, indent=1)

    def save(self, folder: str | Path) -> list[Path]:
        """Write NAME.html, which opens offline, NAME.json and, if there are runs, NAME.png; return
        their paths."""
        folder = writable_folder(folder, "the card")
        paths = [folder / f"{self.name}.{kind}" for kind in ("html", "json")]
        body = (
            f'<p class="eyebrow">mambanorm · a card for a norm</p><h1>{html.escape(self.name)}</h1>'
        )
        styles = template("index.css"), template("card.css")
        write_text(
            paths[0],
            page(f"{self.name}: a card", figures(body + self._html(equation=True)), *styles),
        )
        write_text(paths[1], self.to_json())
        if self.strips:
            few = [line for line in self.words if not line.startswith("To settle")][:6]
            paths.append(folder / f"{self.name}.png")
            write_bytes(paths[2], self._head(few)._repr_png_())
        return paths

    def _head(self, lines: Sequence[str] = ()) -> Any:
        """The strip of all known norms; with `lines` the head of a card that stands alone."""
        from mambanorm_study.figures import fig_card

        name, title = self.same or self.name, f"{self.name}: a card" if lines else ""
        rates = "each arm at its learning rate"
        if self.sketch:
            rates = "circled arms at one learning rate, every other arm at its own"
        caption = f"{self.scale} scale · {self.seed_counts} · circled: {name} · means of the seeds, {rates}"
        return fig_card(self.strips, name, caption, title=title, lines=lines)


def _rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    return json.loads(table.to_json(orient="records"))


def _who(card: NormCard) -> list[str]:
    said = f"{card.name} is the same as {card.same} to 1e-6: nothing was trained."
    return [f"{said} The runs below are those recorded of {card.same}."] if card.same else []


def _better(card: NormCard) -> list[str]:
    """Return a sentence for each place and task, compared with `card.against`, and the common
    remarks."""
    if not len(card.verdicts):
        return ["Whether it is better is not known: it has not been trained on these tasks."]
    rows = card.verdicts[card.verdicts.against == card.against]
    lines = [f"On {row.task}, {row.place}, {row.brief}." for row in rows.itertuples()]
    if stale := list(dict.fromkeys(rows.task[~rows.fresh.astype(bool)])):
        lines.append(f"On {' and '.join(stale)} the comparisons are {NOT_FRESH}.")
    for task in dict.fromkeys(rows.task):
        if shared := shared_rows(task, card.scale):
            lines.append(
                f"The seeds on {task} share {shared}: the comparisons speak about it alone."
            )
    few = f"at the learning rate of {label(card.against)} and with few seeds: `--seeds 8` compares by the rule"
    return [f"A sketch, {few}.", *lines] if card.sketch else lines


def _against_best(card: NormCard) -> list[str]:
    if not len(card.verdicts) or not card.verdicts.best.any():
        return []
    rows = card.verdicts[card.verdicts.best]
    arms = ", ".join(
        f"{label(a)} on {task}"
        for task, a in rows.groupby("task", sort=False).against.first().items()
    )
    counts = rows.word.value_counts()
    told = ", ".join(f"{word} in {counts[word]}" for word in WORDS if word in counts)
    return [f"Against the best recorded arm ({arms}): {told} of {plural(len(rows), 'comparison')}."]


def _causal(card: NormCard) -> list[str]:
    if "sees" in card.sees_ahead:
        return [f"In a language model it must not stand: {card.sees_ahead}."]
    tried = len(card.verdicts) and (card.verdicts.unit != "pp").any()
    told = card.sees_ahead == "no" and not tried
    return (
        ["It is causal: it may stand in a language model, where it has not been tried here."]
        if told
        else []
    )


def _wrong(card: NormCard) -> list[str]:
    bad = card.checks[card.checks.told == "bad"]
    each = "; ".join(f"{row.question}: {row.found}" for row in bad.itertuples())
    return [f"What is wrong: {each}."] if each else []


def _trains(card: NormCard) -> list[str]:
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
        lines.append(
            f"{lost or 'None'} of its {n} runs on {card.training.task.iloc[0]}, {rates}, diverged."
        )
    if len(room := card.training.dropna(subset=["headroom"])):
        each = ", ".join(f"{row.headroom:+.1f} {row.place}" for row in room.itertuples()).replace(
            "-", "−"
        )
        lines.append(
            f"Head-room of the scan in float16, decades in a trained model of eight blocks: {each}."
        )
    return lines


def _cost(card: NormCard) -> list[str]:
    if not len(card.costs):
        return []
    cost = card.costs.iloc[1]
    size = f"({cost['shape']}; {cost.ms:.2g} ms)"
    return [f"Forward and backward take {cost.over_rmsn:.2g} times as long as RMSN {size}."]


USUAL_S = 4e-6
"""Seconds of a unit of `relative_cost` where no run of the task is recorded."""


def run_seconds(config: RunConfig) -> float:
    """Return about how many seconds a run takes, from the recorded runs of its task."""
    path = recorded_path(config.scale)
    unit = (
        _unit_s(config.scale, config.task, path.stat().st_mtime_ns) if path.is_file() else USUAL_S
    )
    return unit * relative_cost(config)


@lru_cache(maxsize=64)
def _unit_s(scale: str, task: str, mtime_ns: int) -> float:
    """Return the seconds of a unit of work: the median over arms of each arm's fastest run, because
    some runs were recorded while the machine did other work."""
    runs = recorded(scale).query("task == @task and status == 'ok'")
    work = runs.steps * runs.n_layers * (runs.d_model + 16) * base_config(task, scale).batch_size
    return float((runs.wall_s / work).groupby(runs.arm).min().median()) if len(runs) else USUAL_S


def _open(card: NormCard) -> list[str]:
    """Return how many new seeds would tell what we cannot tell, and what they take; the cheapest
    two."""
    if not len(card.verdicts):
        return []
    rows = card.verdicts[(card.verdicts.against == card.against) & card.verdicts.new_seeds.notna()]
    lines = []
    for row in rows.sort_values("new_seeds").head(2).itertuples():
        known = recorded_lr(row.task, card.against, card.scale)
        seeds, used = int(row.new_seeds), [*card.seeds[row.task], *(known.seeds if known else ())]
        first = max(FIRST_TEST_SEED, max(used) + 1)
        one = sum(
            run_seconds(base_config(row.task, card.scale, arm=arm))
            for arm in (row.arm, card.against)
        )
        takes = f"about {plural(seeds, 'new seed')}, {spell(seeds * one / 2)} on two cores"
        last, what = first + seeds - 1, f"To settle {label(row.arm)} on {row.task}"
        against = "" if card.against == REFERENCE else f' --against "{card.against}"'
        how = f"mambanorm card {card.which or card.name} --tasks {row.task}{against} --seeds {first}-{last}"
        how = f": `{how}`" if last <= LAST_TEST_SEED else ", more than there are seeds for"
        lines.append(f"{what}: {takes}{how}.")
    return lines


def cards_html(cards: Iterable[NormCard]) -> str:
    """Several cards, each folded under its first sentence."""
    folds = [
        f"<details><summary><b>{html.escape(card.name)}</b> {html.escape(card.words[0])}</summary>"
        f"{card._html(picture=False)}</details>"
        for card in cards
    ]
    return (
        f'<style>\n{template("card.css")}</style>\n<div class="norm-cards">{"".join(folds)}</div>'
    )
