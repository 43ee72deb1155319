"""A run is paired, repeatable and honest about divergence; the store holds whole runs only; a sweep
resumes.
"""

import json
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import fields
from functools import partial

import numba
import numpy as np
import pandas as pd
import pytest
import torch

import mambanorm as mn
import mambanorm_study as study
from mambanorm.arms import NORM_CHOICES
from mambanorm.inside import record_sites
from mambanorm.kernels.threads import set_threads
from mambanorm.loop import batch_order, fit, learning_rate
from mambanorm_study.basics.settings import ROOT
from mambanorm_study.basics.text import spell
from mambanorm_study.config import SCALES, SCHEMA, RunConfig
from mambanorm_study.runs.build import build_model
from mambanorm_study.runs.evaluation import accuracy, errors, predict, row_predictions
from mambanorm_study.runs.grid import base_config, check_seeds, relative_cost
from mambanorm_study.runs.recorded_results import recorded_ids
from mambanorm_study.runs.regimen import loss_parts, micro_batches
from mambanorm_study.runs.result import MANIFEST, RUN_FILES
from mambanorm_study.runs.run import train
from mambanorm_study.runs.store import COLUMNS, find_run, load_runs, save_run
from mambanorm_study.runs.training_state import optimizer_of
from mambanorm_study.runs.weight_log import WeightLog
from mambanorm_study.tables.experiments import (
    CROSSING_ARMS,
    FAILURES,
    GATED_ARMS,
    RECORDED_TASKS,
    deep_runs,
    failing_runs,
    failure_runs,
    growth_runs,
    inside_task,
    site_runs,
)
from mambanorm_study.tables.notebook_runs import notebook_runs
from mambanorm_study.tasks import Split, load_task, registry
from mambanorm_study.tasks.base import Units

GOLDEN = ROOT / "tests" / "golden.json"


@pytest.fixture(scope="module")
def result():
    return train(base_config("digits", "smoke", arm="NormVary>SSM>GN"))


# the config


def test_a_config_survives_json_and_its_id_depends_on_every_field_and_not_on_spelling():
    config = base_config("digits", "smoke")
    assert {config: 1}[config.but(arm="RMSN → SSM → None", lr=config.lr)] == 1
    changed = dict(
        seed=1,
        lr=1e-9,
        arm="None>SSM>None",
        norm_options={"eps": 1e-3},
        final_norm="LN",
        n_layers=3,
    )
    changed |= dict(micro_batch=1, down_sample=(1,), threads=2)
    others = [config.but(**{key: value}) for key, value in changed.items()]
    assert len({one.run_id for one in (config, *others)}) == len(changed) + 1
    for one in others:
        assert (again := study.RunConfig.from_json(one.to_json())) == one
        assert again.run_id == one.run_id
    first = [field.name for field in fields(RunConfig) if not field.metadata["since"]]
    assert (
        RunConfig.from_dict({name: getattr(config, name) for name in first}).run_id == config.run_id
    )
    assert first == FIRST_FIELDS, (
        "a field that comes later says since when: otherwise stored runs lose their ids"
    )


FIRST_FIELDS = [
    *(
        "task",
        "arm",
        "scale",
        "seed",
        "d_model",
        "n_layers",
        "d_state",
        "expand",
        "d_conv",
        "norm_options",
    ),
    *(
        "stem_norm",
        "final_norm",
        "lr",
        "weight_decay",
        "schedule",
        "warmup_steps",
        "batch_size",
        "train_rows",
    ),
    *("steps", "eval_every", "precision", "device"),
]


def test_a_norm_between_blocks_has_a_name_and_a_place():
    for changes, message in (
        ({"final_norm": "LM"}, "unknown norm 'LM'"),
        ({"down_norm": "LN"}, "without down_sample"),
    ):
        with pytest.raises(ValueError, match=message):
            base_config("digits", "smoke").but(**changes)


