"""The language model as a task of the study: its windows, its loss in the loop, and the claims
about it in bits.
"""

import math

import numpy as np
import pandas as pd
import pytest
import torch

import mambanorm as mn
import mambanorm_study as study
from mambanorm_study import advice, claims
from mambanorm_study.claims import CLAIMS, judge, needed
from mambanorm_study.claims.claim import FURTHER_TEST_SEEDS, TEST_SEEDS
from mambanorm_study.claims.evidence import Evidence, tasks_of
from mambanorm_study.claims.other_sources import CAUSAL_NORMS
from mambanorm_study.claims.pages import describe
from mambanorm_study.cli import recording
from mambanorm_study.cli.printing import print_run
from mambanorm_study.runs.build import build_model
from mambanorm_study.runs.evaluation import accuracy, predict
from mambanorm_study.runs.grid import base_config
from mambanorm_study.runs.presets import LANGUAGE_TASKS, kind_of
from mambanorm_study.runs.regimen import Targets, loss_of
from mambanorm_study.runs.run import train
from mambanorm_study.runs.store import find_run, load_runs, save_run
from mambanorm_study.tables.experiments import lr_grid
from mambanorm_study.tables.notebook_runs import notebook_runs
from mambanorm_study.tables.plan import plan, shape_of_data
from mambanorm_study.tasks import TASKS, BadData, Split, TaskData, pydoc
from tests import planted

LANGUAGE = ("H1l", "H3l", "H8l")
NONE, ORIGINAL, PROPOSAL = "None>SSM>None", "RMSN>SSM>None", "NormVary-token>SSM>GN-token"


def text_of(split):
    """Return the text that a split's windows cover."""
    return pydoc.decode(torch.cat([split.inputs[0, :1], split.labels.flatten()]))


# ----------------------------------------------------------------------------------------- the task


@pytest.mark.parametrize("scale", ["smoke", "evening"])
def test_rows_are_windows_whose_labels_are_the_next_characters(scale):
    data, length = study.load_task("pydoc", scale, 0), pydoc.LENGTHS[scale]
    for split in (data.train, data.val, data.test):
        assert split.inputs.shape == split.labels.shape == (len(split), length)
        assert torch.equal(split.inputs[:, 1:].long(), split.labels[:, :-1])
        assert torch.equal(
            split.inputs[1:, 0].long(), split.labels[:-1, -1]
        )  # each position is predicted once
        inputs, lengths, labels = split.batch([0, 3])
        assert (inputs.dtype, lengths, labels.shape) == (torch.int64, None, (2, length))
    assert data.n_classes == data.vocab_size == len(pydoc.ALPHABET)
    assert data.per_position


def test_the_splits_are_consecutive_parts_of_the_text_and_the_same_for_every_seed():
    data, other = (study.load_task("pydoc", "evening", seed) for seed in (0, 7))
    whole = pydoc.drop_repeats(pydoc.load_text())
    places = [whole.index(text_of(split)) for split in (data.train, data.val, data.test)]
    assert places == [0, round(0.8 * len(whole)), round(0.9 * len(whole))]
    assert len(text_of(data.train)) < places[1]
    assert places[1] + len(text_of(data.val)) <= places[2]
    assert torch.equal(data.test.labels, other.test.labels)


def test_no_paragraph_stands_in_two_splits():
    """Without `distinct`, 8 % of the end of the text also occurs at its beginning."""
    assert pydoc.drop_repeats("a b\n\nc\n\n  a\nb\n\n\n\nd\n\nc") == "a b\n\nc\n\nd"
    text = pydoc.load_text()
    ids = pydoc.encode(pydoc.drop_repeats(text))
    train, val, test = (
        set(pydoc.decode(part).split("\n\n")[1:-1]) for part in pydoc.split_text(ids)
    )
    assert not train & val
    assert not (train | val) & test
    assert 0.7 < len(ids) / len(text) < 0.9
    train, val, test = (
        set(pydoc.decode(part).split("\n\n")) for part in pydoc.split_text(pydoc.encode(text))
    )
    assert train & test


