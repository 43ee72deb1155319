"""What a reader meets of the verdicts: the HTML table, the text, the figures, the notebook and the command."""

from __future__ import annotations

import html
import re
from dataclasses import replace

import nbformat
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from markupsafe import escape

import mambanorm as mn
from mambanorm import advice, answers, claims, figures
from mambanorm.advice.first_page import findings, what_to_do
from mambanorm.arms import Arm
from mambanorm.basics.settings import ROOT, study_scale
from mambanorm.claims import CLAIMS, VERDICTS, judge
from mambanorm.claims.protocol import DATE, EVENING_SEEDS, TRAINED_TASKS, VERSION
from mambanorm.claims.rule import STATES
from mambanorm.cli.arguments import seeds as read_seeds
from mambanorm.cli.main import main
from mambanorm.figures.verdicts import STATES as STATE_LOOKS
from mambanorm.figures.verdicts import WORDS
from mambanorm.runs import recorded_results as recorded
from tests import planted
from tests.test_colours import contrast

NOTEBOOK = nbformat.read(ROOT / "notebooks" / "12_verdicts.ipynb", as_version=4)
TOLD = "".join(cell.source for cell in NOTEBOOK.cells)


def made_up(claim_id: str, effects=None, seeds: int = 8, **how) -> pd.DataFrame:
    return planted.made_up(claim_id, effects, seeds=seeds, scale="quick", rng=7, **how)


@pytest.fixture(scope="module")
def verdicts() -> dict[str, claims.Verdict]:
    """One verdict of every word: word → verdict."""
    gn, proposal = {"None>SSM>GN": 30.0}, "NormVary>SSM>GN"
    found = [
        judge("H4s", made_up("H4s", gn)),
        judge("H2s", made_up("H2s", {"GN>SSM>GN": -30.0})),
        judge("H8s", made_up("H8s", {proposal: 1.0}, sd=0.2, base=20.0)),
        judge("H4s", made_up("H4s", {"None>SSM>GN": 1.5}, sd=1.5)),
        judge("H1s", made_up("H1s", base=10.0, sd=0.5, shared=0.3)),
    ]
    return {verdict.verdict: verdict for verdict in found}


def not_run() -> claims.Verdict:
    return judge("H12s", pd.DataFrame(), scale="quick")


def test_every_word_and_every_state_has_a_colour_of_its_own_and_a_meaning(verdicts):
    assert set(verdicts) == set(VERDICTS) == set(WORDS)
    assert set(STATE_LOOKS) == set(STATES)
    colours = [colour for colour, _ in WORDS.values()]
    assert len(set(colours)) == len(VERDICTS)
    for colour in colours + [colour for colour, _ in STATE_LOOKS.values()]:
        assert contrast(colour, "#FFFFFF") >= 4.5, colour  # words are read in it, and white on it
    page = claims.verdict_html(list(verdicts.values()))
    key = page[page.index('<p class="key">') :]
    for word, (colour, meaning) in WORDS.items():
        css, pill = re.search(rf'<i class="([\w-]+)">{word}</i>', key), f">{word}</i> {meaning}"
        assert f".verdicts .{css[1]} {{ background: {colour}; }}" in page
        assert pill in key
        assert f"**{word}**" in TOLD  # the table of the notebook
    assert all(f"<b>{state}</b>: {meaning}" in key for state, (_, meaning) in STATE_LOOKS.items())


def test_a_claim_that_was_not_decided_says_beside_its_word_what_it_lacks(verdicts):
    texts = {word: verdict.reason for word, verdict in verdicts.items()}
    assert texts["open"] == f"about {verdicts['open'].seeds_to_tell} new seeds would tell"
    assert texts["not judged"].startswith("at chance: ")
    assert not any(texts[word] for word in VERDICTS if word not in ("open", "not judged"))
    for word in ("open", "not judged"):
        opened = claims.verdict_html([verdicts[word]]).partition("</summary>")[2]
        assert opened.startswith(f"<p>{escape(texts[word])}</p>")  # the first that is read of the fold
        drawn = [text.get_text() for text in figures.fig_verdicts([verdicts[word]]).axes[0].texts]
        assert drawn[0] == word
        assert drawn[1].splitlines()[-1] == texts[word].partition(":")[0]


