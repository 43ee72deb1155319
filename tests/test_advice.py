"""Claims about the advice: every decision step, mistake and number of the guide (S4) has its function or demo.

The guide's words stand in the parameters of the tests. What a check of a model says is in test_check_model.py.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import mambanorm as mn
from mambanorm import advice, figures
from mambanorm.advice import blocks, evidence, experiments, fitting, mamba
from mambanorm.advice.costs import memory_table
from mambanorm.advice.experiments_gan import energy_distance
from mambanorm.advice.mistakes import MISTAKES, mistake_runs, mistake_table
from mambanorm.advice.recommendation import parameters
from mambanorm.norms import NORMS

SEEDS = 2


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Every experiment at scale smoke, two seeds, in a store of its own."""
    folder = tmp_path_factory.mktemp("advice-runs")
    return folder, {name: advice.measure(name, "smoke", SEEDS, folder) for name in advice.EXPERIMENTS}


# ---------------------------------------------------------------------------------------------------------------------
# the decision framework

STEPS = {
    "Step 1, batch_size >= 8: consider BatchNorm": (dict(architecture="cnn", batch_size=8), "BN", "after the conv"),
    "Step 1, else: GroupNorm": (dict(architecture="cnn", batch_size=7), "GN", "after the conv"),
    "Step 1, else: LayerNorm": (dict(architecture="mlp", batch_size=7), "LN", "linear"),
    "Step 2, CNN, batch_size >= 8": (dict(architecture="cnn", batch_size=64), "BN", "before the activation"),
    "Step 2, CNN, style transfer": (dict(architecture="cnn", batch_size=64, task="style_transfer"), "IN", "conv"),
    "Step 2, CNN, detection often has small batches": (dict(architecture="cnn", task="detection"), "GN", "conv"),
    "Step 2, CNN, reinforcement learning": (dict(architecture="cnn", task="reinforcement_learning"), "GN", "conv"),
    "Image-to-image translation": (dict(architecture="cnn", task="image_translation"), "IN", "conv"),
    "Step 2, RNN": (dict(architecture="rnn"), "LN", "step by step"),
    "Step 2, LSTM: never BatchNorm": (dict(architecture="lstm", batch_size=256), "LN", "outputs of each layer"),
    "Step 2, GRU": (dict(architecture="gru"), "LN", "step by step"),
    "Step 2, Transformer, small": (dict(architecture="transformer", size="350M"), "LN", "pre-norm"),
    "Step 2, Transformer, > 1B parameters": (dict(architecture="transformer", size=7e9), "RMSN", "pre-norm"),
    "Step 2, Transformer, exactly 1B": (dict(architecture="transformer", size="1B"), "RMSN", "pre-norm"),
    "Step 2, GAN, generator, image translation": (
        dict(architecture="gan", component="generator", task="image_translation"), "IN", "conv"),
    "Step 2, GAN, generator": (dict(architecture="gan", component="generator"), "None", "generator"),
    "Step 2, GAN, discriminator": (dict(architecture="gan", component="discriminator"), "None", "discriminator"),
    "Step 3, Transformers: pre-norm": (dict(architecture="transformer", depth=24), "LN", "before each sub-layer"),
    "When not to, 1: final output layer": (dict(architecture="cnn", component="output"), "None", "output layer"),
    "When not to, 1: of a Transformer too": (dict(architecture="transformer", component="output"), "None", "output"),
    "When not to, 2: very small networks": (dict(architecture="mlp", depth=1), "None", "single layer"),
    "When not to, 3: when debugging": (dict(architecture="cnn", task="debugging"), "None", "cause is found"),
    "LayerNorm: batch_size 1 is common in RL": (dict(architecture="mlp", task="reinforcement_learning"), "LN", ""),
    "A causal CNN may not see the future": (dict(architecture="cnn", causal=True), "LN", "each position"),
}  # fmt: skip


@pytest.mark.parametrize("words", STEPS)
def test_every_decision_step_of_the_guide_has_its_branch(words, store):
    question, norm, place = STEPS[words]
    found = mn.recommend(**question)
    assert found.norm == norm
    assert place in found.place
    assert found.reasons
    assert all(reason.source and reason.text.endswith((".", "minute.")) for reason in (*found.reasons, *found.at_odds))
    assert any("guide S4" in reason.source for reason in found.reasons)


