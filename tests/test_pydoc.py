"""The language model as a task of the study: its windows, its loss in the loop, and the claims about it in bits."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

import mambanorm as mn
from mambanorm import advice, claims, figures
from mambanorm.claims import CLAIMS, judge, needed
from mambanorm.claims.evidence import Evidence, kind_of, tasks_of
from mambanorm.claims.other_sources import CAUSAL_NORMS
from mambanorm.claims.pages import command, describe
from mambanorm.claims.protocol import EVENING_SEEDS, GRID_SEEDS
from mambanorm.cli.printing import print_run
from mambanorm.models.build import build_model
from mambanorm.runs.evaluation import accuracy, predict
from mambanorm.runs.grid import base_config
from mambanorm.runs.presets import LANGUAGE_TASKS
from mambanorm.runs.regimen import Lesson, loss_of
from mambanorm.runs.result import config_row
from mambanorm.runs.run import train
from mambanorm.runs.store import load_runs, save_run, stored_run
from mambanorm.study.experiments import lr_grid, study
from mambanorm.study.plan import plan, shape_of_data
from mambanorm.tasks import TASKS, BadData, Split, TaskData, pydoc

LANGUAGE = ("H1l", "H3l", "H8l")
NONE, ORIGINAL, PROPOSAL = "None>SSM>None", "RMSN>SSM>None", "NormVary-token>SSM>GN-token"


def text_of(split):
    """The text that a split's windows cover."""
    return pydoc.decode(torch.cat([split.inputs[0, :1], split.labels.flatten()]))


# ---------------------------------------------------------------------------------------------------- the task


@pytest.mark.parametrize("scale", ["smoke", "evening"])
def test_rows_are_windows_whose_labels_are_the_next_characters(scale):
    data, length = mn.load_task("pydoc", scale, 0), pydoc.LENGTHS[scale]
    for split in (data.train, data.val, data.test):
        assert split.inputs.shape == split.labels.shape == (len(split), length)
        assert torch.equal(split.inputs[:, 1:].long(), split.labels[:, :-1])
        assert torch.equal(split.inputs[1:, 0].long(), split.labels[:-1, -1])  # each position is predicted once
        inputs, lengths, labels = split.batch([0, 3])
        assert (inputs.dtype, lengths, labels.shape) == (torch.int64, None, (2, length))
    assert data.n_classes == data.vocab_size == len(pydoc.ALPHABET)
    assert data.per_position


def test_the_splits_are_consecutive_parts_of_the_text_and_the_same_for_every_seed():
    data, other = (mn.load_task("pydoc", "evening", seed) for seed in (0, 7))
    whole = pydoc.distinct(pydoc.load_text())
    places = [whole.index(text_of(split)) for split in (data.train, data.val, data.test)]
    assert places == [0, round(0.8 * len(whole)), round(0.9 * len(whole))]
    assert len(text_of(data.train)) < places[1]
    assert places[1] + len(text_of(data.val)) <= places[2]
    assert torch.equal(data.test.labels, other.test.labels)


def test_no_paragraph_stands_in_two_splits():
    """As it is, the text repeats itself: 8 % of its end stands in its beginning."""
    assert pydoc.distinct("a b\n\nc\n\n  a\nb\n\n\n\nd\n\nc") == "a b\n\nc\n\nd"
    text = pydoc.load_text()
    ids = pydoc.encode(pydoc.distinct(text))
    train, val, test = (set(pydoc.decode(part).split("\n\n")[1:-1]) for part in pydoc.three_parts(ids))
    assert not train & val
    assert not (train | val) & test
    assert 0.7 < len(ids) / len(text) < 0.9
    train, val, test = (set(pydoc.decode(part).split("\n\n")) for part in pydoc.three_parts(pydoc.encode(text)))
    assert train & test