def test_a_comparison_that_cannot_tell_says_why_in_the_figure_and_in_the_table(verdicts):
    verdict = verdicts["not judged"]
    drawn = [text.get_text() for text in figures.fig_claim(verdict).axes[0].texts]
    assert drawn == ["not judged", "at chance"] * 5
    (why,) = {row["why"] for row in verdict.records}
    assert escape(why) in claims.verdict_html([verdict])


def test_figures_draw_the_interval_that_is_judged(verdicts):
    verdict = verdicts["contradicted"]
    (line,) = [c for c in figures.fig_verdicts([verdict]).axes[0].collections if len(c.get_segments())]
    (start, end) = line.get_segments()[0][:, 0]
    assert (start, end) == pytest.approx(verdict.ci)
    low, high = verdict.ci
    assert verdict.effect - low != pytest.approx(high - verdict.effect)  # its ends have levels of their own


def test_a_row_that_reaches_far_beyond_the_others_is_cut_and_its_numbers_stand_beside_it(verdicts):
    near = [verdicts["contradicted"]] * 3
    far = replace(near[0], turns_on=near[0].turns_on | dict(effect=900.0, low=800.0, high=990.0))
    figure = figures.fig_verdicts([*near, far])
    (ax,) = figure.axes
    assert ax.get_xlim()[1] < 800
    assert "+900.0 points [800.0, 990.0]" in "".join(text.get_text() for text in ax.texts)
    assert "a line cut at the edge goes on: see its numbers" in figure.get_label()
    assert "cut at" not in figures.fig_verdicts(near).get_label()


def test_every_figure_says_protocol_scale_and_seeds(verdicts):
    told = [verdict for verdict in verdicts.values() if verdict.n_seeds]
    for figure in (figures.fig_verdicts(told[:4]), figures.fig_claim(told[0])):
        caption = figure.get_label()
        assert f"protocol {VERSION}" in caption
        assert "quick scale" in caption
        assert "8 seeds" in caption
    words = figures.fig_verdicts(told).get_label()
    assert all(f"{verdict.verdict}: {WORDS[verdict.verdict][1]}" in words for verdict in told)
    assert "contradicted: " not in figures.fig_verdicts(told[:1]).get_label()  # only those that are drawn


def test_what_is_shown_beside_a_decision_is_marked_in_the_figure(verdicts):
    ticks = figures.fig_claim(verdicts["≈ threshold"]).axes[0].get_yticklabels()
    beside = [text.get_text().endswith("(beside)") for text in ticks]
    assert beside == [not row["decides"] for row in verdicts["≈ threshold"].records]
    assert beside == [False] + [True] * 4


def test_every_verdict_has_its_row_in_the_figure_and_nothing_to_draw_is_refused(verdicts):
    shown = [verdicts["reproduced"], verdicts["contradicted"], not_run()]
    figure = figures.fig_verdicts(shown)
    assert [len(ax.get_yticks()) for ax in figure.axes] == [2, 1]
    drawn = [text.get_text() for ax in figure.axes for text in ax.texts]
    assert drawn[::2] == ["reproduced", "contradicted", "not judged"]
    assert drawn[-1] == "the frame has no runs of this claim"
    assert [text.get_text().replace("\n", " ") for text in figure.axes[0].get_yticklabels()] == [
        f"{verdict.claim.id}  {verdict.claim.words}" for verdict in shown[:2]
    ]
    with pytest.raises(ValueError, match="claim H12s was not run"):
        figures.fig_claim(not_run())
    with pytest.raises(ValueError, match="no verdict to draw"):
        figures.fig_verdicts([])


# the table


def test_the_table_folds_out_to_figure_caveats_and_command(verdicts):
    shown = list(verdicts.values())
    page = claims.verdict_html(shown, beside={"H1s": "open"}, caption="a < b")
    assert page.count("<details>") == len(shown) + 1  # and what the words mean
    assert "a &lt; b" in page
    assert "mambanorm verdicts --claims H8s --scale quick --tasks digits --seeds 8" in page
    drawn = [one for one in shown if len(one.records) > 1 and one.verdict != "not judged"]  # or in that of all
    assert page.count("data:image/webp;base64,") == len(drawn) >= 2
    for verdict in shown:
        assert all(escape(text) in page for text in (verdict.claim.words, *verdict.caveats))
        assert f">{verdict.verdict}</i>" in page
    assert page.count(f"protocol {VERSION}, quick scale") >= len(shown) - 1