NAMES = dict(nn=nn, channels=64, features=64, hidden_size=64, d_model=64, d=64, n_out=3, mambanorm=mn)


@pytest.mark.parametrize("words", STEPS)
def test_the_line_of_code_of_every_answer_makes_a_module(words, store):
    assert isinstance(eval(mn.recommend(**STEPS[words][0]).code, NAMES), nn.Module)


ADVICE_2025 = {
    "CNNs, default": (dict(architecture="cnn"), "BN"),
    "RNNs, never BatchNorm": (dict(architecture="rnn", batch_size=512), "LN"),
    "Transformers, small, LayerNorm + pre-norm": (dict(architecture="transformer", size=1e8), "LN"),
    "Transformers, large, RMSNorm + pre-norm": (dict(architecture="transformer", size=2e9), "RMSN"),
    "GANs, avoid BatchNorm": (dict(architecture="gan", component="discriminator", batch_size=64), "None"),
}


@pytest.mark.parametrize("words", ADVICE_2025)
def test_the_advice_of_2025_is_followed(words, store):
    question, norm = ADVICE_2025[words]
    assert mn.recommend(**question).norm == norm


AT_ODDS = {
    "RMSNorm 15-20 % against 3-5 % of overhead": (dict(architecture="transformer", size="7B"), "cannot save more"),
    "GPT-2 post-norm, PaLM RMSNorm": (dict(architecture="transformer"), "GPT-2 moved the norm"),
    "the ImageNet numbers": (dict(architecture="cnn", batch_size=2), "10.6 points"),
    "GN(1) is LN": (dict(architecture="cnn", batch_size=2), "of one token's channels it is not"),
    "IN is GN(C)": (dict(architecture="cnn", task="style_transfer"), "only with the same γ and β"),
    "BatchNorm undefined at batch 1": (dict(architecture="cnn", batch_size=1), "only without a spatial extent"),
    "IN preserves style": (dict(architecture="cnn", task="style_transfer"), "it erases"),
    "normalization is mandatory": (dict(architecture="cnn"), "NFNets"),
    "batch >= 16 or >= 8": (dict(architecture="cnn", batch_size=8), "at least 16, in another of at least 8"),
    "BatchNorm in LSTMs": (dict(architecture="lstm"), "destroys no order"),
    "post-norm above 12 layers": (dict(architecture="transformer", depth=24), "1,000 layers"),
    "BatchNorm in GANs": (dict(architecture="gan", component="discriminator"), "DCGAN"),
}


@pytest.mark.parametrize("words", AT_ODDS)
def test_what_is_at_odds_with_the_guide_is_said(words, store):
    question, part = AT_ODDS[words]
    assert any(part in str(reason) for reason in mn.recommend(**question).at_odds)


def planted(name, **columns):
    """Made-up rows of an experiment: each column a list, the same over three seeds but for a small spread."""
    frame = pd.concat([pd.DataFrame(columns).assign(seed=seed, scale="smoke") for seed in range(3)], ignore_index=True)
    value = next(c for c in ("accuracy", "distance", "error") if c in frame)
    frame[value] = frame[value] + 0.01 * frame.seed * (np.arange(len(frame)) % 2)
    return lambda asked, **_: frame if asked == name else pd.DataFrame()