def test_its_shape_is_told_and_planned_as_it_is():
    told, real = TASKS["pydoc"].shape("smoke"), mn.load_task("pydoc", "smoke", 0)
    found = shape_of_data(real)
    for name in ("n_classes", "length", "vocab_size", "held_out", "per_position"):
        assert getattr(told, name) == getattr(found, name), name
    assert told.train_rows == len(real.train)
    assert told.labels(3).shape == told.batch(3).shape == (3, told.length)
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
            "labels of the val split, .*one label at each position",
        ),
        (dict(test=Split(torch.ones(2, 4).long(), torch.full((2, 4), 5))), "test split run from 5 to 5"),
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
        BadData, match=r"labels are torch.int64 of shape \(2, 3\): 2 rows of inputs need whole numbers \(2,\)"
    ):
        Split(ids, ids[:, :3])


# ---------------------------------------------------------------------------------------------------- loss and chance


class Sure(torch.nn.Module):
    """Gives the id after the one it reads the share p of the probability."""

    def forward(self, ids, lengths=None, p=0.7):
        logits = torch.full((*ids.shape, 4), math.log((1 - p) / 3))
        return logits.scatter(-1, (ids[..., None] + 1) % 4, math.log(p))


def counting(rows=3, wrong=1):
    """Rows 0 1 2 3 0 …, whose labels count on but for the first `wrong` positions of the first row."""
    ids = torch.arange(rows * 5).view(rows, 5) % 4
    labels = (ids + 1) % 4
    labels[0, :wrong] = (labels[0, :wrong] + 1) % 4
    return Split(ids, labels)


def test_the_loss_is_the_mean_of_minus_log_p_over_the_positions():
    split, config = counting(), base_config("pydoc", "smoke")
    expected = -(14 * math.log(0.7) + math.log(0.1)) / 15
    inputs, _, labels = split.batch([0, 1, 2])
    assert loss_of(Sure()(inputs), Lesson(labels), config).item() == pytest.approx(expected, abs=1e-5)
    found = predict(Sure(), split, config, torch.device("cpu"))
    assert found["loss"].mean() == pytest.approx(expected, abs=1e-5)
    assert found["loss"][1] == pytest.approx(-math.log(0.7), abs=1e-5)
    assert found["right"].tolist() == pytest.approx([4 / 5, 1, 1])
    assert accuracy(found) == pytest.approx(14 / 15)
    assert {name: array.shape for name, array in found.items()} == {"right": (3,), "loss": (3,)}  # not (3, 5, 4)


def test_a_teacher_and_smoothed_labels_count_every_position_as_a_row():
    inputs, _, labels = counting().batch([0, 1, 2])
    config = base_config("pydoc", "smoke", label_smoothing=0.2, teacher="0" * 16)
    logits, soft = Sure()(inputs, p=0.5), Sure()(inputs)
    flat = loss_of(logits.flatten(0, 1), Lesson(labels.flatten(), soft=soft.flatten(0, 1)), config)
    assert torch.equal(loss_of(logits, Lesson(labels, soft=soft), config), flat)


def test_chance_is_guessing_by_the_frequency_of_the_training_characters():
    train = Split(torch.zeros(2, 4).long(), torch.tensor([[0, 0, 0, 0], [0, 1, 1, 2]]))
    test = Split(torch.zeros(1, 4).long(), torch.tensor([[0, 1, 3, 0]]))
    data = TaskData(train, test, test, n_classes=4, vocab_size=4)
    p = [6 / 12, 3 / 12, 2 / 12, 1 / 12]  # each counted once more
    assert data.chance_loss == pytest.approx(-(2 * math.log(p[0]) + math.log(p[1]) + math.log(p[3])) / 4)
    assert data.chance == 0.5
    assert mn.load_task("digits", "smoke", 0).chance_loss is None
    real = mn.load_task("pydoc", "evening", 0)
    entropy = pydoc.unigram_entropy(real.test.labels.flatten())
    assert 0 <= real.chance_loss / math.log(2) - entropy < 0.1  # the price of the training part's frequencies