def test_the_table_reads_without_its_style(verdicts):
    shown = [verdicts["not judged"], verdicts["reproduced"], not_run()]
    page = claims.verdict_html(shown)
    bare = re.sub(r"<style>.*?</style>|\s(?:class|style)=(?:'[^']*'|\"[^\"]*\")", "", page, flags=re.DOTALL)
    rows = [
        " | ".join(" ".join(cell.get_text(" ").split()) for cell in row(["th", "td"]))
        for row in BeautifulSoup(bare, "html.parser")("tr")
    ]
    assert rows[0] == "claim | verdict | what is tested | effect [bounds] | paper"
    assert len(rows) == 1 + len(shown)  # a line a claim: all else is folded
    first = shown[0]
    words = f"{first.claim.words} {first.reason} {first.stability} Decided by. {first.decided_by}; 8 seeds"
    assert rows[1].startswith(f"H1s | not judged | {words}")
    assert rows[1].endswith(f" | {first.amount} | {first.paper:+.3g}")
    assert rows[3].startswith("H12s | not judged | ")
    for verdict, line in zip(shown, re.findall(r"<td><details>(.*?)</summary>", page), strict=True):
        assert line == f"<summary>{escape(verdict.claim.words)}"
    assert page.count('<th scope="col">') == 5
    assert page.count('<th scope="row">') == len(shown)
    assert page.count("<thead>") == 1


def test_the_papers_sentence_is_quoted_and_our_sharper_one_is_not_put_into_its_mouth(verdicts):
    claim, page = CLAIMS["H1s"], claims.verdict_html([verdicts["not judged"]])
    assert f"<strong>The paper.</strong> “{escape(claim.quote)}” ({claim.where})." in page
    assert f"<strong>Needs.</strong> {escape(claim.needs)}." in page
    assert "One-sided levels of the bounds: lower 0.5 %, upper 2.5 %" in (html.unescape(page))


def test_a_recorded_frame_says_under_which_protocol_it_was_trained():
    frame = pd.DataFrame({"protocol": [2, 2], "protocol_commit": ["abc", "abc"]})
    assert claims.recorded_under(frame) == "protocol 2, in force since commit abc"
    assert claims.recorded_under(frame[["protocol"]]) == "no protocol is named in the frame"


# trained models


def test_on_trained_models_the_command_of_a_claim_names_the_planned_tasks_and_seeds():
    here = planted.made_up("H8s", {"NormVary>SSM>GN": 30.0}, scale="evening", seeds=12, task=TRAINED_TASKS[0])
    page = claims.verdict_html([judge("H8s", here)])
    asked = f"--tasks {TRAINED_TASKS[0]} --seeds {EVENING_SEEDS[0]}-{EVENING_SEEDS[-1]}"
    assert f"mambanorm verdicts --claims H8s --scale evening {asked}" in page


def test_the_runs_that_are_judged_are_the_recorded_ones_of_the_scale_that_is_asked_for(tmp_path):
    judged = claims.runs_to_judge(runs_dir=tmp_path)
    assert (judged.scale, len(judged.mine)) == (study_scale(), 0)
    quick = claims.runs_to_judge("quick", seeds=3, runs_dir=tmp_path)
    assert (quick.source, set(quick.frame.scale), quick.frame.seed.nunique()) == ("recorded", {"quick"}, 3)
    assert claims.runs_to_judge("quick", "trained", runs_dir=tmp_path).frame.empty


def test_a_mean_of_two_kinds_of_seeds_says_so():
    even = made_up("H4s", {"None>SSM>GN": 30.0}, sd=0.5)
    assert judge("H4s", even, scale="quick").uneven == ""
    lost = even.assign(test_accuracy=even.test_accuracy.where((even.arm != "GN>SSM>None") | (even.seed > 2), 0.12))
    verdict = judge("H4s", lost, scale="quick")
    assert verdict.uneven.startswith("the seeds differ widely: median +3")
    assert escape(verdict.uneven) in claims.verdict_html([verdict])


# the text and the command


