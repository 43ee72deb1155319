"""Each part of the regimen (S2, §IV.C.3) does what its paper says, and a run with all of it is one
run.
"""

from dataclasses import fields

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mambanorm_study.basics.settings import ROOT
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.build import build_model
from mambanorm_study.runs.evaluation import accuracy
from mambanorm_study.runs.grid import base_config
from mambanorm_study.runs.regimen import Targets, loss_of, mix_rows
from mambanorm_study.runs.run import is_out_of_patience, train
from mambanorm_study.runs.store import find_run, save_run
from mambanorm_study.runs.training_state import BestWeights, TrainingState
from mambanorm_study.tasks import load_task

DIGITS = base_config("digits", "smoke", arm="LN>SSM>None")
EVERYTHING = dict(drop_path=0.3, mixup=0.4, cutmix=1.0, label_smoothing=0.1, ema=0.5)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store with one Mamba and one Transformer of the digits."""
    folder = tmp_path_factory.mktemp("runs")
    for config in (DIGITS, base_config("digits", "smoke", arm="Teacher", n_heads=2)):
        save_run(train(config), folder)
    return folder


def random_batch(*shape):
    rows = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    return rows, torch.arange(len(rows)) % 5


# mixing


@pytest.mark.parametrize("shape", [(16, 7, 3), (16, 8, 8, 1)])
def test_mixup_mixes_each_row_and_its_label_by_the_same_share(shape):
    inputs, labels = random_batch(*shape)
    shares = []
    for step in range(200):
        found, targets = mix_rows(inputs, None, labels, DIGITS.but(mixup=0.4), step)
        other = torch.as_tensor(np.random.default_rng([0, step]).permutation(16))
        torch.testing.assert_close(
            found, targets.share * inputs + (1 - targets.share) * inputs[other]
        )
        assert torch.equal(targets.mixed_labels, labels[other])
        shares.append(targets.share)
    assert abs(np.mean(shares) - 0.5) < 0.1
    assert abs(np.var(shares) - 1 / (4 * (2 * 0.4 + 1))) < 0.03  # of Beta(α, α)


@pytest.mark.parametrize("shape", [(16, 40, 3), (16, 12, 10, 1)])
def test_cutmix_pastes_one_box_of_another_row_and_counts_its_positions(shape):
    inputs, labels = random_batch(*shape)
    for step in range(100):
        found, targets = mix_rows(inputs, None, labels, DIGITS.but(cutmix=1.0), step)
        other = torch.as_tensor(np.random.default_rng([0, step]).permutation(16))
        moved = other != torch.arange(16)
        pasted = (found != inputs).any(-1)[moved]
        assert torch.equal(pasted, pasted[:1].expand_as(pasted))  # the same place in every row
        own = 1 - pasted[0].double().mean()
        assert targets.share == pytest.approx(float(own))
        for axis in range(pasted.dim() - 1):  # a box: full along each axis where it has any
            along = (
                pasted[0].any(dim=tuple(a for a in range(pasted.dim() - 1) if a != axis))
                if pasted.dim() > 2
                else pasted[0]
            )
            assert int(along.long().diff().abs().sum()) <= 2
        expected = torch.where((found == inputs).all(-1, keepdim=True), inputs, inputs[other])
        assert torch.equal(found, expected)


def test_with_both_one_of_the_two_is_drawn_for_each_step():
    inputs, labels = random_batch(16, 40, 3)
    config = DIGITS.but(mixup=0.4, cutmix=1.0)
    whole = [
        float((mix_rows(inputs, None, labels, config, step)[0] == inputs).double().mean())
        for step in range(200)
    ]
    assert 70 < sum(share > 0.2 for share in whole) < 130  # what is pasted leaves the rest as it is
    again = [mix_rows(inputs, None, labels, config, 7)[0] for _ in range(2)]
    assert torch.equal(*again)


# the loss


def test_the_loss_is_that_of_smoothed_and_mixed_labels():
    logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(1)).double()
    labels, other = torch.arange(6) % 5, torch.tensor([4, 3, 2, 1, 0, 0])
    smooth = {
        t: F.one_hot(t_, 5).double() * 0.9 + 0.1 / 5 for t, t_ in (("a", labels), ("b", other))
    }
    target = 0.7 * smooth["a"] + 0.3 * smooth["b"]
    expected = -(target * logits.log_softmax(-1)).sum(-1).mean()
    found = loss_of(logits, Targets(labels, other, 0.7), DIGITS.but(label_smoothing=0.1))
    torch.testing.assert_close(found, expected)
    assert loss_of(logits, Targets(labels), DIGITS) == F.cross_entropy(logits, labels)


def test_the_gradient_of_distillation_is_the_difference_of_the_softened_outputs():
    student = torch.randn(6, 5, generator=torch.Generator().manual_seed(1)).requires_grad_()
    teacher = torch.randn(6, 5, generator=torch.Generator().manual_seed(2))
    config = DIGITS.but(teacher_weight=1.0, temperature=3.0)
    targets = Targets(torch.zeros(6, dtype=torch.long), teacher_outputs=teacher)
    loss_of(student, targets, config).backward()
    expected = 3.0 * ((student / 3).softmax(-1) - (teacher / 3).softmax(-1)) / 6
    torch.testing.assert_close(student.grad, expected.detach())
    half, whole = (loss_of(student, targets, c) for c in (DIGITS, DIGITS.but(teacher_weight=1.0)))
    plain = F.cross_entropy(student, targets.labels)
    torch.testing.assert_close(half, (plain + whole) / 2)


# averaged weights, early stopping


def test_the_average_follows_its_recursion():
    model = build_model(DIGITS, load_task("digits", "smoke", 0))
    state = TrainingState(model, DIGITS.but(ema=0.9))
    weight, expected, rng = model.head.weight, None, np.random.default_rng(0)
    for _ in range(5):
        with torch.no_grad():
            weight.copy_(torch.as_tensor(rng.standard_normal(weight.shape)))
        state.averaged.update_parameters(model)
        now = weight.detach().double()
        expected = now.clone() if expected is None else 0.9 * expected + 0.1 * now
        averaged = state.evaluated_model.head.weight.double()
        torch.testing.assert_close(averaged, expected, rtol=1e-5, atol=1e-6)
    assert TrainingState(model, DIGITS).evaluated_model is model


def test_the_averaged_weights_are_what_is_tested():
    seen = []
    result = train(
        DIGITS.but(ema=0.5, eval_every=4),
        on_step=lambda step, model, _: seen.append(model.head.weight.clone()),
    )
    expected = seen[0]
    for weight in seen[1:]:
        expected = 0.5 * expected + 0.5 * weight
    torch.testing.assert_close(result.checkpoint["head.weight"], expected.detach())
    assert not torch.allclose(result.checkpoint["head.weight"], seen[-1])


def test_early_stopping_stops_and_restores_the_best():
    config = DIGITS.but(steps=40, eval_every=1, lr=0.2, seed=1, warmup_steps=1)
    whole, early = train(config), train(config.but(patience=3))
    val = whole.curves.val_accuracy.to_numpy()
    best, last = 0, len(val)
    for step, value in enumerate(val):  # by hand: the first step after three that were no better
        best = step if value > val[best] else best
        if step - best == 3:
            last = step + 1
            break
    assert last < 40, "this run must be one that stops"
    assert (early.steps, early.best_step, early.status) == (last, best + 1, "ok")
    np.testing.assert_array_equal(early.curves.train_loss, whole.curves.train_loss[:last])
    stopped_at_best = train(config.but(patience=0, seed=1), on_step=_keep(kept := {}))
    assert stopped_at_best.steps == 40
    for name, value in kept[best + 1].items():
        torch.testing.assert_close(early.checkpoint[name], value)
    assert early.test_accuracy == accuracy(early.predictions)


def _keep(kept):
    return lambda step, model, _: kept.update(
        {step: {k: v.clone() for k, v in model.state_dict().items()}}
    )


def test_patience_counts_evaluations_not_steps():
    config = DIGITS.but(patience=2)
    model = build_model(config, load_task("digits", "smoke", 0))
    state = TrainingState(model, config)
    stops = []
    for step in range(2, 9, 2):  # the evaluations of eight steps
        accuracy = 0.5 if step == 2 else 0.4
        state.best.update({"step": step, "val_accuracy": accuracy}, model)
        stops.append(is_out_of_patience(state, config))
    assert stops == [False, False, True, True]
    assert not is_out_of_patience(state, DIGITS)


def test_clipping_scales_a_large_gradient_down_and_is_off_by_default():
    """AdamW divides by the gradients' size, so its first step shows no clipping: ε does, where the
    clipped gradient is as small as ε.
    """
    assert DIGITS.clip == 0
    assert DIGITS.but(clip=0.0).run_id == DIGITS.run_id != DIGITS.but(clip=1.0).run_id
    plain, large = train(DIGITS), train(DIGITS.but(clip=1e6))
    assert all(torch.equal(plain.checkpoint[name], w) for name, w in large.checkpoint.items())
    small = train(DIGITS.but(clip=1e-9))
    np.testing.assert_allclose(small.curves.grad_norm[0], plain.curves.grad_norm[0])  # unclipped
    start = build_model(DIGITS, load_task("digits", "smoke", 0)).state_dict()
    moved = [
        max(float((run.checkpoint[name] - w).abs().max()) for name, w in start.items())
        for run in (small, plain)
    ]
    assert 0 < moved[0] < 0.2 * moved[1]
    with pytest.raises(ValueError, match="clip must be"):
        DIGITS.but(clip=-1.0)


def test_vmambas_whole_recipe_trains():
    recipe = base_config("imagenet100", "paper")
    names = ("mixup", "cutmix", "label_smoothing", "drop_path", "clip", "ema", "precision")
    config = base_config("digits_images", "smoke").but(
        **{name: getattr(recipe, name) for name in names}
    )
    assert train(config).status == "ok"


# other runs' weights


def test_fine_tuning_begins_with_the_runs_weights_and_phase_1_changes_the_head_only(store):
    config = DIGITS.but(start=DIGITS.run_id, head_steps=2)
    before = find_run(DIGITS.run_id, store).checkpoint
    seen = {}
    train(config, on_step=_keep(seen), runs_dir=store)
    for step, same in ((1, True), (2, True), (3, False), (4, False)):
        body = all(
            torch.equal(before[name], value)
            for name, value in seen[step].items()
            if not name.startswith("head.")
        )
        assert body == same, step
        assert not torch.equal(before["head.weight"], seen[step]["head.weight"])
    without = {}
    train(config.but(head_steps=0), on_step=_keep(without), runs_dir=store)
    assert not torch.equal(before["blocks.0.in_proj.weight"], without[1]["blocks.0.in_proj.weight"])


def test_the_page_on_training_has_every_field_of_the_regimen_and_tells_start_from_head_steps():
    page = " ".join((ROOT / "docs" / "training.md").read_text().split())
    names = [field.name for field in fields(RunConfig)]
    assert [name for name in names[names.index("drop_path") :] if f"`{name}" not in page] == []
    assert (
        "every weight learns from the first step on. With `head_steps=20` only the head learns in the first"
        in page
    )


def test_phase_1_leaves_running_statistics_alone_and_phase_2_learns_only_what_learns(tmp_path):
    first = base_config("digits", "smoke", arm="BN>SSM>NormVary-fixed")
    save_run(train(first), tmp_path)
    before, seen = find_run(first.run_id, tmp_path).checkpoint, {}
    train(first.but(start=first.run_id, head_steps=2), on_step=_keep(seen), runs_dir=tmp_path)
    assert all(
        torch.equal(before[name], value)
        for name, value in seen[2].items()
        if not name.startswith("head.")
    )
    changed = {name for name, value in seen[4].items() if not torch.equal(before[name], value)}
    fixed = {name for name in before if "_logits" in name}
    assert changed
    assert not changed & fixed


def test_another_tasks_head_is_left_where_it_starts(store):
    other = base_config("digits_images", "smoke", arm="LN>SSM>None", start=DIGITS.run_id)
    with pytest.raises(ValueError, match=f"start: run {DIGITS.run_id} .*does not fit: Missing key"):
        train(other, runs_dir=store)
    base = base_config("digits_images", "smoke")
    save_run(train(base), store)
    from mambanorm_study.tasks import TASKS, register_task

    @register_task("twice", title="digits again", source="this test", kind="image")
    def twice(scale, seed):
        return TASKS["digits_images"].load(scale, seed)

    try:
        config = base.but(task="twice", start=base.run_id, head_steps=1)
        seen, fresh = {}, build_model(config, load_task("twice", "smoke", 0)).head.weight
        train(config.but(lr=1e-12), on_step=_keep(seen), runs_dir=store)
        torch.testing.assert_close(seen[1]["head.weight"], fresh)
    finally:
        del TASKS["twice"]


@pytest.mark.parametrize("model", [{}, {"arm": "AutoNorm", "n_heads": 2}])
def test_a_stem_of_another_shape_stays_new_and_the_blocks_are_taken_over(tmp_path, model):
    """Images of glyphs have patches of 3×3 pixels, images of digits of 2×2."""
    first = base_config("glyphs_images", "smoke", **model)
    save_run(train(first), tmp_path)
    config = base_config("digits_images", "smoke", **model)
    config = config.but(start=first.run_id, head_steps=1)
    stored = find_run(first.run_id, tmp_path).checkpoint
    new = build_model(config, load_task("digits_images", "smoke", 0)).state_dict()
    assert stored["stem.weight"].shape != new["stem.weight"].shape
    train(config, on_step=_keep(seen := {}), runs_dir=tmp_path)
    for name, value in seen[1].items():
        if name.startswith("stem."):
            assert torch.equal(value, new[name]), name
        elif not name.startswith("head."):
            assert torch.equal(value, stored[name]), name
    assert not torch.equal(seen[4]["stem.weight"], seen[1]["stem.weight"])


def test_a_student_learns_its_teachers_outputs(store):
    """With the teacher's outputs alone to learn from, T²·KL falls; the teacher itself is at 0."""
    teacher = base_config("digits", "smoke", arm="Teacher", n_heads=2)
    taught = dict(teacher=teacher.run_id, teacher_weight=1.0, batch_size=64)
    loss = train(DIGITS.but(**taught, steps=60, lr=1e-2), runs_dir=store).curves.train_loss
    assert loss[-5:].mean() < 0.5 * loss[:5].mean()
    itself = train(
        teacher.but(**taught, start=teacher.run_id, lr=0.0), runs_dir=store
    ).curves.train_loss
    assert itself.abs().max() < 1e-6


