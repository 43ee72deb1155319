"""What a reader meets of the verdicts: the HTML table, the text, the figures, the notebook and the
command.
"""

from __future__ import annotations

import re
from dataclasses import replace

import nbformat
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from markupsafe import escape

import mambanorm_study as study
from mambanorm_study import claims, figures
from mambanorm_study.basics.settings import ROOT, study_scale
from mambanorm_study.claims import CLAIMS, TRAINED_TASKS, VERSION, WORDS, judge, pages
from mambanorm_study.claims.evidence import RULE_VERSION
from mambanorm_study.cli.arguments import seeds as read_seeds
from mambanorm_study.cli.main import main
from mambanorm_study.figures.colours import WORD_COLOURS
from mambanorm_study.figures.verdicts import WORD_MEANINGS
from mambanorm_study.report.verdict_page import _sketch, verdict_html
from mambanorm_study.runs import recorded_results as recorded
from mambanorm_study.tables.scores import runs_to_judge, select_test_seeds
from tests import planted
from tests.mambanorm_study.figures.test_colours import contrast

NOTEBOOK = nbformat.read(ROOT / "notebooks" / "12_verdicts.ipynb", as_version=4)
SOURCE = "".join(cell.source for cell in NOTEBOOK.cells)


def made_up(claim_id: str, effects=None, seeds: int = 8, **how) -> pd.DataFrame:
    return planted.made_up(claim_id, effects, seeds=seeds, scale="quick", rng=7, **how)


@pytest.fixture(scope="module")
def verdicts() -> dict[str, claims.Verdict]:
    """One verdict of every word: word → verdict."""
    after = "None>SSM>GN"
    found = [
        judge("H4s", made_up("H4s", {after: 30.0})),
        judge("H2s", made_up("H2s", {"GN>SSM>GN": -30.0})),
        judge("H8s", made_up("H8s", sd=0.1)),
        judge("H4s", made_up("H4s", {after: 2.0}, sd=6.0)),
        judge("H1s", made_up("H1s", base=10.0, sd=0.5, shared=0.3)),
    ]
    return {verdict.word: verdict for verdict in found}


def not_run() -> claims.Verdict:
    return judge("H12s", pd.DataFrame(), scale="quick")


def texts_of(figure) -> list[str]:
    return [text.get_text() for ax in figure.axes for text in ax.texts]


def test_every_word_has_a_colour_that_can_be_read_and_a_meaning(verdicts):
    assert set(verdicts) == set(WORDS) == set(WORD_COLOURS) == set(WORD_MEANINGS)
    colours = list(WORD_COLOURS.values())
    assert len(set(colours)) == len(WORDS)
    assert all(
        contrast(colour, "#FFFFFF") >= 4.5 for colour in colours
    )  # read in it, and in white on it
    page = verdict_html(list(verdicts.values()))
    key = page[page.index('<p class="key">') :]
    for word, colour in WORD_COLOURS.items():
        css = re.search(rf'<i class="([\w-]+)">{word}</i>', key)[1]
        assert f".verdicts i.{css} {{ background: {colour}; }}" in page
        assert f">{word}</i> {WORD_MEANINGS[word]}" in key
        assert f"**{word.capitalize()}**" in SOURCE


def test_a_word_that_decides_nothing_is_followed_by_its_reason(verdicts):
    reasons = {word: verdict.reason for word, verdict in verdicts.items()}
    assert (
        reasons["cannot tell"]
        == f"about {verdicts['cannot tell'].main_row.seeds_to_tell} new seeds would tell"
    )
    assert reasons["no word"] == "both sides' accuracy may be chance"
    assert not any(reasons[word] for word in ("supported", "opposite", "no gain"))
    for word in ("cannot tell", "no word"):
        page = verdict_html([verdicts[word]])
        assert f"<p>{escape(reasons[word])}</p>" in page
        assert reasons[word] in "".join(texts_of(figures.fig_verdicts([verdicts[word]])))


