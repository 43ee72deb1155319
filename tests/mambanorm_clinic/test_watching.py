"""Claims about watch: it changes no training, keeps the last finite weights, and says what came
before the failure.
"""

from __future__ import annotations

import contextlib
import math

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import mambanorm as mn
import mambanorm_clinic as clinic
from mambanorm_clinic import NonFinite, watching
from tests.mambanorm_clinic.test_diagnosis import X, stack


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 8))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


def step(
    model: nn.Module, optimizer, scale: float = 1.0, loss=lambda value: value, x=X
) -> torch.Tensor:
    value = loss(scale * model(x).square().mean())
    optimizer.zero_grad()
    value.backward()
    optimizer.step()
    return value.detach()


def failing(model: nn.Module, optimizer, make_step, steps: int = 60, **options) -> tuple:
    """Trains under `watch` until it raises; returns the error's report and the weights before each
    step.
    """
    states = []

    def train() -> None:
        with clinic.watch(model, optimizer, **options) as watched:
            for i in range(steps):
                states.append({name: value.clone() for name, value in model.state_dict().items()})
                make_step(i, watched)

    with pytest.raises(NonFinite, match="is not finite: loss") as stopped:
        train()
    assert str(stopped.value) == str(stopped.value.report)
    return stopped.value.report, states


class Line(nn.Module):
    """Two factors: gradient descent at too high a rate doubles them faster and faster, until they
    overflow.
    """

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(2))
        self.register_buffer("seen", torch.zeros(()))
        with torch.no_grad():
            for layer in self.layers:
                layer.weight.copy_(torch.eye(8))

    def forward(self, x):
        self.seen += 1
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.filterwarnings("ignore:weight decay")
def test_a_watched_training_is_the_same_to_the_bit(tmp_path):
    torch.manual_seed(1)
    plain, random = net(), torch.get_rng_state()
    optimizer = torch.optim.AdamW(plain.parameters())
    torch.set_rng_state(random)
    losses = [step(plain, optimizer) for _ in range(5)]
    watched, other = net(), None
    other = torch.optim.AdamW(watched.parameters())
    torch.set_rng_state(random)
    with clinic.watch(watched, other, folder=tmp_path) as seen:
        again = [step(watched, other, loss=seen.loss) for _ in range(5)]
    assert losses == again
    assert all(
        torch.equal(a, b) for a, b in zip(plain.parameters(), watched.parameters(), strict=True)
    )
    assert seen.report is None
    assert not list(tmp_path.iterdir())
    assert not [m for m in watched.modules() if m._forward_hooks or m._forward_pre_hooks]
    assert not other._optimizer_step_pre_hooks


def test_its_numbers_are_the_gradients_norm_the_loss_and_each_layers_rms(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    model.eval()
    with clinic.watch(model, optimizer, folder=tmp_path) as seen:
        value = step(model, optimizer, loss=seen.loss)
        with torch.no_grad():
            model(1e6 * X)  # an evaluation in between is not taken for a step
        expected = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
        outputs = [X]
        for layer in model:
            outputs.append(layer(outputs[-1]))
        grads = torch.autograd.grad(outputs[-1].square().mean(), outputs[1:])
    assert seen.steps.loss.tolist() == pytest.approx([float(value)])
    assert seen.steps.grad_norm.tolist() == pytest.approx([float(expected)])
    for column, tensors in {"rms": outputs[1:], "grad_rms": grads}.items():
        expected = [float(t.detach().square().mean().sqrt()) for t in tensors]
        assert seen.layers[column].tolist() == pytest.approx(expected)


def test_the_last_steps_are_kept_and_large_gradients_whose_squares_overflow_are_finite(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(watching, "KEPT_STEPS", 3)
    model = Line()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with clinic.watch(model, optimizer, folder=tmp_path) as seen:
        for _ in range(7):
            optimizer.zero_grad()
            (1e25 * model(X)).sum().backward()
            optimizer.step()
    assert seen.report is None
    assert seen.steps.step.tolist() == [5, 6, 7]
    assert seen.steps.loss.isna().all()  # nobody told it
    expected = math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters()))
    assert seen.steps.grad_norm.tolist() == pytest.approx(3 * [expected])


