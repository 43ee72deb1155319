"""`watch`: a training loop under observation. When loss or gradient turns non-finite it says where, and saves weights.

    with mn.watch(model, optimizer) as watched:
        for x, y in loader:
            loss = watched.loss(criterion(model(x), y))   # the call of `loss` may be left out
            optimizer.zero_grad(); loss.backward(); optimizer.step()

What it costs a step: one norm of each layer's output and of its gradient, one norm of all gradients, one wait for the
device. What it keeps: those numbers of the last `ring` steps, the last batch, the gradient of the model's output, and a
copy of the weights in main memory, made every `every` steps.

It looks just before the optimizer's step. So when a gradient is not finite the weights still are, and are written as
they stand: the last finite step, at no cost. Only where the step before made the weights themselves infinite is the
last copy written instead.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.advice.findings import Findings
from mambanorm.advice.given import first_tensor
from mambanorm.advice.model_check import as_it_was
from mambanorm.atomic import replacing, save_tensors, writable_folder, write_bytes
from mambanorm.checks import check_size, shown
from mambanorm.clinic.passing import First, Pass, tensors_in
from mambanorm.clinic.sentences import ClinicFindings, findings_of, place
from mambanorm.clinic.sites import layers_of, places_of
from mambanorm.diagnostics import left_as_found

BEFORE = 4
"""Steps that the text of a report tells of; the frames have them all."""


@dataclass(frozen=True)
class Report:
    """What was seen when a step was not finite.

    step: the optimizer's step, from 1, that was about to be made. last_finite_step: the step after which the weights in
    `checkpoint` stand. first: the first non-finite value when the batch is run again, None if it was not met again;
    backward: it is a gradient. steps: step, loss, grad_norm; layers: step, depth, layer, rms, grad_rms.
    """

    step: int
    last_finite_step: int | None
    first: First | None
    backward: bool
    steps: pd.DataFrame
    layers: pd.DataFrame
    findings: Findings
    checkpoint: Path | None
    picture: Path

    @property
    def site(self) -> str:
        """Where it was first seen, as in `First.where`; "" if it was not met again."""
        return "" if self.first is None else self.first.where

    def __str__(self) -> str:
        now = self.steps.iloc[-1]
        lines = [f"step {self.step} is not finite: loss {now.loss:.4g}, norm of the gradients {now.grad_norm:.4g}"]
        if self.first is not None:
            what = "the gradient of " if self.backward else ""
            lines.append(f"first: {what}{place(self.first.site, self.first.depth, self.first.where)}")
        norms = " → ".join(f"{norm:.3g}" for norm in self.steps.grad_norm.iloc[-BEFORE - 1 :])
        lines.append(f"norm of the gradients in the last steps: {norms}")
        if self.checkpoint is not None:
            lines.append(f"weights after step {self.last_finite_step}, finite: {self.checkpoint}")
        return "\n".join([*lines, f"picture: {self.picture}", repr(self.findings)])


class NonFinite(FloatingPointError):
    """Raised in place of the optimizer's step that would have spread a non-finite gradient; `report` says the rest."""

    def __init__(self, report: Report):
        super().__init__(str(report))
        self.report = report


