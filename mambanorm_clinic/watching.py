"""`watch`: a training loop under observation; `trainer_callback`: the same for Hugging Face's
Trainer.

with clinic.watch(model, optimizer) as watched:
    for x, y in loader:
        loss = watched.loss(criterion(model(x), y))   # the call of `loss` may be left out
        optimizer.zero_grad(); loss.backward(); optimizer.step()

It looks just before the optimizer's step. So when a gradient is not finite the weights still are.
The batch has left its traces in the buffers (a BN's running statistics), and these are put back;
then both are written as they stand: the last finite step, at no cost. Only where the step before
made the weights themselves infinite is nothing left to write. A loop may catch NonFinite and go on:
the step was not made, and the next is watched.

What it costs a step: one norm of each layer's output and of its gradient, one norm of all
gradients, a copy of the buffers, and one wait for the device.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.checks import check_size
from mambanorm.errors import shown
from mambanorm.inside import preserve_state
from mambanorm_clinic.calling import (
    eagerly,
    first_tensor,
    norm_of,
    preserve_random_state,
    tensors_in,
)
from mambanorm_clinic.checkpoints import metadata_of
from mambanorm_clinic.diagnosis import WEIGHTS, NonFinite, Report, check_loss, in_bfloat16
from mambanorm_clinic.findings import First, Symptoms, findings_of, named
from mambanorm_clinic.mixers import decayed
from mambanorm_clinic.sites import COLUMNS, Pass, layers_of, places_of
from mambanorm_clinic.surgery import sites_for_norms
from mambanorm_study.basics.atomic import writable_folder, write_bytes
from mambanorm_study.basics.settings import Later

safetensors_torch = Later("safetensors.torch")
pictures = Later(
    "mambanorm_clinic.figures"
)  # of what is found, drawn by a room above where they are asked for

NOT_MET = "where it began: the last batch is finite when it is run again; of accumulated gradients it may be another's"


def watch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    ring: int = 64,
    folder: str | Path = "clinic",
) -> Watched:
    """A context manager that watches every step of `optimizer` while it is open.

    When the loss or a gradient is not finite it writes the weights of the last finite step
    (`step-<n>.safetensors`) and a picture of the steps before (`step-<n>.png`) into `folder`, and
    raises NonFinite in place of the optimizer's step: the model keeps its finite weights and
    buffers, `error.report` has the first non-finite site and the frames. With a GradScaler it sees
    the scaled gradients of the steps that the scaler makes, and nothing of those that it skips. Of
    accumulated gradients all are looked at, and the last batch alone is run again to find where the
    failure began. optimizer.step(closure), as Lightning and LBFGS call it, is checked behind each
    call of the closure and before the weights move. Weight decay on A_log, D, norms or biases is
    warned of when the watch opens (`findings` has it, too).

    optimizer: of torch, or a wrapper with the real one as `.optimizer` (accelerate's, Lightning's).
    ring: steps that are remembered. TypeError for what is no module or optimizer; ValueError for an
    optimizer of another model, and for a size that cannot be.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {shown(model)}")
    optimizer = unwrapped(optimizer)
    if not {id(p) for group in optimizer.param_groups for p in group["params"]} & set(
        map(id, model.parameters())
    ):
        raise ValueError(
            "the optimizer steps no parameter of the model: give the optimizer that trains it"
        )
    return Watched(model, optimizer, ring, folder)


def unwrapped(optimizer: object) -> torch.optim.Optimizer:
    """Return the torch optimizer inside any wrappers: it has the hooks around `step`. TypeError if
    there is none."""
    inner = optimizer
    while isinstance(deeper := getattr(inner, "optimizer", None), torch.optim.Optimizer):
        inner = deeper
    if isinstance(inner, torch.optim.Optimizer) and hasattr(inner, "_optimizer_step_pre_hooks"):
        return inner
    what = "give the optimizer that it wraps"
    raise TypeError(
        f"optimizer must be a torch.optim.Optimizer, or have one as .optimizer, got {shown(optimizer)}: {what}"
    )


