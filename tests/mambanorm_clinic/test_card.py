"""A card for a norm: what it does is measured, a copy of a known norm is recognised, and the rule
compares it.
"""

from __future__ import annotations

import json
import math
import re
import time
from dataclasses import replace
from html import unescape
from importlib import import_module

import pytest

import mambanorm as mn
import mambanorm_study as study
from mambanorm.errors import VARIABLE
from mambanorm_clinic import card_checks, card_text, cards_html, norm_card
from mambanorm_study.claims.plan import TRAINED_TASKS
from mambanorm_study.cli.main import main
from mambanorm_study.runs.recorded_results import recorded
from mambanorm_study.tables.experiments import inside_task
from tests import planted
from tests.mambanorm.norms.test_behaviour import (
    Ahead,
    Blank,
    Cut,
    Draws,
    Padded,
    Remembers,
    Spread,
    Widens,
    WrongBackward,
    WrongBesidePadding,
)

card = import_module("mambanorm_clinic.card")
OWN, IMAGES = "RMSN>SSM>None", TRAINED_TASKS[3]


@pytest.fixture
def register(monkeypatch):
    """Registers a class under its name, for one test; it leaves no file of norms behind."""
    known = dict(mn.NORMS)
    monkeypatch.setenv(VARIABLE, "")  # what a test adds to it goes with the test

    def enter(cls, axes=("D",), causal=True, **options):
        facts = dict(equation="y = x", source="a test", axes=axes, causal=causal, learnable="γ")
        return mn.register_norm(cls.__name__, **facts, **options)(cls)

    yield enter
    mn.NORMS.clear()
    mn.NORMS.update(known)


@pytest.fixture
def norm_file(register, tmp_path):
    """Writes a file of norms: their code, or the names under which one honest norm is
    registered.
    """

    def write(*names, code=""):
        made = "from torch import nn\nimport mambanorm as mn\n" + code
        for name in names:
            facts = "equation='', source='mine', axes=('D',), causal=True, learnable='nothing'"
            made += f"@mn.register_norm('{name}', {facts})\nclass {name}(nn.Module):\n"
            made += "    def __init__(self, d):\n        super().__init__()\n"
            made += "    def forward(self, x, lengths=None):\n"
            made += "        return x / (1 + x.abs().amax(-1, keepdim=True))\n"
        path = tmp_path / "my_norms.py"
        path.write_text(made)
        return str(path)

    return write


def answer_to(table, question):
    return table.set_index("question").answer[question]


# ---------------------------------------------------------------------------- five norms told apart


class Scaled(mn.create_norm("RMSN", 4).__class__):
    """RMSN under another name."""

    def __init__(self, d, eps=1e-5):
        super().__init__(d, eps=eps, affine=True)


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (Ahead, "position 0 sees position 1"),
        (Padded, "padding"),
        (Remembers, "from one batch to the next"),
    ],
)
def test_a_norm_that_breaks_its_declaration_is_refused_and_its_card_names_the_fault(
    register, cls, said
):
    declared = dict(axes=("L",), causal=False) if cls is Padded else {}
    with pytest.raises(ValueError, match=said):
        register(cls, **declared)
    register(cls, **declared, check=False)
    made = norm_card(cls.__name__, train=False, scale="smoke", runs_dir="nowhere")
    assert any(line.startswith("Faults: ") for line in made.all_sentences)
    assert f"Registered with check=False: {mn.NORMS[cls.__name__].doubt}" in unescape(
        made._repr_html_()
    )
    assert (
        "A language model cannot use this norm: position 0 sees position 1." in made.all_sentences
    ) == (cls is not Remembers)


def test_a_copy_of_rmsn_is_recognised_and_not_trained(register, tmp_path):
    register(Scaled)
    made = norm_card("Scaled", scale="smoke", tasks="digits", runs_dir=tmp_path)
    assert made.all_sentences[0].startswith(
        "Scaled computes the same as RMSN (to 1e-6), so nothing was trained"
    )
    assert not list(tmp_path.iterdir())
    assert card_checks.twin("LN") == card_checks.twin("GN") == card_checks.twin("NormVary") == ""
    assert card_checks.twin("Scaled") == "RMSN"


