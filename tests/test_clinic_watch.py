"""Claims about watch: it changes no training, keeps the last finite weights, and says what came before the failure."""

from __future__ import annotations

import math

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import mambanorm as mn
from mambanorm.clinic import NonFinite

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 8))


def step(model: nn.Module, optimizer, scale: float = 1.0, loss=lambda value: value) -> torch.Tensor:
    value = loss(scale * model(X).square().mean())
    optimizer.zero_grad()
    value.backward()
    optimizer.step()
    return value.detach()


def failing(model: nn.Module, optimizer, make_step, steps: int = 60, **options) -> tuple:
    """Trains under `watch` until it raises; returns the error's report and the weights before each step."""
    states = []

    def train() -> None:
        with mn.watch(model, optimizer, **options) as watched:
            for i in range(steps):
                states.append({name: value.clone() for name, value in model.state_dict().items()})
                make_step(i, watched)

    with pytest.raises(NonFinite, match="is not finite: loss") as stopped:
        train()
    assert str(stopped.value) == str(stopped.value.report)
    return stopped.value.report, states


class Line(nn.Module):
    """Two factors: gradient descent at too high a rate doubles them faster and faster, until they overflow."""

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


def test_a_watched_training_is_the_same_to_the_bit(tmp_path):
    torch.manual_seed(1)
    plain, random = net(), torch.get_rng_state()
    optimizer = torch.optim.AdamW(plain.parameters())
    torch.set_rng_state(random)
    losses = [step(plain, optimizer) for _ in range(5)]
    watched, other = net(), None
    other = torch.optim.AdamW(watched.parameters())
    torch.set_rng_state(random)
    with mn.watch(watched, other, folder=tmp_path) as seen:
        again = [step(watched, other, loss=seen.loss) for _ in range(5)]
    assert losses == again
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), watched.parameters(), strict=True))
    assert seen.report is None
    assert not list(tmp_path.iterdir())
    assert not [m for m in watched.modules() if m._forward_hooks or m._forward_pre_hooks]
    assert not other._optimizer_step_pre_hooks


def test_its_numbers_are_the_gradients_norm_the_loss_and_each_layers_rms(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    model.eval()
    with mn.watch(model, optimizer, folder=tmp_path) as seen:
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
        assert seen.by_layer[column].tolist() == pytest.approx(expected)


def test_the_ring_keeps_the_last_steps_only(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with mn.watch(model, optimizer, ring=3, folder=tmp_path) as seen:
        for _ in range(7):
            step(model, optimizer)
    assert seen.steps.step.tolist() == [5, 6, 7]
    assert seen.steps.loss.isna().all()  # nobody told it


def test_when_training_fails_the_weights_before_the_failure_are_written_and_kept(tmp_path):
    model = Line()
    optimizer = torch.optim.SGD(model.parameters(), lr=3.0)
    report, states = failing(model, optimizer, lambda _, seen: step(model, optimizer, loss=seen.loss), folder=tmp_path)
    assert report.step == len(states)
    saved = load_file(report.checkpoint)
    last = states[report.last_finite_step]
    assert saved.keys() == last.keys()
    assert all(torch.equal(saved[name], last[name]) for name in saved)
    assert all(value.isfinite().all() for value in saved.values())
    Line().load_state_dict(saved)
    assert report.picture.stat().st_size > 1000
    norms = report.steps.grad_norm.to_numpy()
    assert norms[-2] > norms[0]
    assert "norm of the gradients in the last steps" in str(report)


def test_weights_that_a_step_itself_made_infinite_are_replaced_by_the_last_copy(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def leap(i: int, _) -> None:
        optimizer.param_groups[0]["lr"] = 3e38 if i == 3 else 1e-3  # a finite gradient, an infinite step
        step(model, optimizer, scale=1e3 if i == 3 else 1.0)

    report, states = failing(model, optimizer, leap, every=2, folder=tmp_path)
    assert (report.step, report.last_finite_step) == (5, 2)
    saved = load_file(report.checkpoint)
    assert all(torch.equal(saved[name], states[2][name]) for name in saved)
    assert report.first.where == "0.weight"
    assert "not finite" in report.findings[0].found


def test_a_model_that_refuses_to_run_again_has_its_weights_saved_all_the_same(tmp_path):
    class Once(Line):
        ran = False  # no buffer: these are put back

        def forward(self, x):
            if self.ran:
                raise RuntimeError("only once")
            self.ran = True
            return super().forward(x)

    model = Once()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def fail(*_) -> None:
        (model(X) * math.inf).sum().backward()
        optimizer.step()

    report, _ = failing(model, optimizer, fail, folder=tmp_path)
    assert report.checkpoint.exists()
    assert report.first is None
    assert "RuntimeError: only once" in report.findings.skipped[0]


def test_large_gradients_whose_squares_overflow_are_finite(tmp_path):
    model = Line()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with mn.watch(model, optimizer, folder=tmp_path) as seen:
        (1e25 * model(X)).sum().backward()
        optimizer.step()
    assert seen.report is None
    expected = math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters()))
    assert seen.steps.grad_norm.tolist() == pytest.approx([expected])


def test_tied_weights_are_written_under_both_names(tmp_path):
    model = mn.LanguageModel(20, d_model=8, n_layers=1, scan_backend="reference")
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    ids = torch.arange(8).view(2, 4)

    def fail(*_) -> None:
        (model(ids).sum() * math.inf).backward()
        optimizer.step()

    saved = load_file(failing(model, optimizer, fail, folder=tmp_path)[0].checkpoint)
    model.load_state_dict(saved)
    assert torch.equal(saved["lm_head.weight"], saved["backbone.embedding.weight"])


def test_bad_input_is_refused_in_words(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match=r"torch.nn.Module"):
        mn.watch(optimizer, model)
    with pytest.raises(TypeError, match=r"torch.optim.Optimizer, got 'adam'"):
        mn.watch(model, "adam")
    with pytest.raises(ValueError, match="ring must be a positive whole number, got 0"):
        mn.watch(model, optimizer, ring=0)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        mn.watch(model, optimizer, folder=tmp_path / "file")


def test_an_optimizer_of_another_model_is_refused_and_one_of_a_part_is_told(tmp_path, recwarn):
    model, other = net(), net()
    with pytest.raises(
        ValueError, match="holds none of the 4 weights of Sequential that learn: give watch this model's"
    ):
        mn.watch(model, torch.optim.SGD(other.parameters(), lr=0.1), folder=tmp_path)
    with pytest.warns(UserWarning, match=r"holds 2 of the 4 weights of Sequential that learn, not 0\.weight"):
        mn.watch(model, torch.optim.SGD(model[3].parameters(), lr=0.1), folder=tmp_path)
    model[0].requires_grad_(False)
    mn.watch(model, torch.optim.SGD(model[3].parameters(), lr=0.1), folder=tmp_path)
    assert not recwarn.list


# --------------------------------------------------------------------------------------------------------- Hugging Face


def test_the_callback_ends_a_training_and_keeps_the_weights(tmp_path, capsys):
    """Called as Trainer calls its callbacks; Trainer itself needs accelerate, which is no dependency."""
    transformers = pytest.importorskip("transformers", reason="transformers is in the dev extra")
    from transformers.trainer_callback import CallbackHandler, TrainerControl, TrainerState

    model = Line()
    optimizer, callback = torch.optim.SGD(model.parameters(), lr=3.0), mn.trainer_callback(folder=tmp_path)
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