def test_its_shape_is_told_and_planned_as_it_is():
    told, real = TASKS["pydoc"].shape("smoke"), study.load_task("pydoc", "smoke", 0)
    found = shape_of_data(real)
    for name in ("n_classes", "length", "vocab_size", "sizes", "per_position"):
        assert getattr(told, name) == getattr(found, name), name
    assert told.random_labels(3).shape == told.random_inputs(3).shape == (3, told.length)
    config = base_config("pydoc", "smoke")
    cost = plan(config, measured=False)
    model = build_model(config, told)
    assert cost["parameters"] == sum(p.numel() for p in model.parameters())
    head = 3 * 2 * config.batch_size * told.length * model.lm_head.weight.numel()
    assert cost["flops_per_step"] > head  # the head works at every position
    assert math.isfinite(plan(config)["hours"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(n_classes=3), "n_classes=3 and vocab_size=5: .* is the next token"),
        (
            dict(val=Split(torch.ones(2, 4).long(), torch.ones(2).long())),
            "labels of the val split, .*if each position has a label",
        ),
        (
            dict(test=Split(torch.ones(2, 4).long(), torch.full((2, 4), 5))),
            "test split range from 5 to 5",
        ),
    ],
)
def test_labels_at_each_position_that_do_not_fit_are_refused(change, message):
    split = Split(torch.ones(2, 4).long(), torch.ones(2, 4).long())
    parts = dict(train=split, val=split, test=split, n_classes=5, vocab_size=5)
    assert TaskData(**parts).per_position
    with pytest.raises(BadData, match=message):
        TaskData(**parts | change)


def test_rows_with_a_label_at_each_position_have_no_padding():
    ids = torch.ones(2, 4).long()
    with pytest.raises(BadData, match="lengths are given for inputs .*whose rows have no padding"):
        Split(ids, ids, torch.tensor([4, 3]))
    with pytest.raises(
        BadData,
        match=r"labels are torch.int64 of shape \(2, 3\): "
        r"2 rows of inputs need classes \(n,\) or one label for each position",
    ):
        Split(ids, ids[:, :3])


# ---------------------------------------------------------------------------------- loss and chance


class Sure(torch.nn.Module):
    """Model that predicts the id after the one it reads with probability p."""

    def forward(self, ids, lengths=None, p=0.7):
        logits = torch.full((*ids.shape, 4), math.log((1 - p) / 3))
        return logits.scatter(-1, (ids[..., None] + 1) % 4, math.log(p))


def counting(rows=3, wrong=1):
    """Return rows 0 1 2 3 0 … whose labels count on, except at `wrong` positions of the first
    row.
    """
    ids = torch.arange(rows * 5).view(rows, 5) % 4
    labels = (ids + 1) % 4
    labels[0, :wrong] = (labels[0, :wrong] + 1) % 4
    return Split(ids, labels)


def test_the_loss_is_the_mean_of_minus_log_p_over_the_positions():
    split, config = counting(), base_config("pydoc", "smoke")
    expected = -(14 * math.log(0.7) + math.log(0.1)) / 15
    inputs, _, labels = split.batch([0, 1, 2])
    assert loss_of(Sure()(inputs), Targets(labels), config).item() == pytest.approx(
        expected, abs=1e-5
    )
    found = predict(Sure(), split, config, torch.device("cpu"))
    assert found["loss"].mean() == pytest.approx(expected, abs=1e-5)
    assert found["loss"][1] == pytest.approx(-math.log(0.7), abs=1e-5)
    assert found["right"].tolist() == pytest.approx([4 / 5, 1, 1])
    assert accuracy(found) == pytest.approx(14 / 15)
    assert {name: array.shape for name, array in found.items()} == {
        "right": (3,),
        "loss": (3,),
    }  # not (3, 5, 4)


def test_a_teacher_and_smoothed_labels_count_every_position_as_a_row():
    inputs, _, labels = counting().batch([0, 1, 2])
    config = base_config("pydoc", "smoke", label_smoothing=0.2, teacher="0" * 16)
    logits, soft = Sure()(inputs, p=0.5), Sure()(inputs)
    flat = loss_of(
        logits.flatten(0, 1), Targets(labels.flatten(), teacher_outputs=soft.flatten(0, 1)), config
    )
    assert torch.equal(loss_of(logits, Targets(labels, teacher_outputs=soft), config), flat)