def test_figure_and_text_print_the_plain_interval(verdicts):
    row = verdicts["opposite"].main_row
    (line,) = [
        c
        for c in figures.fig_verdicts([verdicts["opposite"]]).axes[0].collections
        if len(c.get_segments())
    ]
    (start, end) = line.get_segments()[0][:, 0]
    assert (start, end) == pytest.approx((row.low, row.high))
    assert row.effect - row.low == pytest.approx(row.high - row.effect)
    assert row.amount in pages.describe(verdicts["opposite"])


def test_a_word_that_the_correction_changed_says_so():
    row = replace(judge("H4s", made_up("H4s")).main_row, word="cannot tell", corrected=5)
    assert row.as_text == "cannot tell (corrected for 5 comparisons)"


def test_a_row_that_reaches_far_beyond_the_others_is_cut_and_its_numbers_are_printed(verdicts):
    near = [verdicts["opposite"]] * 3
    far = replace(near[0], main_row=replace(near[0].main_row, effect=900.0, low=800.0, high=990.0))
    figure = figures.fig_verdicts([*near, far])
    (ax,) = figure.axes
    assert ax.get_xlim()[1] < 800
    assert "+900.0 points [800.0, 990.0]" in "".join(texts_of(figure))
    assert "an arrow points to an effect beyond the axis" in figure.get_label()
    assert "an arrow" not in figures.fig_verdicts(near).get_label()


def test_every_figure_says_protocol_scale_and_seeds(verdicts):
    judged = [verdict for verdict in verdicts.values() if verdict.n]
    for figure in (figures.fig_verdicts(judged[:4]), figures.fig_claim(judged[0])):
        caption = figure.get_label()
        assert all(part in caption for part in (f"protocol {VERSION}", "quick scale", "8 seeds"))
    for verdict in judged:
        caption = figures.fig_claim(verdict).get_label()
        assert f"{verdict.word}: {WORD_MEANINGS[verdict.word]}" in caption


def test_a_verdict_on_old_seeds_is_marked(verdicts):
    fresh = verdicts["supported"]
    stale = replace(fresh, main_row=replace(fresh.main_row, fresh=False))
    assert "* not fresh" in figures.fig_verdicts([stale]).get_label()
    assert "* not fresh" not in figures.fig_verdicts([fresh]).get_label()
    assert "not fresh" in pages.describe(stale)
    assert "not fresh" in verdict_html([stale])


def test_comparisons_without_a_part_in_the_word_are_marked_in_the_figure(verdicts):
    ticks = figures.fig_claim(verdicts["no gain"]).axes[0].get_yticklabels()
    is_marked = [text.get_text().endswith("(not deciding)") for text in ticks]
    assert (
        is_marked == [not row.decides for row in verdicts["no gain"].rows] == [False] + [True] * 4
    )


def test_every_verdict_has_its_row_in_the_figure_and_nothing_to_draw_is_refused(verdicts):
    shown = [verdicts["supported"], verdicts["opposite"], not_run()]
    figure = figures.fig_verdicts(shown)
    assert [len(ax.get_yticks()) for ax in figure.axes] == [2, 1]
    drawn = texts_of(figure)
    assert drawn[::2] == ["supported, by more than a point", "opposite", "no word"]
    assert [text.get_text().replace("\n", " ") for text in figure.axes[0].get_yticklabels()] == [
        verdict.claim.words for verdict in shown[:2]
    ]
    with pytest.raises(ValueError, match="claim H12s was not run"):
        figures.fig_claim(not_run())
    with pytest.raises(ValueError, match="no verdict to draw"):
        figures.fig_verdicts([])


# the table