@pytest.fixture
def as_planted(register, monkeypatch):
    """The card of an honest norm whose arms lead RMSN→None by so many points, in made-up runs."""

    def make(leads, *, name="Spread", lost=(), seeds=8, **how):
        if name not in mn.NORMS:
            register(Spread)
        arms = arms_of(name)
        frame = planted.rows_of(planted.tuned_and_tested([*arms.values(), OWN], "digits", seeds))
        frame = planted.planted_frame(
            frame, {arms[place]: lead for place, lead in leads.items()}, **how
        )
        frame = planted.where(
            frame, frame.arm.isin(arms.values()) & frame.seed.isin(lost), status="diverged"
        )
        monkeypatch.setattr(card, "known_runs", lambda *_: frame)
        return norm_card(name, train=False, tasks="digits", scale="smoke", runs_dir="nowhere")

    return make


def arms_of(name):
    return {place: arm.format(name) for place, arm in card_text.PLACES.items()}


def test_a_norm_is_compared_at_each_place(as_planted):
    made = as_planted({"after the scan": 5.0, "on both sides": -5.0}, sd=0.3)
    words = made.verdicts.set_index("place").word
    assert words["before the block"] in ("about the same", "cannot tell")
    assert (words["after the scan"], words["on both sides"]) == ("better", "worse")
    assert made.verdicts.fresh.all()
    assert made.all_sentences[1].startswith(
        "On digits, after the scan, None→Spread is better than RMSN→None: +"
    )
    assert made.all_sentences[2].startswith(
        "On digits, on both sides, Spread→Spread is worse than RMSN→None: −"
    )
    assert (
        made.all_sentences[3]
        == "All seeds on digits share one pool of rows: the comparisons hold for these data only."
    )
    assert "8 seeds" in made.basis
    assert not made.checks["mark"].eq("bad").any()
    assert "Faults: " not in str(made)


def test_a_card_of_few_seeds_has_no_word(as_planted):
    made = as_planted({"after the scan": 5.0}, sd=0.3, seeds=3)
    assert set(made.verdicts.word) == {"no word"}
    assert "and 6 are needed" in made.all_sentences[0]


def test_a_card_counts_diverged_runs_and_the_seeds_still_needed(as_planted):
    made = as_planted({"after the scan": 5.0}, sd=0.3, lost=(53, 56))
    assert "failed: None→Spread 2 of 8 runs" in made.all_sentences[1]
    made = as_planted({"after the scan": 2.0}, sd=3.0)
    assert made.verdicts.word.eq("cannot tell").any()
    assert any("new seeds would tell" in line for line in made.all_sentences)


def test_the_arms_of_a_new_norm_are_tuned_first_and_then_tested(register):
    register(Spread)
    made = norm_card("Spread", train=False, tasks="digits", scale="smoke", runs_dir="nowhere")
    known = study.load_runs("nowhere")
    tuning = [config for config in card.card_runs(made, known) if config.seed >= 100]
    assert {config.seed for config in tuning} == {100, 101, 102, 103}
    assert (
        len(tuning) == (3 + 1) * 3 * 4
    )  # three places and RMSN→None, which is not recorded at this scale
    untuned = {config.seed for config in card.missing_runs(made, "nowhere")} - {52, 53}
    assert untuned == {100, 101, 102, 103, *range(54, 60)}
    frame = planted.planted_frame(planted.rows_of(dict.fromkeys(tuning)), sd=0.3)
    tested = [
        config for config in card.card_runs(made, frame) if config.seed > 53
    ]  # 52 and 53 have the ladder as well
    assert {config.seed for config in tested} == set(range(54, 60))
    assert len(tested) == (3 + 1) * 6


class Layers(mn.create_norm("LN", 4).__class__):
    """LN as if it were new."""

    def __init__(self, d):
        super().__init__(d, eps=1e-5, affine=True)


def test_the_card_of_a_copy_of_ln_agrees_with_the_claim_against_no_norm(register):
    register(Layers)
    options = dict(tasks=IMAGES, scale="evening", against="None>SSM>None", runs_dir="nowhere")
    made = norm_card("Layers", train=True, **options)
    verdict = study.judge("H1v", recorded("evening"), task=IMAGES)
    (claimed,) = [row for row in verdict.rows if row.comparison == "LN→LN − None→None"]
    row = made.verdicts[~made.verdicts.best].set_index("place").loc["on both sides"]
    assert (row.word, claimed.word) == ("better", "supported")
    assert (row.effect, row.low, row.high) == pytest.approx(
        (claimed.effect, claimed.low, claimed.high)
    )
    assert (row.n, row.fresh) == (claimed.n, claimed.fresh)
    assert any("not fresh" in line for line in made.all_sentences) == (not row.fresh)
    assert made.verdicts.best.sum() == 3
    assert not made.verdicts.against[made.verdicts.best].str.contains("LN").any()


# --------------------------------------------------------------------------------- what is measured


