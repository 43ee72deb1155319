"""Runs trained as one model are the runs that they are alone: slices of a stack meet nowhere.

Tolerances. In float64 a step of a stack equals a step of its models to 1e-10, weights and statistics included. In
float32 a run takes other sums: batched products and plain torch instead of single products and fused loops. Losses and
gradient norms then agree to a few units of their last digits. Single weights may not: Adam divides a gradient by its
own size, and where the true gradient is 0, such as that of a bias before a norm, the rounding decides its sign. So
weights are compared by what they compute.
"""

from __future__ import annotations

import errno
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode

from mambanorm.arms import PAPER_NORMS
from mambanorm.cli.main import main
from mambanorm.loop import train
from mambanorm.models.classifier import SequenceClassifier
from mambanorm.norms import NORMS
from mambanorm.operations import selective_scan
from mambanorm.study.estimate import _stored_rate
from mambanorm.training import stacked_sweep
from mambanorm.training.grid import base_config, grid
from mambanorm.training.leases import Held, Holder
from mambanorm.training.optimizer import build_optimizer
from mambanorm.training.regimen import NOTHING_ELSE, loss_of
from mambanorm.training.schedule import schedule
from mambanorm.training.stack import Stack
from mambanorm.training.stacked import DIFFER, kind_of, train_stacked, why_not
from mambanorm.training.stacked_sweep import check_stack, fitting, slices_that_fit, stacks_of
from mambanorm.training.store import find_run, load_runs, resume_dir, save_run
from mambanorm.training.sweep import sweep

CPU = torch.device("cpu")
SMALL = dict(d_model=8, n_layers=1, d_state=4, norm_options={"groups": 2})
OWN = (dict(seed=0, lr=1e-2), dict(seed=1, lr=3e-3, schedule="constant_warmup"), dict(seed=2, weight_decay=0.3))


def run(**changes):
    return base_config("digits", "smoke", **{"steps": 6, "eval_every": 3, "warmup_steps": 2, **changes})


# one step in float64: everything that is computed


def models_of(configs):
    for config in configs:
        torch.manual_seed(config.seed)
        sizes = {name: getattr(config, name) for name in (*SMALL, "arm")}
        yield SequenceClassifier(3, in_features=1, **sizes).double()


def batches(slices, lengths=None):
    torch.manual_seed(9)
    while True:
        yield torch.randn(slices, 4, 7, 1, dtype=torch.float64), lengths, torch.randint(3, (slices, 4))


def alone(model, config, given, steps):
    """The same steps of one model by torch's own optimizer → losses and gradient norms."""
    optimizer, found = build_optimizer(model.train(), config), []
    for step, (inputs, lengths, labels) in zip(range(1, steps + 1), given):
        for group in optimizer.param_groups:
            group["lr"] = config.lr * schedule(
                config.schedule, step, steps=config.steps, warmup_steps=config.warmup_steps
            )
        optimizer.zero_grad()
        loss = loss_of(model(inputs, lengths), labels, config, NOTHING_ELSE)
        loss.backward()
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        found.append((loss.item(), norm.item()))
        optimizer.step()
    return np.array(found)


def equal_to_alone(arm, steps=3, lengths=None, slices=3, **changes):
    configs = [run(arm=arm, steps=steps, **SMALL, **{**changes, **own}) for own in OWN[:slices]]
    stack = Stack(list(models_of(configs)), configs, CPU)
    for _, batch in zip(range(steps), batches(len(configs), lengths)):
        stack.step(*batch)
    found, states = stack.read(1, steps), stack.states(stack.weights)
    for i, (model, config) in enumerate(zip(models_of(configs), configs, strict=True)):
        given = ((x[i], None if n is None else n[i], y[i]) for x, n, y in batches(len(configs), lengths))
        expected = alone(model, config, given, steps)
        np.testing.assert_allclose(np.stack([found.loss[:, i], found.grad_norm[:, i]], 1), expected, rtol=0, atol=1e-10)
        mine = dict(model.named_parameters()) | dict(model.named_buffers())
        assert states[i].keys() == mine.keys()
        for name, value in mine.items():
            torch.testing.assert_close(states[i][name], value.detach(), rtol=0, atol=1e-10, msg=f"{arm}: {name}")
    assert found.failed == [0] * slices
    assert stack.running.all()