def test_a_run_that_is_not_there_or_does_not_fit_is_named(store):
    with pytest.raises(
        ValueError, match="teacher='0123456789abcdef': the store holds no such run, train it first"
    ):
        train(DIGITS.but(teacher="0123456789abcdef"), runs_dir=store)
    wide = DIGITS.but(d_model=16)
    save_run(train(wide), store)
    with pytest.raises(
        ValueError, match=r"does not fit: size mismatch for stem.weight: .*\[16, 1\]"
    ):
        train(DIGITS.but(start=wide.run_id), runs_dir=store)
    with pytest.raises(ValueError, match="teacher: run .* was not trained on listops"):
        train(base_config("listops", "smoke", teacher=DIGITS.run_id), runs_dir=store)


@pytest.mark.parametrize("what", ["teacher", "start"])
def test_nothing_is_learned_from_a_run_that_may_have_seen_the_test_rows(store, what):
    """The seed deals out the digits: another seed's training rows are among this one's test
    rows.
    """
    for change in (dict(seed=1), dict(scale="quick", batch_size=8)):
        told = f"{what}: run {DIGITS.run_id} .* that run may have learned this run's test rows"
        with pytest.raises(ValueError, match=told):
            train(DIGITS.but(**{what: DIGITS.run_id}, **change), runs_dir=store)