def test_seed_roles_are_disjoint_and_costs_grow_with_the_work():
    assert [base_config(seed=s).role for s in (0, 100, 101, 200, 2222)] == [
        "test",
        "tune",
        "tune",
        "select",
        "test",
    ]
    assert check_seeds(3, "quick") == [0, 1, 2]
    with pytest.raises(ValueError, match="at least one seed"):
        check_seeds([], "quick")
    assert [spell(s) for s in (12.4, 240, 7500, 8.3e6)] == ["12 s", "4 min", "2 h 5 min", "2,306 h"]
    config = base_config("digits", "smoke")
    assert relative_cost(config.but(steps=8)) == 2 * relative_cost(config)


def test_quick_study_covers_the_grid_and_the_normvary_arms_with_three_seeds():
    runs = notebook_runs("quick", source="trained")
    of = {
        "05_combination": ("digits", 36),
        "03_type": ("listops", 6),
        "04_position": ("listops", 11),
    }
    of |= {
        "09_vision": ("digits_images", 44),
        "06_normvary": ("listops", 5),
        "08_validation": ("listops", 7),
    }
    for notebook, (task, arms) in of.items():
        found = {(c.arm, c.seed) for c in runs[notebook] if c.task == task}
        whole = {arm for arm, _ in found if {(arm, seed) for seed in range(3)} <= found}
        assert (len(whole), {seed for _, seed in found}) == (arms, {0, 1, 2}), notebook


@pytest.mark.parametrize(
    ("scale", "tasks", "name", "found"),
    [
        ("quick", ["digits"], "09_vision", set()),
        ("quick", ["imdb", "cifar10_images"], "09_vision", {"cifar10_images"}),
        ("paper", None, "08_validation", {"listops", "imdb", "cifar100", "pathfinder64"}),
        ("evening", None, "08_validation", set(RECORDED_TASKS[:2])),  # what is recorded
        (
            "evening",
            ["listops", RECORDED_TASKS[0]],
            "08_validation",
            {"listops", RECORDED_TASKS[0]},
        ),
    ],
)
def test_a_notebook_runs_those_of_its_tasks_that_are_asked_for(scale, tasks, name, found):
    assert {config.task for config in notebook_runs(scale, tasks)[name]} == found


def test_at_evening_the_notebooks_ask_for_what_is_recorded_at_one_rate_where_there_is_one():
    plan = notebook_runs("evening")
    held = recorded_ids(["quick", "evening"])
    for name in ("07_diagnostics", "10_autonorm", "13_beyond"):
        assert {c.run_id for c in plan[name]} <= held
    assert {c.run_id for c in site_runs("quick", seeds=8)} <= held
    crossing = [c for c in plan["10_autonorm"] if c.model == "mamba"]
    assert {c.arm for c in crossing} == set(map(str, CROSSING_ARMS))
    assert {(c.task, c.lr) for c in crossing} == {("digits", base_config("digits", "quick").lr)}
    assert {(c.task, c.arm) for c in plan["13_beyond"]} == {
        (t, str(a)) for t in (RECORDED_TASKS[0], "pydoc") for a in GATED_ARMS
    }


def test_models_that_fail_have_controls_at_the_same_settings_and_deep_ones_eight_blocks():
    for scale in SCALES:
        pairs, deep = failure_runs(scale), deep_runs(scale, [3])
        for config in pairs:
            assert {config.but(arm="RMSN>SSM>RMSN"), config.but(arm="None>SSM>None")} <= set(pairs)
        worst = max(pairs, key=lambda c: (c.n_layers, c.lr))
        for norm, four in (
            ("RMSN", failing_runs(scale)),
            ("BN", growth_runs(scale)),
            ("LN", growth_runs(scale, "LN")),
        ):
            arms = ["None>SSM>None", f"{norm}>SSM>None", f"None>SSM>{norm}", f"{norm}>SSM>{norm}"]
            assert four == [worst.but(arm=arm) for arm in arms]
        assert deep == [
            deep[0].but(arm=arm)
            for arm in ("None>SSM>None", *(f"None>SSM>{n}" for n in NORM_CHOICES))
        ]
        assert (deep[0].task, deep[0].scale, deep[0].seed) == (inside_task(scale), scale, 3)
        assert deep[0].n_layers >= 8
    whole, runs = (
        base_config(inside_task("evening"), "evening"),
        failure_runs("evening", [3]),
    )  # in a whole training
    assert {(c.task, c.steps, c.train_rows) for c in runs} == {
        (whole.task, whole.steps, whole.train_rows)
    }
    assert {(c.n_layers, c.lr) for c in runs} == {
        (n, lr) for n, rates in FAILURES["evening"].items() for lr in rates
    }
    assert {c.lr for c in deep_runs("evening", [3])} == {FAILURES["evening"][8][0]}