PLANTED = {
    "batch_size": (dict(architecture="cnn", batch_size=4), "BN − GN at batch 4",
                   dict(norm=["BN", "GN"], batch=[4, 4], accuracy=[50.0, 60.0])),
    "depth": (dict(architecture="transformer", depth=24), "Pre- − post-norm at 24 layers",
              dict(place=["pre", "post"], norm=["LN", "LN"], depth=[24, 24], accuracy=[60.0, 50.0])),
    "recurrent": (dict(architecture="lstm"), "LN − BN in a stacked LSTM",
                  dict(norm=["LN", "BN", "None"], accuracy=[60.0, 50.0, 40.0])),
    "gan": (dict(architecture="gan", component="discriminator"), "BN − no norm in the discriminator",
            dict(generator=["None", "None"], discriminator=["BN", "None"], distance=[0.9, 0.5])),
    "style": (dict(architecture="cnn", task="style_transfer"), "Painting digits of unseen contrasts",
              dict(norm=["IN", "BN"], error=[0.1, 0.2], error_beyond=[0.1, 0.9], survives=[0.9, 0.1])),
}  # fmt: skip


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", PLANTED)
def test_what_was_measured_stands_where_it_belongs(name, turned, monkeypatch):
    question, words, columns = PLANTED[name]
    if turned:  # the other way round: now our runs contradict the guide
        columns = {key: column[::-1] if isinstance(column[0], float) else column for key, column in columns.items()}
    monkeypatch.setattr(evidence, "stored", planted(name, **columns))
    found = mn.recommend(**question)
    lists = {"reasons": found.reasons, "at odds": found.at_odds}
    where = {title for title, entries in lists.items() if any(words in str(reason) for reason in entries)}
    assert where == {"at odds" if turned else "reasons"}
    assert any("3 seeds" in reason.source for reason in (*found.reasons, *found.at_odds))


def test_what_was_not_measured_is_said_to_be_so(store):
    assert any("Not measured here yet" in reason.text for reason in mn.recommend("lstm").undecided)


def test_a_recommendation_reads_well_as_text_markdown_and_html(store):
    found = mn.recommend("cnn", batch_size=4)
    for text in (repr(found), found._repr_markdown_(), found._repr_html_()):
        assert "cnn, batch_size=4: GN, after the convolution" in text
        assert "What is at odds" in text
        assert "nn.GroupNorm(32, channels)" in text
    assert "<script" not in mn.recommend("cnn")._repr_html_()


@pytest.mark.parametrize(
    ("question", "words"),
    [
        (dict(architecture="transformr"), "did you mean 'transformer'"),
        (dict(architecture="cnn", task="styletransfr"), "did you mean 'style_transfer'"),
        (dict(architecture="cnn", task="digits"), "unknown task 'digits'"),
        (dict(architecture="gan"), "component is needed, valid are generator, discriminator"),
        (dict(architecture="gan", component="critic"), "valid are generator, discriminator"),
        (dict(architecture="cnn", component="generator"), "a part of a GAN"),
        (dict(architecture="cnn", batch_size=0), "batch_size must be a positive whole number, got 0"),
        (dict(architecture="cnn", depth=2.5), "depth must be a positive whole number"),
        (dict(architecture="cnn", causal="no"), "causal must be True or False"),
        (dict(architecture="transformer", size="large"), "size must be a number of parameters"),
        (dict(architecture="mamba", task="imdb"), "unknown task with recorded runs 'imdb'"),
    ],
)
def test_bad_values_are_answered_with_the_valid_ones(question, words):
    with pytest.raises(ValueError, match=words):
        mn.recommend(**question)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (("Transformers", "language model"), ("transformer", "language_model")),
        (("GPT", "Language-Modelling"), ("transformer", "language_model")),
        (("C.N.N.", " STYLE transfers "), ("cnn", "style_transfer")),
        (("Mamba-2", "Digits"), ("mamba", "digits")),
        (("MLP", "RL"), ("mlp", "reinforcement_learning")),
    ],
)
def test_names_may_be_spelt_as_people_type_them(typed, meant, store):
    assert mn.recommend(typed[0], task=typed[1]).question == mn.recommend(meant[0], task=meant[1]).question


@pytest.mark.parametrize(("size", "number"), [("7B", 7e9), ("350m", 3.5e8), (1e9, 1e9), ("12k", 12e3), (None, None)])
def test_a_size_is_a_number_or_a_text(size, number):
    assert parameters(size) == number


# ---------------------------------------------------------------------------------------------------------------------
# Mamba: from the recorded runs alone


def ranked(*rows):
    table = pd.DataFrame(rows, columns=["arm", "who", "mean", "behind", "low", "high", "told"])
    return lambda kind, task, causal: (table.assign(sd=1.0, n=8), "made-up runs")


