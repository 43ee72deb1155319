"""Claims about what `recommend` says: nothing beyond the runs it names, in their unit, for the arms asked for.

The steps of the guide themselves are in test_advice.py.
"""

from __future__ import annotations

import os
import re

import numpy as np
import pandas as pd
import pytest

import mambanorm as mn
from mambanorm import advice, claims
from mambanorm.advice import answers, claimed, claimed_words, costs, evidence, mamba
from mambanorm.advice.recommendation import UNDECIDED as UNDECIDED_TITLE
from mambanorm.arms import Arm
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
    cited = " ".join(texts(found.reasons, found.at_odds))
    assert not any(f"({claim})" in cited for claim in ("H1s", "H4s", "H8s"))
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


def test_a_ranking_of_some_arms_holds_them_against_each_other_alone():
    frame, task = mamba._frame("evening"), "mnist1d"
    some = ["None>SSM>LN", "None>SSM>RMSN", "RMSN>SSM>None"]
    table = claims.ranking(frame, task, scale="evening", arms=some)
    assert set(table.arm) == set(some)
    assert (table.told == "chosen").sum() == 1
    assert table.behind.max() < claims.ranking(frame, task, scale="evening").set_index("arm").behind[some].max()


# ---------------------------------------------------------------------------------------------------------------------
# causal models

SEE_NO_FUTURE = [
    dict(architecture=architecture, component=component, batch_size=64) | asked
    for architecture, component in (("cnn", None), ("mlp", None), ("lstm", None), ("transformer", None),
                                    ("gan", "generator"), ("gan", "discriminator"))
    for asked in (dict(task="language_model"), dict(causal=True))
]  # fmt: skip


@pytest.mark.parametrize("question", SEE_NO_FUTURE, ids=str)
def test_a_causal_model_gets_a_norm_of_one_position_and_is_told_why(question, store):
    found = mn.recommend(**question)
    assert found.norm in ("LN", "RMSN", "None")
    assert any("later" in text for text in texts(found.reasons))
    assert "IN" not in found.instead


@pytest.mark.parametrize("task", ["image_translation", "style_transfer"])
@pytest.mark.parametrize("model", [dict(architecture="cnn"), dict(architecture="gan", component="generator")], ids=str)
def test_an_image_has_no_later_positions(model, task):
    with pytest.raises(ValueError, match="leave out one of the two"):
        mn.recommend(**model, task=task, causal=True)


# ---------------------------------------------------------------------------------------------------------------------
# what was measured and decides nothing


def planted(experiment, **columns):
    """Made-up rows of one experiment, the same over three seeds but for a spread of two in every other row."""
    frame = pd.concat([pd.DataFrame(columns).assign(seed=seed, scale="quick") for seed in range(3)], ignore_index=True)
    value = "distance" if "distance" in frame else "accuracy"
    frame[value] += 2.0 * (frame.seed - 1) * (np.arange(len(frame)) % 2)
    return lambda asked, **_: frame if asked == experiment else pd.DataFrame()


UNDECIDED = {
    "BN − GN at batch 4": (dict(architecture="cnn", batch_size=4),
                           planted("batch_size", norm=["BN", "GN"], batch=4, accuracy=[50.0, 51.0])),
    "BN − GN at batch 32": (dict(architecture="cnn", batch_size=32),
                            planted("batch_size", norm=["BN", "GN"], batch=32, accuracy=[50.0, 51.0])),
    "Pre- − post-norm": (dict(architecture="transformer"),
                         planted("depth", place=["pre", "post"], norm="LN", depth=24, accuracy=[50.0, 51.0])),
    "LN − no norm": (dict(architecture="gru"),
                     planted("recurrent", norm=["LN", "None", "BN", "GN"], accuracy=[50.0, 51.0, 9.0, 0.0])),
    "BN − no norm in the discriminator": (
        dict(architecture="gan", component="discriminator"),
        planted("gan", generator="None", discriminator=["None", "BN"], distance=[1.0, 1.1])),
    "IN − no norm in the generator": (
        dict(architecture="gan", component="generator"),
        planted("gan", generator=["None", "IN", "None"], discriminator=["None", "None", "BN"], distance=[1.0, 1.1, 2])),
}  # fmt: skip


@pytest.mark.parametrize("words", UNDECIDED)
def test_a_difference_that_is_not_told_is_no_reason(words, monkeypatch):
    question, stored = UNDECIDED[words]
    monkeypatch.setattr(evidence, "stored", stored)
    found = mn.recommend(**question)
    assert [words in text for text in texts(found.undecided)].count(True) == 1
    assert not any(words in text for text in texts(found.reasons, found.at_odds))
    assert all("not told" in text for text in texts(found.undecided))
    assert UNDECIDED_TITLE in repr(found)