def test_chance_is_guessing_by_the_frequency_of_the_training_characters():
    train = Split(torch.zeros(2, 4).long(), torch.tensor([[0, 0, 0, 0], [0, 1, 1, 2]]))
    test = Split(torch.zeros(1, 4).long(), torch.tensor([[0, 1, 3, 0]]))
    data = TaskData(train, test, test, n_classes=4, vocab_size=4)
    p = [6 / 12, 3 / 12, 2 / 12, 1 / 12]  # each counted once more
    assert data.chance_loss == pytest.approx(
        -(2 * math.log(p[0]) + math.log(p[1]) + math.log(p[3])) / 4
    )
    assert data.chance == 0.5
    assert study.load_task("digits", "smoke", 0).chance_loss is None
    real = study.load_task("pydoc", "evening", 0)
    entropy = pydoc.unigram_entropy(real.test.labels.flatten())
    assert (
        0 <= real.chance_loss / math.log(2) - entropy < 0.1
    )  # the price of the training part's frequencies


# --------------------------------------------------------------------------------------------- runs


def test_a_run_is_a_language_model_in_the_studys_loop_and_store(store, capsys):
    config = base_config("pydoc", "smoke", arm="RMSN>SSM>GN-token", steps=40, eval_every=5, lr=2e-2)
    result = train(config)
    assert result.status == "ok"
    losses = result.curves.dropna(subset=["val_loss"])
    assert result.best_val_loss == losses.val_loss.min()  # validation chooses by loss
    assert result.best_step == losses.step[losses.val_loss.idxmin()]
    assert result.test_loss == pytest.approx(result.predictions["loss"].mean())
    assert result.test_loss < math.log(96)
    assert result.parameters == sum(
        p.numel() for p in build_model(config, study.load_task("pydoc", "smoke", 0)).parameters()
    )
    save_run(result)
    run = find_run(config)
    assert accuracy(run.predictions) == run.facts["test_accuracy"]
    assert (run.path / "predictions.npz").stat().st_size < 2_000
    print_run(run)
    assert f"{result.test_loss / math.log(2):.3f} bits per token" in capsys.readouterr().out


def test_a_run_that_diverged_counts_as_guessing_by_frequency():
    result = train(base_config("pydoc", "smoke", lr=1e30, steps=20, warmup_steps=0))
    assert result.status == "diverged"
    assert (
        result.test_loss == result.chance_loss == study.load_task("pydoc", "smoke", 0).chance_loss
    )
    assert result.test_accuracy == result.chance


def test_a_language_model_is_trained_if_its_last_tenth_is_worth_less_than_the_smallest_effect(
    store,
):
    configs = study.grid(
        ["LN>SSM>None", ORIGINAL], ["pydoc"], scale="smoke", seeds=2, steps=20, eval_every=1
    )
    for config in configs:
        save_run(train(config))
    frame = study.with_summaries(load_runs())
    losses = find_run(configs[0].run_id).curves.val_loss
    gain = (losses[:18].min() - losses.min()) / math.log(2)
    assert frame.set_index("run_id").late_gain[configs[0].run_id] == pytest.approx(gain)
    runs = made_up({}, tests=6)
    for gains, late in (
        ((0.02,) * 3 + (0,) * 3, 3),
        ((0.02, 0.01, 0.0099, 0, 0, 0), 0),
        ((np.nan,) * 6, 0),
    ):
        gain = runs.seed.map(dict(zip(range(52, 58), gains, strict=True))).where(
            runs.arm == ORIGINAL
        )
        notes = judge("H8l", runs.assign(late_gain=gain)).footnotes
        named = [
            note for note in notes if note.startswith("still improved")
        ]  # of more than a third
        assert named == ([f"still improved at the end: RMSN→None {late} of 6 runs"] if late else [])


@pytest.mark.parametrize("arm", ["GN>SSM>None", "None>SSM>BN", "NormVary>SSM>None", "IN>SSM>IN"])
def test_norms_that_see_the_future_are_refused_by_name(arm):
    with pytest.raises(
        ValueError,
        match="sees the future.*which a language model is to predict; choose a causal norm",
    ):
        train(base_config("pydoc", "smoke", arm=arm))


