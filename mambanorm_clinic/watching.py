"""`watch`: stop a training before a non-finite gradient reaches the weights.

with clinic.watch(model, optimizer) as watched:
    for x, y in loader:
        loss = watched.loss(criterion(model(x), y))   # the call of `loss` may be left out
        optimizer.zero_grad(); loss.backward(); optimizer.step()

Gradients are checked just before the optimizer's step. If one is not finite, the weights still are.
The batch may have changed the buffers (a BN's running statistics), so these are restored before
weights and buffers are saved. Nothing is saved if the previous step made the weights infinite. A
loop may catch NonFinite and continue, because the failed step is not made.

Cost per step: the L2 norm of each layer's output and of its gradient, the L2 norm of all gradients,
a copy of the buffers, and one wait for the device.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.errors import shown
from mambanorm_clinic.calling import first_tensor, run_eagerly
from mambanorm_clinic.checkpoints import metadata_of
from mambanorm_clinic.diagnosis import check_loss, examine
from mambanorm_clinic.sites import layers_of
from mambanorm_clinic.symptoms import NonFiniteValue, Symptoms, place_text
from mambanorm_study.basics.atomic import writable_folder, write_bytes
from mambanorm_study.basics.settings import Later
from mambanorm_study.basics.text import plural

safetensors_torch = Later("safetensors.torch")
clinic_figures = Later("mambanorm_clinic.figures")  # matplotlib is loaded when a picture is drawn

KEPT_STEPS = 64  # steps before a failure in the frames of a report
SHOWN_STEPS = 4  # steps before a failure in the text of a report
FINITE_AGAIN = (
    "the first non-finite value, because all values are finite when the last batch is run again; "
    "if gradients are accumulated, an earlier batch may have failed"
)
# Code to copy from the warning; it selects parameters by the same condition as `_warn_of_decay`.
UNDECAYED_GROUPS = (
    "spared = {n for n, p in model.named_parameters() if p.dim() < 2 or 'A_log' in n or "
    "n.endswith('bias') or getattr(p, '_no_weight_decay', False)}; "
    "optimizer = torch.optim.AdamW([dict(params=[p for n, p in model.named_parameters() "
    "if n not in spared]), dict(params=[p for n, p in model.named_parameters() if n in spared], "
    "weight_decay=0.0)])"
)


@dataclass(frozen=True, eq=False)
class Report:
    """The record of a training step whose loss or gradients were not finite.

    step: the number of this step, from 1, which was not made. first: the first non-finite value or
    gradient when the last batch is run again, None if there was none. steps: a frame of the last
    steps with step, loss (NaN if unknown) and grad_norm. layers: a frame with step, depth (from 1),
    and the RMS of the layer's output (rms) and of its gradient (grad_rms). findings: faults that
    the rules of `diagnose` find in the last batch. checkpoint: the file of the last finite weights,
    None if the weights are not finite. picture: the file of the figure.
    """

    step: int
    first: NonFiniteValue | None
    steps: pd.DataFrame
    layers: pd.DataFrame
    findings: Symptoms
    checkpoint: Path | None
    picture: Path

    @property
    def site(self) -> str:
        """Return where the first non-finite value is, "" if there is none."""
        return "" if self.first is None else self.first.where

    def __str__(self) -> str:
        last = self.steps.iloc[-1]
        lines = [
            f"step {self.step} is not finite: loss {last.loss:.4g}, norm of the gradients "
            f"{last.grad_norm:.4g}"
        ]
        if self.first is not None:
            lines.append(f"first: {self.first}")
        norms = [f"{norm:.3g}" for norm in self.steps.grad_norm.iloc[-SHOWN_STEPS - 1 :]]
        lines.append(f"norm of the gradients in the last steps: {' → '.join(norms)}")
        if self.checkpoint is not None:
            lines.append(f"weights after step {self.step - 1}, finite: {self.checkpoint}")
        return "\n".join([*lines, f"picture: {self.picture}", repr(self.findings)])


class NonFinite(FloatingPointError):
    """Raised instead of a step with a non-finite loss or gradient; `report` says where it began."""

    def __init__(self, report: Report):
        super().__init__(str(report))
        self.report = report


def watch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    folder: str | Path = "clinic",
) -> Watched:
    """Return a context manager that checks the gradients before every step of `optimizer`.

    If the loss or a gradient is not finite, NonFinite is raised instead of the step. The model
    keeps its finite weights and buffers. They are written to `step-<n>.safetensors` in `folder`,
    with a picture of the preceding steps, `step-<n>.png`. The error's `report` (see `Report`) names
    the first non-finite value. To find it, the last batch is run again; so if gradients are
    accumulated, a failure in an earlier batch is noticed but not located. With a GradScaler the
    scaled gradients are checked, except at steps that the scaler skips. With
    optimizer.step(closure), as Lightning and LBFGS call it, the check follows each call of the
    closure. A warning is given if weight decay acts on A_log, D, norms or biases.

    optimizer: torch's, or a wrapper of it with an attribute `optimizer` (accelerate, Lightning).
    Raises TypeError for any other optimizer, and ValueError if the model is no module.
    """
    inner = optimizer
    while hasattr(inner, "optimizer"):
        inner = inner.optimizer
    if not isinstance(inner, torch.optim.Optimizer):
        raise TypeError(
            "optimizer must be a torch.optim.Optimizer, or have one as its attribute `optimizer`, "
            f"got {shown(optimizer)}"
        )
    return Watched(model, inner, folder)


def trainer_callback(*, folder: str | Path = "clinic"):
    """Return a callback that does the same as `watch` for Hugging Face's Trainer(…, callbacks=[…]).

    At the first step with a non-finite loss or gradient it prints the report, drops the gradients,
    so that the model keeps its finite weights, and ends the training. `callback.report` is None
    until then. Needs transformers.
    """
    from transformers import TrainerCallback

    class ClinicCallback(TrainerCallback):
        report: Report | None = None

        def on_train_begin(self, args, state, control, model=None, optimizer=None, **_):
            self.watched = Watched(model, None, folder).__enter__()
            _warn_of_decay(model, optimizer)

        def on_pre_optimizer_step(self, args, state, control, model=None, **_):
            try:
                self.watched.check()
            except NonFinite as stopped:
                self.report = stopped.report
                print(self.report)
                self.watched.model.zero_grad(set_to_none=True)
                control.should_training_stop = True

        def on_train_end(self, args, state, control, **_):
            self.watched.__exit__()

    return ClinicCallback()


def _warn_of_decay(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Warn if weight decay acts on A_log, D, norms or biases."""
    groups = [group for group in optimizer.param_groups if group.get("weight_decay")]
    amounts = {id(weight): group["weight_decay"] for group in groups for weight in group["params"]}
    decayed = [
        (name, amounts[id(weight)])
        for name, weight in model.named_parameters()
        if id(weight) in amounts
        and (
            weight.dim() < 2
            or "A_log" in name
            or name.endswith("bias")
            or getattr(weight, "_no_weight_decay", False)
        )
    ]
    if decayed:
        name, amount = decayed[0]
        warnings.warn(
            f"weight decay ({amount:g}) acts on {plural(len(decayed), 'parameter')} among A_log, "
            f"D, norms and biases (the first is {name}) and pulls A, step sizes and scales "
            f"towards 0; instead: {UNDECAYED_GROUPS}",
            stacklevel=3,
        )