# ---------------------------------------------------------------------------------------------------- runs


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
        p.numel() for p in build_model(config, mn.load_task("pydoc", "smoke", 0)).parameters()
    )
    save_run(result)
    run = stored_run(config.run_id)
    assert accuracy(run.predictions) == run.facts["test_accuracy"]
    assert (run.path / "predictions.npz").stat().st_size < 2_000
    print_run(run)
    assert f"{result.test_loss / math.log(2):.3f} bits a token" in capsys.readouterr().out


def test_a_run_that_diverged_counts_as_guessing_by_frequency():
    result = train(base_config("pydoc", "smoke", lr=1e30, steps=20, warmup_steps=0))
    assert result.status == "diverged"
    assert result.test_loss == result.chance_loss == mn.load_task("pydoc", "smoke", 0).chance_loss
    assert result.test_accuracy == result.chance


def test_a_language_model_is_trained_if_its_last_tenth_is_worth_less_than_the_smallest_effect(store):
    configs = mn.grid(["LN>SSM>None", ORIGINAL], ["pydoc"], scale="smoke", seeds=2, steps=20, eval_every=1)
    for config in configs:
        save_run(train(config))
    frame = mn.with_summaries(load_runs())
    losses = stored_run(configs[0].run_id).curves.val_loss
    gain = (losses[:18].min() - losses.min()) / math.log(2)
    assert frame.set_index("run_id").late_gain[configs[0].run_id] == pytest.approx(gain)
    own = base_config("pydoc", "smoke", arm=ORIGINAL)
    tried = [own.but(seed=seed, lr=lr) for seed in range(4) for lr in lr_grid("pydoc", "smoke")]
    numbers = dict(
        test_accuracy=0.1, best_val_accuracy=0.1, chance=0.05, test_loss=2.0, best_val_loss=2.0, chance_loss=3.0
    )
    runs = pd.DataFrame([config_row(config) | numbers | dict(status="ok", best_step=4) for config in tried])
    for gains, known, late, trained in (
        ((0.02, 0.02, 0, 0), 4, 0.5, False),
        ((0.0099, 0.009, 0, 0.02), 4, 0.25, True),
        ((np.nan, 0, 0, np.nan), 2, 0.0, True),
        ((np.nan,) * 4, 0, np.nan, False),
    ):
        row = claims.still_rising(runs.assign(late_gain=runs.seed.map(dict(enumerate(gains)))), "smoke").iloc[0]
        assert (row.runs, row.trained) == (known, trained)
        assert row.late == pytest.approx(late, nan_ok=True)


@pytest.mark.parametrize("arm", ["GN>SSM>None", "None>SSM>BN", "NormVary>SSM>None", "IN>SSM>IN"])
def test_norms_that_see_the_future_are_refused_by_name(arm):
    with pytest.raises(ValueError, match="sees the future.*which a language model is to predict; choose a causal norm"):
        train(base_config("pydoc", "smoke", arm=arm))


@pytest.mark.parametrize(
    "field", [dict(stem_norm="LN"), dict(positional="learned"), dict(drop_path=0.1), dict(down_sample=[1])]
)
def test_what_a_language_model_has_not_is_refused(field):
    (name,) = field
    with pytest.raises(ValueError, match=f"{name}=.* is no part of a language model, and pydoc needs one"):
        train(base_config("pydoc", "smoke", **field))
    with pytest.raises(ValueError, match="model='transformer' is no part of a language model"):
        train(base_config("pydoc", "smoke", arm="AutoNorm", squeeze_excite=False))


def test_padding_is_nothing_that_a_language_model_knows():
    model = build_model(base_config("pydoc", "smoke"), TASKS["pydoc"].shape("smoke"))
    with pytest.raises(ValueError, match="windows without padding"):
        model(torch.ones(2, 4).long(), torch.tensor([4, 3]))


# ---------------------------------------------------------------------------------------------------- claims


SEEDS = 12