@pytest.mark.parametrize(("size", "norm", "title"), [("7B", "RMSN", "reasons"), ("350M", "LN", "at_odds")])
def test_the_accuracy_of_rms_norm_is_cited_where_it_belongs(size, norm, title, monkeypatch):
    rows = dict(place="pre", norm=["LN", "RMSN"], depth=12, accuracy=[50.0, 80.0])
    monkeypatch.setattr(evidence, "depth", lambda *_: evidence.Measured())  # another question of the same runs
    monkeypatch.setattr(evidence, "stored", planted("depth", **rows))
    found = mn.recommend("transformer", size=size)
    assert found.norm == norm
    assert any(text.startswith("RMSN − LN") and "+30" in text for text in texts(getattr(found, title)))


def test_runs_without_the_recommended_norm_are_no_reason_for_it(monkeypatch):
    rows = dict(norm=["BN", "GN"], batch=2, accuracy=[10.0, 90.0])
    monkeypatch.setattr(evidence, "stored", planted("dense", **rows))
    found = mn.recommend("mlp", batch_size=2)
    (text,) = texts(found.undecided)
    assert text.endswith("below zero. LN is not in these runs.")
    assert not any("BN − GN" in text for text in texts(found.reasons))


# ---------------------------------------------------------------------------------------------------------------------
# what is asked


@pytest.mark.parametrize("scale", ["nonsense", "*", 3, ""])
@pytest.mark.parametrize("architecture", ["cnn", "mamba"])
def test_an_unknown_scale_is_refused(architecture, scale, store):
    with pytest.raises(ValueError, match="unknown scale .* valid are smoke, quick"):
        mn.recommend(architecture, scale=scale)


def test_the_scale_that_was_asked_for_is_the_one_that_is_named(store):
    (reason,) = mn.recommend("cnn", scale="evening").undecided
    assert "measure('batch_size', 'evening')" in reason.text
    assert reason.source == "this kit, evening scale"
    (reason,) = mn.recommend("cnn").undecided
    assert "'smoke'" in reason.text or "'quick'" in reason.text


def test_style_transfer_takes_instance_norm_in_a_single_layer_too(store):
    assert mn.recommend("cnn", depth=1, task="style_transfer").norm == "IN"
    assert mn.recommend("cnn", depth=1).norm == "None"


@pytest.mark.parametrize("architecture", ["cnn", "gan"])
def test_the_output_layer_of_images_puts_out_pixels(architecture, store):
    found = mn.recommend(architecture, task="style_transfer", component="output")
    assert found.code.startswith("nn.Conv2d")
    assert "Pixels" in found.reasons[0].text


def test_whole_numbers_of_numpy_are_whole_numbers(store):
    assert mn.recommend("cnn", batch_size=np.int64(4), depth=np.int32(3)).question.words == "cnn, batch_size=4, depth=3"
    with pytest.raises(ValueError, match="batch_size must be a positive whole number"):
        mn.recommend("cnn", batch_size=np.float64(4))


# ---------------------------------------------------------------------------------------------------------------------
# the notebook's answer


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The experiments that the answer needs at scale smoke, and their folder."""
    folder = tmp_path_factory.mktemp("advice-runs")
    return folder, {name: advice.measure(name, "smoke", 2, folder) for name in advice.EXPERIMENTS}


def test_every_line_of_the_answer_names_what_it_compares_and_its_condition(found):
    folder, frames = found
    said = advice.in_words(advice.mistake_table("smoke", 2, folder), frames)
    for words in ("linear layers", "sorted rows", "without warm-up", "four lengths", "beyond those of training"):
        assert words in said
    assert "post-norm, 2 layers" in said
    assert "4 training steps" in said
    assert "{" not in said


@pytest.mark.parametrize(
    ("bn", "noise", "told"),
    [(95.0, 0.1, "BN is the better one"), (80.0, 0.1, "LN is the better one"), (93.0, 2.0, "not told apart")],
)
def test_the_answer_says_which_norm_is_better_behind_the_lstm_that_reads(bn, noise, told):
    frame = pd.DataFrame(
        dict(norm=["LN", "BN"] * 3, seed=[0, 0, 1, 1, 2, 2], accuracy=[93, bn, 94, bn + 1, 92, bn + noise - 1])
    )
    assert told in answers._recurrent(frame)


@pytest.mark.parametrize(("none", "told"), [(1.2, "LN is worse than no norm"), (3.0, "LN is better than no norm")])
def test_the_answer_holds_the_mended_norm_against_none(none, told):
    rows = [dict(norm=norm, seed=seed, lengths="four", mode="eval", error=error + 0.01 * seed)
            for seed in range(3) for norm, error in (("LN", 1.7), ("None", none))]  # fmt: skip
    frame = pd.DataFrame([*rows, dict(norm="LN", seed=0, lengths="one", mode="eval", error=99.0)])
    assert told in answers._counting(frame)
    assert f"{1.7 - none:+.2f}".replace("-", "−") in answers._counting(frame)


# ---------------------------------------------------------------------------------------------------------------------
# the guide's numbers


def rates_frame(**best):
    """Accuracy 90 up to each norm's rate and 10 above it, at 0.1, 0.3 and 1."""
    rows = [dict(norm=norm, lr=lr, accuracy=90.0 if lr <= top else 10.0)
            for norm, top in best.items() for lr in (0.1, 0.3, 1.0)]  # fmt: skip
    return pd.DataFrame(rows)