@pytest.mark.parametrize("name", mn.NORMS)
def test_nothing_is_wrong_with_the_kits_norms(name):
    table = card_checks.checks_of(name)
    assert not table["mark"].eq("bad").any(), table[table["mark"] == "bad"]
    assert len(table) == 26
    for question in (
        "gradients against finite differences",
        "gradients against finite differences, with lengths",
    ):
        assert re.fullmatch(r"agree to \de-(09|1\d)", answer_to(table, question))


def test_measured_invariances_agree_with_the_equations():
    ln, rmsn, none, bn = (card_checks.checks_of(name) for name in ("LN", "RMSN", "None", "BN"))
    assert [answer_to(t, "all + 3") == "invariant" for t in (ln, rmsn, none, bn)] == [
        True,
        False,
        False,
        True,
    ]
    assert [answer_to(t, "all × 3") == "invariant" for t in (ln, rmsn, none, bn)] == [
        True,
        True,
        False,
        True,
    ]
    assert [
        answer_to(t, "outputs in training and in evaluation") == "are equal"
        for t in (ln, rmsn, none, bn)
    ] == [
        True,
        True,
        True,
        False,
    ]
    assert "does not depend on the input" in answer_to(ln, "one channel")


class Detached(Spread):
    def statistic(self, x):
        return super().statistic(x).detach()


class Roots(Spread):
    def statistic(self, x):
        return x.square().sum(-1, keepdim=True).sqrt() - 1e-5


class Squares(Spread):
    def statistic(self, x):
        return (
            (x.square().mean(-1, keepdim=True) - x.mean(-1, keepdim=True).square())
            .clamp(min=0)
            .sqrt()
        )


@pytest.mark.parametrize(
    ("cls", "question", "said"),
    [
        (Detached, "gradients against finite differences", r"differ by \d+ %"),
        (
            WrongBackward,
            "gradients against finite differences",
            r"differ by \d+ %",
        ),  # it said "differ"
        (
            WrongBesidePadding,
            "gradients against finite differences, with lengths",
            r"differ by [\d.]+ %",
        ),  # which were never passed
        (Widens, "float16", "returns float32 for float16"),  # "relative error 7.8e-08, good"
        (Widens, "bfloat16", "returns float32 for bfloat16"),
        (Roots, "zeros", "is not finite"),
        (Squares, "a mean of 3,000, in float32", "relative error"),
    ],
)
def test_what_is_wrong_is_found(register, cls, question, said):
    register(cls, check=cls in (Roots, Squares))
    row = card_checks.checks_of(cls.__name__).set_index("question").loc[question]
    assert re.search(said, row.answer)
    assert row["mark"] == "bad"


# ----------------------------------------------------------------------------------- page and files


def test_the_page_opens_offline_and_its_numbers_are_in_the_json(as_planted, tmp_path):
    made = as_planted({"after the scan": 5.0}, sd=0.3)
    page, data = made.save(tmp_path)
    text = page.read_text()
    assert not re.search(r'<script|<link|(src|href)="(http|/)', text)
    assert "None→Spread is better than RMSN→None" in text
    assert "prefers-color-scheme: dark" in text
    assert made._repr_png_().startswith(b"\x89PNG")
    kept = json.loads(data.read_text())
    assert kept["words"] == made.all_sentences
    assert [row["word"] for row in kept["verdicts"]] == made.verdicts.word.tolist()
    assert kept["declared"]["axes"] == ["D"]
    assert cards_html([made]).count("<details>") == 1


def test_a_name_that_is_html_stays_text(register):
    with pytest.raises(ValueError, match="a norm's name"):
        mn.register_norm("<b>", equation="", source="", axes=("D",), causal=True, learnable="")(
            Spread
        )
    mn.register_norm(
        "Odd", equation="", source="<script>", axes=("D",), causal=True, learnable="<i>"
    )(Spread)
    assert (
        "<script>"
        not in norm_card("Odd", train=False, scale="smoke", runs_dir="nowhere")._repr_html_()
    )


def test_the_highest_learning_rate_agrees_with_the_claim():
    how = dict(train=False, scale="evening", runs_dir="nowhere")
    own = norm_card("RMSN", tasks=inside_task("evening"), **how).training.set_index("place")
    verdict = study.judge("E2s", recorded("evening"), scale="evening")
    assert math.isfinite(own.highest_lr["before the block"])
    assert own.highest_lr["before the block"] == own.reference_lr["after the scan"]
    assert not math.isfinite(own.highest_lr["after the scan"])  # its ladder is not recorded
    assert verdict.n == 8