class Watch:
    """See `watch`. report: None while all is finite."""

    def __init__(self, model: nn.Module, optimizer, ring: int, every: int, folder: Path):
        self.model, self.optimizer, self.every, self.folder = model, optimizer, every, folder
        self.layers = layers_of(model)
        self.ring: deque[dict] = deque(maxlen=ring)
        self.report: Report | None = None
        self.step = 0
        self._hooks: list = []
        self._forget()
        self._kept: tuple[int, dict[str, Tensor]] | None = None

    def _forget(self) -> None:
        self._given, self._random, self._seed, self._loss = None, None, None, None
        self._autocast: tuple[str, torch.dtype, bool] = ("cpu", torch.bfloat16, False)
        self._outputs: dict[int, tuple[Tensor, int]] = {}
        self._gradients: dict[int, Tensor] = {}

    def __enter__(self) -> Watch:
        hooks = self._hooks
        hooks.append(self.model.register_forward_pre_hook(self._begin, with_kwargs=True))
        hooks += [layer.register_forward_hook(self._layer_hook(i)) for i, (_, layer) in enumerate(self.layers)]
        hooks.append(self.model.register_forward_hook(self._end))
        if self.optimizer is not None:
            hooks.append(self.optimizer.register_step_pre_hook(lambda *_: self._check_or_raise()))
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Takes the hooks off and lets go of batch and copy."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._forget()
        self._kept = None

    # ---------------------------------------------------------------------------------------------------- each step

    def loss(self, value: Tensor) -> Tensor:
        """Takes note of the loss and gives it back. Needed only if the model does not return it as `.loss`."""
        self._loss = value.detach()
        return value

    def _begin(self, _model, args, kwargs) -> None:
        if torch.is_grad_enabled():
            self._forget()
            self._given, self._random = (args, kwargs), torch.get_rng_state()
            kind = next((weight.device.type for weight in self.model.parameters()), "cpu")
            self._autocast = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)

    def _layer_hook(self, i: int):
        def see(_layer, _args, output) -> None:
            value = first_tensor(output)
            if value is None or not value.requires_grad:  # an evaluation in between, or a frozen layer
                return
            self._outputs[i] = norm_of(value.detach()), value.numel()

            def see_gradient(grad: Tensor) -> None:
                self._gradients[i] = norm_of(grad)

            value.register_hook(see_gradient)

        return see

    def _end(self, _model, _args, output) -> None:
        if not torch.is_grad_enabled():
            return
        if isinstance(own := getattr(output, "loss", None), Tensor):
            self._loss = own.detach()
        else:
            seen = next((t for t in tensors_in(output) if t.requires_grad), None)
            if seen is not None:
                seen.register_hook(self._keep_seed)

    def _keep_seed(self, grad: Tensor) -> None:
        self._seed = grad

    def _check_or_raise(self) -> None:
        if self.check() is not None:
            raise NonFinite(self.report)

    def check(self) -> Report | None:
        """To be called between backward and the optimizer's step, which does so by itself where it was given one."""
        self.step += 1
        grads = [weight.grad for weight in self.model.parameters() if weight.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads)
        loss = norm.new_tensor(math.nan) if self._loss is None else self._loss.to(norm)
        grad_norm, loss_now = torch.stack([norm, loss.reshape(())]).tolist()  # one wait for the device
        if not math.isfinite(grad_norm) and all(bool(grad.isfinite().all()) for grad in grads):
            # only the squares have overflowed
            grad_norm = float(torch.stack([norm_of(grad, torch.float64) for grad in grads]).norm())
        self.ring.append(dict(step=self.step, loss=loss_now, grad_norm=grad_norm,
                              outputs=self._outputs, gradients=self._gradients))  # fmt: skip
        lost = self._loss is not None and not math.isfinite(loss_now)
        if lost or not math.isfinite(grad_norm):
            self.report = self._write_report()
        elif (self.step - 1) % self.every == 0:
            self._keep()
        return self.report

    def _keep(self) -> None:
        """Copies the weights to main memory, into the memory of the copy before."""
        state = self.model.state_dict()
        copies = self._kept[1] if self._kept else {n: torch.empty_like(t, device="cpu") for n, t in state.items()}
        for name, tensor in state.items():
            copies[name].copy_(tensor)
        self._kept = (self.step - 1, copies)

    # --------------------------------------------------------------------------------------------------- the report

    @property
    def steps(self) -> pd.DataFrame:
        """step, loss (NaN where none was told), grad_norm of the steps in the ring."""
        return pd.DataFrame([{key: one[key] for key in ("step", "loss", "grad_norm")} for one in self.ring])

    @property
    def by_layer(self) -> pd.DataFrame:
        """step, depth (from 1), layer, rms, grad_rms of the steps in the ring."""
        rows = []
        for one in self.ring:
            for i, (norm, count) in one["outputs"].items():
                grad = one["gradients"].get(i)
                root = math.sqrt(count)
                sizes = dict(rms=float(norm) / root, grad_rms=math.nan if grad is None else float(grad) / root)
                rows.append(dict(step=one["step"], depth=i + 1, layer=self.layers[i][0], **sizes))
        return pd.DataFrame(rows, columns=["step", "depth", "layer", "rms", "grad_rms"])

    def _write_report(self) -> Report:
        from mambanorm.figures.clinic import fig_failure

        lost = [name for name, value in self.model.state_dict().items() if not value.isfinite().all()]
        first, backward, why = (First(lost[0]), False, "") if lost else self._run_again()
        after, state = (self._kept or (None, None)) if lost else (self.step - 1, self.model.state_dict())
        name = f"step-{self.step:06d}"
        checkpoint = None if state is None else self._save(state, name)
        steps, layers, picture = self.steps, self.by_layer, self.folder / f"{name}.png"
        title = f"{type(self.model).__name__}: step {self.step} is not finite"
        where = f"first: {first.where}" if first else "not met again when the batch was run a second time"
        write_bytes(picture, fig_failure(steps, layers, title, where)._repr_png_())
        return Report(self.step, after, first, backward, steps, layers, self._findings(first, backward, lost, why),
                      checkpoint, picture)  # fmt: skip

    def _findings(self, first: First | None, backward: bool, lost: list[str], why: str) -> Findings:
        none, skipped = pd.DataFrame(), [why] if why else []
        if lost:
            weights = pd.DataFrame({"weight": lost, "nonfinite": 1.0, "sigma_1": math.nan, "highest": math.nan})
            return ClinicFindings(findings_of(none, weights, None, None, math.nan).found)
        forward, gradient = (None, first) if backward else (first, None)
        return findings_of(none, none, forward, gradient, math.nan, skipped)

    def _run_again(self) -> tuple[First | None, bool, str]:
        """What `_replay` finds, and why it could not; the weights are to be saved whatever the model's code raises."""
        try:
            return (*self._replay(), "")
        except Exception as error:
            return None, False, f"where it began: the batch runs no second time, {type(error).__name__}: {error}"

    def _replay(self) -> tuple[First | None, bool]:
        """The last batch once more, under the hooks of `diagnose`, with the same weights, autocast and dropout masks
        (those of the CPU; on a GPU dropout draws anew). Returns the first non-finite value, and whether it is a
        gradient."""
        if self._given is None:
            return None, False
        for hook in self._hooks:
            hook.remove()
        seen, (args, kwargs), seed = Pass(places_of(self.model)), self._given, self._seed
        with as_it_was(), left_as_found(self.model), seen.open(self.model), torch.enable_grad():
            torch.set_rng_state(self._random)
            kind, dtype, enabled = self._autocast
            with torch.autocast(kind, dtype, enabled=enabled):
                output = self.model(*args, **kwargs)
            value = getattr(output, "loss", None)
            if not isinstance(value, Tensor):
                value = next((t for t in tensors_in(output) if t.requires_grad), None)
            learns = [weight for weight in self.model.parameters() if weight.requires_grad]
            if seen.first is None and value is not None and (seed is not None or value.numel() == 1):
                torch.autograd.grad(value, learns, grad_outputs=seed, allow_unused=True)
        return (seen.first, False) if seen.first is not None else (seen.first_gradient, True)

    def _save(self, state: dict[str, Tensor], name: str) -> Path:
        """A state dict as safetensors; tied weights stand under each of their names, so that it loads as it is."""
        path = self.folder / f"{name}.safetensors"
        with replacing(path) as temporary:
            save_tensors(temporary, {key: value.detach().cpu().clone().contiguous() for key, value in state.items()})
        return path