@dataclass
class Batch:
    """The last batch: its measurements, and a function that runs it again.

    run(): calls the model again, with the same random state and autocast. loss: None if unknown.
    output_gradient: the gradient of the model's output, 0 until the backward pass. rms, grad_rms:
    map the depth of each layer to the RMS of its output, and of the output's gradient.
    """

    run: Callable[[], object] = lambda: None
    loss: Tensor | None = None
    output_gradient: Tensor | float = 0.0
    rms: dict[int, Tensor] = field(default_factory=dict)
    grad_rms: dict[int, Tensor] = field(default_factory=dict)


class Watched:
    """A model that is watched while it trains (see `watch`).

    report: the report of the last failure, None if there was none. step: the number of steps that
    were made. optimizer: None = the caller calls `check` before each step.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer | None, folder: str | Path
    ):
        self.model = model
        self.optimizer = optimizer
        self.folder = writable_folder(folder, "the report")
        self.report: Report | None = None
        self.step = 0
        self._history: deque[dict] = deque(maxlen=KEPT_STEPS)
        self._layers = layers_of(model)
        self._hooks: list = []
        self._batch = Batch()
        self._buffers: dict[str, Tensor] = {}  # after the last finite step

    def __enter__(self) -> Watched:
        self._hooks.append(self.model.register_forward_pre_hook(self._begin, with_kwargs=True))
        for depth, layer in enumerate(self._layers, 1):
            self._hooks.append(layer.register_forward_hook(partial(self._on_layer, depth)))
        self._hooks.append(self.model.register_forward_hook(self._end))
        self._buffers = deepcopy(dict(self.model.named_buffers()))
        if self.optimizer is not None:
            self._hooks.append(self.optimizer.register_step_pre_hook(self._before_step))
            _warn_of_decay(self.model, self.optimizer)
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._batch = Batch()  # holds the last inputs

    def loss(self, value: Tensor) -> Tensor:
        """Return the loss after recording it, so that a non-finite loss is noticed and reported.

        Not needed if the model returns its loss as `.loss`. Raises ValueError unless the loss is a
        tensor of one number.
        """
        check_loss(value)
        self._batch.loss = value.detach()
        return value

    # ------------------------------------------------------------------------------------ the hooks

    def _begin(self, _model: nn.Module, args: tuple, kwargs: dict) -> None:
        if not torch.is_grad_enabled():
            return
        device = next((weight.device.type for weight in self.model.parameters()), "cpu")
        dtype = torch.get_autocast_dtype(device)
        is_autocast = torch.is_autocast_enabled(device)
        random_state = torch.get_rng_state()

        def run() -> object:
            torch.set_rng_state(random_state)
            with torch.autocast(device, dtype, enabled=is_autocast), run_eagerly():
                return self.model(*args, **kwargs)

        self._batch = Batch(run)

    def _on_layer(self, depth: int, _layer: nn.Module, _args: tuple, output: object) -> None:
        value = first_tensor(output)
        batch = self._batch
        # without a gradient, the layer is frozen or this is an evaluation
        if value is None or not value.requires_grad:
            return
        root = math.sqrt(max(value.numel(), 1))
        batch.rms[depth] = torch.linalg.vector_norm(value.detach().float()) / root

        def keep_gradient(grad: Tensor | None) -> None:
            if grad is not None:
                batch.grad_rms[depth] = torch.linalg.vector_norm(grad.float()) / root

        if not value.is_leaf:  # a hook on a weight, which the layer may return, would not go away
            value.register_hook(keep_gradient)

    def _end(self, _model: nn.Module, _args: tuple, output: object) -> None:
        loss = getattr(output, "loss", None)
        if isinstance(loss, Tensor) and loss.requires_grad:
            self._batch.loss = loss.detach().mean()  # DataParallel returns one loss per device
        value = first_tensor(output, skip_integers=True)
        if value is not None and value.requires_grad:
            value.register_hook(partial(setattr, self._batch, "output_gradient"))

    def _before_step(self, _optimizer, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        """Check the gradients, or return arguments of `step` with a closure that checks them.

        args[0] is the optimizer.
        """
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if callable(closure):
            return args[:1], {"closure": partial(self._call_and_check, closure, self.step)}
        # GradScaler calls a fused optimizer, which makes no step, even if it has found infinities
        if not getattr(self.optimizer, "found_inf", False):
            self.check()
        return None

    def _call_and_check(self, closure: Callable, step: int) -> object:
        """Call the closure, then check the gradients; several calls in one step count once."""
        value = closure()
        if self._batch.loss is None and isinstance(value, Tensor) and value.numel() == 1:
            self._batch.loss = value.detach()
        self.step = step
        self.check()
        return value

    # ---------------------------------------------------------------------------- check of a step

    def check(self) -> None:
        """Raise NonFinite if the loss or a gradient of this step is not finite.

        To be called between backward and the optimizer's step; with an optimizer this is automatic.
        """
        self.step += 1
        grads = [weight.grad for weight in self.model.parameters() if weight.grad is not None]
        grads = [grad.coalesce().values() if grad.is_sparse else grad for grad in grads]
        # in float64 no square of a float32 overflows
        norms = [torch.linalg.vector_norm(grad, dtype=torch.float64) for grad in grads]
        norms = [norm.to(norms[0].device) for norm in norms]
        grad_norm = math.hypot(*torch.stack(norms).tolist()) if norms else 0.0
        batch = self._batch
        loss = math.nan if batch.loss is None else float(batch.loss)
        numbers = {"step": self.step, "loss": loss, "grad_norm": grad_norm}
        self._history.append({**numbers, "rms": batch.rms, "grad_rms": batch.grad_rms})
        if math.isfinite(grad_norm) and (batch.loss is None or math.isfinite(loss)):
            # copied at each step, because each forward pass in train mode changes a BN's buffers
            self._buffers = deepcopy(dict(self.model.named_buffers()))
            return
        self.report = self._write_report()
        self.step -= 1  # this step is not made
        raise NonFinite(self.report)

    @property
    def steps(self) -> pd.DataFrame:
        """Return one row per step, for the last steps: step, loss (NaN if unknown), grad_norm."""
        return pd.DataFrame(list(self._history), columns=["step", "loss", "grad_norm"])

    @property
    def layers(self) -> pd.DataFrame:
        """Return one row per layer of the last steps: step, depth (from 1), rms, grad_rms."""
        rows = [
            (step["step"], depth, float(value), float(step["grad_rms"].get(depth, math.nan)))
            for step in self._history
            for depth, value in step["rms"].items()
        ]
        return pd.DataFrame(rows, columns=["step", "depth", "rms", "grad_rms"])

    # ----------------------------------------------------------------------------------- the report

    @torch.no_grad()
    def _write_report(self) -> Report:
        for name, value in self.model.named_buffers():
            if name in self._buffers and self._buffers[name].shape == value.shape:
                value.copy_(self._buffers[name])
        first, findings = self._run_again()
        path = self.folder / f"step-{self.step:06d}.png"
        title = f"{type(self.model).__name__}: step {self.step} is not finite"
        where = "" if first is None else f"first: {place_text('', 0, first.where)}"
        figure = clinic_figures.fig_failure(self.steps, self.layers, title, where)
        write_bytes(path, figure._repr_png_())
        return Report(
            step=self.step,
            first=first,
            steps=self.steps,
            layers=self.layers,
            findings=findings,
            checkpoint=self._save_weights(),
            picture=path,
        )

    def _save_weights(self) -> Path | None:
        """Write the model's state and return the file; return None if a weight is not finite."""
        if not all(weight.isfinite().all() for weight in self.model.parameters()):
            return None
        path = self.folder / f"step-{self.step:06d}.safetensors"
        state = {
            name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
            for name, value in self.model.state_dict().items()
            if isinstance(value, Tensor)  # a state dict may hold other objects as well
        }
        write_bytes(path, safetensors_torch.save(state, metadata_of(self.model)))
        return path

    def _run_again(self) -> tuple[NonFiniteValue | None, Symptoms]:
        """Run the last batch again, and return the first non-finite value and the findings.

        Weights, autocast and, on the CPU, dropout masks are the same as in the first run. Errors of
        the model's code are caught, so that the weights are still saved.
        """
        batch = self._batch
        number = 0.0 if batch.loss is None else float(batch.loss)

        def forward() -> tuple[Tensor, str]:
            output = batch.run()
            loss = getattr(output, "loss", None)
            if isinstance(loss, Tensor):
                return loss.mean(), "the model's own loss"
            # the derivative of this sum is the gradient that the output had
            value = first_tensor(output, skip_integers=True)
            return (value * batch.output_gradient).sum(), "the gradient of the model's output"

        try:
            diagnosis = examine(self.model, forward, known_loss=number)
        except Exception as error:
            reason = f"because the batch cannot be run again ({type(error).__name__}: {error})"
            return None, Symptoms([], [f"the first non-finite value, {reason}"])
        finally:
            self._batch = batch  # the hooks have replaced it by the second run
        first = diagnosis.first or diagnosis.first_gradient
        findings = diagnosis.findings
        if first is None and math.isfinite(number):
            findings = Symptoms(findings, [*findings.skipped, FINITE_AGAIN])
        return first, findings
