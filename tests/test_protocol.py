"""The protocol: no hypothesis changes in silence, and whatever was recorded names the rule that was in force."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace

import pandas as pd
import pytest

from mambanorm.claims import CLAIMS, calibrate, calibration, protocol
from mambanorm.claims.hypotheses import BEYOND
from mambanorm.claims.protocol import PROTOCOL, VERSION, VERSIONS, fingerprint, with_hypotheses
from mambanorm.cli.main import main
from mambanorm.training.recorded_results import recorded, recorded_path


def test_hypotheses_and_numbers_are_those_of_the_version_in_force():
    """Whoever changes one writes a new version, with its own fingerprint, in protocol.py and PROTOCOL.md."""
    assert fingerprint() == VERSIONS[-1].fingerprint
    assert [version.number for version in VERSIONS] == list(range(1, VERSION + 1))


def test_a_version_that_adds_hypotheses_leaves_those_of_its_rule_as_they_were():
    rule, of_the_papers = VERSIONS[protocol.BOUNDS - 1], [c for c in CLAIMS.values() if c.kind != "language"]
    assert fingerprint([claim for claim in of_the_papers if claim.id.startswith("H")]) == rule.fingerprint
    assert fingerprint(of_the_papers) == VERSIONS[3].fingerprint  # version 5 adds what is fixed for scale evening
    assert {2, 3, 4, 5, 6, 7, 8, 9} == protocol.SAME_RUNS


@pytest.mark.parametrize("change", [{"threshold": 2.0}, {"at_least": 2}, {"quote": "…"}, {"words": "…"}])
def test_the_fingerprint_sees_every_part_of_a_hypothesis(change, monkeypatch):
    monkeypatch.setitem(CLAIMS, "H1s", replace(CLAIMS["H1s"], **change))
    assert fingerprint() != VERSIONS[-1].fingerprint


def test_the_fingerprint_sees_the_numbers_of_the_rule(monkeypatch):
    monkeypatch.setattr(protocol, "ONE_SIDED", 0.05)
    assert fingerprint() != VERSIONS[-1].fingerprint


def test_the_document_says_what_the_code_does():
    """If this fails: python -m mambanorm.claims.protocol"""
    document = PROTOCOL.read_text("utf-8")
    assert document == with_hypotheses(document)
    assert document.startswith(f"# The protocol of the verdicts, version {VERSION}\n")
    for version in VERSIONS:
        assert f"### Version {version.number}, {version.date}" in document
    for claim in (CLAIMS | BEYOND).values():
        assert f"**{claim.id}** {claim.words}" in document
    for file in re.findall(r"\]\(([\w.]+/?)\)", document):
        assert (PROTOCOL.parent / file).exists(), file


def test_recorded_results_name_the_protocol_that_was_in_force():
    for path in recorded_path("quick").parent.glob("*.parquet"):
        if "-version-" in path.stem:
            continue
        frame = recorded(path.stem)
        assert set(frame.protocol) <= protocol.SAME_RUNS
        for version, rows in frame.groupby("protocol"):
            commits = set(rows.protocol_commit)
            assert all(re.fullmatch("[0-9a-f]{7,40}", commit) for commit in commits)  # and not changed since
            texts = {text for text in map(protocol_of, commits) if text}
            assert all(text.startswith(f"# The protocol of the verdicts, version {version}\n") for text in texts)
            assert len({text.split("## Versions")[0] for text in texts}) <= 1  # one rule


def protocol_of(commit: str) -> str:
    """The protocol's text at a commit; "" in a copy without history, and where it stood elsewhere then."""
    show = ["git", "show", f"{commit}:mambanorm/claims/PROTOCOL.md"]
    return subprocess.run(show, capture_output=True, text=True, cwd=protocol.PROTOCOL.parent).stdout


def test_the_commit_in_force_is_told_and_so_is_an_edit(tmp_path, monkeypatch):
    assert re.fullmatch(r"[0-9a-f]{7,40}(, changed since)?|unknown", protocol.commit_in_force())
    monkeypatch.setattr(protocol, "PROTOCOL", tmp_path / "PROTOCOL.md")
    assert protocol.commit_in_force() == "unknown"


# calibration


def test_every_claim_with_a_rule_of_its_own_is_simulated():
    """Those about images that are left out differ from those about sequences in the names of their arms alone, those
    about language models in the unit and in how many norms there are as well."""
    for claim in CLAIMS.values():
        if claim.id.startswith("A"):
            assert (claim.at_least, claim.select, claim.runs) == (None, "", "tuned")
            deciding = [c.weights.keys() for c in claim.comparisons if c.decides]
            assert all(keys == deciding[0] for keys in deciding)
        elif claim.kind == "language":
            twin = CLAIMS[claim.id.replace("l", "s")]
            assert (claim.at_least, claim.select, claim.runs) == (twin.at_least, twin.select, twin.runs)
        elif claim.id not in calibration.WHO:
            twin = CLAIMS[claim.id.replace("v", "s")]
            assert (claim.at_least, claim.select, claim.runs, claim.threshold) == (
                (twin.at_least, twin.select, twin.runs, twin.threshold)
            )
            assert sum(c.decides for c in claim.comparisons) == sum(c.decides for c in twin.comparisons)