@pytest.mark.parametrize("norm", NORMS)
def test_a_step_of_a_stack_is_a_step_of_each_model(norm):
    """Rates, schedules and weight decay are each slice's own; running statistics too."""
    equal_to_alone(f"{norm}>SSM>{norm}")


def test_all_arms_of_the_paper_can_be_stacked():
    for n1 in PAPER_NORMS:
        for n2 in PAPER_NORMS:
            equal_to_alone(f"{n1}>SSM>{n2}", steps=2, slices=2)


def test_padding_is_left_out_of_each_slice():
    lengths = torch.tensor([[7, 3, 1, 6], [2, 2, 7, 5], [4, 7, 6, 5]])
    equal_to_alone("BN>SSM>NormVary", lengths=lengths)


def test_micro_batches_are_summed():
    """Without a norm over the batch the parts add up to the whole, in a stack as alone."""
    equal_to_alone("LN>SSM>GN", micro_batch=3)


def test_the_weights_of_a_stack_stay_where_they_are():
    """A CUDA graph replays on the same memory."""
    configs = [run(arm="BN>SSM>None", **SMALL, **own) for own in OWN]
    stack = Stack(list(models_of(configs)), configs, CPU)
    tensors = [value for value in vars(stack).values() if isinstance(value, torch.Tensor)]
    tensors += [*stack.leaves.values(), *stack.fixed.values()]
    before = [value.data_ptr() for value in tensors]
    for _, batch in zip(range(2), batches(3)):
        stack.step(*batch)
    assert [value.data_ptr() for value in tensors] == before
    assert all(stack.fixed[name] is value for name, value in stack.buffers.items())
    assert stack.count.item() == 2


