"""The protocol: no hypothesis changes in silence, and whatever was recorded names the rule that was in force."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace

import pytest

from mambanorm.claims import CLAIMS, calibration, protocol, rule
from mambanorm.claims.hypotheses import BEYOND
from mambanorm.claims.protocol import DATE, FINGERPRINT, PROTOCOL, SAME_RUNS, VERSION, fingerprint, with_hypotheses
from mambanorm.cli.main import main
from mambanorm.runs.recorded_results import recorded, recorded_path


def test_hypotheses_and_numbers_are_those_of_the_version_in_force():
    """Whoever changes one writes a new version, with its own fingerprint, in protocol.py and PROTOCOL.md."""
    assert fingerprint() == FINGERPRINT


@pytest.mark.parametrize("change", [{"threshold": 2.0}, {"at_least": 2}, {"quote": "…"}, {"words": "…"}])
def test_the_fingerprint_sees_every_part_of_a_hypothesis(change, monkeypatch):
    monkeypatch.setitem(CLAIMS, "H1s", replace(CLAIMS["H1s"], **change))
    assert fingerprint() != FINGERPRINT


@pytest.mark.parametrize("number", ["ONE_SIDED", "FEWEST", "RISING"])
def test_the_fingerprint_sees_the_numbers_of_the_rule(number, monkeypatch):
    monkeypatch.setattr(rule, number, 0.05)
    assert fingerprint() != FINGERPRINT


def test_the_document_says_what_the_code_does():
    """If this fails: python -m mambanorm.claims.protocol"""
    document = PROTOCOL.read_text("utf-8")
    assert document == with_hypotheses(document)
    assert document.startswith(f"# The protocol of the verdicts, version {VERSION}\n")
    versions = re.findall(r"^\| (\d+) \| (\d{4}-\d\d-\d\d) \|", document, re.MULTILINE)
    assert [int(number) for number, _ in versions] == list(range(1, VERSION + 1))
    assert versions[-1][1] == DATE
    for claim in (CLAIMS | BEYOND).values():
        assert f"**{claim.id}** {claim.words}" in document
    for file in re.findall(r"\]\(([\w.]+/?)\)", document):
        assert (PROTOCOL.parent / file).exists(), file
    for word in rule.VERDICTS:
        assert f"| **{word}** |" in document


def test_recorded_results_name_the_protocol_that_was_in_force():
    for path in recorded_path("quick").parent.glob("*.parquet"):
        frame = recorded(path.stem)
        assert set(frame.protocol) <= set(SAME_RUNS)
        for version, rows in frame.groupby("protocol"):
            commits = set(rows.protocol_commit)
            assert all(re.fullmatch("[0-9a-f]{7,40}", commit) for commit in commits)  # and not changed since
            texts = {text for text in (stood_at(commit, "PROTOCOL.md") for commit in commits) if text}
            assert all(text.startswith(f"# The protocol of the verdicts, version {version}\n") for text in texts)
            rules = [re.findall("^FINGERPRINT = (.*)", stood_at(commit, "protocol.py"), re.M) for commit in commits]
            assert len({one for found in rules for one in found}) <= 1  # one rule, in whichever words


def stood_at(commit: str, file: str) -> str:
    """A file of claims/ at a commit; "" in a copy without history, and where it stood elsewhere then."""
    show = ["git", "show", f"{commit}:mambanorm/claims/{file}"]
    return subprocess.run(show, capture_output=True, text=True, cwd=protocol.PROTOCOL.parent).stdout


def test_the_commit_in_force_is_told_and_so_is_an_edit(tmp_path, monkeypatch):
    assert re.fullmatch(r"[0-9a-f]{7,40}(, changed since)?|unknown", protocol.commit_in_force())
    monkeypatch.setattr(protocol, "PROTOCOL", tmp_path / "PROTOCOL.md")
    assert protocol.commit_in_force() == "unknown"


# calibration


def test_every_tuned_accuracy_claim_is_judged_as_one_of_those_that_are_simulated():
    def judged_as(claim):
        groups = calibration.deciding(claim)
        return claim.at_least, claim.select, len(groups), max(len(group) for group in groups)

    known = {judged_as(CLAIMS[name]) for name in calibration.WHO}
    for claim in (CLAIMS | BEYOND).values():
        if claim.runs == "tuned" and claim.kind != "language" and claim.comparisons[0].column == "score":
            assert judged_as(claim) in known or len(calibration.deciding(claim)) == 2, claim.id


def test_the_recorded_table_is_what_it_says():
    """Whether a limit is kept is measured, not wished: what is above it is said in the text."""
    frame = calibration.recorded_calibration()
    assert set(frame.claim) == set(calibration.WHO)
    assert set(frame.seeds) == set(calibration.SEEDS)
    assert set(calibration.SCENARIOS) <= set(frame.scenario)
    assert frame.studies.min() >= 4_000
    edge = calibration.wrong(frame)
    text = calibration.calibration_text(frame)
    assert f"of {len(edge)} cells {(edge.share > calibration.LIMIT).sum()} lie above 3.5 %" in text
    assert calibration.READABLE.read_text("utf-8") == text


def test_the_command_prints_the_table_and_names_what_it_does_not_know(capsys):
    assert main(["calibrate", "--claims", "H4s", "--scenarios", "plain", "--studies", "40"]) == 0
    out = capsys.readouterr().out
    assert f"# How often the verdicts are wrong, protocol {VERSION}" in out
    assert "| H4s | " in out
    for asked, said in (
        (["--claims", "H4"], "unknown claim 'H4'"),
        (["--claims", "H9s"], "H9s compares no accuracies of tuned arms"),
        (["--scenarios", "tail"], "unknown scenario 'tail'"),
        (["--record", "--claims", "H4s"], "--record writes the whole table"),
    ):
        assert main(["calibrate", *asked, "--studies", "1"]) == 2
        assert said in capsys.readouterr().err