# the loop


def line_fit(targets, **options):
    """A line fitted to targets, one a step: the weight after it, the curve and what the loop
    returned.
    """
    model, curve = torch.nn.Linear(1, 1, bias=False), []
    torch.nn.init.zeros_(model.weight)
    options = dict(lr_of=lambda step: 0.1 * step, curve=curve) | options
    loss_of = lambda model, target, step: [((model(torch.ones(1, 1)) - target) ** 2).sum()]
    lost = fit(model, torch.optim.SGD(model.parameters(), 1.0), targets, loss_of, **options)
    return model.weight.item(), options["curve"], lost


def test_the_loop_is_the_optimizers_steps_at_the_rates_of_the_steps():
    weight, curve, lost = line_fit([1.0, 2.0])
    assert weight == pytest.approx(0.2 + 0.2 * 2 * 1.8)  # w ← w + 2·rate·(target − w)
    assert [row["train_loss"] for row in curve] == pytest.approx([1.0, 1.8**2])
    assert [row["grad_norm"] for row in curve] == pytest.approx([2.0, 3.6])
    assert [(row["step"], row["lr"]) for row in curve] == [(1, 0.1), (2, 0.2)]
    assert lost is None
    assert line_fit([1.0], clip=1.0)[0] == pytest.approx(0.1)
    assert line_fit([1.0], curve=[{"step": 1}])[1][1]["lr"] == 0.2  # it goes on from a curve


@pytest.mark.parametrize("target", [float("nan"), 1e30])  # a loss that is not finite
def test_the_loop_returns_the_batch_that_it_diverged_on_and_makes_no_step_on_it(target):
    seen = []
    weight, curve, lost = line_fit([1.0, target, 1.0], callbacks=[seen.append])
    assert (weight, len(curve), seen) == (pytest.approx(0.2), 2, [1])
    assert lost is target


def test_an_observer_ends_the_loop_after_the_others_have_seen_the_step():
    seen = []
    _, curve, lost = line_fit([1.0] * 5, callbacks=[lambda step: step == 3, seen.append])
    assert (len(curve), seen, lost) == (3, [1, 2, 3], None)


def test_between_two_parts_of_a_loss_and_after_an_error_nothing_of_the_step_is_open():
    """So a backward pass that fails leaves no hook, and the caller's random numbers as they
    were.
    """
    config = base_config("digits", "smoke", drop_path=0.5, micro_batch=3)
    data = load_task("digits", "smoke", 0)
    model, before = build_model(config, data), torch.get_rng_state()
    log = WeightLog(model)
    batch = data.train.batch(range(8))
    for loss in loss_parts(config, None, None, log.recording_outputs, model, batch, 1):
        assert loss.isfinite()
        assert not any(module._forward_hooks for module in model.modules())
        assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(ValueError, match=r"expects \(B, L, D\)"), log.recording_outputs():
        model.blocks[1](torch.ones(1, 2, 3))
    assert not any(module._forward_hooks for module in model.modules())


# one run