class Waits(TorchDispatchMode):
    """Counts how often the host asks for a number, for which it would wait for a GPU."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("arm", ["NormVary>SSM>BN", "LN>SSM>None"])
def test_a_step_waits_for_nothing(arm):
    configs = [run(arm=arm, ema=0.5, **SMALL, **own) for own in OWN]
    stack, batch = Stack(list(models_of(configs)), configs, CPU), next(batches(3))
    with Waits() as waits:
        stack.step(*batch)
        assert waits.count == 0
        stack.failed.sum().item()
        assert waits.count == 1  # it can be seen


# the scan


def arguments_of_a_scan(b, c, dtype, slices=3, rows=2, channels=4, size=3, length=7):
    torch.manual_seed(0)
    full = (slices, rows, channels, length)
    matrix = {
        "constant": (slices, channels, size),
        "plain": (slices, rows, size, length),
        "groups": (slices, rows, 2, size, length),
    }
    shapes = [full, full, (slices, channels, size), matrix[b], matrix[c], (slices, channels), full, (slices, channels)]
    tensors = [torch.randn(shape, dtype=dtype) for shape in shapes]
    tensors[2] = -tensors[2].abs()
    return [tensor.requires_grad_() for tensor in tensors]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("b", "c"), [("plain", "plain"), ("groups", "plain"), ("constant", "groups")])
def test_a_stacked_scan_is_its_scans(b, c, dtype):
    given = arguments_of_a_scan(b, c, dtype)
    stacked = vmap(lambda *one: selective_scan(*one, True, True))(*given)
    each = [selective_scan(*one, True, True) for one in zip(*given, strict=True)]
    tolerance = dict(rtol=0, atol=1e-12 if dtype is torch.float64 else 1e-5)
    for found, expected in zip(stacked, zip(*each, strict=True), strict=True):
        torch.testing.assert_close(found, torch.stack(expected), **tolerance)
    weight = torch.randn_like(stacked[0])
    gradients = (
        torch.autograd.grad((weight * y).sum(), given) for y in (stacked[0], torch.stack([y for y, _ in each]))
    )
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, **(tolerance | dict(atol=30 * tolerance["atol"])))


def test_a_scan_may_share_what_is_not_stacked():
    u, delta, A, B, C, *_ = (tensor.detach() for tensor in arguments_of_a_scan("plain", "plain", torch.float64))
    shared = vmap(selective_scan, in_dims=(0, None, None, 0, None))(u, delta[0], A[0], B, C[0])
    for i, found in enumerate(shared):
        torch.testing.assert_close(found, selective_scan(u[i], delta[0], A[0], B[i], C[0]), rtol=0, atol=1e-12)


def test_a_gradient_taken_inside_torch_func_is_refused():
    given = [tensor[0].detach() for tensor in arguments_of_a_scan("plain", "plain", torch.float64)]
    with pytest.raises(NotImplementedError, match="call backward on what vmap returns"):
        torch.func.grad(lambda u: selective_scan(u, *given[1:5]).sum())(given[0])


# whole runs


def compare(found, expected, accuracy=True):
    """Two results of one config, up to the rounding of float32 over a few steps."""
    same = (
        "config",
        "status",
        "steps",
        "first_nonfinite_step",
        "first_nonfinite_site",
        "chance",
        "parameters",
        "threads",
    )
    for name in (*same, *(("best_step", "test_accuracy", "val_accuracy", "best_val_accuracy") if accuracy else ())):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), nan_ok=True), name
    assert list(found.curves.columns) == list(expected.curves.columns)
    np.testing.assert_allclose(found.curves.to_numpy(float), expected.curves.to_numpy(float), rtol=2e-5, atol=1e-6)
    assert found.diagnostics.keys() == expected.diagnostics.keys()
    for name, values in expected.diagnostics.items():
        np.testing.assert_allclose(found.diagnostics[name], values, rtol=2e-4, atol=2e-6, err_msg=name)
    assert found.predictions.keys() == expected.predictions.keys()
    for name, values in expected.predictions.items():
        assert (found.predictions[name].dtype, found.predictions[name].shape) == (values.dtype, values.shape), name
        np.testing.assert_allclose(found.predictions[name], values, rtol=2e-4, atol=2e-6, err_msg=name)
    shapes = [{name: (v.dtype, v.shape) for name, v in one.checkpoint.items()} for one in (found, expected)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(
    ("task", "changes"),
    [
        ("digits", dict(arm="BN>SSM>GN", steps=10, eval_every=5)),  # longer than the ring of the last steps
        ("digits", dict(arm="NormVary>SSM>None", ema=0.6)),
        ("digits", dict(arm="LN>SSM>RMSN", steps=9, eval_every=1, patience=1)),
        ("listops", dict(arm="IN>SSM>BN", batch_size=6)),
        ("diabetes", dict(arm="RMSN>SSM>LN")),
        ("digits_images", dict(arm="LN>SSM>BN", micro_batch=4)),
        ("digits", dict(arm="None>MHA>LN", model="transformer")),
    ],
    ids=lambda value: value if isinstance(value, str) else value["arm"],
)
def test_a_slice_is_its_own_run_within_rounding(task, changes):
    """Other seeds mean other data, orders and weights; curves, best step, predictions and diagnostics follow."""
    common = {"steps": 4, "eval_every": 2, "warmup_steps": 2, **changes}
    configs = [base_config(task, "smoke", **common, seed=seed, lr=lr) for seed, lr in ((0, 4e-3), (1, 1e-3), (0, 1e-3))]
    results = train_stacked(configs)
    assert [result.backend for result in results] == ["cpu, stacked of 3"] * 3
    for result, config in zip(results, configs, strict=True):
        compare(result, train(config))
    assert results[0].test_loss != results[1].test_loss != results[2].test_loss


def test_a_slice_that_diverges_stops_alone():
    """It has the step and the site of its own run; the others keep every bit."""
    own = (dict(seed=0), dict(seed=1, lr=1e6), dict(seed=2))
    configs = [run(arm="None>SSM>None", n_layers=4, warmup_steps=0, **changes) for changes in own]
    results = train_stacked(configs)
    diverged = results[1]
    assert [result.status for result in results] == ["ok", "diverged", "ok"]
    compare(diverged, train(configs[1]))
    assert diverged.first_nonfinite_site is not None
    assert diverged.test_accuracy == diverged.chance
    tame = train_stacked([configs[0], configs[1].but(lr=1e-3), configs[2]])
    for found, expected in zip(results[::2], tame[::2], strict=True):
        assert found.curves.equals(expected.curves)
        for name, value in expected.checkpoint.items():
            assert torch.equal(found.checkpoint[name], value), name
        for name, values in expected.predictions.items():
            assert np.array_equal(found.predictions[name], values), name


def test_a_stack_of_diverging_runs_ends_early():
    """At the first evaluation, where the host learns of it."""
    configs = [run(arm="None>SSM>None", warmup_steps=0, lr=1e9, seed=seed, steps=3_000) for seed in range(2)]
    results = train_stacked(configs)
    assert all(result.status == "diverged" and result.steps < 3 for result in results)
    for result, config in zip(results, configs, strict=True):
        compare(result, train(config))


def test_results_go_into_the_store(store):
    configs = [run(arm="BN>SSM>None", seed=seed) for seed in range(2)]
    for result in train_stacked(configs):
        save_run(result, store)
    frame = load_runs(store, configs=configs)
    assert list(frame.run_id) == [config.run_id for config in configs]
    assert set(frame.backend) == {"cpu, stacked of 2"}
    assert (frame[["wall_s", "tokens_per_s"]] > 0).all(axis=None)
    assert all(find_run(config, store).checkpoint for config in configs)


# what cannot be stacked


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ([], "give at least one config"),
        ([run(), run()], "given twice in a stack: give each run once"),
        ([run(), run(arm="LN>SSM>None", seed=1)], "arm='LN>SSM>None' and arm='RMSN>SSM>None' in one stack.*each arm"),
        ([run(drop_path=0.1)], "drop_path=0.1 cannot be stacked: leave it at 0.0, or train such runs one by one"),
        ([run(mixup=0.2)], "mixup=0.2 cannot be stacked"),
        ([run(teacher="0" * 16)], "teacher='0000000000000000' cannot be stacked"),
        ([run(arm="NormSelector>SSM>None", norm_options={"mode": "random"})], "draws numbers and cannot be stacked"),
        ([run(arm="NormSelector>SSM>None", norm_options={"n1": {"mode": "random"}})], "draws numbers"),
        ([run(batch_size=10_000)], "batch_size=10000 is beyond the 120 training rows"),
    ],
)
def test_what_cannot_be_stacked_is_one_sentence(configs, message):
    with pytest.raises(ValueError, match=message):
        train_stacked(configs)


def test_kinds_differ_in_everything_but_what_a_slice_has_of_its_own():
    one = run()
    other = dict(seed=5, lr=1.0, weight_decay=0.5, schedule="constant_warmup", warmup_steps=1)
    assert set(other) == set(DIFFER)
    assert kind_of(one.but(**other)) == kind_of(one)
    others = [run(**changes) for changes in (dict(d_model=4), dict(steps=7), dict(arm="LN>SSM>LN"))]
    assert len({kind_of(config) for config in (one, *others)}) == 4
    assert why_not(one) is None


# the sweep


def test_a_sweep_in_stacks_fills_the_store_as_one_without(store, tmp_path):
    lone = run(arm="LN>SSM>None", drop_path=0.5)
    configs = [*grid(["BN>SSM>None"], scale="smoke", seeds=3, steps=4, eval_every=2), lone]
    together = sweep(configs, workers=0, runs_dir=store, progress=False, stack=2)
    apart = sweep(configs, workers=0, runs_dir=tmp_path / "apart", progress=False)
    assert list(together.run_id) == list(apart.run_id)
    assert set(together.status) == {"ok"}
    same = ["arm", "seed", "lr", "steps", "best_step", "chance", "parameters"]
    assert together[same].equals(apart[same])
    np.testing.assert_allclose(together.test_accuracy, apart.test_accuracy)
    np.testing.assert_allclose(together.test_loss, apart.test_loss, rtol=1e-5)
    assert sorted(together.backend) == ["cpu"] * 2 + ["cpu, stacked of 2"] * 2  # three seeds: two and one
    assert not list(store.glob(".lease-*"))


def test_stacks_are_evenly_filled_and_of_one_kind():
    configs = grid(["BN>SSM>None", "None>SSM>LN"], scale="smoke", seeds=5)
    stacks = list(stacks_of([*configs, run(arm="GN>SSM>None")], 4))
    assert sorted(map(len, stacks)) == [2, 2, 3, 3]
    assert all(len({config.arm for config in stack}) == 1 for stack in stacks)
    assert not list(stacks_of(configs, 1))


def test_what_others_train_and_what_has_a_checkpoint_is_left_out(store, monkeypatch):
    configs = [run(seed=seed, steps=2, eval_every=2) for seed in range(4)]
    resume_dir(configs[0], store).mkdir(parents=True)

    def lease(run_id, folder):
        if run_id == configs[1].run_id:
            raise Held(Holder("token", "host", 1, "machine", 0))
        return ExitStack()

    monkeypatch.setattr(stacked_sweep, "lease", lease)
    done = list(stacked_sweep.train_stacks(configs, 4, store))
    assert done == [(config, None, 0) for config in configs[2:]]
    assert len(load_runs(store)) == 2


def test_a_stack_that_fails_is_told_and_its_runs_train_alone(store, monkeypatch):
    def out_of_memory(configs):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(stacked_sweep, "train_stacked", out_of_memory)
    configs = [run(seed=seed, steps=2, eval_every=2) for seed in range(2)]
    with pytest.warns(UserWarning, match="a stack of 2 runs of RMSN>SSM>None on digits failed.*out of memory"):
        frame = sweep(configs, workers=0, runs_dir=store, progress=False, stack=2)
    assert list(frame.backend) == ["cpu", "cpu"]


def test_the_command_line_trains_in_stacks(store, capsys):
    arms = ["sweep", "--arms", "LN>SSM>None", "--scale", "smoke", "--seeds", "2", "--runs-dir", str(store)]
    assert main([*arms, "--stack", "0"]) == 2
    assert "'0' is no whole number from 1" in capsys.readouterr().err
    short = ["--set", "steps=2", "--set", "eval_every=2", "--set", "warmup_steps=1"]
    assert main([*arms, *short, "--workers", "0", "--stack", "2"]) == 0
    assert set(load_runs(store).backend) == {"cpu, stacked of 2"}


def test_how_many_fit_follows_from_two_measurements():
    assert fitting(one=150, two=250, free=1_000) == 8  # (0.9·1000 − 50) / 100
    assert fitting(one=150, two=250, free=10) == 1
    with pytest.raises(ValueError, match="measures the memory of a GPU, and there are runs on 'cpu': give a number"):
        slices_that_fit(run(device="cpu"))
    with pytest.raises(ValueError, match="stack must be None, 'auto' or how many runs train as one.*got 0"):
        check_stack(0, [])
    with pytest.raises(ValueError, match="measures the memory of a GPU"):
        sweep([run(device="cpu")], stack="auto")


def test_a_full_disk_does_not_throw_a_trained_stack_away(store, monkeypatch):
    """It waits for space, as a run that is trained alone does."""
    saved, trained = [], []

    def save(result, directory):
        saved.append(result.config.run_id)
        if len(saved) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return save_run(result, directory)

    def counted(configs):
        trained.append(len(configs))
        return train_stacked(configs)

    monkeypatch.setattr("mambanorm.training.stacked_sweep.save_run", save)
    monkeypatch.setattr("mambanorm.training.stacked_sweep.train_stacked", counted)
    configs = [base_config("digits", "smoke", seed=seed) for seed in range(3)]
    frame = sweep(configs, stack=3, workers=0, progress=False)
    assert trained == [3]
    assert list(frame.backend) == ["cpu, stacked of 3"] * 3
    assert len(saved) == 4

    monkeypatch.setattr("mambanorm.training.worker.FULL_S", 0.0)
    saved[:] = ["one"]
    with pytest.raises(OSError, match="the disk of the run store is full. 0 of 3 runs are in the store"):
        sweep([base_config("digits", "smoke", seed=seed) for seed in range(2, 6)], stack=3, workers=0, progress=False)


def test_a_stack_and_a_scheduler_exclude_each_other():
    with pytest.raises(ValueError, match="stack=2 trains in this process, and a scheduler's workers elsewhere"):
        sweep([base_config("digits", "smoke")], stack=2, scheduler="tcp://127.0.0.1:1")


def test_times_of_stacked_runs_are_no_times_of_runs_alone(store):
    """An estimate looks past them; a slice that failed early has had less of the time."""
    configs = [base_config("digits", "smoke", seed=seed, lr=lr) for seed, lr in ((0, 1e-3), (1, 1e30))]
    results = train_stacked(configs)
    assert results[1].steps < results[0].steps
    assert results[1].wall_s < results[0].wall_s
    for result in results:
        save_run(result)
    assert _stored_rate(load_runs(), configs[0], anywhere=True) == (None, 0)
