"""`watch`: stop a training before non-finite gradients reach the weights.

with clinic.watch(model, optimizer) as watched:
    for x, y in loader:
        loss = watched.loss(criterion(model(x), y))   # optional: also checks and records the loss
        optimizer.zero_grad(); loss.backward(); optimizer.step()

Gradients are checked just before the optimizer's step, when the weights are still finite. If the
check fails, the buffers (such as BN's running statistics) are first restored to their values after
the last finite step, because the batch may have changed the buffers. Then weights and buffers are
saved, unless the previous step has made a weight non-finite. The failed step is not made, so a
training loop may catch NonFinite and continue.

Cost per step: the L2 norms of each layer's output, of the output's gradient and of the gradients of
all weights, a copy of the buffers, and one synchronization with the device.
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
from mambanorm_clinic.symptoms import NonFiniteValue, Symptoms, tensor_name
from mambanorm_study.basics.atomic import writable_folder, write_bytes
from mambanorm_study.basics.settings import Later
from mambanorm_study.basics.text import plural

safetensors_torch = Later("safetensors.torch")
clinic_figures = Later("mambanorm_clinic.figures")  # imports matplotlib only when a figure is drawn

KEPT_STEPS = 64  # number of steps in a report's tables, up to and including the failed step
SHOWN_STEPS = 4  # number of steps that a report's text shows before the failed step
FINITE_AGAIN = (
    "the first non-finite value, because all values are finite when the last batch is run again; "
    "if gradients are accumulated, an earlier batch may have failed"
)
# Code that users can copy from the warning about weight decay. It selects parameters by the same
# condition as `_warn_of_decay`.
CODE_WITHOUT_DECAY = (
    "spared = {n for n, p in model.named_parameters() if p.dim() < 2 or 'A_log' in n or "
    "n.endswith('bias') or getattr(p, '_no_weight_decay', False)}; "
    "optimizer = torch.optim.AdamW([dict(params=[p for n, p in model.named_parameters() "
    "if n not in spared]), dict(params=[p for n, p in model.named_parameters() if n in spared], "
    "weight_decay=0.0)])"
)


@dataclass(frozen=True, eq=False)
class Report:
    """The record of a failed training step, in which the loss or a gradient was not finite.

    step: the number of the failed step, from 1; the step was not made. first: the first non-finite
    value or gradient in a second run of the last batch, None if all were finite. steps: a DataFrame
    of the last steps, the failed step included, with one row per step. Columns: step, loss (NaN if
    unknown), grad_norm (the L2 norm of all gradients). layers: a DataFrame of the same steps, with
    one row per step and layer. Columns: step, depth (from 1), rms (of the layer's output), grad_rms
    (the RMS of the output's gradient). findings: the faults that `diagnose` finds in the second
    run. checkpoint: the path of the file with the last finite weights, None if the weights were not
    finite. picture: the path of the figure.
    """

    step: int
    first: NonFiniteValue | None
    steps: pd.DataFrame
    layers: pd.DataFrame
    findings: Symptoms
    checkpoint: Path | None
    picture: Path

    @property
    def where(self) -> str:
        """Return the path of the first non-finite value (`first.where`), "" if `first` is None."""
        return "" if self.first is None else self.first.where

    def __str__(self) -> str:
        last = self.steps.iloc[-1]
        lines = [
            f"step {self.step} is not finite: loss {last.loss:.4g}, norm of the gradients "
            f"{last.grad_norm:.4g}"
        ]
        if self.first is not None:
            lines.append(f"first non-finite value: in {self.first}")
        norms = [f"{norm:.3g}" for norm in self.steps.grad_norm.iloc[-SHOWN_STEPS - 1 :]]
        lines.append(f"norm of the gradients in the last steps: {' → '.join(norms)}")
        if self.checkpoint is not None:
            lines.append(f"weights after step {self.step - 1}, finite: {self.checkpoint}")
        return "\n".join([*lines, f"picture: {self.picture}", repr(self.findings)])


class NonFinite(FloatingPointError):
    """The error that is raised instead of a step whose loss or gradients are not finite.

    report: the Report, which names the first non-finite value.
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
    """Return a context manager that checks loss and gradients before every step of `optimizer`.

    If the loss or a gradient is not finite, NonFinite is raised and the step is not made, so the
    model keeps its finite weights and buffers. Weights and buffers are written to
    `step-<n>.safetensors` in `folder`, and a figure of the preceding steps is written to
    `step-<n>.png`. The error's `report` (see `Report`) names the first non-finite value. To find
    this value, the last batch is run again. So if gradients are accumulated over batches, a failure
    in an earlier batch is noticed, but the first non-finite value of that batch is not found.

    With a GradScaler the scaled gradients are checked, except at steps that the scaler skips. With
    optimizer.step(closure), which Lightning and LBFGS use, the check runs after each call of the
    closure. A warning is given if weight decay acts on A_log, D, norms or biases.

    optimizer: a torch optimizer, or a wrapper that has the torch optimizer as its attribute
    `optimizer`, as in accelerate and Lightning. Raises TypeError for any other object, and
    ValueError if `model` is not a torch.nn.Module.
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
    """Return a callback for Hugging Face's Trainer(…, callbacks=[…]) with the checks of `watch`.

    At the first step with a non-finite loss or gradient, the callback prints the report, drops the
    gradients, so that the model keeps its finite weights, and ends the training. Until that step
    the callback's attribute `report` is None; afterwards it is the Report. Needs transformers.
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
            except NonFinite as error:
                self.report = error.report
                print(self.report)
                self.watched.model.zero_grad(set_to_none=True)
                control.should_training_stop = True

        def on_train_end(self, args, state, control, **_):
            self.watched.__exit__()

    return ClinicCallback()


def _warn_of_decay(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Give a warning if the optimizer's weight decay acts on A_log, D, norms or biases."""
    groups = [group for group in optimizer.param_groups if group.get("weight_decay")]
    decays = {id(weight): group["weight_decay"] for group in groups for weight in group["params"]}
    wrongly_decayed = [
        (name, decays[id(weight)])
        for name, weight in model.named_parameters()
        if id(weight) in decays
        and (
            weight.dim() < 2
            or "A_log" in name
            or name.endswith("bias")
            or getattr(weight, "_no_weight_decay", False)
        )
    ]
    if wrongly_decayed:
        name, decay = wrongly_decayed[0]
        warnings.warn(
            f"weight decay ({decay:g}) acts on {plural(len(wrongly_decayed), 'parameter')} among "
            f"A_log, D, norms and biases (the first is {name}) and pulls A to −1, D and other "
            "scales to 0 (in small models we saw no cost for A and D: notebook 16, Q1); instead: "
            f"{CODE_WITHOUT_DECAY}",
            stacklevel=3,
        )


@dataclass
class Batch:
    """The measurements of the last batch, and a function that runs this batch again.

    run(): calls the model on the batch, with the same random state and autocast, and returns the
    output. loss: the loss, None if it is unknown. output_gradient: the gradient of the model's
    output, 0.0 before the backward pass. rms, grad_rms: map the depth of each layer to the RMS of
    the layer's output, and to the RMS of the gradient of the layer's output.
    """

    run: Callable[[], object] = lambda: None
    loss: Tensor | None = None
    output_gradient: Tensor | float = 0.0
    rms: dict[int, Tensor] = field(default_factory=dict)
    grad_rms: dict[int, Tensor] = field(default_factory=dict)


class Watched:
    """The context manager that `watch` returns. It checks a model while the model trains.

    report: the Report of the last failed step, None if no step has failed. step: the number of
    steps that were made. optimizer: None means that `check` is not called automatically; the caller
    must call `check` before each step.
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
        self._buffers: dict[str, Tensor] = {}  # copied at the last finite step

    def __enter__(self) -> Watched:
        self._hooks.append(
            self.model.register_forward_pre_hook(self._before_forward, with_kwargs=True)
        )
        for depth, layer in enumerate(self._layers, 1):
            self._hooks.append(layer.register_forward_hook(partial(self._after_layer, depth)))
        self._hooks.append(self.model.register_forward_hook(self._after_forward))
        self._buffers = deepcopy(dict(self.model.named_buffers()))
        if self.optimizer is not None:
            self._hooks.append(self.optimizer.register_step_pre_hook(self._before_step))
            _warn_of_decay(self.model, self.optimizer)
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._batch = Batch()  # frees the inputs of the last batch

    def loss(self, value: Tensor) -> Tensor:
        """Record the loss, so that it is checked and reported, and return it unchanged.

        This call is not needed if the model's output has the loss as its attribute `loss`. Raises
        ValueError unless the loss is a tensor of one number.
        """
        check_loss(value)
        self._batch.loss = value.detach()
        return value

    # ------------------------------------------------------------------------------------ the hooks

    def _before_forward(self, _model: nn.Module, args: tuple, kwargs: dict) -> None:
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

    def _after_layer(self, depth: int, _layer: nn.Module, _args: tuple, output: object) -> None:
        value = first_tensor(output)
        batch = self._batch
        # an output without a gradient comes from a frozen layer or from an evaluation
        if value is None or not value.requires_grad:
            return
        root = math.sqrt(max(value.numel(), 1))
        batch.rms[depth] = torch.linalg.vector_norm(value.detach().float()) / root

        def keep_gradient(grad: Tensor | None) -> None:
            if grad is not None:
                batch.grad_rms[depth] = torch.linalg.vector_norm(grad.float()) / root

        if not value.is_leaf:  # not on a weight that the layer returns: the hook would stay there
            value.register_hook(keep_gradient)

    def _after_forward(self, _model: nn.Module, _args: tuple, output: object) -> None:
        loss = getattr(output, "loss", None)
        if isinstance(loss, Tensor) and loss.requires_grad:
            self._batch.loss = loss.detach().mean()  # DataParallel returns one loss per device
        value = first_tensor(output, skip_integers=True)
        if value is not None and value.requires_grad:
            value.register_hook(partial(setattr, self._batch, "output_gradient"))

    def _before_step(self, _optimizer, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        """Check the gradients before `optimizer.step(*args[1:], **kwargs)`.

        If `step` gets a closure, which computes the gradients later, return new arguments for
        `step`, in which the closure also checks the gradients. args[0] is the optimizer.
        """
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if callable(closure):
            return args[:1], {"closure": partial(self._call_and_check, closure, self.step)}
        # if GradScaler has found infinities, it still calls a fused optimizer, which makes no step
        if not getattr(self.optimizer, "found_inf", False):
            self.check()
        return None

    def _call_and_check(self, closure: Callable, step: int) -> object:
        """Call the closure, check the gradients, and return the closure's value.

        step: the number of steps made before this one. An optimizer may call the closure several
        times in one step; these calls count as one step.
        """
        value = closure()
        if self._batch.loss is None and isinstance(value, Tensor) and value.numel() == 1:
            self._batch.loss = value.detach()
        self.step = step
        self.check()
        return value

    # ---------------------------------------------------------------------------- check of a step

    def check(self) -> None:
        """Raise NonFinite if the loss or a gradient of the current step is not finite.

        Call this method between `backward` and the optimizer's step. If Watched was created with an
        optimizer, this method is called automatically.
        """
        self.step += 1
        grads = [weight.grad for weight in self.model.parameters() if weight.grad is not None]
        grads = [grad.coalesce().values() if grad.is_sparse else grad for grad in grads]
        # float64, because in float32 the squares of large gradients would overflow
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
        self.step -= 1  # because this step is not made
        raise NonFinite(self.report)

    @property
    def steps(self) -> pd.DataFrame:
        """Return a DataFrame of the last steps, one row per step.

        The columns are those of `Report.steps`.
        """
        return pd.DataFrame(list(self._history), columns=["step", "loss", "grad_norm"])

    @property
    def layers(self) -> pd.DataFrame:
        """Return a DataFrame of the last steps, one row per step and layer.

        The columns are those of `Report.layers`.
        """
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
        where = "" if first is None else f"first in {tensor_name('', 0, first.where)}"
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
        """Write the model's state dict to a file, and return the path of the file.

        If a weight is not finite, no file is written and the result is None.
        """
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
        """Run the last batch again, and return a tuple (first, faults).

        first: the first non-finite value of this run, None if there is none. faults: the Symptoms
        that `diagnose` finds.

        Weights, autocast and, on the CPU, dropout masks are the same as in the first run. Errors in
        the second run are caught, so that the weights are still saved.
        """
        batch = self._batch
        loss_value = 0.0 if batch.loss is None else float(batch.loss)

        def forward() -> tuple[Tensor, str]:
            output = batch.run()
            loss = getattr(output, "loss", None)
            if isinstance(loss, Tensor):
                return loss.mean(), "the model's own loss"
            # the sum has the same gradient with respect to the output as the loss had
            value = first_tensor(output, skip_integers=True)
            return (value * batch.output_gradient).sum(), "the gradient of the model's output"

        try:
            diagnosis = examine(self.model, forward, known_loss=loss_value)
        except Exception as error:
            reason = f"because the batch cannot be run again ({type(error).__name__}: {error})"
            return None, Symptoms([], [f"the first non-finite value, {reason}"])
        finally:
            self._batch = batch  # in the second run the hooks have replaced self._batch
        first = diagnosis.first or diagnosis.first_gradient
        findings = diagnosis.findings
        if first is None and math.isfinite(loss_value):
            findings = Symptoms(findings, [*findings.skipped, FINITE_AGAIN])
        return first, findings