def test_the_table_unfolds_to_figure_footnotes_and_command(verdicts):
    shown = list(verdicts.values())
    page = verdict_html(shown, last_column={("H1s", "digits"): "cannot tell"}, caption="a < b")
    assert page.count("<details>") == len(shown) + 1  # and what the words mean
    assert "a &lt; b" in page
    assert "mambanorm verdicts --claims H8s --scale quick --tasks digits</pre>" in page
    drawn = [
        verdict
        for verdict in shown
        if len(verdict.claim.deciding_groups) > 1 and verdict.word != "no word"
    ]
    assert page.count("data:image/webp;base64,") == len(drawn) == 1
    for verdict in shown:
        assert all(escape(text) in page for text in (verdict.claim.words, *verdict.footnotes))
    assert page.count(f"protocol {VERSION}, quick scale") >= len(shown) - 1


def test_the_table_reads_without_its_style(verdicts):
    shown = [verdicts["no word"], verdicts["supported"], not_run()]
    page = verdict_html(shown)
    bare = re.sub(
        r"<style>.*?</style>|\s(?:class|style)=(?:'[^']*'|\"[^\"]*\")", "", page, flags=re.DOTALL
    )
    rows = [
        " | ".join(" ".join(cell.get_text(" ").split()) for cell in row(["th", "td"]))
        for row in BeautifulSoup(bare, "html.parser")("tr")
    ]
    assert rows[0] == "claim | verdict | interval | effect [95 % interval] | paper | code"
    first = shown[0]
    assert rows[1] == "Sequences (curves)"
    assert rows[2].startswith(f"{first.claim.words} (digits) {first.reason}")
    assert rows[2].endswith(f"| {first.main_row.amount} | {first.main_row.paper:+.3g} | H1s")
    assert rows[4].startswith("Failures")
    assert rows[5].endswith(" | H12s")
    assert len(rows) == 3 + len(shown)  # a line a claim: all else is folded
    assert page.count('<th scope="col">') == 6
    assert page.count('<th scope="row">') == len(shown)


def test_the_recorded_table_is_short_before_it_is_unfolded():
    judged = claims.verdicts(recorded.recorded("evening"), CLAIMS, scale="evening")
    table = BeautifulSoup(verdict_html(judged, pictures=False), "html.parser")
    for details in table("details"):
        details.replace_with(details.summary.get_text())
    table.style.decompose()
    text = " ".join(table.get_text(" ").split())
    assert len(text) < 8_000
    assert all(verdict.claim.words in text and verdict.word in text for verdict in judged)


def test_the_small_picture_has_zero_in_the_middle_and_compresses_large_effects(verdicts):
    row = verdicts["supported"].main_row
    places = _sketch(row)
    assert places["low"] < places["mean"] < places["high"]
    assert places["mark"] > 0
    assert _sketch(replace(row, effect=-500.0, low=-900.0, high=-100.0))["low"] == -2.5
    assert _sketch(replace(row, effect=0.0))["mean"] == 0
    half = replace(row, unit="% of runs", effect=50.0, low=30.0, high=70.0)
    assert _sketch(half)["mean"] == 0
    assert _sketch(not_run().main_row) is None


def test_the_papers_sentence_is_quoted_beside_what_must_hold(verdicts):
    claim, page = CLAIMS["H1s"], verdict_html([verdicts["no word"]])
    assert f"<strong>The paper.</strong> “{escape(claim.quote)}” ({claim.where})." in page
    assert f"<strong>Must lie above 0.</strong> {escape(claim.condition)}" in page


# trained models


def test_on_trained_models_the_command_of_a_claim_names_its_task():
    here = planted.made_up(
        "H8s", {"NormVary>SSM>GN": 30.0}, scale="evening", seeds=12, task=TRAINED_TASKS[0]
    )
    page = verdict_html([judge("H8s", here)])
    assert (
        f"mambanorm verdicts --claims H8s --scale evening --tasks {TRAINED_TASKS[0]}</pre>" in page
    )


def test_the_runs_that_are_judged_are_the_recorded_ones_of_the_scale_that_is_asked_for(tmp_path):
    judged = runs_to_judge(runs_dir=tmp_path)
    assert (judged.scale, len(judged.stored)) == (study_scale(), 0)
    assert runs_to_judge("quick", "trained", runs_dir=tmp_path).frame.empty
    quick = runs_to_judge("quick", runs_dir=tmp_path)
    assert (quick.source, set(quick.frame.scale)) == ("recorded", {"quick"})


