"""Watch a training, and stop it before a non-finite gradient reaches the weights.

with clinic.watch(model, optimizer) as watched:
    for x, y in loader:
        loss = watched.loss(criterion(model(x), y))   # the call of `loss` may be left out
        optimizer.zero_grad(); loss.backward(); optimizer.step()

Gradients are checked just before the optimizer's step. So when one is not finite, the weights still
are. The batch has changed the buffers (a BN's running statistics), so these are restored; then both
are saved. Only if the previous step made the weights infinite is there nothing left to save. A loop
may catch NonFinite and continue: the step was not made, and the next one is watched.

Cost of a step: the L2 norm of each layer's output and of its gradient, of all gradients, a copy of
the buffers, and one wait for the device.
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

KEPT_STEPS = 64  # steps before a failure that a report shows
SHOWN_STEPS = 4  # of these, the steps that its text shows
FINITE_AGAIN = (
    "the first non-finite value, because all values are finite when the last batch is run again. "
    "If gradients are accumulated, an earlier batch may have failed; if the model returns no loss, "
    "clinic.diagnose with the loss finds the first non-finite gradient"
)
# Code for the reader, with the same condition as `_warn_of_decay`.
UNDECAYED_GROUPS = (
    "spared = {n for n, p in model.named_parameters() if p.dim() < 2 or 'A_log' in n or "
    "n.endswith('bias') or getattr(p, '_no_weight_decay', False)}; "
    "optimizer = torch.optim.AdamW([dict(params=[p for n, p in model.named_parameters() "
    "if n not in spared]), dict(params=[p for n, p in model.named_parameters() if n in spared], "
    "weight_decay=0.0)])"
)


@dataclass(frozen=True, eq=False)
class Report:
    """The record of a training step that was not finite.

    step: the number of the optimizer's step, from 1, that was not made. first: the first non-finite
    value or gradient when the batch is run again, None if there was none. steps: step, loss (NaN if
    unknown), grad_norm. layers: step, depth (from 1), rms of the layer's output, grad_rms.
    checkpoint: the weights of the last finite step, None if these are lost.
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
        last, norms = self.steps.iloc[-1], self.steps.grad_norm.iloc[-SHOWN_STEPS - 1 :]
        lines = (
            f"step {self.step} is not finite: loss {last.loss:.4g}, norm of the gradients "
            f"{last.grad_norm:.4g}",
            f"first: {self.first}" if self.first else "",
            f"norm of the gradients in the last steps: {' → '.join(map('{:.3g}'.format, norms))}",
            f"weights after step {self.step - 1}, finite: {self.checkpoint}"
            if self.checkpoint
            else "",
            f"picture: {self.picture}",
            repr(self.findings),
        )
        return "\n".join(filter(None, lines))


class NonFinite(FloatingPointError):
    """Raised instead of an optimizer's step that would spread a non-finite gradient.

    `report` says where it began.
    """

    def __init__(self, report: Report):
        super().__init__(str(report))
        self.report = report


def watch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    folder: str | Path = "clinic",
) -> Watched:
    """Return a context manager that watches every step of `optimizer` while it is open.

    When the loss or a gradient is not finite, it writes the weights of the last finite step
    (`step-<n>.safetensors`) and a picture of the steps before (`step-<n>.png`) into `folder`, and
    raises NonFinite instead of making the step: the model keeps its finite weights and buffers, and
    `error.report` has the first non-finite site and the frames. With a GradScaler the scaled
    gradients are checked, at the steps that the scaler does not skip. All accumulated gradients are
    checked, but only the last batch is run again to find where the failure began.
    optimizer.step(closure), as Lightning and LBFGS call it, is checked after each call of the
    closure and before the weights move. A warning is given if weight decay acts on A_log, D, norms
    or biases.

    optimizer: of torch, or a wrapper with the real one as `.optimizer` (accelerate's, Lightning's).
    Raises TypeError if there is no optimizer of torch, and ValueError if the model is no module.
    """
    inner = optimizer
    while hasattr(inner, "optimizer"):
        inner = inner.optimizer
    if not isinstance(inner, torch.optim.Optimizer):
        raise TypeError(
            "optimizer must be a torch.optim.Optimizer, or have one as .optimizer, got "
            f"{shown(optimizer)}"
        )
    return Watched(model, inner, folder)