def test_mamba_takes_the_arm_that_validation_chose_whatever_it_is(monkeypatch):
    rows = [("LN>SSM>BN", "", 90.0, 0.0, np.nan, np.nan, "chosen"),
            ("BN>SSM>BN", "", 89.0, 1.0, -2, 4, "not told apart"),
            ("NormVary>SSM>GN", "the paper's", 70.0, 20.0, 15.0, 25.0, "behind")]  # fmt: skip
    monkeypatch.setattr(mamba, "_ranked", ranked(*rows))
    found = mn.recommend("mamba", batch_size=2)
    assert (found.norm, found.instead) == ("BN", ("BN→BN",))
    assert "LN before it" in found.place
    assert isinstance(eval(found.code, NAMES | dict(d_model=8)), mn.MambaBlock)
    assert any("NormVary→GN (the paper's) is behind" in reason.text for reason in found.at_odds)
    assert any("batch of 2" in reason.text for reason in found.at_odds)


def test_mamba_without_a_causal_arm_is_the_original_and_says_so(monkeypatch):
    monkeypatch.setattr(mamba, "_ranked", lambda *_: (pd.DataFrame(columns=["arm", "told", "who"]), ""))
    assert "unjudged" in mn.recommend("mamba", causal=True).reasons[0].text


def test_mamba_cites_the_recorded_verdicts_word_by_word():
    found = mn.recommend("mamba")
    said = {reason.text: reason for reason in (*found.reasons, *found.at_odds, *found.undecided)}
    for verdict in mamba._verdicts("sequence"):
        if verdict.verdict != "not run":
            (text,) = [text for text in said if f"({verdict.claim.id})" in text]
            assert verdict.brief in text
            assert (said[text] in found.at_odds) is (verdict.verdict == "contradicted")
            assert (said[text] in found.reasons) is (verdict.verdict == "reproduced")
            assert f"{verdict.n_seeds} seeds" in said[text].source
    assert found.norm in NORMS


# ---------------------------------------------------------------------------------------------------------------------
# experiments, mistakes, numbers


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
    monkeypatch.setitem(experiments.EXPERIMENTS, "gan", lambda scale, seed: [dict(generator="new", seed=seed)])
    assert advice.measure("gan", "smoke", SEEDS, folder).equals(frames["gan"])
    assert len(fitting.stored("gan", "smoke", folder)) == len(frames["gan"])
    monkeypatch.setattr(fitting, "_digest", lambda: "other")
    assert fitting.stored("gan", "smoke", folder).empty
    assert set(advice.measure("gan", "smoke", 1, folder).generator) == {"new"}


def test_the_run_store_passes_the_experiments_by(runs):
    assert len(mn.load_runs(runs[0])) == 0


def test_an_unknown_experiment_names_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'batch_size'"):
        advice.measure("batchsize")


GUIDES_MISTAKES = {
    1: "BatchNorm with small batches",
    2: "BatchNorm in RNN",
    3: "Forgetting model.eval()",
    4: "Post-norm for deep Transformers",
    5: "Wrong normalization for style transfer",
}


@pytest.mark.parametrize("number", GUIDES_MISTAKES)
def test_every_mistake_has_a_demo_and_a_twin_that_shares_its_seeds(number, runs):
    assert MISTAKES[number].words == GUIDES_MISTAKES[number]
    found = mistake_runs(number, "smoke", SEEDS, runs[0])
    assert found.groupby("twin").seed.apply(list).to_dict() == {"right": [0, 1], "wrong": [0, 1]}
    assert found.label.nunique() == 2
    assert found.losses.map(len).min() > 1


def test_the_advantage_of_a_twin_is_signed_so_that_more_is_better(monkeypatch):
    rows = [dict(norm=norm, seed=seed, scale="smoke", error_beyond=value + 0.01 * seed, losses=[1.0, 0.5])
            for seed in range(3) for norm, value in (("IN", 0.1), ("BN", 0.9))]  # fmt: skip
    monkeypatch.setitem(globals(), "MISTAKES", {5: MISTAKES[5]})
    monkeypatch.setattr("mambanorm.advice.mistakes.MISTAKES", {5: MISTAKES[5]})
    monkeypatch.setattr("mambanorm.advice.mistakes.measure", lambda *_: pd.DataFrame(rows))
    (row,) = mistake_table().itertuples()
    assert row.advantage == pytest.approx(0.8)
    assert row.fails == "yes"
    assert row.right.startswith("0.11")