def made_up(bits, *, sd=0.003, diverged=(), seed=0):
    """All runs of the three claims at smoke. bits: arm → how many bits it needs less than 2; diverged: (arm, seed)."""
    rng, rates, rows = np.random.default_rng(seed), lr_grid("pydoc", "smoke"), []
    configs = {c.run_id: c for name in LANGUAGE for c in needed(name, SEEDS, ["pydoc"], "smoke")}
    for config in configs.values():
        loss = 2 - bits.get(config.arm, 0.0) + 0.05 * (config.lr != rates[1]) + rng.normal(0, sd)
        failed = (config.arm, config.seed) in diverged
        facts = dict(status="diverged" if failed else "ok", test_accuracy=0.5, best_val_accuracy=0.5, chance=0.2)
        facts |= dict(test_loss=loss * math.log(2), best_val_loss=loss * math.log(2), chance_loss=3.0 * math.log(2))
        rows.append(config_row(config) | dict(role=config.role) | facts)
    return pd.DataFrame(rows)


def test_language_models_are_a_kind_of_task_of_their_own():
    assert {name for name in TASKS if kind_of(name) == "language"} == set(LANGUAGE_TASKS) == {"pydoc", "mqar"}
    for name in CLAIMS:
        asked = tasks_of(CLAIMS[name], ["digits", "pydoc", "digits_images"], "quick")
        assert (asked == ["pydoc"]) == (name in LANGUAGE) == ("pydoc" in asked)
    for asked in (study("smoke", ["digits", "pydoc"]), study("quick")):
        having = {name for name, runs in asked.items() if "pydoc" in {config.task for config in runs}}
        assert having == {"13_beyond"}


@pytest.mark.parametrize("name", LANGUAGE)
def test_the_claims_ask_for_causal_norms_alone_in_bits(name):
    claim = CLAIMS[name]
    assert (claim.kind, claim.unit, claim.threshold) == ("language", "bits a character", 0.01)
    assert claim.paper == "no number printed"
    assert "our extension" in claim.note
    assert "language model" in claim.words
    for arm in map(mn.Arm.parse, claim.arms):
        assert mn.NORMS[arm.n1].causal
        assert mn.NORMS[arm.n2].causal
    assert {c.column for c in claim.comparisons} == {"bits"}
    configs = needed(name, 3, scale="smoke", tasks=["pydoc", "digits"])
    cells = {(c.arm, c.seed, c.lr) for c in configs}
    assert cells == {(a, s, r) for a in claim.arms for s in range(3) for r in lr_grid("pydoc", "smoke")}
    assert {c.task for c in configs} == {"pydoc"}
    for config in configs[:4]:
        build_model(config, TASKS["pydoc"].shape("smoke"))


def test_fewer_bits_are_better():
    good = {PROPOSAL: 0.2, "RMSN>SSM>RMSN": 0.2} | {f"None>SSM>{norm}": 0.2 for norm in CAUSAL_NORMS}
    for name, arms in (("H1l", 3), ("H3l", 1), ("H8l", 1)):
        verdict = judge(name, made_up(good))
        assert verdict.verdict == "reproduced", name
        assert verdict.effect == pytest.approx(0.2, abs=0.01)
        assert verdict.unit == "bits a character"
        assert sum(row["decides"] for row in verdict.records) == arms
        assert verdict.fidelity.endswith("pydoc, a kind of task that the paper has not")
        assert np.isnan(verdict.paper)
        assert "bits a character" in verdict.brief
        assert describe(verdict)
    bad = {PROPOSAL: -0.2, NONE: 0.2} | {f"None>SSM>{norm}": -0.2 for norm in CAUSAL_NORMS}
    assert [judge(name, made_up(bad)).verdict for name in LANGUAGE] == ["contradicted"] * 3


def test_what_lies_within_a_hundredth_of_a_bit_is_not_told():
    verdict = judge("H8l", made_up({PROPOSAL: 0.009}))
    assert verdict.verdict in ("open", "≈ threshold", "not judged")


