"""The sentences of findings and advice depend on the runs."""

import html
import re

import pytest

from mambanorm.arms import Arm
from mambanorm_study import advice
from mambanorm_study.advice.first_page import (
    FINDINGS,
    HOW_TO_READ,
    findings,
    findings_page,
    not_fresh_note,
    what_to_do,
)
from mambanorm_study.claims import judge
from mambanorm_study.claims.rule import NO_WORD, WORDS
from mambanorm_study.runs.recorded_results import recorded

PROPOSAL, ORIGINAL = "NormVary>SSM>GN", "RMSN>SSM>None"


@pytest.fixture(scope="module")
def curves():
    """Return the recorded runs of one task, so that each finding rests on one verdict."""
    frame = recorded("evening")
    return frame[frame.task == "curves"]


def sentence_with(words, sentences):
    """Return the one sentence with these words."""
    (sentence,) = [sentence for sentence in sentences if words in sentence]
    return sentence


def test_each_finding_has_a_sentence_for_every_word_of_the_rule():
    for finding in FINDINGS:
        assert set(finding.sentences) == set(WORDS) - {NO_WORD}
        assert all(sentence.endswith(".") for sentence in finding.sentences.values())


def test_a_finding_has_one_number_one_bracket_and_a_link():
    for sentence in findings(links="notebooks/"):
        bold, _, text = sentence.removeprefix("**").partition("** ")
        assert bold.endswith(".")
        without_brackets = re.sub(r"\[[^\]]*\]|\([^()]*\)", "", text)
        assert len(re.findall(r"[+−]\d", without_brackets)) == 1
        assert text.count("](notebooks/") == 1
        assert len(text) < 330


def test_the_sentence_follows_the_word_of_the_verdict(curves):
    """Other runs change the first words; without runs there is no sentence."""
    lead = judge("H8s", curves, task="curves").main_row.effect
    proposal, sign = curves.arm == PROPOSAL, (-1) ** curves.seed
    for new_lead, noise, words in (
        (5, 0, "the paper's proposal beats the original Mamba"),
        (0, 0, "the paper's proposal does not beat the original Mamba by a point"),
        (0, 10, "we cannot tell whether the paper's proposal beats the original Mamba"),
        (-5, 0, "the original Mamba beats the paper's proposal"),
    ):
        changed = curves.test_accuracy + (new_lead - lead + noise * sign) / 100
        frame = curves.assign(test_accuracy=curves.test_accuracy.mask(proposal, changed))
        sentence = sentence_with(words, findings(frame))
        verdict = judge("H8s", frame, task="curves")
        assert sentence.startswith(
            f"**On curves {words}.** NormVary→GN against RMSN→None, curves: "
        )
        assert verdict.main_row.amount in sentence
    assert findings(curves.iloc[:0]) == what_to_do(curves.iloc[:0]) == []


def test_failed_runs_are_counted_in_the_bracket(curves):
    lost = (curves.arm == PROPOSAL) & curves.seed.isin([40, 41, 52, 53])
    ended = curves.assign(status=curves.status.where(~lost, "diverged"))
    assert not any("failed" in sentence for sentence in findings(curves) if "NormVary" in sentence)
    assert sum("(failed: NormVary→GN 2 of " in sentence for sentence in findings(ended)) == 2


def test_few_seeds_have_no_word_and_say_why(curves):
    few = curves[curves.seed.isin([*range(40, 45), *range(52, 57)])]
    for sentence in findings(few):
        assert "5 pairs of runs, and 6 are needed" in sentence
        assert "We cannot tell" in sentence or "we cannot tell" in sentence


def test_one_common_remark_names_the_tasks_that_are_not_fresh(curves):
    verdict = judge("H8s", curves, task="curves")
    assert ("curves" in not_fresh_note(curves)) == (not verdict.main_row.fresh)
    assert not any("fresh" in sentence for sentence in findings(curves))
    assert not_fresh_note(curves.iloc[:0]) == ""


def test_what_to_do_follows_its_runs():
    """If the chosen arm falls back, another one is named; if the original falls back, it lies
    behind.
    """
    frame = recorded("evening")
    frame = frame[frame.task == "pydoc"]

    def advice_if_worse(arm: str) -> str:
        """Return the advice if its losses are one nat larger."""
        worse = frame.arm == arm
        columns = {
            name: frame[name].mask(worse, frame[name] + 1)
            for name in ("test_loss", "best_val_loss")
        }
        return what_to_do(frame.assign(**columns))[0]

    chosen = Arm.parse(advice.ranking(frame, "pydoc", scale="evening").arm[0])
    assert f"take {chosen.label}: " in what_to_do(frame)[0]
    assert f"take {chosen.label}: " not in advice_if_worse(str(chosen))
    said = (
        rf"take {chosen.label}: \+1\.4\d\d bits a character \[1\.4.*\] over RMSN→None, the original"
    )
    assert re.search(said, advice_if_worse(ORIGINAL))


def test_the_page_has_every_finding_and_what_to_do():
    page = html.unescape(findings_page())
    assert HOW_TO_READ in page
    for sentence in (*findings(), *what_to_do()):
        assert re.match(r"\*\*(.*?)\*\*", sentence).group(1) in page