def test_no_line_about_a_verdict_is_without_its_protocol(verdicts):
    frame = made_up("H4s", {"None>SSM>GN": 1.5}, sd=1.5)
    table = claims.verdict_table(frame, ["H4s"])
    assert table.protocol.tolist() == [VERSION]
    assert (table.effect[0], table.seeds_to_tell[0]) == ((told := judge("H4s", frame)).effect, told.seeds_to_tell)
    for verdict in verdicts.values():
        assert not verdict.n_seeds or f"protocol {VERSION}, quick scale" in claims.describe(verdict)


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
    assert main(["verdicts", "--claims", "H8s", "--scale", "smoke", "--seeds", text, "--dry-run"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line


def test_seeds_that_were_added_are_judged_alone_and_the_help_says_so(store, capsys):
    asked = ["verdicts", "--claims", "H4v", "--scale", "smoke", "--workers", "0", "--seeds"]
    assert main([*asked, "1"]) == 0
    capsys.readouterr()
    assert main([*asked, "8-9"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Protocol {VERSION} of {DATE}, scale smoke; the rule in words: ")
    assert "H4v  not judged" in out
    assert "2 seeds" in out  # not 3
    assert main(["verdicts", "--help"]) == 0
    assert "judged alone" in " ".join(capsys.readouterr().out.split())


def test_the_command_trains_what_a_claim_lacks_and_prints_its_verdict(store, capsys):
    asked = ["verdicts", "--claims", "H8s,H8v", "--seeds", "1", "--scale", "smoke", "--workers", "0"]
    assert main([*asked, "--dry-run"]) == 0
    told = "30 runs asked for, {} in the store"  # 6 arms on sequences and 4 on images × 3 rates
    assert capsys.readouterr().out.startswith(told.format(0))
    assert not store.exists()
    assert main(asked) == 0
    out = capsys.readouterr().out
    assert "H8s  not judged" in out
    assert "fewer than six seeds on which every compared run finished: 1" in out
    assert "H8v  not judged" in out
    assert set(mn.load_runs().task) == {"digits", "digits_images"}
    assert main([*asked, "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith(told.format(30))


# the notebook


def test_every_word_of_notebook_12_comes_from_the_rule():
    """Its answer, as committed, is what the recorded runs say today."""
    frame = recorded.recorded("evening")
    verdicts = claims.headline(frame)
    (cell,) = [cell for cell in NOTEBOOK.cells if cell.id == "12-13"]
    (output,) = cell.outputs
    assert output.data["text/markdown"] == answers.what_holds(verdicts, VERDICTS, claims.basis(verdicts, "recorded"))
    assert f"version {VERSION}" in TOLD


def test_a_finding_follows_its_runs():
    """Other runs turn its first words over; without runs there is none."""
    frame = recorded.recorded("evening").query("task != 'listops'")  # the proposal on one task of sequences
    worse = frame.arm.eq("NormVary>SSM>GN") & frame.task.eq(TRAINED_TASKS[0])
    few = findings(frame[frame.seed.isin(EVENING_SEEDS[:5])])
    assert sum("fewer than six seeds" in sentence for sentence in few) == len(few)
    won, lost = "the paper's proposal beats the original", "the original Mamba beats the paper's proposal"
    for amount, said in ((0.0, won), (0.2, lost)):
        told = findings(frame.assign(test_accuracy=frame.test_accuracy.where(~worse, frame.test_accuracy - amount)))
        assert sum(said in sentence for sentence in told) == 1
    assert not any("diverged" in sentence for sentence in told)
    ended = frame.assign(status=frame.status.where(~(worse & frame.seed.isin(EVENING_SEEDS[:2])), "diverged"))
    beside = "(diverged: 2 of 12 [2, 48 %] against 0 of 12 [0, 26 %]"
    assert sum(beside in sentence for sentence in findings(ended)) == 2
    assert findings(frame.iloc[:0]) == what_to_do(frame.iloc[:0]) == []


def test_what_to_do_follows_its_runs():
    """Where the chosen arm falls back, another one is named; where the original does, it is told to lie behind."""
    frame = recorded.recorded("evening")
    frame = frame[frame.task == "pydoc"]

    def said_if_worse(arm: str) -> str:
        """Its losses one nat larger."""
        worse = frame.arm == arm
        columns = {name: frame[name].mask(worse, frame[name] + 1) for name in ("test_loss", "best_val_loss")}
        return what_to_do(frame.assign(**columns))[0]

    chosen = Arm.parse(advice.ranking(frame, "pydoc", scale="evening").arm[0])
    assert f"take {chosen.label} (pydoc" in what_to_do(frame)[0]
    assert f"take {chosen.label} (pydoc" not in said_if_worse(str(chosen))
    assert re.search(r"1\.4\d\d bits .* ahead of RMSN→None, the original", said_if_worse("RMSN>SSM>None"))
