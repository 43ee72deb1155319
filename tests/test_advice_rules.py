"""Claims about what `recommend` says: nothing beyond the runs it names, in the right unit, for the arms that were asked.

The steps of the guide themselves are in test_advice.py.
"""

from __future__ import annotations

import mambanorm as mn
from mambanorm.advice import mamba
from mambanorm.model.arms import Arm
from mambanorm.norms import NORMS

# ---------------------------------------------------------------------------------------------------------------------
# Mamba


def causal(label):
    arm = Arm.parse(label.replace("→", ">SSM>"))
    return NORMS[arm.n1].causal and NORMS[arm.n2].causal


def texts(*lists):
    return [entry.text for entries in lists for entry in entries]


def test_causal_arms_of_mamba_are_held_against_causal_arms_alone():
    found = mn.recommend("mamba", task="mnist1d", causal=True)
    (near,) = [text for text in texts(found.reasons) if text.startswith("Not told apart")]
    assert "None→LN" in near
    assert all(causal(label) for label in found.instead)
    assert not any("the original) is behind the chosen arms: −3.4" in text for text in texts(found.at_odds))


def test_no_arm_of_mamba_is_not_told_apart_from_itself():
    found = mn.recommend("mamba", task="detection", causal=True)
    chosen = found.reasons[0].text.split()[0]
    assert chosen not in found.instead
    assert chosen not in found.reasons[1].text


def test_a_causal_mamba_cites_no_claim_about_norms_that_see_the_future():
    found = mn.recommend("mamba", causal=True)
    assert not any(
        "(H1s)" in text or "(H4s)" in text or "(H8s)" in text for text in texts(found.reasons, found.at_odds)
    )
    assert any("H8s" in text and "say nothing of these" in text for text in texts(found.undecided))
    assert any("(H1l)" in text for text in texts(mn.recommend("mamba", task="language_model").reasons))


def test_only_a_reproduced_claim_is_a_reason():
    found = mn.recommend("mamba", task="detection")
    assert any("inconclusive" in text for text in texts(found.undecided))
    assert not any("inconclusive" in text or "not testable" in text for text in texts(found.reasons))


def test_a_language_model_is_measured_in_bits_a_character():
    table, _ = mamba._ranked("language", None, True)
    best, *_ = table.itertuples()
    said = mn.recommend("mamba", task="language_model").reasons[0].text
    assert f"{-best.mean:.2f} ± {best.sd:.2f} bits a character" in said
    assert "%" not in said
    row = table.assign(behind=0.06, low=0.01, high=0.11).iloc[-1]
    assert "+0.06 [0.01, 0.11] bits a character" in mamba._named(row, "", "language").text