def trainer_callback(*, folder: str | Path = "clinic"):
    """Return `watch` as a callback for Hugging Face: Trainer(…, callbacks=[…]).

    At the first step that is not finite it prints the report, drops that step's gradients, so that
    the model keeps its finite weights, and ends the training. `callback.report` is None until then.
    Needs transformers.
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
            f"D, norms and biases (the first is {name}) and pulls decay rates, step sizes and "
            f"scales towards 0; instead: {UNDECAYED_GROUPS}",
            stacklevel=3,
        )


@dataclass
class Batch:
    """The last batch: what was measured, and how to run it again.

    run(): calls the model again, with the same random state and autocast. loss: None if it is not
    known. rms, grad_rms: of the output of each layer and of its gradient.
    """

    run: Callable[[], object] = lambda: None
    loss: Tensor | None = None
    rms: dict[int, Tensor] = field(default_factory=dict)
    grad_rms: dict[int, Tensor] = field(default_factory=dict)


class Watched:
    """A model that is watched while it trains (see `watch`).

    report: of the last step that was not finite, else None. step: the number of steps that were
    made. Without an optimizer, call `check` before each step.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer | None, folder: str | Path
    ):
        self.model, self.optimizer = model, optimizer
        self.folder = writable_folder(folder, "the report")
        self.report: Report | None = None
        self.step = 0
        self._history: deque[dict] = deque(maxlen=KEPT_STEPS)
        self._layers = layers_of(model)
        self._hooks, self._batch, self._buffers = [], Batch(), {}

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
        self._hooks, self._batch, self._buffers = [], Batch(), {}

    def loss(self, value: Tensor) -> Tensor:
        """Note the loss and return it; only needed if the model does not return it as `.loss`.

        Raises ValueError unless it is a tensor of one number.
        """
        check_loss(value)
        self._batch.loss = value.detach()
        return value

    # ------------------------------------------------------------------------------------ the hooks

    def _begin(self, _model: nn.Module, args: tuple, kwargs: dict) -> None:
        if not torch.is_grad_enabled():
            return
        device = next((weight.device.type for weight in self.model.parameters()), "cpu")
        dtype, casts = torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
        random_state = torch.get_rng_state()

        def run() -> object:
            torch.set_rng_state(random_state)
            with torch.autocast(device, dtype, enabled=casts), run_eagerly():
                return self.model(*args, **kwargs)

        self._batch = Batch(run)

    def _on_layer(self, depth: int, _layer: nn.Module, _args: tuple, output: object) -> None:
        value, batch = first_tensor(output), self._batch
        # without a gradient the layer is frozen, or this is an evaluation
        if value is None or not value.requires_grad:
            return
        root = math.sqrt(max(value.numel(), 1))
        batch.rms[depth] = torch.linalg.vector_norm(value.detach().float()) / root

        def keep_gradient(grad: Tensor | None) -> None:
            if grad is not None:
                batch.grad_rms[depth] = torch.linalg.vector_norm(grad.float()) / root

        if not value.is_leaf:  # a weight that the layer returns would keep the hook
            value.register_hook(keep_gradient)

    def _end(self, _model: nn.Module, _args: tuple, output: object) -> None:
        loss = getattr(output, "loss", None)
        if isinstance(loss, Tensor) and loss.requires_grad:
            self._batch.loss = loss.detach().mean()  # DataParallel returns one for each device

    def _before_step(self, _optimizer, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        """Check the gradients, or replace a closure by one that checks the gradients it computes.

        args[0] is the optimizer.
        """
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if callable(closure):
            return args[:1], {"closure": partial(self._call_and_check, closure, self.step)}
        # a fused optimizer is called, but makes no step, if its GradScaler has found infinities
        if not getattr(self.optimizer, "found_inf", False):
            self.check()
        return None

    def _call_and_check(self, closure: Callable, step: int) -> object:
        """Call the closure, then check; the calls of one step (LBFGS makes several) count once."""
        value = closure()
        if self._batch.loss is None and isinstance(value, Tensor) and value.numel() == 1:
            self._batch.loss = value.detach()
        self.step = step
        self.check()
        return value

    # ---------------------------------------------------------------------------------- the numbers

    def check(self) -> None:
        """Raise NonFinite, with the report, if the loss or a gradient of this step is not finite.

        Call it between backward and the optimizer's step, unless an optimizer was given.
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
            # copied after each step, because a forward pass in train mode changes a BN's
            self._buffers = deepcopy(dict(self.model.named_buffers()))
            return
        self.report = self._write_report()
        self.step -= 1  # this step is not made
        raise NonFinite(self.report)

    @property
    def steps(self) -> pd.DataFrame:
        """Return step, loss (NaN if unknown) and grad_norm of the last steps."""
        return pd.DataFrame(list(self._history), columns=["step", "loss", "grad_norm"])

    @property
    def layers(self) -> pd.DataFrame:
        """Return step, depth (from 1), rms and grad_rms of the layers in the last steps."""
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
        """Write the model's state if it is finite; tied weights under each of their names."""
        if not all(weight.isfinite().all() for weight in self.model.parameters()):
            return None
        path = self.folder / f"step-{self.step:06d}.safetensors"
        state = {
            name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
            for name, value in self.model.state_dict().items()
            if isinstance(value, Tensor)  # a module may keep other things in its state
        }
        write_bytes(path, safetensors_torch.save(state, metadata_of(self.model)))
        return path

    def _run_again(self) -> tuple[NonFiniteValue | None, Symptoms]:
        """Run the last batch again, and return its first non-finite value and the findings.

        Weights, autocast and dropout masks are those of the first time (on a GPU dropout draws new
        masks). Errors of the model's code are caught, so that the weights are still saved.
        """
        batch = self._batch
        number = 0.0 if batch.loss is None else float(batch.loss)

        def forward() -> tuple[Tensor, str]:
            loss = getattr(batch.run(), "loss", None)
            if isinstance(loss, Tensor):
                return loss.mean(), "the model's own loss"
            return torch.zeros(()), "a loss that the model does not return"

        try:
            diagnosis = examine(self.model, forward, known_loss=number)
        except Exception as error:
            reason = f"because the batch cannot be run again ({type(error).__name__}: {error})"
            return None, Symptoms([], [f"the first non-finite value, {reason}"])
        finally:
            self._batch = batch  # the hooks wrote to another one meanwhile
        first, findings = diagnosis.first or diagnosis.first_gradient, diagnosis.findings
        if first is None and math.isfinite(number):
            findings = Symptoms(findings, [*findings.skipped, FINITE_AGAIN])
        return first, findings
