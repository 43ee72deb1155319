"""Watch a training, and stop it before a non-finite gradient reaches the weights.

with clinic.watch(model, optimizer) as watched:
    for x, y in loader:
        loss = watched.loss(criterion(model(x), y))   # the call of `loss` may be left out
        optimizer.zero_grad(); loss.backward(); optimizer.step()

The check comes just before the optimizer's step. So when a gradient is not finite, the weights
still are. The batch has changed the buffers (a BN's running statistics), and these are restored;
then both are saved: the last finite step, at no cost. Only if the step before made the weights
infinite there is nothing left to save. A loop may catch NonFinite and continue: the step was not
made, and the next one is watched.

Cost of a step: the L2 norm of each layer's output and of its gradient, of all gradients, a copy of
the buffers, and one wait for the device.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.errors import shown
from mambanorm.inside import preserve_state
from mambanorm_clinic.calling import (
    first_tensor,
    preserve_random_state,
    run_eagerly,
    tensors_in,
    vector_norm,
)
from mambanorm_clinic.checkpoints import metadata_of
from mambanorm_clinic.diagnosis import (
    WEIGHT_COLUMNS,
    NonFinite,
    Report,
    check_loss,
    is_in_bfloat16,
)
from mambanorm_clinic.mixers import decay_symptoms
from mambanorm_clinic.rules import PassRecord, find_symptoms
from mambanorm_clinic.sites import COLUMNS, PassRecorder, layers_of, places_of
from mambanorm_clinic.surgery import sites_for_norms
from mambanorm_clinic.symptoms import NonFiniteValue, Symptoms, place_text
from mambanorm_study.basics.atomic import writable_folder, write_bytes
from mambanorm_study.basics.settings import Later

safetensors_torch = Later("safetensors.torch")
clinic_figures = Later("mambanorm_clinic.figures")  # matplotlib is loaded when a picture is drawn

# Steps before a failure that are kept.
KEPT_STEPS = 64
FINITE_AGAIN = (
    "where it began: the last batch is finite when it is run again; of accumulated gradients it "
    "may be another's"
)


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
    `error.report` has the first non-finite site and the frames. With a GradScaler it sees the
    scaled gradients of the steps that the scaler makes, and nothing of those that it skips. All
    accumulated gradients are checked, but only the last batch is run again to find where the
    failure began. optimizer.step(closure), as Lightning and LBFGS call it, is checked after each
    call of the closure and before the weights move. A warning is given if weight decay acts on
    A_log, D, norms or biases (see `findings`).

    optimizer: of torch, or a wrapper with the real one as `.optimizer` (accelerate's, Lightning's).
    Raises TypeError for what is no module or optimizer; ValueError for an optimizer of another
    model.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {shown(model)}")
    optimizer = torch_optimizer(optimizer)
    stepped = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    if stepped.isdisjoint(map(id, model.parameters())):
        raise ValueError(
            "the optimizer steps no parameter of the model: give the optimizer that trains it"
        )
    return Watched(model, optimizer, folder)


def torch_optimizer(optimizer: object) -> torch.optim.Optimizer:
    """Return the torch optimizer inside any wrappers: it has the hooks around `step`.

    Raises TypeError if there is none.
    """
    inner = optimizer
    while isinstance(getattr(inner, "optimizer", None), torch.optim.Optimizer):
        inner = inner.optimizer
    if isinstance(inner, torch.optim.Optimizer) and hasattr(inner, "_optimizer_step_pre_hooks"):
        return inner
    raise TypeError(
        "optimizer must be a torch.optim.Optimizer, or have one as .optimizer, got "
        f"{shown(optimizer)}: give the optimizer that it wraps"
    )


def trainer_callback(*, folder: str | Path = "clinic"):
    """Return `watch` as a callback of Hugging Face: Trainer(…, callbacks=[…]).

    At the first step that is not finite it prints the report, drops that step's gradients, so that
    the model keeps its finite weights, and ends the training. `callback.report` is None until then.
    Needs transformers.
    """
    from transformers import TrainerCallback

    class ClinicCallback(TrainerCallback):
        report: Report | None = None

        def on_train_begin(self, args, state, control, model=None, optimizer=None, **_):
            self.watched = Watched(model, None, folder).__enter__()
            self.watched.warn_of_decay(optimizer)

        def on_pre_optimizer_step(self, args, state, control, model=None, **_):
            self.report = self.watched.check()
            if self.report is not None:
                print(self.report)
                self.watched.model.zero_grad(set_to_none=True)
                control.should_training_stop = True
            return control

        def on_train_end(self, args, state, control, **_):
            self.watched.__exit__()

    return ClinicCallback()


@dataclass
class Batch:
    """The last batch, kept so that it can be run again and its step described.

    args, kwargs: of the model's call. random_state: torch's before it. autocast: returns the
    context in which the model was called. loss: None if it is not known. output_gradient: the
    gradient of the model's output. outputs: layer → L2 norm and number of values. gradients: layer
    → L2 norm.
    """

    args: tuple = ()
    kwargs: dict = field(default_factory=dict)
    random_state: Tensor | None = None
    autocast: Callable[[], AbstractContextManager] = nullcontext
    loss: Tensor | None = None
    output_gradient: Tensor | None = None
    outputs: dict[int, tuple[Tensor, int]] = field(default_factory=dict)
    gradients: dict[int, Tensor] = field(default_factory=dict)

    @property
    def known_loss(self) -> float:
        """Return the loss as a number, 0 if it is not known."""
        return 0.0 if self.loss is None else float(self.loss)


@dataclass(frozen=True)
class Step:
    """One of the last steps, which the watch keeps.

    number, loss (NaN if unknown), L2 norm of all gradients; outputs and gradients as in Batch.
    """

    number: int
    loss: float
    grad_norm: float
    outputs: dict[int, tuple[Tensor, int]]
    gradients: dict[int, Tensor]


class Watched:
    """A model that is watched while it trains (see `watch`).

    report: the last one, None while all steps are finite. findings: faults of the optimizer's
    groups. Without an optimizer call `check` by hand.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        folder: str | Path,
    ):
        self.model, self.optimizer = model, optimizer
        self.folder = writable_folder(folder, "the report")
        self.layers = layers_of(model)
        self.ring: deque[Step] = deque(maxlen=KEPT_STEPS)
        self.report: Report | None = None
        self.findings = Symptoms([])
        self.step = 0
        self._hooks: list = []
        self._buffers: dict[str, Tensor] = {}
        self._batch = Batch()
        self._is_first_batch = True  # of a step that may accumulate gradients
        self._running_again = False

    def __enter__(self) -> Watched:
        self._hooks.append(self.model.register_forward_pre_hook(self._begin, with_kwargs=True))
        for i, (_, layer) in enumerate(self.layers):
            self._hooks.append(layer.register_forward_hook(partial(self._on_layer, i)))
        self._hooks.append(self.model.register_forward_hook(self._end))
        if self.optimizer is not None:
            self._hooks.append(self.optimizer.register_step_pre_hook(self._before_step))
            self.warn_of_decay(self.optimizer)
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._batch = Batch()
        self._buffers = {}

    def warn_of_decay(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Warn if weight decay acts on parameters that it should leave alone; see `findings`."""
        self.findings = Symptoms([] if optimizer is None else decay_symptoms(self.model, optimizer))
        for symptom in self.findings:
            warnings.warn(f"{symptom.message}; instead: {symptom.advice}", stacklevel=3)

    def loss(self, value: Tensor) -> Tensor:
        """Note the loss and return it; only needed if the model does not return it as `.loss`.

        Raises ValueError unless it is a tensor of one number.
        """
        check_loss(value)
        self._batch.loss = value.detach()
        return value

    # ------------------------------------------------------------------------------------ the hooks

    def _begin(self, _model: nn.Module, args: tuple, kwargs: dict) -> None:
        if not torch.is_grad_enabled() or self._running_again:
            return
        device = next((weight.device.type for weight in self.model.parameters()), "cpu")
        autocast = partial(
            torch.autocast,
            device,
            enabled=torch.is_autocast_enabled(device),
            dtype=torch.get_autocast_dtype(device),
        )
        self._batch = Batch(args, kwargs, torch.get_rng_state(), autocast)
        if self._is_first_batch:  # copy all buffers, since torch's BN changes them unnoticed
            self._buffers = {
                name: value.detach().clone() for name, value in self.model.named_buffers()
            }
            self._is_first_batch = False

    def _on_layer(self, i: int, _layer: nn.Module, _args: tuple, output: object) -> None:
        value = first_tensor(output)
        # a value without gradient is that of a frozen layer, or of an evaluation in between
        if self._running_again or value is None or not value.requires_grad:
            return
        batch = self._batch
        batch.outputs[i] = vector_norm(value.detach()), value.numel()
        if value.is_leaf:  # a weight that the layer returns would keep the hook
            return

        def keep_gradient(grad: Tensor | None) -> None:
            if grad is not None:
                batch.gradients[i] = vector_norm(grad)

        value.register_hook(keep_gradient)

    def _end(self, _model: nn.Module, _args: tuple, output: object) -> None:
        if self._running_again or not torch.is_grad_enabled():
            return
        loss, batch = getattr(output, "loss", None), self._batch
        if isinstance(loss, Tensor):
            batch.loss = loss.detach().mean()  # DataParallel returns one number a device
            return
        value = _first_with_gradient(output)
        if value is not None and not value.is_leaf:
            value.register_hook(lambda grad: setattr(batch, "output_gradient", grad))

    def _before_step(self, _optimizer, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        """Check the gradients; if a closure is yet to compute them, replace it by one that checks
        them afterwards.
        """
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._checking(kwargs["closure"])}
        if len(args) > 1 and callable(args[1]):  # args[0] is the optimizer
            return (args[0], self._checking(args[1]), *args[2:]), kwargs
        self._check_or_raise()
        return None

    def _checking(self, closure: Callable) -> Callable:
        """Return the closure with a check after each call; its calls in one step count as one."""
        step = self.step

        def checked() -> object:
            value = closure()
            if self._batch.loss is None and isinstance(value, Tensor) and value.numel() == 1:
                self._batch.loss = value.detach()
            self.step = step
            self._check_or_raise()
            return value

        return checked

    def _check_or_raise(self) -> None:
        # a fused optimizer is called, but makes no step, if its GradScaler has found infinities
        skipped = getattr(self.optimizer, "found_inf", None)
        if skipped is not None and float(skipped):
            return
        report = self.check()
        if report is not None:
            raise NonFinite(report)

    # ---------------------------------------------------------------------------------- the numbers

    def check(self) -> Report | None:
        """Return the report of this step, None if it is finite.

        Call it between backward and the optimizer's step, unless an optimizer was given.
        """
        self.step += 1
        self._is_first_batch = True
        grads = [weight.grad for weight in self.model.parameters() if weight.grad is not None]
        grads = [grad.coalesce().values() if grad.is_sparse else grad for grad in grads]
        # in float64 no square of a float32 overflows
        norms = [vector_norm(grad, torch.float64) for grad in grads]
        loss = torch.tensor(math.nan) if self._batch.loss is None else self._batch.loss
        device = norms[0].device if norms else None
        numbers = [number.reshape(()).to(device, torch.float64) for number in [*norms, loss]]
        *norms, loss = torch.stack(numbers).tolist()  # waits for the device once
        grad_norm = math.hypot(*norms)
        outputs, gradients = self._batch.outputs, self._batch.gradients
        self.ring.append(Step(self.step, loss, grad_norm, outputs, gradients))
        if math.isfinite(grad_norm) and (self._batch.loss is None or math.isfinite(loss)):
            return None
        self.report = self._write_report()
        self.step -= 1  # this step is not made
        return self.report

    @property
    def steps(self) -> pd.DataFrame:
        """Return step, loss (NaN if unknown) and grad_norm of the steps in the ring."""
        rows = [(step.number, step.loss, step.grad_norm) for step in self.ring]
        return pd.DataFrame(rows, columns=["step", "loss", "grad_norm"])

    @property
    def by_layer(self) -> pd.DataFrame:
        """Return step, depth (from 1), layer, rms and grad_rms of the steps in the ring."""
        rows = []
        for step in self.ring:
            for i, (norm, count) in step.outputs.items():
                grad_norm = float(step.gradients.get(i, math.nan))
                rms, grad_rms = float(norm) / math.sqrt(count), grad_norm / math.sqrt(count)
                rows.append((step.number, i + 1, self.layers[i][0], rms, grad_rms))
        return pd.DataFrame(rows, columns=["step", "depth", "layer", "rms", "grad_rms"])

    # ----------------------------------------------------------------------------------- the report

    @torch.no_grad()
    def _write_report(self) -> Report:
        self._restore_buffers()
        lost = [name for name, w in self.model.named_parameters() if not w.isfinite().all()]
        recorder, reason, checkpoint = PassRecorder(), "", None
        if lost:
            first = NonFiniteValue(lost[0])
        else:
            recorder, reason = self._run_again()
            first = recorder.first or recorder.first_gradient
            checkpoint = self._save_weights()
        with self._batch.autocast():
            float16 = not is_in_bfloat16(self.model)
        lost_rows = [{"weight": name, "shape": (), "nonfinite": 1.0} for name in lost]
        record = PassRecord(
            table=pd.DataFrame(recorder.rows if first else [], columns=COLUMNS),
            weights=pd.DataFrame(lost_rows, columns=WEIGHT_COLUMNS),
            first=recorder.first,
            first_gradient=recorder.first_gradient,
            loss=0.0 if lost or reason else self._batch.known_loss,
            skipped=[reason] if reason else [],
            norm_sites=sites_for_norms(self.model),
            largest=recorder.largest,
            float16=float16,
        )
        return Report(
            step=self.step,
            first=first,
            backward=first is not None and first is recorder.first_gradient,
            steps=self.steps,
            layers=self.by_layer,
            findings=find_symptoms(record),
            checkpoint=checkpoint,
            picture=self._draw(first),
        )

    def _restore_buffers(self) -> None:
        for name, value in self.model.named_buffers():
            if name in self._buffers and self._buffers[name].shape == value.shape:
                value.copy_(self._buffers[name])

    def _save_weights(self) -> Path:
        """Write the model's state; tied weights under each of their names, so that it loads."""
        path = self.folder / f"step-{self.step:06d}.safetensors"
        state = {
            name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
            for name, value in self.model.state_dict().items()
            if isinstance(value, Tensor)  # a module may keep other things in its state
        }
        write_bytes(path, safetensors_torch.save(state, metadata_of(self.model)))
        return path

    def _draw(self, first: NonFiniteValue | None) -> Path:
        path = self.folder / f"step-{self.step:06d}.png"
        title = f"{type(self.model).__name__}: step {self.step} is not finite"
        caption = "no site is not finite when the batch runs again"
        if first is not None:
            caption = f"first: {place_text('', 0, first.where)}"
        figure = clinic_figures.fig_failure(self.steps, self.by_layer, title, caption)
        write_bytes(path, figure._repr_png_())
        return path

    def _run_again(self) -> tuple[PassRecorder, str]:
        """Run the last batch again and return its record, and why the failure did not recur or "".

        Weights, autocast and dropout masks are those of the first time (on a GPU dropout draws new
        masks). Errors of the model's code are caught, so that the weights are still saved.
        """
        recorder = PassRecorder(places_of(self.model), own_sites=True)
        self._running_again = True
        try:
            with (
                preserve_random_state(),
                preserve_state(self.model),
                recorder.recording(self.model),
                torch.enable_grad(),
            ):
                self._forward_and_backward(recorder)
        except Exception as error:
            reason = f"the batch runs no second time, {type(error).__name__}: {error}"
            return PassRecorder(), f"where it began: {reason}"
        finally:
            self._running_again = False
        failed = recorder.first or recorder.first_gradient
        is_finite = not failed and math.isfinite(self._batch.known_loss)
        return recorder, FINITE_AGAIN if is_finite else ""

    def _forward_and_backward(self, recorder: PassRecorder) -> None:
        """Run the last batch, backward from the gradient that the output had.

        If the loss itself is not finite, its gradient says nothing.
        """
        batch = self._batch
        torch.set_rng_state(batch.random_state)
        with batch.autocast(), run_eagerly():
            output = self.model(*batch.args, **batch.kwargs)
        recorder.end_forward(batch.known_loss)
        if recorder.first is not None or not math.isfinite(batch.known_loss):
            return
        loss = getattr(output, "loss", None)
        value = loss if isinstance(loss, Tensor) else _first_with_gradient(output)
        if value is None or (batch.output_gradient is None and value.numel() != 1):
            return
        weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        torch.autograd.grad(value, weights, grad_outputs=batch.output_gradient, allow_unused=True)


def _first_with_gradient(output: object) -> Tensor | None:
    return next((tensor for tensor in tensors_in(output) if tensor.requires_grad), None)