@pytest.mark.parametrize(
    "field",
    [dict(stem_norm="LN"), dict(positional="learned"), dict(drop_path=0.1), dict(down_sample=[1])],
)
def test_what_a_language_model_has_not_is_refused(field):
    (name,) = field
    with pytest.raises(
        ValueError, match=f"{name}=.* has no effect on the LanguageModel that pydoc needs"
    ):
        train(base_config("pydoc", "smoke", **field))
    with pytest.raises(ValueError, match="model='transformer' is a classifier"):
        train(base_config("pydoc", "smoke", arm="AutoNorm", squeeze_excite=False))


def test_padding_is_nothing_that_a_language_model_knows():
    model = build_model(base_config("pydoc", "smoke"), TASKS["pydoc"].shape("smoke"))
    with pytest.raises(ValueError, match="takes no lengths"):
        model(torch.ones(2, 4).long(), torch.tensor([4, 3]))


# ------------------------------------------------------------------------------------------- claims


def made_up(bits, *, sd=0.003, diverged=(), tests=12, seed=0):
    """Return all runs of the three claims at smoke. bits: arm → how many bits it needs less than 2;
    diverged: (arm, seed).
    """
    arms = dict.fromkeys(arm for name in LANGUAGE for arm in CLAIMS[name].arms)
    frame = planted.rows_of(planted.tuned_and_tested(arms, "pydoc", tests, "smoke"))
    middle, rng = lr_grid("pydoc", "smoke")[1], np.random.default_rng(seed)
    needs = 2 - frame.arm.map(lambda arm: bits.get(arm, 0.0)) + 0.05 * (frame.lr != middle)
    loss = math.log(2) * (needs + sd * rng.standard_normal(len(frame)))
    failed = [pair in diverged for pair in zip(frame.arm, frame.seed, strict=True)]
    facts = dict(
        test_accuracy=0.5, best_val_accuracy=0.5, chance=0.2, chance_loss=3.0 * math.log(2)
    )
    return frame.assign(
        status=np.where(failed, "diverged", "ok"), test_loss=loss, best_val_loss=loss, **facts
    )


def test_language_models_are_a_kind_of_task_of_their_own():
    assert (
        {name for name in TASKS if kind_of(name) == "language"} == set(LANGUAGE_TASKS) == {"pydoc"}
    )
    for name in CLAIMS:
        asked = tasks_of(CLAIMS[name], ["digits", "pydoc", "digits_images"], "quick")
        assert (asked == ["pydoc"]) == (name in LANGUAGE) == ("pydoc" in asked)
    for asked in (notebook_runs("smoke", ["digits", "pydoc"]), notebook_runs("quick")):
        having = {
            name for name, runs in asked.items() if "pydoc" in {config.task for config in runs}
        }
        assert having == {"13_beyond"}


@pytest.mark.parametrize("name", LANGUAGE)
def test_the_claims_ask_for_causal_norms_alone_in_bits(name):
    claim = CLAIMS[name]
    assert (claim.kind, claim.smallest) == ("language", 0.01)
    assert claim.paper == "no number printed"
    assert "the paper trains no language model" in claim.note
    assert "language model" in claim.words
    for arm in map(mn.Arm.parse, claim.arms):
        assert mn.NORMS[arm.n1].causal
        assert mn.NORMS[arm.n2].causal
    assert {(c.column, c.unit) for c in claim.comparisons} == {("bits", "bits a character")}
    configs = needed(name, 3, scale="smoke", tasks=["pydoc", "digits"])
    assert {c.task for c in configs} == {"pydoc"}
    assert {c.arm for c in configs} == set(claim.arms)
    for config in configs[:4]:
        build_model(config, TASKS["pydoc"].shape("smoke"))