def test_arms_of_a_seed_share_split_batches_and_schedule():
    configs = [
        base_config("digits", "smoke", arm=arm) for arm in ("None>SSM>None", "NormVary>SSM>BN")
    ]
    orders = [
        torch.stack(list(batch_order(config.seed, 100, config.batch_size, config.steps)))
        for config in configs
    ]
    assert torch.equal(*orders)
    assert orders[0].shape == (configs[0].steps, configs[0].batch_size)
    assert not torch.equal(
        orders[0], torch.stack(list(batch_order(1, 100, configs[0].batch_size, configs[0].steps)))
    )
    labels = [train(config).predictions["label"] for config in configs]
    assert np.array_equal(*labels)


def test_train_rows_cuts_the_training_split_and_nothing_else(monkeypatch):
    config, seen, batch = base_config("digits", "smoke", train_rows=12), [], Split.batch
    rows_of_train = load_task("digits", "smoke", 0).train

    def spy(split, rows, **options):
        if split is rows_of_train:
            seen.extend(rows.tolist())
        return batch(split, rows, **options)

    monkeypatch.setattr(Split, "batch", spy)
    few = train(config)
    assert len(seen) == config.steps * config.batch_size
    assert set(seen) <= set(range(12))
    seen.clear()
    everything = train(config.but(train_rows=120))
    assert max(seen) >= 12
    assert np.array_equal(few.predictions["label"], everything.predictions["label"])


def test_micro_batches_add_up_to_the_gradients_of_the_batch():
    config = base_config("listops", "smoke", arm="LN>SSM>GN-token")
    data = load_task("listops", "smoke", 0)
    batch, found = data.train.batch(range(8)), []
    for size in (0, 3):
        model = build_model(config, data)
        losses = []
        for loss in loss_parts(
            config.but(micro_batch=size), None, None, nullcontext, model, batch, 1
        ):
            loss.backward()
            losses.append(loss.detach())
        found.append([sum(losses), *(p.grad for p in model.parameters())])
    for whole, parts in zip(*found, strict=True):
        torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-6)


def test_result_holds_what_the_contract_names_bit_for_bit_each_time(result):
    assert result.status == "ok"
    assert 0 <= result.chance <= 0.3
    assert result.steps == result.config.steps
    assert list(result.curves.step) == list(range(1, result.steps + 1))
    assert result.best_val_accuracy == result.curves.val_accuracy.max()
    assert result.val_accuracy == result.curves.val_accuracy.iloc[-1]
    assert (
        result.test_accuracy
        == (result.predictions["label"] == result.predictions["predicted"]).mean()
    )
    layers = result.config.n_layers
    assert result.diagnostics["mixture"].shape == (3, layers, 2, 5)  # step 0, 2 and 4
    np.testing.assert_allclose(result.diagnostics["mixture"].sum(-1), 1, rtol=1e-6)
    assert result.diagnostics["part_norms"].shape == (3, layers, 4)
    assert result.diagnostics["singular_values"].shape == (3, layers, 8)
    assert list(result.diagnostics["ring_step"]) == [1, 2, 3, 4]
    again, data = train(result.config), load_task("digits", "smoke", 0)
    assert again.curves.equals(result.curves)
    assert all(torch.equal(again.checkpoint[k], v) for k, v in result.checkpoint.items())
    model = build_model(result.config, data)
    model.load_state_dict(result.checkpoint)  # that of the best validation step
    for precision, lowered in (("float32", False), ("bf16", True)):
        seen = []
        model.register_forward_pre_hook(
            lambda m, _, seen=seen: seen.append(
                (m.training, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))
            )
        )
        predictions = predict(
            model, data.val, result.config.but(precision=precision), torch.device("cpu")
        )
        assert set(seen) == {(False, False, lowered)}
        assert lowered or accuracy(predictions) == result.best_val_accuracy