def test_nothing_is_learned_from_a_run_that_diverged(tmp_path):
    wild = DIGITS.but(arm="None>SSM>None", lr=1e20, warmup_steps=0, weight_decay=0.0)
    save_run(train(wild), tmp_path)
    with pytest.raises(
        ValueError,
        match=f"start: run {wild.run_id} .* diverged, so there is nothing to learn from it",
    ):
        train(wild.but(lr=1e-3, start=wild.run_id), runs_dir=tmp_path)


@pytest.mark.parametrize(
    "change", [dict(arm="RMSN>SSM>None"), dict(norm_options={"eps": 1e-3}), dict(final_norm="LN")]
)
def test_weights_are_not_taken_over_into_another_function(store, change):
    with pytest.raises(
        ValueError, match=f"start: run {DIGITS.run_id} .*its weights belong to another model"
    ):
        train(DIGITS.but(start=DIGITS.run_id, **change), runs_dir=store)


def test_a_regression_keeps_its_best_loss_where_every_accuracy_is_nought():
    best = BestWeights(by_loss=True)
    for step, loss in enumerate((1.2, 1.1, float("nan"), 1.15), start=1):
        row = {"step": step, "val_loss": loss, "val_accuracy": 0.0}
        best.update(row, torch.nn.Linear(1, 1))
    assert (best.step, best.worse_evaluations) == (2, 2)
    with pytest.raises(
        ValueError, match="label_smoothing=0.5 smooths classes, and diabetes is a regression"
    ):
        train(base_config("diabetes", "smoke", label_smoothing=0.5))


