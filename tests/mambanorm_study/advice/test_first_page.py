"""The findings are written by hand, and every number in them is what the recorded runs give."""

import html
import re
from functools import cache

import numpy as np
import pytest

from mambanorm_study import advice, claims, figures
from mambanorm_study.advice.first_page import FINDINGS, findings_page, findings_table, hero_grids
from mambanorm_study.answers.sentences import stated_numbers, without_braces, wrong_numbers
from mambanorm_study.basics.settings import ROOT
from mambanorm_study.claims.verdict import compare_arms
from mambanorm_study.runs.recorded_results import recorded
from mambanorm_study.tables import diagnostics
from mambanorm_study.tables.run_tables import label


@cache
def evidence():
    return claims.Evidence(recorded("evening"), "evening")


def effect(claim, task, comparison=""):
    """Return the effect of a claim's comparison; by default of the one that decides."""
    verdict = claims.judge(claim, evidence(), task=task)
    rows = {row.comparison: row for row in verdict.rows}
    return rows.get(comparison, verdict.main_row).effect


def growth_of(arm):
    """Return by how many powers of ten the largest token grows from the first block to the last:
    the median of the runs of Figure 9.
    """
    runs, arrays = diagnostics.recorded_diagnostics("BN")
    runs = runs[(runs.arm == arm) & (runs.lr == runs.lr.max())]
    outputs = np.log10([arrays[run_id]["ring_outputs"][-1] for run_id in runs.run_id])
    return np.median(outputs[:, -1] - outputs[:, 0])


# the numbers of each finding, in their order
NUMBERS = {
    "03_type": lambda: [effect("H1s", "curves", "GN→GN − None→None")],
    "04_position": lambda: [effect("H3s", "curves")],
    "05_combination": lambda: [effect("H6s", "curves", "mean of ·→GN − mean of ·→BN")],
    "08_validation": lambda: [effect("H8s", "curves")],
    "07_diagnostics": lambda: [growth_of("None>SSM>BN")],
}


def test_the_five_findings_are_those_of_the_table():
    assert [finding.notebook for finding in FINDINGS] == list(NUMBERS)
    lines = findings_table("notebooks/").splitlines()
    assert len(lines) == 2 + len(FINDINGS)
    for finding, line in zip(FINDINGS, lines[2:], strict=True):
        assert without_braces(finding.seen) in line
        assert f"(notebooks/{finding.notebook}.ipynb)" in line
        assert (ROOT / "notebooks" / f"{finding.notebook}.ipynb").is_file()


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.notebook)
def test_every_number_of_a_finding_is_that_of_the_recorded_runs(finding):
    assert wrong_numbers(finding.seen, NUMBERS[finding.notebook]()) == []
    without = re.sub(r"\{[^}]*\}", "", finding.seen)
    assert not re.search(r"\d", without), "write every number in braces"
    assert len(stated_numbers(finding.seen)) == 1


def test_the_words_of_the_findings_are_those_of_the_verdicts():
    """The words of a finding, beside its number, follow from the verdicts."""
    judged = {
        name: claims.judge(name, evidence(), task=task)
        for name, task in {
            **dict.fromkeys(("H1s", "H2s", "H3s", "H6s", "H8s"), "curves"),
            "H3l": "pydoc",
            "H10s": "mnist1d",
        }.items()
    }
    supported = {name for name, verdict in judged.items() if verdict.word == "supported"}
    assert supported == {"H1s", "H2s", "H3s", "H8s"}
    assert claims.judge("H8s", evidence(), task="listops").word == "no gain"
    assert {judged[name].word for name in ("H3l", "H6s", "H10s")} == {"opposite"}
    position = {row.comparison: row.effect for row in judged["H3s"].rows}
    assert position["the mean without BN"] < position["mean over 5 norms: None→N − N→None"] / 2
    assert compare_arms("NormVary>SSM>GN", "None>SSM>GN", evidence(), "curves").word == (
        "about the same"
    )


def test_the_picture_has_36_pairs_a_ring_and_a_star_for_each_kind():
    grids = hero_grids(evidence())
    assert len(grids) == 2
    for table in grids.values():
        assert len(table) == 36
        assert table.is_original.sum() == table.is_chosen.sum() == 1
        assert table["mean"].between(20, 100).all()
    figure = figures.fig_hero(grids)
    texts = [text.get_text() for ax in figure.axes for text in ax.texts]
    assert sum(text.isdigit() for text in texts) == 72
    assert len(figure._repr_png_()) < 150_000


def test_a_failed_run_is_hatched():
    grids = hero_grids(evidence())
    before = sum(bool(patch.get_hatch()) for patch in figures.fig_hero(grids).axes[1].patches)
    next(iter(grids.values())).loc[3, "diverged"] = 2
    after = sum(bool(patch.get_hatch()) for patch in figures.fig_hero(grids).axes[1].patches)
    assert after == before + 1


def test_the_page_has_every_finding_and_what_to_take():
    page = html.unescape(findings_page())
    text = re.sub(r"<[^>]+>", "", page)
    for finding in FINDINGS:
        assert without_braces(finding.seen) in text
    for row in advice.what_to_do(recorded("evening")):
        assert row.because.replace("`", "") in text
    assert label("RMSN>SSM>None") in text