@pytest.mark.parametrize(
    "config",
    [
        base_config("digits", "smoke", arm="BN>SSM>BN", steps=10, eval_every=3),
        base_config("listops", "smoke", arm="None>SSM>None", micro_batch=3),  # padded
        base_config("digits_images", "smoke", arm="LN>SSM>None"),
        base_config(
            "digits", "smoke", arm="None>SSM>None", lr=3.0, n_layers=4, steps=30, warmup_steps=29
        ),  # fails
    ],
    ids=lambda config: config.task,
)
def test_the_ring_keeps_the_largest_token_of_every_block_in_the_training_pass(config, monkeypatch):
    """Against a twin of the model before each step, whose sites are recorded."""
    expected = []

    def spy(config, teacher, units, recording, model, batch, step):
        inputs, lengths, labels = batch
        twin, part = deepcopy(model).train(), micro_batches(len(labels), config.micro_batch)[-1]
        with torch.no_grad(), record_sites(twin, ["residual"]) as seen:
            twin(inputs[part], None if lengths is None else lengths[part])
        norms = [
            value.double().square().sum(-1).sqrt().flatten().tolist()
            for value in seen.tensors("residual")
        ]
        expected.append([max(tokens) for tokens in norms])
        return loss_parts(config, teacher, units, recording, model, batch, step)

    monkeypatch.setattr("mambanorm_study.runs.regimen.loss_parts", spy)
    result = train(config)
    arrays = result.diagnostics
    assert list(arrays["ring_step"]) == list(range(max(result.steps - 7, 1), result.steps + 1))
    assert arrays["ring_outputs"].shape == (len(arrays["ring_step"]), config.n_layers)
    np.testing.assert_allclose(
        arrays["ring_outputs"], np.array(expected)[arrays["ring_step"] - 1], rtol=1e-4
    )


def test_outputs_whose_squares_overflow_are_measured_and_lost_ones_count_as_infinite(monkeypatch):
    model = build_model(
        base_config("digits", "smoke", arm="None>SSM>None"), load_task("digits", "smoke", 0)
    )
    log, block = WeightLog(model), model.blocks[0]
    for given, found in ((1e30, 2e30), (np.nan, np.inf), (-np.inf, np.inf)):
        monkeypatch.setattr(block, "forward", lambda *_, given=given: torch.full((1, 3, 4), given))
        monkeypatch.setattr(model.blocks[1], "forward", lambda *_: torch.ones(1, 3, 4))
        with log.recording_outputs():
            [one(None) for one in model.blocks]
        assert log.outputs.tolist() == pytest.approx([found, 2.0])