def trainer_callback(*, ring: int = 64, folder: str | Path = "clinic"):
    """`watch` for Hugging Face: Trainer(…, callbacks=[clinic.trainer_callback()]).

    At the first step that is not finite it prints the report, drops that step's gradients, so that
    the model keeps its finite weights, and ends the training. `callback.report` is None until then.
    Needs transformers.
    """
    from transformers import TrainerCallback

    class ClinicCallback(TrainerCallback):
        watch: Watched | None = None

        @property
        def report(self) -> Report | None:
            return None if self.watch is None else self.watch.report

        def on_train_begin(self, args, state, control, model=None, optimizer=None, **_):
            self.watch = Watched(model, None, ring, folder).__enter__()
            self.watch.warn_of_decay(optimizer)

        def on_pre_optimizer_step(self, args, state, control, model=None, **_):
            if (report := self.watch.check()) is not None:
                print(report)
                self.watch.model.zero_grad(set_to_none=True)
                control.should_training_stop = True
            return control

        def on_train_end(self, args, state, control, **_):
            self.watch.__exit__()

    return ClinicCallback()


class Watched:
    """See `watch`. report: the last one, None while all is finite. findings: what is wrong with the
    optimizer's groups. Without an optimizer `check` is called by hand."""

    def __init__(self, model: nn.Module, optimizer, ring: int, folder: str | Path):
        check_size("ring", ring)
        self.model, self.optimizer = model, optimizer
        self.folder = writable_folder(folder, "the report")
        self.layers = layers_of(model)
        self.ring: deque[dict] = deque(maxlen=ring)
        self.report: Report | None = None
        self.findings = Symptoms([])
        self.step = 0
        self._hooks: list = []
        self._buffers: dict[str, Tensor] = {}
        self._between, self._again = (
            True,
            False,
        )  # before the first batch of a step; while a batch is run again
        self._forget()

    def _forget(self) -> None:
        self._call: tuple[tuple, dict, Tensor, dict] | None = (
            None  # arguments, random state, autocast
        )
        self._seed = self._loss = None
        self._seen = Pass()
        self._outputs: dict[int, tuple[Tensor, int]] = {}
        self._gradients: dict[int, Tensor] = {}

    def __enter__(self) -> Watched:
        hooks = self._hooks
        hooks.append(self.model.register_forward_pre_hook(self._begin, with_kwargs=True))
        hooks += [
            layer.register_forward_hook(self._layer_hook(i))
            for i, (_, layer) in enumerate(self.layers)
        ]
        hooks.append(self.model.register_forward_hook(self._end))
        if self.optimizer is not None:
            hooks.append(self.optimizer.register_step_pre_hook(self._before_step))
            self.warn_of_decay(self.optimizer)
        return self

    def __exit__(self, *_) -> None:
        """Takes the hooks off and lets go of the batch."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._forget()
        self._buffers = {}

    def warn_of_decay(self, optimizer: object) -> None:
        """Warn, and keep in `findings`, that weight decay acts on parameters that it should leave
        alone."""
        self.findings = Symptoms([] if optimizer is None else decayed(self.model, optimizer))
        if self.findings:
            warnings.warn(
                f"{self.findings[0].found}; instead: {self.findings[0].try_this}", stacklevel=3
            )

    def loss(self, value: Tensor) -> Tensor:
        """Takes note of the loss and gives it back. Needed only if the model does not return it as
        `.loss`. ValueError for what is no tensor of one number."""
        check_loss(value)
        self._loss = value.detach()
        return value

    def _begin(self, _model, args, kwargs) -> None:
        if not torch.is_grad_enabled() or self._again:
            return
        self._forget()
        kind = next((weight.device.type for weight in self.model.parameters()), "cpu")
        casts = dict(
            device_type=kind,
            enabled=torch.is_autocast_enabled(kind),
            dtype=torch.get_autocast_dtype(kind),
        )
        self._call = args, kwargs, torch.get_rng_state(), casts
        if self._between:  # all buffers, since torch's BN writes without a trace
            self._buffers = {
                name: value.detach().clone() for name, value in self.model.named_buffers()
            }
            self._between = False

    def _layer_hook(self, i: int):
        def see(_layer, _args, output) -> None:
            value = first_tensor(output)
            if (
                self._again or value is None or not value.requires_grad
            ):  # or an evaluation in between, or frozen
                return
            self._outputs[i] = norm_of(value.detach()), value.numel()
            if not value.is_leaf:  # a layer that hands out a weight: the hook would stay on it
                value.register_hook(
                    lambda grad: (
                        None if grad is None else self._gradients.update({i: norm_of(grad)})
                    )
                )

        return see

    def _end(self, _model, _args, output) -> None:
        if self._again or not torch.is_grad_enabled():
            return
        if isinstance(own := getattr(output, "loss", None), Tensor):
            self._loss = own.detach().mean()  # of DataParallel one number a device
            return
        seen = next((t for t in tensors_in(output) if t.requires_grad), None)
        if seen is not None and not seen.is_leaf:
            seen.register_hook(lambda grad: setattr(self, "_seed", grad))

    def _before_step(self, _optimizer, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        """Checks the gradients; where a closure is yet to compute them, hands on one that checks
        behind it."""
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._checking(kwargs["closure"])}
        if len(args) > 1 and callable(args[1]):  # args[0] is the optimizer
            return (args[0], self._checking(args[1]), *args[2:]), kwargs
        return self._check_or_raise()

    def _checking(self, closure: Callable) -> Callable:
        """Return the closure with a check after each call; several calls in one step (LBFGS) count
        as one step."""
        step = self.step

        def checked():
            value = closure()
            if self._loss is None and isinstance(value, Tensor) and value.numel() == 1:
                self._loss = value.detach()
            self.step = step
            self._check_or_raise()
            return value

        return checked

    def _check_or_raise(self) -> None:
        skips = getattr(
            self.optimizer, "found_inf", None
        )  # a fused optimizer makes no step that its GradScaler skips
        if (skips is None or not float(skips)) and (report := self.check()) is not None:
            raise NonFinite(report)

    def check(self) -> Report | None:
        """To be called between backward and the optimizer's step, which does so by itself where it
        was given one. The report of this step, None if it is finite."""
        self.step, self._between = self.step + 1, True
        grads = [weight.grad for weight in self.model.parameters() if weight.grad is not None]
        grads = [grad.coalesce().values() if grad.is_sparse else grad for grad in grads]
        sizes = [
            norm_of(grad, torch.float64) for grad in grads
        ]  # in float64, where no square of float32 overflows
        told = torch.tensor(math.nan) if self._loss is None else self._loss
        where = next((size.device for size in sizes), None)
        numbers = torch.stack(
            [number.reshape(()).to(where, torch.float64) for number in [*sizes, told]]
        )
        *norms, loss = numbers.tolist()  # one wait for all
        grad_norm = math.hypot(*norms)
        seen = dict(outputs=self._outputs, gradients=self._gradients)
        self.ring.append(dict(step=self.step, loss=loss, grad_norm=grad_norm) | seen)
        if math.isfinite(grad_norm) and (self._loss is None or math.isfinite(loss)):
            return None
        self.report = self._write_report()
        self.step -= 1  # it is not made
        return self.report

    @property
    def steps(self) -> pd.DataFrame:
        """step, loss (NaN where none was told), grad_norm of the steps in the ring."""
        return pd.DataFrame(
            [{key: one[key] for key in ("step", "loss", "grad_norm")} for one in self.ring]
        )

    @property
    def by_layer(self) -> pd.DataFrame:
        """step, depth (from 1), layer, rms, grad_rms of the steps in the ring."""
        rows = []
        for one in self.ring:
            for i, (norm, count) in one["outputs"].items():
                grad = float(one["gradients"].get(i, math.nan))
                sizes = dict(rms=float(norm) / math.sqrt(count), grad_rms=grad / math.sqrt(count))
                rows.append(dict(step=one["step"], depth=i + 1, layer=self.layers[i][0], **sizes))
        return pd.DataFrame(rows, columns=["step", "depth", "layer", "rms", "grad_rms"])

    @torch.no_grad()
    def _write_report(self) -> Report:
        for name, value in self.model.named_buffers():
            if name in self._buffers and self._buffers[name].shape == value.shape:
                value.copy_(self._buffers[name])
        lost = [
            name for name, weight in self.model.named_parameters() if not weight.isfinite().all()
        ]
        self._seen, checkpoint = Pass(), None
        why, first = ("", First(lost[0])) if lost else (self._run_again(), self._first)
        if not lost:  # tied weights under each of their names, so that it loads as it is
            state, whole = self.model.state_dict(), dict(memory_format=torch.contiguous_format)
            state = {
                name: value for name, value in state.items() if isinstance(value, Tensor)
            }  # modules may keep more
            checkpoint = self.folder / f"step-{self.step:06d}.safetensors"
            state = {name: value.detach().cpu().clone(**whole) for name, value in state.items()}
            write_bytes(checkpoint, safetensors_torch.save(state, metadata_of(self.model)))
        steps, layers, picture = (
            self.steps,
            self.by_layer,
            self.folder / f"step-{self.step:06d}.png",
        )
        where = (
            f"first: {named('', 0, first.where)}"
            if first
            else "no site is not finite when the batch runs again"
        )
        title = f"{type(self.model).__name__}: step {self.step} is not finite"
        write_bytes(picture, pictures.fig_failure(steps, layers, title, where)._repr_png_())
        seen, weights = self._seen, [dict(weight=name, shape=(), nonfinite=1.0) for name in lost]
        frames = (
            pd.DataFrame(seen.rows if first else [], columns=COLUMNS),
            pd.DataFrame(weights, columns=WEIGHTS),
        )
        findings = findings_of(
            *frames, seen.first, seen.first_gradient,
            0.0 if lost or why else self._told, [why] * bool(why), sites_for_norms(self.model), seen.largest,
            float16=not self._in_bfloat16,
        )  # fmt: skip
        backward = first is not None and first is seen.first_gradient
        return Report(self.step, first, backward, steps, layers, findings, checkpoint, picture)

    @property
    def _in_bfloat16(self) -> bool:
        with torch.autocast(**self._call[3]) if self._call else nullcontext():
            return in_bfloat16(self.model)

    @property
    def _told(self) -> float:
        """The loss of the last batch, 0 if nobody told it."""
        return 0.0 if self._loss is None else float(self._loss)

    def _run_again(self) -> str:
        """Looks at the last batch as `diagnose` does, with the same weights, autocast and dropout
        masks (those of the CPU; on a GPU dropout draws anew). Returns why where it began is not
        known, or "". The weights are to be saved whatever the model's code raises."""
        self._again, self._seen = True, Pass(places_of(self.model), own=True)
        try:
            with (
                preserve_random_state(),
                preserve_state(self.model),
                self._seen.open(self.model),
                torch.enable_grad(),
            ):
                self._both_ways()
        except Exception as error:
            self._seen = Pass()
            return f"where it began: the batch runs no second time, {type(error).__name__}: {error}"
        finally:
            self._again = False
        return NOT_MET if self._first is None and math.isfinite(self._told) else ""

    def _both_ways(self) -> None:
        """Forward, and backward from the gradient that the output had, which tells nothing where
        the loss is lost."""
        args, kwargs, random, casts = self._call
        torch.set_rng_state(random)
        with torch.autocast(**casts), eagerly():
            output = self.model(*args, **kwargs)
        self._seen.end_forward(self._told)
        value = getattr(output, "loss", None)
        if not isinstance(value, Tensor):
            value = next((t for t in tensors_in(output) if t.requires_grad), None)
        whole = self._seen.first is None and math.isfinite(self._told)
        if whole and value is not None and (self._seed is not None or value.numel() == 1):
            learns = [weight for weight in self.model.parameters() if weight.requires_grad]
            torch.autograd.grad(value, learns, grad_outputs=self._seed, allow_unused=True)

    @property
    def _first(self) -> First | None:
        return self._seen.first or self._seen.first_gradient