CLAIMED = {
    "10x faster convergence": "10 ×",
    "10x larger rates": "0.001 → 0.01",
    "BN / GN at 32": "76.5 / 76.3 %",
    "BN / GN at 8": "75.8 / 76.1 %",
    "BN / GN at 2": "72.1 / 75.3 %",
    "batch < 8": "8",
    "12 layers": "12 layers",
    "BatchNorm +2 %": "+2 %",
    "LayerNorm, InstanceNorm +3-5 %": "+3–5 %",
    "RMSNorm +2-3 %": "+2–3 %",
    "GroupNorm +5-8 %": "+5–8 %",
    "RMSNorm 15-20 %": "15–20 %",
    "RMSNorm 18 %": "18 % (LLaMA-7B, A100)",
    "180 seconds": "180 s",
    "2048": "2,048 parameters",
    "1024": "1,024 parameters",
    "512": "512 parameters",
}


@pytest.fixture(scope="module")
def table(runs):
    return advice.claimed_and_measured("smoke", SEEDS, runs[0])


@pytest.mark.parametrize("words", CLAIMED)
def test_every_number_of_the_guide_has_its_measured_neighbour(words, table):
    text = CLAIMED[words]
    rows = table[table.claimed == text if text.isdigit() else table.claimed.str.contains(text, regex=False)]
    assert len(rows)
    assert rows.here.str.contains(r"\d|nowhere").all()
    assert rows.setting.str.len().min() >= len("arithmetic")


def test_the_seconds_saved_are_153(table):
    (row,) = table[table.claimed == "180 s"].itertuples()
    assert row.here == "153 s"


def test_batch_norm_of_512_channels_learns_1024_numbers_and_keeps_as_many():
    table = memory_table().set_index("norm")
    assert table.parameters.to_dict() == {"BatchNorm": 1024, "LayerNorm": 1024, "RMSNorm": 512}
    assert table.buffers.to_dict() == {"BatchNorm": 1025, "LayerNorm": 0, "RMSNorm": 0}  # and a counter


def test_the_answer_takes_its_numbers_from_the_frames(runs):
    folder, frames = runs
    table = mistake_table("smoke", SEEDS, folder)
    said = advice.in_words(table, frames)
    assert all(words in said for words in GUIDES_MISTAKES.values())
    assert f"{100 * frames['style'].groupby('norm').survives.mean().BN:.0f} % behind BN" in said


def test_the_guesses_are_answered_by_the_same_frames(runs):
    folder, frames = runs
    said = advice.guesses_tested(mistake_table("smoke", SEEDS, folder), frames).splitlines()
    assert [line[:2] for line in said] == ["1.", "2.", "3."]
    ahead = frames["dense"].assign(accuracy=lambda f: f.seed / 100 + (f.norm == "BN") * (0.1 - 0.2 * (f.batch == 4)))
    said = advice.guesses_tested(mistake_table("smoke", SEEDS, folder), frames | {"dense": ahead})
    assert "a net of linear layers: 4 of" in said


def test_instance_norm_leaves_no_style_to_read_and_batch_norm_does():
    torch.manual_seed(0)
    x = fitting.digits("quick", 0)["test"][0]
    left = {norm: experiments._style_survives(blocks.StyleNet(norm=norm), x, 0) for norm in ("IN", "BN")}
    assert left["IN"] < 0.2
    assert left["BN"] > 0.8


def test_the_energy_distance_is_zero_for_one_distribution_and_grows_with_the_shift():
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 300, 4, generator=draw)
    distances = [energy_distance(x, y + shift) for shift in (0.0, 0.5, 1.0)]
    assert distances[0] < 0.15 < distances[1] < distances[2]


def test_a_mean_takes_its_seeds_and_its_spread():
    frame = pd.DataFrame(dict(norm=["A", "A", "B", "B"], accuracy=[1.0, 3.0, 5.0, 5.0]))
    found = experiments.spread(frame, ["norm"], "accuracy").set_index("norm")
    assert found.loc["A"].to_dict() == pytest.approx({"mean": 2.0, "sd": 2**0.5, "n": 2.0})