def norm_of(value: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """‖value‖₂ as a tensor, which waits for nothing; of half precision in float32."""
    narrow = value.dtype in (torch.float16, torch.bfloat16)
    return torch.linalg.vector_norm(value, dtype=dtype or (torch.float32 if narrow else None))


def watch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    ring: int = 64,
    every: int = 100,
    folder: str | Path = "clinic",
) -> Watch:
    """A context manager that watches every step of `optimizer` while it is open.

    When the loss or a gradient is not finite it writes the weights of the last finite step (`step-<n>.safetensors`) and
    a picture of the steps before (`step-<n>.png`) into `folder`, and raises NonFinite in place of the optimizer's step:
    the model keeps its finite weights, `error.report` has the first non-finite site and the frames. With a GradScaler
    it sees the scaled gradients, and only the steps that the scaler makes.

    ring: steps that are remembered. every: steps between two copies of the weights; a copy takes the weights' size of
    main memory, once. TypeError for what is no module or optimizer, ValueError for a size or a folder that cannot be.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {shown(model)}")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {shown(optimizer)}")
    return _watch(model, optimizer, ring, every, folder)


def _watch(model: nn.Module, optimizer, ring: int, every: int, folder: str | Path) -> Watch:
    check_size("ring", ring)
    check_size("every", every)
    return Watch(model, optimizer, ring, every, writable_folder(folder, "the report"))


def trainer_callback(*, ring: int = 64, every: int = 100, folder: str | Path = "clinic"):
    """`watch` for Hugging Face: Trainer(…, callbacks=[mn.trainer_callback()]).

    At the first step that is not finite it prints the report, drops that step's gradients, so that the model keeps its
    finite weights, and ends the training. `callback.report` is None until then. Needs transformers.
    """
    from transformers import TrainerCallback

    class ClinicCallback(TrainerCallback):
        watch: Watch | None = None

        @property
        def report(self) -> Report | None:
            return None if self.watch is None else self.watch.report

        def on_train_begin(self, args, state, control, model=None, **_):
            self.watch = _watch(model, None, ring, every, folder).__enter__()

        def on_pre_optimizer_step(self, args, state, control, model=None, **_):
            if (report := self.watch.check()) is not None:
                print(report)
                self.watch.model.zero_grad(set_to_none=True)
                control.should_training_stop = True
            return control

        def on_train_end(self, args, state, control, **_):
            self.watch.close()

    return ClinicCallback()