def test_fewer_bits_are_better():
    good = {PROPOSAL: 0.2, "RMSN>SSM>RMSN": 0.2} | {
        f"None>SSM>{norm}": 0.2 for norm in CAUSAL_NORMS
    }
    for name, arms in (("H1l", 3), ("H3l", 1), ("H8l", 1)):
        verdict = judge(name, made_up(good))
        assert verdict.as_text == "supported, by more than 0.01 bits a character", name
        assert verdict.main_row.effect == pytest.approx(0.2, abs=0.01)
        assert sum(row.decides for row in verdict.rows) == arms
        assert verdict.basis.endswith("pydoc, a kind of task that the paper does not have")
        assert np.isnan(verdict.main_row.paper)
        assert "bits a character" in verdict.brief
        assert describe(verdict)
    bad = {PROPOSAL: -0.2, NONE: 0.2} | {f"None>SSM>{norm}": -0.2 for norm in CAUSAL_NORMS}
    assert [judge(name, made_up(bad)).word for name in LANGUAGE] == ["opposite"] * 3


def test_a_difference_below_a_hundredth_of_a_bit_is_no_gain_of_it():
    verdict = judge("H8l", made_up({PROPOSAL: 0.0002}, sd=0.002))
    assert verdict.as_text == "no gain of 0.01 bits a character"
    assert judge("H8l", made_up({PROPOSAL: 0.005}, sd=0.002)).as_text == "supported"
    assert judge("H8l", made_up({}, sd=0.025)).word == "cannot tell"


def test_an_arms_rate_has_the_smallest_validation_loss():
    frame, (low, middle, _) = made_up({}), lr_grid("pydoc", "smoke")
    assert Evidence(frame).lr(PROPOSAL, "pydoc") == middle
    ours = (frame.arm == PROPOSAL) & (frame.lr == low)
    assert Evidence(planted.where(frame, ours, best_val_loss=1.0)).lr(PROPOSAL, "pydoc") == low
    better = planted.where(frame, ours, best_val_accuracy=0.9, test_loss=1.0)  # neither chooses
    assert Evidence(better).lr(PROPOSAL, "pydoc") == middle


def test_a_diverged_run_has_the_loss_of_guessing_and_is_counted():
    hit = {(PROPOSAL, seed) for seed in (53, 56)}
    verdict = judge("H8l", made_up({PROPOSAL: 0.1}, diverged=hit))
    row = verdict.main_row
    assert (verdict.n, row.failed[PROPOSAL]) == (12, (2, 12))
    assert [round(row.per_seed[seed - 52], 1) for seed in (53, 56)] == [
        -1.0,
        -1.0,
    ]  # 3 bits against 2
    assert "failed: NormVary-token→GN-token 2 of 12 runs" in verdict.footnotes


def test_a_run_without_a_finite_loss_is_a_run_that_is_not_there():
    frame = made_up({})
    lost = (frame.arm == ORIGINAL) & (frame.seed == 55)
    assert judge("H8l", planted.where(frame, lost, test_loss=np.nan)).n == 11


def test_models_that_guess_have_no_word():
    frame = made_up({arm: -1.0 for name in LANGUAGE for arm in CLAIMS[name].arms}, sd=0.01)
    verdict = judge("H8l", frame)
    assert (verdict.word, verdict.reason) == ("no word", "both sides' accuracy may be chance")


def test_which_arm_to_take_is_told_in_bits():
    table = advice.ranking(made_up({PROPOSAL: 0.1}), "pydoc")
    assert table.arm.iloc[0] == PROPOSAL
    assert table["mean"].iloc[0] == pytest.approx(-1.9, abs=0.01)
    assert advice.leading_arms(table)["mean"].iloc[0] == pytest.approx(
        table["mean"].iloc[0], abs=5e-4
    )
    assert set(table.unit) == {"bits a character"}


def test_language_models_are_recorded_as_parts_of_the_plan():
    parts = recording.parts("evening", tasks=["pydoc"])
    assert list(dict.fromkeys(part.name for part in parts)) == [
        "pydoc, every arm",
        "pydoc, the arms of H4 and H8 once more",
    ]
    assert [seed for part in parts for seed in part.seeds] == [*TEST_SEEDS, *FURTHER_TEST_SEEDS]
    configs = [config for part in parts[:1] for config in part.find_needed(pd.DataFrame())]
    language = [claim for claim in (CLAIMS | claims.BEYOND).values() if claim.kind == "language"]
    assert {config.arm for config in configs} == {arm for claim in language for arm in claim.arms}
    assert {config.task for config in configs} == {"pydoc"}