def sample_of(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


class Told(torch.nn.Module):
    """A model that answers with its inputs, one row after the other, and not while it trains."""

    def forward(self, inputs, lengths):
        assert not self.training
        return inputs[:, 0] if inputs.dim() == 3 and lengths is not None else inputs


CONFIG, CPU = RunConfig(), torch.device("cpu")


def test_of_classes_the_accuracy_and_the_losses_are_those_of_the_logits():
    logits = sample_of(70, 3)  # more than a batch of an evaluation
    logits[0], logits[1, 2] = -torch.inf, torch.nan
    labels = logits.nan_to_num(0.0).argmax(1)
    labels[2:20] = (labels[2:20] + 1) % 3
    split = Split(logits[:, None], labels, torch.ones(70, dtype=torch.long))
    found = predict(Told(), split, CONFIG, CPU)
    assert found["predicted"][:2].tolist() == [-1, -1]  # wrong, whatever the label
    assert found["label"].tolist() == labels.tolist()
    assert accuracy(found) == 50 / 70
    mine = -logits.log_softmax(1)[range(70), labels]
    np.testing.assert_allclose(found["loss"], mine, rtol=1e-6)
    assert set(found) == {"label", "predicted", "loss"}
    assert errors(found) == dict(rmse=None, mae=None, chance_rmse=None)


def test_of_positions_the_accuracy_and_the_losses_are_means_over_the_positions():
    logits, labels = sample_of(2, 5, 3), torch.zeros(2, 5, dtype=torch.long)
    right = (logits.argmax(-1) == 0).float().mean(1)
    found = row_predictions(logits, labels, None)
    torch.testing.assert_close(found["right"], right)
    torch.testing.assert_close(found["loss"], -logits.log_softmax(-1)[..., 0].mean(1))
    assert accuracy({name: value.numpy() for name, value in found.items()}) == pytest.approx(
        float(right.mean())
    )


def test_of_numbers_the_accuracy_is_the_share_of_the_squared_error_taken_away_from_the_mean():
    units = Units(torch.tensor([10.0, 0.0]), torch.tensor([2.0, 1.0]))
    scaled = torch.tensor([[1.0, 1.0], [-1.0, 2.0], [0.5, -2.0]])  # in the units of training
    labels = torch.tensor([[13.0, 1.0], [9.0, 1.0], [10.0, -3.0]])
    found = predict(
        Told(), Split(scaled[:, None], labels, torch.ones(3, dtype=torch.long)), CONFIG, CPU, units
    )
    off = labels - torch.tensor([[12.0, 1.0], [8.0, 2.0], [11.0, -2.0]])
    np.testing.assert_allclose(found["predicted"], labels - off)
    np.testing.assert_allclose(found["loss"], (off / units.std).square().mean(1))
    left = off.square().sum(0) / (labels - units.mean).square().sum(0)
    assert accuracy(found) == pytest.approx(float(1 - left.mean()))
    assert accuracy(found | {"predicted": found["predicted"] * 9}) == 0.0  # never below
    by_mean = float((labels - units.mean).square().mean(0).sqrt().mean())
    rmse, mae = float(off.square().mean(0).sqrt().mean()), float(off.abs().mean())
    assert errors(found) == pytest.approx(dict(rmse=rmse, mae=mae, chance_rmse=by_mean))
    lost = predict(
        Told(),
        Split(scaled[:, None] * 1e39, labels, torch.ones(3, dtype=torch.long)),
        CONFIG,
        CPU,
        units,
    )
    assert (accuracy(lost), np.isfinite(lost["predicted"]).any()) == (0.0, False)


def test_no_weight_decay_on_a_log_d_biases_and_norm_parameters():
    config = base_config(
        "digits", "smoke", arm="NormVary>SSM>GN", final_norm="LN", weight_decay=0.3
    )
    model = build_model(config, load_task("digits", "smoke", 0))
    optimizer = optimizer_of(model, config)
    assert optimizer.defaults[
        "fused"
    ]  # one loop over all parameters: steps of small models take less time
    decay, keep = optimizer.param_groups
    name_of = {id(p): name for name, p in model.named_parameters()}
    decayed = {name_of[id(p)] for p in decay["params"]}
    assert (decay["weight_decay"], keep["weight_decay"]) == (0.3, 0.0)
    assert decayed == {
        name
        for name in name_of.values()
        if name.endswith(("proj.weight", "conv1d.weight", "stem.weight", "head.weight"))
    }
    assert len(decay["params"]) + len(keep["params"]) == len(name_of)


def test_schedules_warm_up_and_end_as_named():
    options = dict(lr=1.0, steps=100, warmup_steps=10)
    cosine, constant = (
        partial(learning_rate, schedule=f"{name}_warmup", **options)
        for name in ("cosine", "constant")
    )
    assert [cosine(step) for step in (1, 10)] == [0.1, 1.0]
    assert cosine(55) == pytest.approx(0.5)
    assert cosine(100) == pytest.approx(0.0, abs=1e-12)
    assert {constant(step) for step in range(10, 101)} == {1.0}
    for warmup, first, last in ((0, 0.99975, 0.0), (99, 1 / 99, 0.0), (100, 0.01, 1.0)):
        rates = [learning_rate(step, **options | {"warmup_steps": warmup}) for step in (1, 100)]
        assert rates == pytest.approx([first, last], abs=1e-5)


def test_divergence_is_a_result_with_step_and_site():
    """No norm, and a learning rate that no model survives."""
    wild = dict(lr=1e6, steps=30, warmup_steps=0, n_layers=4)
    result = train(base_config("digits", "smoke", arm="None>SSM>None", **wild))
    assert result.status == "diverged"
    assert result.test_accuracy == result.val_accuracy == result.chance
    assert 1 <= result.first_nonfinite_step <= 30
    assert result.steps == result.first_nonfinite_step - 1 == result.curves.step.iloc[-1] - 1
    assert result.first_nonfinite_site
    assert len(result.diagnostics["ring_step"]) == min(8, result.steps)
    with pytest.raises(ValueError, match="device 'cuda:77'"):
        train(base_config("digits", "smoke", device="cuda:77"))


def test_divergence_by_a_finite_loss_with_a_non_finite_gradient_is_found():
    class Sqrt(torch.nn.Module):  # its gradient at 0 is infinite, its value is not
        def __init__(self, d):
            super().__init__()

        def forward(self, x, lengths=None):
            return x + 0.0 * torch.sqrt((x - x.detach()).abs())

    promise = dict(equation="", source="this test", axes=(), causal=True, learnable="")
    with pytest.raises(ValueError, match="its backward is wrong: the gradient is not finite"):
        mn.register_norm("Sqrt", **promise)(Sqrt)
    mn.register_norm("Sqrt", **promise, check=False)(Sqrt)
    try:
        result = train(base_config("digits", "smoke", arm="Sqrt>SSM>None"))
    finally:
        del mn.NORMS["Sqrt"]
    assert (result.status, result.first_nonfinite_step) == ("diverged", 1)
    assert "gradient of" in result.first_nonfinite_site
    assert np.isnan(result.best_val_accuracy)


def test_training_in_bfloat16_stays_close_to_float32():
    low, high = (train(base_config("digits", "smoke", precision=p)) for p in ("bf16", "float32"))
    assert low.status == "ok"
    np.testing.assert_allclose(low.curves.train_loss, high.curves.train_loss, rtol=0.03)


@pytest.mark.parametrize("arm", ["RMSN>SSM>None", "NormVary>SSM>GN", "BN>SSM>IN"])
@pytest.mark.parametrize("task", ["digits", "listops"])
def test_golden_smoke_runs_guard_schema(task, arm):
    """Results changed? Then raise SCHEMA in config.py and record anew: python
    tests/mambanorm_study/runs/test_run.py
    """
    golden = json.loads(GOLDEN.read_text())
    assert golden["schema"] == SCHEMA
    result = train(base_config(task, "smoke", arm=arm))
    expected = golden["runs"][f"{task} {arm}"]
    np.testing.assert_allclose(result.curves.train_loss, expected["train_loss"], rtol=2e-4)
    np.testing.assert_allclose(result.curves.grad_norm, expected["grad_norm"], rtol=2e-3)
    assert result.parameters == expected["parameters"]


def record_golden():
    arms, tasks = ("RMSN>SSM>None", "NormVary>SSM>GN", "BN>SSM>IN"), ("digits", "listops")
    found = {
        f"{task} {arm}": train(base_config(task, "smoke", arm=arm))
        for task in tasks
        for arm in arms
    }
    golden = {
        key: {
            "train_loss": [round(float(v), 7) for v in r.curves.train_loss],
            "grad_norm": [round(float(v), 6) for v in r.curves.grad_norm],
            "parameters": r.parameters,
        }
        for key, r in found.items()
    }
    GOLDEN.write_text(json.dumps({"schema": SCHEMA, "runs": golden}, indent=1) + "\n")


# the store


def test_a_run_comes_back_as_it_was_stored(store, result):
    folder = save_run(result)
    assert folder == store / result.config.run_id
    assert {p.name for p in folder.iterdir()} == {*RUN_FILES, MANIFEST}
    run = find_run(result.config)
    assert run.config == result.config
    pd.testing.assert_frame_equal(run.curves, result.curves)
    assert all(torch.equal(run.checkpoint[k], v) for k, v in result.checkpoint.items())
    assert all(np.array_equal(run.diagnostics[k], v) for k, v in result.diagnostics.items())
    row = load_runs().iloc[0]
    assert list(row.index) == COLUMNS
    assert (row.n1, row.n2, row.role, row.status) == ("NormVary", "GN", "test", "ok")
    assert row.test_accuracy == result.test_accuracy
    assert row.versions.startswith("python ")


# what is written twice must agree


def test_make_conda_and_binder_install_the_same_versions():
    """All three name one file of exact versions; it has every package that pyproject.toml asks for,
    in its bounds.
    """
    import tomllib

    import yaml
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    )
    extras = project["optional-dependencies"]
    names = [*project["dependencies"], *extras["study"], *extras["lab"], *extras["dev"]]
    for wanted in (one for one in map(Requirement, names) if one.name != "mambanorm"):
        assert pins[wanted.name] in wanted.specifier, wanted.name

    conda = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert conda == [f"python{project['requires-python']}", "pip", {"pip": conda[-1]["pip"]}]
    assert conda[-1]["pip"] == ["--constraint constraints.txt", "--editable .[dev]"]
    assert '-c constraints.txt -e ".[$*]"' in (ROOT / "Makefile").read_text()
    lines = (ROOT / "binder" / "requirements.txt").read_text().splitlines()
    assert (
        [line for line in lines if not line.startswith("#")]
        == [
            "--extra-index-url https://download.pytorch.org/whl/cpu",
            "--constraint ../constraints.txt",  # pip looks for it from where the line stands, for the project from the root
            "--editable .[lab]",
        ]
    )
    python = (ROOT / "binder" / "runtime.txt").read_text().strip().removeprefix("python-")
    assert Requirement(f"python{project['requires-python']}").specifier.contains(python)