def test_the_kits_cards_are_read_from_what_is_recorded():
    ln, dyt = card.kit_cards("evening", ["LN", "DyT"])
    assert set(ln.verdicts.place) == set(card_text.PLACES)
    assert set(ln.verdicts.task) == set(card.card_tasks("evening"))
    assert ln.verdicts.best.any()
    assert math.isfinite(ln.training.set_index("place").highest_lr["before the block"])
    assert dyt.all_sentences[0].startswith("We do not know whether this norm is better")


# -------------------------------------------------------------------------------------- the command


def test_the_command_trains_the_norms_own_runs_and_writes_the_card(
    norm_file, tmp_path, capsys, monkeypatch
):
    asked = "--scale smoke --tasks digits --seeds 1 --against None>SSM>None"
    call = ["card", norm_file("Peak"), *asked.split()]
    call += ["--runs-dir", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    assert main([*call, "--dry-run"]) == 0
    assert "0 in the store" in capsys.readouterr().out
    assert main([*call, "--workers", "0"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Peak, scale smoke\n- ")
    assert "The highest learning rate" not in out  # in four steps no rate brings anything
    runs = study.load_runs(tmp_path / "runs")
    assert set(runs.arm) == {"Peak>SSM>None", "None>SSM>Peak", "Peak>SSM>Peak", "None>SSM>None"}
    training = json.loads((tmp_path / "out" / "Peak.json").read_text())["training"]
    assert all(
        len(row["diverged"]) == 6 and row["highest_lr"] is None for row in training
    )  # three rates, and the ladder's
    before = len(runs)
    assert main(call) == 0
    assert len(study.load_runs(tmp_path / "runs")) == before


@pytest.mark.parametrize(
    ("names", "code", "options", "said"),
    [
        ((), "", [], "registers no norm"),
        (
            ("One", "Two"),
            "",
            [],
            "registers 2 norms, One, Two: choose one by its name, `mambanorm --import",
        ),
        ((), "1 / 0\n", [], "line 3: ZeroDivisionError"),
        (("One",), "", ["--tasks", "diabetes"], "diabetes is a regression"),
        (("One",), "", ["--tasks", "digit"], "did you mean 'digits'"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_trained(
    norm_file, tmp_path, capsys, names, code, options, said
):
    call = [
        "card",
        norm_file(*names, code=code),
        "--runs-dir",
        str(tmp_path / "runs"),
        "--out",
        str(tmp_path / "out"),
    ]
    assert main([*call, *options]) == 2
    assert said in (err := capsys.readouterr().err)
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_only_runs_that_could_not_be_trained_make_the_command_fail(monkeypatch, tmp_path):
    made = norm_card("LN", train=False, scale="smoke", tasks="digits", runs_dir="nowhere")
    for untrained, code in ((), 0), (("2 runs diverged in another language.",), 1):
        monkeypatch.setattr(
            card, "norm_card", lambda *_, lines=untrained, **__: replace(made, untrained=lines)
        )
        command = ["card", "LN", "--scale", "smoke", "--tasks", "digits"]
        assert main([*command, "--out", str(tmp_path), "--runs-dir", str(tmp_path / "r")]) == code
        assert replace(made, untrained=untrained).sentences["notes"] == [*untrained]


@pytest.mark.parametrize("cls", [Cut, Blank])
def test_a_norm_that_fails_at_once_is_neither_measured_nor_trained(register, cls, tmp_path):
    register(cls, check=False)
    made = norm_card(
        cls.__name__,
        scale="smoke",
        tasks="digits",
        runs_dir=tmp_path / "runs",
        out=tmp_path / "out",
    )
    (reason,) = made.untrained
    assert "because it failed: ValueError: for a finite x of shape (3, 6, 8)" in reason
    assert reason in made.all_sentences
    assert (tmp_path / "out" / f"{cls.__name__}.html").is_file()
    assert not (tmp_path / "runs").exists()
    assert card.missing_runs(made) == []


class Sleeps(Spread):
    def forward(self, x, lengths=None):
        time.sleep(0.02)
        return super().forward(x, lengths)


def test_a_norm_that_is_too_slow_to_be_tried_is_refused(register, monkeypatch):
    monkeypatch.setattr("mambanorm.norms.behaviour.MAX_SECONDS", 0.01)
    with pytest.raises(ValueError, match="a pass of 144 numbers takes .* too slow to be tried"):
        register(Sleeps)


def test_a_norm_that_draws_random_numbers_is_reported(register):
    register(Draws, ())
    table = card_checks.checks_of("Draws")
    assert answer_to(table, "two passes of one input") == "differ: the norm draws random numbers"