def test_fewer_test_seeds_leave_the_tuning_seeds_as_they_are():
    frame = made_up("H4s")
    few, some = select_test_seeds(frame, 3), select_test_seeds(frame, [53, 57])
    tuning = set(frame.seed[frame.seed > 99])
    assert set(few.seed) == tuning | {52, 53, 54}
    assert set(some.seed) == tuning | {53, 57}
    assert judge("H4s", few).word == "no word"
    assert judge("H4s", few).reason == "3 pairs of runs, and 6 are needed"


# the text and the command


def test_no_line_about_a_verdict_is_without_its_protocol(verdicts):
    basis = f"protocol {VERSION}, quick scale, digits, not the paper's Breakfast"
    assert judge("H4s", made_up("H4s")).basis == basis
    assert all(
        f"protocol {VERSION}, quick scale" in pages.describe(verdict)
        for verdict in verdicts.values()
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8", 8),
        ("8-15", list(range(8, 16))),
        ("0,3,5", [0, 3, 5]),
        ("0-2,8", [0, 1, 2, 8]),
        ("7,", [7]),
        ("3-3", [3]),
        ("0-3,", [0, 1, 2, 3]),
    ],
)
def test_seeds_are_a_number_a_range_or_a_list(text, expected):
    assert read_seeds(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("15-8", "'15-8' is neither a number of seeds nor a list such as 0,3,200 or 8-15"),
        ("8-", "'8-' is neither a number of seeds nor a list such as 0,3,200 or 8-15"),
        ("8-15-20", "is neither a number of seeds"),
        ("0-3,2", "seed 2 is given twice"),
        ("0-10000000000000", "more than 1,000 seeds"),
    ],
)
def test_ranges_that_make_no_sense_are_refused_in_a_line(text, message, capsys):
    assert (
        main(["verdicts", "--claims", "H8s", "--scale", "smoke", "--seeds", text, "--dry-run"]) == 2
    )
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line


def test_the_command_tunes_and_tests_what_a_claim_lacks_and_judges_added_seeds_alone(store, capsys):
    command = ["verdicts", "--claims", "H4v", "--scale", "smoke", "--workers", "0", "--seeds"]
    assert main([*command, "1", "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith(
        "24 runs asked for, 0 in the store"
    )  # 2 arms × 3 rates × 4 tuning seeds
    assert not store.exists()
    assert main([*command, "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Protocol {VERSION}, scale smoke; the rule in words: ")
    assert "H4v  no word" in out
    assert "1 pair of runs, and 6 are needed" in out
    assert len(study.load_runs()) == 26  # and a test run of each arm
    assert main([*command, "60-61"]) == 0
    assert "2 seeds" in capsys.readouterr().out  # not 3
    assert main([*command, "8-9"]) == 2
    assert "test seeds are 52 to 99, got 8, 9" in capsys.readouterr().err
    assert main(["verdicts", "--help"]) == 0
    assert "give new seeds" in " ".join(capsys.readouterr().out.split())


# the notebook


def test_every_word_of_notebook_12_comes_from_the_rule():
    """Its table, as committed, is what the recorded runs say today."""
    judged = claims.verdicts(recorded.recorded("evening"), CLAIMS)
    (cell,) = [cell for cell in NOTEBOOK.cells if "first" in cell.metadata.get("tags", ())]
    (output,) = cell.outputs
    page = BeautifulSoup(output.data["text/html"], "html.parser")
    rows = [row for row in page("tr") if row.find("td")]
    shown = [(row.find(class_="code").text, row.find(class_="verdict").text) for row in rows]
    assert sorted(shown) == sorted((verdict.claim.id, verdict.word) for verdict in judged)
    assert f"version {RULE_VERSION}" in SOURCE  # the rule that notebook 12 explains