def test_an_arms_rate_has_the_smallest_validation_loss():
    frame = made_up({})
    runs = Evidence(frame).tuned(CLAIMS["H8l"].arms, "pydoc")
    assert set(runs.lr) == {lr_grid("pydoc", "smoke")[1]}
    assert runs.at("bits").mean() == pytest.approx(-2, abs=0.01)
    assert runs.at("validation").mean() == pytest.approx(-2, abs=0.01)
    assert set(runs.at("chance").ravel()) == {-3.0}


def test_an_arm_whose_best_rate_is_an_end_of_its_grid_by_more_than_a_hundredth_of_a_bit_gets_another():
    frame = made_up({})
    top = lr_grid("pydoc", "smoke")[-1]
    for gain, asked in ((0.2, True), (0.055, False)):  # 0.05 of it make up for what other rates lose in made_up
        better = frame.best_val_loss - gain * math.log(2) * ((frame.lr == top) & (frame.arm == PROPOSAL))
        further = Evidence(frame.assign(best_val_loss=better)).further_rates(CLAIMS["H8l"].arms, "pydoc")
        assert ([arm for arm, _ in further] == [PROPOSAL]) == asked


def test_a_diverged_run_has_the_loss_of_guessing_where_the_rate_is_chosen_and_is_counted_beside():
    hit = {(PROPOSAL, seed) for seed in (2, 5)}
    frame = made_up({PROPOSAL: 0.1}, diverged=hit)
    runs = Evidence(frame).tuned((PROPOSAL,), "pydoc")
    assert runs.at("validation")[0, [2, 5]] == pytest.approx(-3.0)
    verdict = judge("H8l", frame)
    assert (verdict.verdict, verdict.n_seeds) == ("reproduced", SEEDS - 2)
    assert verdict.effect == pytest.approx(0.1, abs=0.01)
    assert "NormVary-token→GN-token 2 of 12" in verdict.stability


def test_a_run_without_a_finite_loss_is_a_run_that_is_not_there():
    frame = made_up({})
    whole = judge("H8l", frame).n_seeds
    lost = frame.index[(frame.arm == ORIGINAL) & (frame.seed == 3)][0]
    frame.loc[lost, "test_loss"] = np.nan
    assert judge("H8l", frame).n_seeds == whole - 1


def test_the_command_of_a_claim_that_was_not_run_names_its_task():
    verdict = judge("H3l", made_up({}).iloc[:0])
    assert (verdict.verdict, verdict.reason) == ("not judged", "no language model has been run")
    assert "--tasks pydoc" in command(verdict)


def test_which_arm_to_take_is_told_in_bits():
    table = advice.ranking(made_up({PROPOSAL: 0.1}), "pydoc")
    assert table.arm.iloc[0] == PROPOSAL
    assert table["mean"].iloc[0] == pytest.approx(-1.9, abs=0.01)
    assert advice.leading(table)["mean"].iloc[0] == pytest.approx(table["mean"].iloc[0], abs=5e-4)
    pairs = advice.against_chosen(table, "pydoc")
    assert set(pairs.b) == {ORIGINAL}
    assert figures.fig_pairs(pairs).axes[0].get_xlabel() == "by how much the test loss is lower (bits a character)"


def test_language_models_are_recorded_claim_by_claim_beside_the_other_tasks():
    names = [part.name for part in claims.parts("evening")]
    mine = claims.parts("evening", tasks=["pydoc"])
    assert [part.name for part in mine] == [name for name in names if name.startswith("pydoc")]
    assert [part.claims for part in mine] == [
        ("H1l",),
        ("H8l",),
        ("H3l",),
        ("E3l", "E4l"),
        ("H1l", "H3l", "H8l"),
        ("H1l", "H3l", "H8l"),
    ]
    beyond = mine.pop(3)
    assert beyond.seeds == GRID_SEEDS
    assert {part.seeds for part in mine} == {EVENING_SEEDS}
    configs = {config for part in mine[:3] for config in part.configs("evening", pd.DataFrame())}
    arms = {arm for name in LANGUAGE for arm in CLAIMS[name].arms}
    assert len(configs) == len(arms) * 3 * len(EVENING_SEEDS)