if __name__ == "__main__":
    record_golden()


@pytest.fixture
def threads_as_before():
    before = torch.get_num_threads()
    yield
    set_threads(before)


def test_a_result_does_not_depend_on_how_many_threads_the_process_has(threads_as_before):
    config = base_config(
        "digits", "quick", arm="None>SSM>BN", steps=12, warmup_steps=4, eval_every=6
    )
    results = []
    for threads in (1, 2):
        set_threads(threads)
        results.append(train(config))
        assert torch.get_num_threads() == threads  # the caller's are left alone
    one, other = results
    assert one.threads == other.threads == 1
    assert one.curves.equals(other.curves)
    assert all(torch.equal(value, other.checkpoint[name]) for name, value in one.checkpoint.items())
    if numba.config.NUMBA_NUM_THREADS >= 2:
        assert train(base_config("digits", "smoke", threads=2)).threads == 2


@contextmanager
def default(change, value, before):
    change(value)
    try:
        yield
    finally:
        change(before)


CALLERS = {
    "float64": partial(default, torch.set_default_dtype, torch.float64, torch.float32),
    "meta": partial(default, torch.set_default_device, "meta", None),
    "no gradients": partial(torch.set_grad_enabled, False),
    "inference": torch.inference_mode,
    "autocast": partial(torch.autocast, "cpu", torch.bfloat16),
    "autocast switched off": partial(
        torch.autocast, "cpu", enabled=False
    ),  # within it, casts of weights are kept
}


def of_the_caller():
    backends = torch.is_autocast_cache_enabled(), torch.backends.cudnn.allow_tf32
    modes = (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
    )
    depth = torch.autocast_increment_nesting(), torch.autocast_decrement_nesting()
    return *backends, *modes, *depth, torch.get_default_dtype(), torch.get_default_device()


def trained_anew(task, **changes):
    registry._load.cache_clear()
    return train(base_config(task, "smoke", **changes))


@pytest.fixture(scope="module")
def plainly():
    return [trained_anew("digits_images"), trained_anew("digits", precision="bf16")]


@pytest.mark.parametrize("caller", CALLERS)
def test_a_result_does_not_depend_on_what_the_caller_has_set(caller, plainly):
    with CALLERS[caller]():
        before = of_the_caller()
        found = [trained_anew("digits_images"), trained_anew("digits", precision="bf16")]
        assert of_the_caller() == before
    for one, other in zip(plainly, found, strict=True):
        assert one.curves.equals(other.curves)
        assert all(
            torch.equal(value, other.checkpoint[name]) for name, value in one.checkpoint.items()
        )