def test_when_training_fails_the_weights_before_the_failure_are_written_and_kept(tmp_path):
    model = Line()
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
    report, states = failing(
        model, optimizer, lambda _, seen: step(model, optimizer, loss=seen.loss), folder=tmp_path
    )
    assert report.step == len(states)
    saved = load_file(report.checkpoint)
    last = states[report.step - 1]
    assert f"weights after step {report.step - 1}, finite" in str(report)
    assert saved.keys() == last.keys()
    assert all(torch.equal(saved[name], last[name]) for name in saved)
    assert all(value.isfinite().all() for value in saved.values())
    Line().load_state_dict(saved)
    assert report.picture.stat().st_size > 1000
    norms = report.steps.grad_norm.to_numpy()
    assert norms[-2] > norms[0]
    assert "norm of the gradients in the last steps" in str(report)


def test_weights_that_a_step_itself_made_infinite_are_told_and_not_written(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def leap(i: int, _) -> None:
        optimizer.param_groups[0]["lr"] = (
            3e38 if i == 3 else 1e-3
        )  # a finite gradient, an infinite step
        step(model, optimizer, scale=1e3 if i == 3 else 1.0)

    report, _ = failing(model, optimizer, leap, folder=tmp_path)
    assert (report.step, report.checkpoint) == (5, None)
    assert report.findings[0].where == "0.weight"
    assert "not finite" in report.findings[0].message
    assert "weights after" not in str(report)


def lost(model: nn.Module, x=X):
    """A step whose loss is infinite."""

    def fail(_, seen) -> None:
        (model(x).sum() * math.inf).backward()
        seen.optimizer.step()

    return fail


def test_a_model_that_refuses_to_run_again_has_its_weights_saved_all_the_same(tmp_path):
    class Once(Line):
        ran = False  # no buffer: these are put back

        def forward(self, x):
            if self.ran:
                raise RuntimeError("only once")
            self.ran = True
            return super().forward(x)

    report, _ = failing(model := Once(), sgd(model), lost(model), folder=tmp_path)
    assert report.checkpoint.exists()
    assert report.first is None
    assert "RuntimeError: only once" in report.findings.skipped[0]


def test_tied_weights_are_written_under_both_names(tmp_path):
    model = mn.LanguageModel(20, d_model=8, n_layers=1, scan_backend="reference")
    report, _ = failing(model, sgd(model), lost(model, torch.arange(8).view(2, 4)), folder=tmp_path)
    saved = load_file(report.checkpoint)
    model.load_state_dict(saved)
    assert torch.equal(saved["lm_head.weight"], saved["backbone.embedding.weight"])


def test_bad_input_is_refused_in_words(tmp_path):
    model = net()
    (tmp_path / "file").touch()
    mine = sgd(model)
    for given, options, error, words in (
        ((object(), mine), {}, ValueError, "torch.nn.Module"),
        ((model, "adam"), {}, TypeError, "torch.optim.Optimizer, .* got 'adam'"),
        ((model, mine), dict(folder=tmp_path / "file"), OSError, "file"),
    ):
        with pytest.raises(error, match=words):
            clinic.watch(*given, **dict(folder=tmp_path) | options)


# --------------------------------------------------------- loops and models that it does not expect


class HandsOutWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.position, self.same, self.mix = (
            nn.Parameter(torch.ones(6, 8)),
            nn.Identity(),
            nn.Linear(8, 8),
        )

    def forward(self, x):
        return self.mix(x + self.same(self.position))


def test_no_hook_stays_on_a_weight_or_an_input_that_goes_through_a_module(tmp_path):
    x, model = X.detach().clone().requires_grad_(), HandsOutWeights()
    clinic.diagnose(model, x)
    with clinic.watch(model, sgd(model), folder=tmp_path):
        model(x).sum().backward()
    assert not any(t._backward_hooks for t in (x, *model.parameters()))


def test_a_loss_that_is_infinite_by_itself_is_told_before_the_gradients_that_it_spoils(tmp_path):
    model = net()

    def log_of_zero(out, _=None):
        return (out - out.detach()).square().sum().log()

    (finding,) = clinic.diagnose(model, (X, X), loss=log_of_zero).findings
    assert "every site is finite and the loss is -inf" in finding.message
    with clinic.watch(model, optimizer := sgd(model), folder=tmp_path) as seen:
        seen.loss(log_of_zero(model(X))).backward()
        with pytest.raises(NonFinite, match="every site is finite and the loss is -inf"):
            optimizer.step()


def fail_at(steps, model, folder) -> tuple[watching.Watched, list]:
    """Six steps, some with an infinite factor; the loop catches what is raised and goes on."""
    optimizer, reports = sgd(model), []
    with clinic.watch(model, optimizer, folder=folder) as seen:
        for i in range(6):
            try:
                step(model, optimizer, x=X * (math.inf if i in steps else 1))
            except NonFinite as error:
                reports.append(error.report)
    return seen, reports


def test_a_loop_that_catches_the_error_is_watched_on(tmp_path):
    model = net()
    seen, reports = fail_at((2, 4), model, tmp_path)
    assert [r.step for r in reports] == [3, 4]  # the third was not made
    assert seen.step == 4
    assert all(weight.isfinite().all() for weight in model.parameters())


class Batch(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.register_buffer("mask", torch.tensor(-math.inf))

    def forward(self, x):
        return self.norm(self.mix(x).transpose(1, 2))


def test_running_statistics_that_the_batch_has_spoilt_are_put_back(tmp_path):
    model, plain = Batch(), Batch()
    plain.load_state_dict(model.state_dict())
    _, (report,) = fail_at((5,), model, tmp_path)
    optimizer = sgd(plain)
    for _ in range(5):
        step(plain, optimizer)
    assert report.step == 6
    saved = load_file(report.checkpoint)
    for name, value in plain.state_dict().items():
        assert torch.equal(saved[name], value), name
        assert torch.equal(model.state_dict()[name], value), name
    assert "norm" not in report.findings[0].where
    assert report.first.where == ":input"


def test_of_accumulated_gradients_nothing_is_said_of_a_batch_that_is_gone(tmp_path):
    model = net()
    optimizer = sgd(model)
    with clinic.watch(model, optimizer, folder=tmp_path) as seen:
        (model(X) * math.inf).sum().backward()
        seen.loss(model(X).sum()).backward()
        with pytest.raises(NonFinite) as stopped:
            optimizer.step()
    report = stopped.value.report
    assert (report.first, list(report.findings)) == (None, [])
    assert "an earlier batch may have failed" in report.findings.skipped[-1]


def test_sparse_gradients_and_losses_beyond_float16_are_watched(tmp_path):
    model = nn.Sequential(nn.Embedding(5, 8, sparse=True), nn.Linear(8, 8))
    optimizer = sgd(model)
    with clinic.watch(model, optimizer, folder=tmp_path) as seen:
        model(torch.tensor([[0, 0, 1]])).sum().backward()
        dense = torch.cat([p.grad.to_dense().flatten() for p in model.parameters()]).norm()
        optimizer.step()
    assert seen.steps.grad_norm.tolist() == pytest.approx([float(dense)])
    half = net().half()
    optimizer = sgd(half)
    with clinic.watch(half, optimizer, folder=tmp_path) as seen:
        seen.loss(7e4 + half(X.half()).float().mean()).backward()
        optimizer.step()
    assert seen.steps.loss.tolist() == pytest.approx([7e4], rel=1e-4)
    for loss, got in ((3.0, "3.0"), (X, r"\(4, 6, 8\)")):
        with pytest.raises(ValueError, match=f"a tensor of one number, got {got}"):
            seen.loss(loss)


def report_of(model: nn.Module, folder, before=lambda step: None, steps=60):
    """The report of `watch` on a training that calls before(step) at each step; None if it raises
    nothing.
    """
    optimizer = sgd(model)
    with clinic.watch(model, optimizer, folder=folder) as seen, contextlib.suppress(NonFinite):
        for i in range(1, steps + 1):
            before(i)
            step(model, optimizer, loss=seen.loss)
    return seen.report


@pytest.mark.parametrize("own", [torch.log, lambda h: (h - h) / (h - h)])
def test_what_turns_nan_at_small_values_is_looked_for_in_the_modules_own_code(tmp_path, own):
    model, batches = stack(three=lambda h: own(h) if batches[-1] >= 9 else h), [0]
    report = report_of(model, tmp_path, before=batches.append)
    assert (report.step, report.first.where) == (9, "3")
    for findings in (report.findings, clinic.diagnose(model, X).findings):
        assert "look for a log or sqrt of a number below 0, or 0/0" in findings[0].advice
        assert "norm behind the scan" not in findings[0].advice


def test_a_gradient_that_fails_is_located_in_a_model_that_returns_no_loss(tmp_path):
    class Length(nn.Module):
        def forward(self, x):
            return x.square().sum(-1).sqrt()  # its derivative at 0 is 0/0

    model = nn.Sequential(nn.Linear(8, 8, bias=False), Length())
    optimizer = sgd(model)
    report, _ = failing(
        model, optimizer, lambda _, __: step(model, optimizer, x=torch.zeros(2, 8)), folder=tmp_path
    )
    assert (report.first.where, report.first.in_gradient) == ("0", True)


@pytest.mark.parametrize("fused", [False, True])
def test_a_scaler_that_looks_for_its_scale_and_gradients_that_are_accumulated_are_no_failure(
    tmp_path, fused
):
    """A fused optimizer is called also where the scaler skips."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    with clinic.watch(model, optimizer, folder=tmp_path) as seen:
        for i in range(40):
            optimizer.zero_grad()
            loss = 1e4 * model(X).square().mean()
            scaler.scale(seen.loss(loss) if i % 2 else loss).backward()
            scaler.step(optimizer)
            scaler.update()
        assert 0 < seen.step < 36  # the scaler has skipped more than four
        optimizer.zero_grad()
        for _ in range(20):
            (model(X).square().mean() / 20).backward()
        optimizer.step()
    assert seen.report is None


def test_a_layer_that_masks_its_output_is_no_failure(tmp_path):
    class Mask(nn.Module):
        def forward(self, x):
            return x.masked_fill(torch.eye(8, dtype=torch.bool)[:6], -math.inf)

    model = nn.Sequential(nn.Linear(8, 8), Mask(), nn.Softmax(-1), nn.Linear(8, 8))
    assert report_of(model, tmp_path, steps=12) is None


# --------------------------------------------------------------------------------------------------


def test_the_callback_ends_a_training_and_keeps_the_weights(tmp_path, capsys):
    """Called as Trainer calls its callbacks; Trainer itself needs accelerate, which is no
    dependency.
    """
    transformers = pytest.importorskip("transformers", reason="transformers is in the dev extra")
    from transformers.trainer_callback import CallbackHandler, TrainerControl, TrainerState

    model = Line()
    optimizer, callback = (
        torch.optim.SGD(model.parameters(), lr=10.0),
        clinic.trainer_callback(folder=tmp_path),
    )
    assert isinstance(callback, transformers.TrainerCallback)
    handler = CallbackHandler([callback], model, None, optimizer, None)
    state, control = TrainerState(), TrainerControl()
    handler.on_train_begin(None, state, control)
    for _ in range(60):
        optimizer.zero_grad()
        model(X).square().mean().backward()
        handler.on_pre_optimizer_step(None, state, control)
        optimizer.step()
        if control.should_training_stop:
            break
    handler.on_train_end(None, state, control)
    assert control.should_training_stop
    assert callback.report.checkpoint.exists()
    assert all(weight.isfinite().all() for weight in model.parameters())
    assert f"step {callback.report.step} is not finite" in capsys.readouterr().out
    assert not [m for m in model.modules() if m._forward_hooks]
