"""Claims about the advice: every decision step, mistake and number of the guide (S4) has its
function or demo, and `recommend` claims no more than the runs that it names.

The parameters of the tests have the guide's words. Checks of models are tested in
test_check_model.py.
"""

import re

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import mambanorm as mn
import mambanorm_study as study
from mambanorm_study import advice
from mambanorm_study.advice import blocks, experiments, mamba
from mambanorm_study.advice.mistakes import MISTAKES, mistake_runs, mistake_table, paired_gap
from mambanorm_study.advice.what_to_take import READERS
from mambanorm_study.basics.settings import ROOT
from mambanorm_study.runs.recorded_results import recorded
from mambanorm_study.tables.run_tables import interval_in_words

SEEDS = 2


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a run store and the frames of every experiment at scale smoke, two seeds."""
    folder = tmp_path_factory.mktemp("advice-runs")
    return folder, {
        name: advice.measure(name, "smoke", SEEDS, folder) for name in advice.EXPERIMENTS
    }


# --------------------------------------------------------------------------------------------------
# the decision framework

STEPS = {
    "Step 1, batch_size >= 8: consider BatchNorm": (
        dict(architecture="cnn", batch_size=8),
        "BN",
        "after the conv",
    ),
    "Step 1, else: GroupNorm": (
        dict(architecture="cnn", batch_size=7),
        "GN",
        "before the activation",
    ),
    "Step 1, else: LayerNorm": (dict(architecture="mlp", batch_size=7), "LN", "linear"),
    "Step 2, CNN, style transfer": (
        dict(architecture="cnn", batch_size=64, task="style_transfer"),
        "IN",
        "conv",
    ),
    "the same in a single layer": (
        dict(architecture="cnn", depth=1, task="style_transfer"),
        "IN",
        "conv",
    ),
    "Step 2, CNN, detection often has small batches": (
        dict(architecture="cnn", task="detection"),
        "GN",
        "conv",
    ),
    "Image-to-image translation": (
        dict(architecture="cnn", task="image_translation"),
        "IN",
        "conv",
    ),
    "Step 2, RNN: never BatchNorm": (
        dict(architecture="rnn", batch_size=512),
        "LN",
        "step by step",
    ),
    "Step 2, GRU": (dict(architecture="gru"), "LN", "step by step"),
    "Step 2, Transformer, small": (dict(architecture="transformer", size=350e6), "LN", "pre-norm"),
    "Step 2, Transformer, > 1B parameters": (
        dict(architecture="transformer", size=7e9),
        "RMSN",
        "pre-norm",
    ),
    "Step 2, Transformer, exactly 1B": (
        dict(architecture="transformer", size=1e9),
        "RMSN",
        "pre-norm",
    ),
    "Step 2, GAN, generator, image translation": (
        dict(architecture="gan", component="generator", task="image_translation"),
        "IN",
        "conv",
    ),
    "Step 2, GAN, generator": (
        dict(architecture="gan", component="generator"),
        "None",
        "generator",
    ),
    "Step 2, GAN, discriminator": (
        dict(architecture="gan", component="discriminator", batch_size=64),
        "None",
        "discriminator",
    ),
    "Step 3, Transformers: pre-norm": (
        dict(architecture="transformer", depth=24),
        "LN",
        "before each sub-layer",
    ),
    "When not to, 1: final output layer": (
        dict(architecture="transformer", component="output"),
        "None",
        "output",
    ),
    "When not to, 2: very small networks": (
        dict(architecture="mlp", depth=1),
        "None",
        "single layer",
    ),
    "When not to, 3: when debugging": (
        dict(architecture="cnn", task="debugging"),
        "None",
        "cause is found",
    ),
    "LayerNorm: batch_size 1 is common in RL": (
        dict(architecture="mlp", task="reinforcement_learning"),
        "LN",
        "",
    ),
    "A causal CNN may not see the future": (
        dict(architecture="cnn", causal=True),
        "LN",
        "each position",
    ),
}
NAMES = dict(
    nn=nn, channels=64, features=64, hidden_size=64, d_model=64, d=64, n_out=3, mambanorm=mn
)


@pytest.mark.parametrize("words", STEPS)
def test_every_decision_step_of_the_guide_has_its_branch_and_a_line_of_code_that_makes_a_module(
    words,
):
    question, norm, place = STEPS[words]
    found = study.recommend(**question)
    assert found.norm == norm
    assert place in found.place
    assert all(
        re.search(r"\. \[.+\]$", reason) for reason in (*found.reasons, *found.contradictions)
    )
    assert any("[guide S4, " in reason for reason in found.reasons)
    assert isinstance(eval(found.code, NAMES), nn.Module)


SEE_NO_FUTURE = [
    dict(architecture=architecture, component=component, batch_size=64, **causal)
    for architecture, component in (
        ("cnn", None),
        ("mlp", None),
        ("lstm", None),
        ("transformer", None),
        ("gan", "generator"),
        ("gan", "discriminator"),
    )
    for causal in (dict(task="language_model"), dict(causal=True))
]


def test_a_causal_model_gets_a_norm_of_one_position_with_the_reason():
    for question in SEE_NO_FUTURE:
        found = study.recommend(**question)
        assert found.norm in ("LN", "RMSN", "None")
        assert any("later position" in text for text in found.reasons)
        assert "IN" not in found.alternatives


def test_a_recommendation_reads_well():
    text = repr(study.recommend("cnn", batch_size=4))
    assert "**cnn, batch_size=4: GN, after the convolution" in text
    assert "What contradicts this" in text
    assert "    nn.GroupNorm(32, channels)" in text


@pytest.mark.parametrize(
    ("question", "words"),
    [
        (dict(architecture="transformr"), "did you mean 'transformer'"),
        (dict(architecture="cnn", task="styletransfr"), "did you mean 'style_transfer'"),
        (dict(architecture="cnn", task="digits"), "unknown task 'digits'"),
        (dict(architecture="gan"), "unknown component None"),
        (dict(architecture="cnn", batch_size=4.0), "batch_size must be a positive whole number"),
        (dict(architecture="mamba", task="imdb"), "no arm is tuned and tested on task 'imdb'"),
    ],
)
def test_bad_values_are_answered_with_the_valid_ones(question, words):
    with pytest.raises(ValueError, match=words):
        study.recommend(**question)


# --------------------------------------------------------------------------------------------------
# Mamba: from the recorded runs alone


def test_mamba_takes_the_arm_that_validation_chose_whatever_it_is(monkeypatch):
    rows = [
        ("LN>SSM>BN", "", 90.0, 0.0, np.nan, np.nan, "chosen"),
        ("BN>SSM>BN", "", 89.0, 1.0, -2, 4, "we cannot tell"),
        ("NormVary>SSM>GN", "the paper's", 70.0, 20.0, 15.0, 25.0, "behind"),
    ]
    table = pd.DataFrame(rows, columns=["arm", "who", "mean", "behind", "low", "high", "standing"])
    table = table.assign(sd=1.0, n=8, unit="pp")
    monkeypatch.setattr(mamba, "_recorded_ranking", lambda task, causal: table)
    found = study.recommend("mamba")
    assert (found.norm, found.alternatives) == ("BN", ("BN→BN",))
    assert "LN before it" in found.place
    assert isinstance(eval(found.code, NAMES | dict(d_model=8)), mn.MambaBlock)
    assert any("NormVary→GN (the paper's) is behind" in reason for reason in found.reasons)
    assert any("causal=True" in reason for reason in found.contradictions)


def test_the_readme_and_notebooks_11_and_12_name_the_same_arms():
    pages = [
        (ROOT / "notebooks" / f"{name}.ipynb").read_text()
        for name in ("11_choosing", "12_verdicts")
    ]
    for task, reader in (
        ("classification", "sequence"),
        ("detection", "vision"),
        ("language_model", "language"),
    ):
        found = study.recommend("mamba", task=task)
        rows = {row.reader: row for row in advice.what_to_do(recorded("evening"))}
        taken = rows[READERS[reader]].take
        assert taken == "→".join(re.findall(r'n[12]="(\S+)"', found.code))
        assert f"| **{taken}** |" in (ROOT / "README.md").read_text()
        assert all(taken in page for page in pages)


# --------------------------------------------------------------------------------------------------
# experiments and mistakes


def test_an_experiment_depends_on_its_seed_alone(runs, tmp_path):
    _, frames = runs
    torch.rand(17)
    again = advice.measure("style", "smoke", [1, 0], tmp_path)
    for seed in (0, 1):
        pair = [f[f.seed == seed].reset_index(drop=True) for f in (frames["style"], again)]
        pd.testing.assert_frame_equal(*pair)
    assert frames["style"].error.nunique() > 3


def test_what_is_stored_is_read_and_changed_code_measures_anew(runs, monkeypatch):
    folder, frames = runs
    monkeypatch.setitem(
        experiments.EXPERIMENTS, "style", (lambda scale, seed: [dict(norm="new", seed=seed)], [{}])
    )
    assert advice.measure("style", "smoke", SEEDS, folder).equals(frames["style"])
    monkeypatch.setattr(experiments, "digest_of", lambda *_: "other")
    assert set(advice.measure("style", "smoke", 1, folder).norm) == {"new"}
    assert len(study.load_runs(folder)) == 0  # the run store passes the experiments by


GUIDES_MISTAKES = (
    *("BatchNorm with small batches", "BatchNorm in RNN", "Forgetting model.eval()"),
    *("Post-norm for deep Transformers", "Wrong normalization for style transfer"),
)


def test_every_mistake_has_a_demo_and_a_twin_that_shares_its_seeds(runs):
    assert {number: mistake.title for number, mistake in MISTAKES.items()} == dict(
        enumerate(GUIDES_MISTAKES, 1)
    )
    for number in MISTAKES:
        found = mistake_runs(number, runs[1])
        assert found.groupby("twin").seed.apply(list).to_dict() == {
            "right": [0, 1],
            "wrong": [0, 1],
        }
        assert found.label.nunique() == 2
        assert found.losses.map(len).min() > 1


def test_the_advantage_of_a_twin_is_signed_so_that_more_is_better(monkeypatch):
    rows = [
        dict(
            norm=norm, seed=seed, scale="smoke", error_beyond=value + 0.01 * seed, losses=[1.0, 0.5]
        )
        for seed in range(3)
        for norm, value in (("IN", 0.1), ("BN", 0.9))
    ]
    monkeypatch.setattr("mambanorm_study.advice.mistakes.MISTAKES", {5: MISTAKES[5]})
    (row,) = mistake_table({"style": pd.DataFrame(rows)}).itertuples()
    assert row.advantage == pytest.approx(0.8)
    assert row.outcome == "it fails"
    assert row.right.startswith("0.11")


def test_the_answer_takes_its_numbers_from_the_frames_and_names_what_it_compares(runs):
    _, frames = runs
    table = mistake_table(frames)
    said = advice.mistakes_in_words(table, frames)
    assert all(words in said for words in GUIDES_MISTAKES)
    for words in ("linear layers", "sorted rows", "four lengths", "unseen contrasts", "24 layers"):
        assert words in said
    ahead = frames["dense"].assign(
        accuracy=lambda f: f.seed / 100 + (f.norm == "BN") * (0.1 - 0.2 * (f.batch == 4))
    )
    guesses = advice.answers_to_guesses(table, frames | {"dense": ahead})
    assert [line[:2] for line in guesses.splitlines()] == ["1.", "2.", "3."]
    assert "a net of linear layers: 4 of" in guesses
    assert f"{100 * frames['style'].groupby('norm').survives.mean().BN:.0f} % after BN" in guesses


@pytest.mark.parametrize(
    ("other", "says"),
    [(1.2, "clearly above zero"), (3.0, "clearly below zero"), (1.7, "we cannot tell")],
)
def test_a_gap_is_paired_by_seed(other, says):
    noise = [0.0, 0.3, -0.3] if other == 1.7 else [0.0, 0.0, 0.0]
    rows = [
        dict(norm=norm, seed=seed, error=error + seed)
        for seed in range(3)
        for norm, error in (("LN", 1.7), ("None", other + noise[seed]))
    ]
    gap = paired_gap(pd.DataFrame(rows), "norm", "LN", "None", "error")
    assert interval_in_words(gap.low, gap.high) == says
    assert gap.difference == pytest.approx(1.7 - other)


def test_instance_norm_leaves_no_style_to_read_and_batch_norm_does():
    torch.manual_seed(0)
    x = experiments.digits("quick", 0)["test"][0]
    left = {
        norm: experiments.style_survives(blocks.StyleNet(norm=norm), x, 0) for norm in ("IN", "BN")
    }
    assert left["IN"] < 0.2
    assert left["BN"] > 0.8


# --------------------------------------------------------------------------------------------------
# the guide's numbers


def test_numbers_of_the_guide_have_their_measured_neighbours(runs):
    table = advice.claimed_and_measured(runs[1]).set_index("claim")
    for text in ("10 ×", "72.1 / 75.3 %", "12 layers", "the same"):
        rows = table[table.claimed.str.contains(text, regex=False)]
        assert len(rows), text
        assert rows.measured.str.contains(r"\d").all(), text
    means = runs[1]["batch_size"].query("batch == 2").groupby("norm").accuracy.mean()
    assert table.measured["BN / GN at batch 2"].startswith(
        f"{means.BN:.1f} / {means.GN:.1f} % (BN − GN: "
    )
    assert (
        table.setting["BN / GN at batch 2"] == "a small CNN, digits, smoke scale, 2 seeds: a sketch"
    )