@pytest.mark.parametrize("claim_id", [c for c in calibration.WHO if CLAIMS[c].runs == "tuned" and c != "H7s"])
@pytest.mark.parametrize("truth", ["not above", "not below", 1.0, 4.0])
def test_the_planted_means_are_what_they_say(claim_id, truth):
    claim = CLAIMS[claim_id]
    found, wanted = calibrate.means(claim, truth), calibrate.targets(claim, truth, 20.0)
    for group, value in zip(calibrate.deciding(claim), wanted, strict=True):
        for comparison in group:
            total = sum(weight * found[arm] for arm, weight in comparison.weights.items())
            assert total == pytest.approx(claim.threshold_of(comparison) + value)


def test_a_made_up_study_has_the_means_that_are_planted():
    import numpy as np

    rng, frame = np.random.default_rng(0), calibrate.skeleton("H8s", 8, "smoke")
    arms = {"NormVary>SSM>GN": 6.0}
    for scenario in ("plain", "diverges 10 %", "ties", "tails", "unequal", "overlap"):
        setting = calibrate.SCENARIOS[scenario]
        made = [calibrate.study(frame, arms, rng, setting, ["NormVary>SSM>GN"]) for _ in range(300)]
        runs = pd.concat(made)
        runs = runs[runs.lr == np.sort(runs.lr.unique())[1]]
        score = runs.test_accuracy.where(runs.status == "ok", runs.chance)
        mean = 100 * score.groupby(runs.arm).mean()
        assert mean["NormVary>SSM>GN"] == pytest.approx(56.0, abs=1.0), scenario
        assert mean["RMSN>SSM>None"] == pytest.approx(50.0, abs=1.0), scenario


def test_the_recorded_table_keeps_its_limits():
    """False "reproduced" and false "contradicted" at most 2.5 % at the boundary, in every scenario, but for the noise
    of 1,000 studies; the paper's numbers contradict nothing, equal arms reproduce nothing."""
    frame = calibration.recorded_calibration()
    assert set(frame.claim) == set(calibration.WHO)
    assert frame.studies.min() >= 1_000
    limit = 0.025 + 2 * (0.025 * 0.975 / 1_000) ** 0.5
    kept = frame[~frame.scenario.isin(calibrate.BROKEN)]
    for truth, wrong in calibrate.BOUNDARY.items():
        assert kept[kept.truth == truth][wrong].max() <= limit
    assert (frame[frame.truth == "paper"].contradicted == 0).all()
    assert (frame[frame.truth == "equal"].reproduced == 0).all()
    assert calibration.READABLE.read_text("utf-8") == calibration.calibration_text(frame)


def test_the_command_prints_the_table_and_names_what_it_does_not_know(capsys):
    assert main(["calibrate", "--claims", "H4s", "--scenarios", "plain", "--studies", "2"]) == 0
    out = capsys.readouterr().out
    assert f"# How often the verdicts are wrong, protocol {protocol.BOUNDS}" in out
    assert "| H4s | 0.0 / 0.0 |" in out
    for asked, said in (
        (["--claims", "H4"], "unknown claim 'H4'"),
        (["--scenarios", "tail"], "unknown scenario 'tail'"),
    ):
        assert main(["calibrate", *asked, "--studies", "1"]) == 2
        assert said in capsys.readouterr().err


def test_a_calibration_that_was_broken_off_goes_on(tmp_path, monkeypatch):
    keep = tmp_path / "cells"
    cells = calibration.jobs(["H8s"], ["plain"], seeds=(6,), studies=2)
    whole = calibration.calibrate(cells, progress=False)
    assert calibration.calibrate(cells[:2], progress=False, keep=keep).equals(whole[:2])
    keep.write_text(keep.read_text() + '["half a li')
    made = []
    run = calibration._run
    monkeypatch.setattr(calibration, "_run", lambda cell: made.append(cell) or run(cell))
    pd.testing.assert_frame_equal(calibration.calibrate(cells, progress=False, keep=keep), whole)
    assert made == cells[2:]
    monkeypatch.setattr(calibration, "fingerprint", lambda claims: "another rule")
    calibration.calibrate(cells[:1], progress=False, keep=keep)
    assert made[-1] == cells[0]


def test_a_part_does_not_become_the_table_of_the_repository(capsys):
    assert main(["calibrate", "--claims", "H4s", "--record"]) == 2
    assert "--record writes the whole table" in capsys.readouterr().err