# ---------------------------------------------------------------------------------------------------------------------
# the guide's blocks


@pytest.mark.parametrize("place", ["pre", "post"])
def test_a_transformer_layer_is_torchs(place):
    torch.manual_seed(0)
    ours = blocks.TransformerLayer(16, 4, place=place)
    theirs = nn.TransformerEncoderLayer(16, 4, 64, dropout=0.0, batch_first=True, norm_first=place == "pre")
    names = {"qkv.weight": "self_attn.in_proj_weight", "qkv.bias": "self_attn.in_proj_bias",
             "out": "self_attn.out_proj", "ffn.0": "linear1", "ffn.2": "linear2"}  # fmt: skip
    state = {}
    for name, value in ours.state_dict().items():
        key = next((old for old in names if name.startswith(old)), "")
        state[name.replace(key, names[key]) if key else name] = value
    theirs.load_state_dict(state)
    x = torch.randn(2, 5, 16)
    torch.testing.assert_close(ours(x), theirs(x))


def test_the_normalized_lstm_puts_out_steps_of_mean_0_and_variance_1():
    y, (h, c) = blocks.NormalizedLSTM(3, 32)(torch.randn(2, 7, 3))
    torch.testing.assert_close(y.mean(-1), torch.zeros(2, 7), atol=1e-5, rtol=0)
    assert (y.var(-1, unbiased=False) > 0.9).all()
    assert h.shape == c.shape == (1, 2, 32)


def test_the_batch_norm_of_steps_is_one_statistic_over_rows_and_steps():
    y = blocks.StepBatchNorm(4)(3 + 2 * torch.randn(5, 6, 4))
    torch.testing.assert_close(y.mean((0, 1)), torch.zeros(4), atol=1e-5, rtol=0)


def test_behind_instance_norm_the_contrast_of_an_image_makes_no_difference():
    torch.manual_seed(0)
    conv, norm, _ = blocks.StyleConvBlock(1, 4)
    x = torch.rand(2, 1, 8, 8)
    nn.init.zeros_(conv.bias)
    inner = (..., slice(1, -1), slice(1, -1))
    torch.testing.assert_close(norm(conv(x)[inner]), norm(conv(3 * x)[inner]), atol=1e-3, rtol=1e-3)


def test_generator_and_discriminator_fit_together():
    images = blocks.Generator(norm="IN")(torch.randn(3, 16))
    assert images.shape == (3, 1, 8, 8)
    assert images.abs().max() <= 1
    assert blocks.Discriminator()(images).shape == (3,)


@pytest.mark.parametrize("make", [lambda: blocks.ConvBlock(1, 2, "BM"), lambda: blocks.NormalizedLSTM(1, 2, "BM"),
                                  lambda: blocks.TransformerLayer(8, place="por")])  # fmt: skip
def test_an_unknown_norm_or_place_names_the_valid_ones(make):
    with pytest.raises(ValueError, match="unknown .*: valid are"):
        make()


# ---------------------------------------------------------------------------------------------------------------------
# figures


def test_every_figure_names_its_axes_its_scale_and_its_seeds(runs):
    folder, frames = runs
    mistakes = {n: mistake_runs(n, "smoke", SEEDS, folder) for n in (1, 5)}
    words = {n: MISTAKES[n].words for n in mistakes}
    drawn = [
        figures.fig_over(frames["batch_size"], "batch", "norm", "BN and GN"),
        figures.fig_over(frames["rates"], "lr", "norm", "Rates"),
        figures.fig_over(frames["depth"], "depth", "place", "Depth"),
        figures.fig_mistakes(mistakes, words, {n: MISTAKES[n].unit for n in mistakes}),
    ]
    for fig in drawn:
        assert all(ax.get_xlabel() for ax in fig.axes)
        assert fig.axes[0].get_ylabel()
        assert "smoke scale · 2 seeds" in fig.get_label()
    samples = figures.fig_samples(frames["gan"])
    assert len(samples.axes) == 4
    assert "energy distance" in samples.get_label()