def test_a_rate_at_the_edge_of_the_grid_is_a_lower_bound():
    said = claimed._larger_rates(rates_frame(None_=0.3, BN=1.0, GN=0.3).replace("None_", "None"))
    assert "none 0.3, BN at least 1, GN 0.3" in said
    assert "BN's is at least 3 times as large" in said
    assert "GN allows no larger one" in said
    inside = claimed._larger_rates(rates_frame(None_=0.1, BN=0.3, GN=0.1).replace("None_", "None"))
    assert "at least" not in inside
    assert "times" not in claimed._larger_rates(rates_frame(None_=1.0, BN=1.0, GN=1.0).replace("None_", "None"))


def test_costs_are_compared_within_a_round():
    slow = [1.0, 5.0, 2.0, 1.0]
    rounds = [slow, [1.1 * t for t in slow], [0.9, 6.0, 1.0, 1.2]]
    table = pd.DataFrame(dict(model="m", norm=["None", "LN", "RMSN"], rounds=rounds))
    assert costs.ratio(table, "m", "LN") == pytest.approx((0.1, 0.1, 0.1))
    assert claimed._cost(table, "m", "LN", "None") == "+10 % [10, 10]"
    assert claimed._cost(table, "m", "RMSN", "None").endswith("the rounds do not agree on the sign")


def test_the_number_of_cores_is_that_of_this_machine(numbers):
    settings = numbers[numbers.claim.str.startswith("inference")].setting
    assert settings.str.contains(f"one of {os.cpu_count()} cores,").all()


@pytest.fixture(scope="module")
def numbers(found):
    return advice.claimed_and_measured("smoke", 2, found[0])


COUNTED = {
    "BatchNorm of (32, 64, 28, 28)": "64 means",
    "LayerNorm of (32, 128, 512)": "4,096 means",
    "BatchNorm of (32, 100, 256): values a statistic": "3,200",
    "LayerNorm of (32, 100, 256): values a statistic": "256",
    "GroupNorm(16, 64)": "4",
    "GroupNorm(30, 64)": "refused: num_channels",
    "BatchNorm at batch 1, no positions": "refused: Expected more than 1 value per channel",
    "BatchNorm at batch 1, 4 × 4 positions": "the values of InstanceNorm",
    "BatchNorm is for batches": "16 rows: BN − GN",
    "norms enable": "at most 2 layers",
    "better generalization": "no run of this notebook measures it",
    "less sensitive to initialization": "no run of this notebook measures it",
    "covariate shift is why": "no run of this notebook measures it",
    "normalization is mandatory": "four lengths: LN − none",
    "RMSNorm is numerically stable: it subtracts nothing": "LN",
}


@pytest.mark.parametrize("claim", COUNTED)
def test_counts_and_words_of_the_guide_have_a_row(claim, numbers):
    (row,) = numbers[numbers.claim == claim].itertuples()
    assert COUNTED[claim] in row.here


def test_rounding_costs_layer_norm_more_than_rms_norm_where_the_mean_is_large():
    ln, rms = (float(text) for text in re.findall(r"[LR]M?S?N (\S+?e-\d+)", claimed_words._rounding()))
    assert rms < 1e-5 < ln < 1e-2


@pytest.mark.parametrize(("none", "told"), [(1.2, "no norm is better"), (3.0, "LN is better")])
def test_what_is_mandatory_is_read_off_the_runs(none, told):
    rows = [dict(norm=norm, seed=seed, lengths="four", mode="eval", error=error + 0.01 * seed)
            for seed in range(3) for norm, error in (("LN", 1.7), ("None", none))]  # fmt: skip
    assert told in claimed_words._without(pd.DataFrame(rows))