# one run


def test_a_run_with_all_of_it_goes_on_from_its_checkpoint_bit_for_bit(tmp_path, store):
    teacher = base_config("digits", "smoke", arm="Teacher", n_heads=2)
    config = base_config(
        "digits",
        "smoke",
        arm="AutoNorm_RandomSelector",
        n_heads=2,
        teacher=teacher.run_id,
        steps=6,
        **EVERYTHING,
    )
    whole = train(config, runs_dir=store)

    def stop(step, *_):
        if step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, on_step=stop, checkpoint_dir=tmp_path, checkpoint_every_s=0, runs_dir=store)
    assert list(tmp_path.iterdir())
    resumed = train(config, checkpoint_dir=tmp_path, checkpoint_every_s=0, runs_dir=store)
    np.testing.assert_array_equal(resumed.curves.train_loss, whole.curves.train_loss)
    assert all(
        torch.equal(resumed.checkpoint[name], value) for name, value in whole.checkpoint.items()
    )


def test_the_regimen_leaves_the_callers_random_state_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    train(DIGITS.but(**EVERYTHING))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (dict(drop_path=1), "drop_path must be a number from 0 to below 1, got 1"),
        (dict(teacher="best"), "teacher must be the run_id of a stored run"),
        (dict(head_steps=3), "head_steps=3 without start"),
        (dict(model="transformer"), "did you mean 'RMSN>MHA>None'"),
        (
            dict(model="transformer", arm="AutoNorm", n_heads=5),
            "n_heads=5 does not divide d_model=32",
        ),
    ],
)
def test_an_impossible_regimen_is_refused_when_it_is_written(change, told):
    with pytest.raises(ValueError, match=told):
        RunConfig(**change)
