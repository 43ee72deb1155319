"""What the checks of `check_model` look at: a copy of the model, some batches, and what a pass through it has shown."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from mambanorm.clinic.provenance import Ran, Trace, norms_of, takes_batch_statistics

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class NotSeen(Exception):
    """A check could not be made; its text says why, and goes to `skipped`."""


@dataclass
class Exam:
    """A copy of the model and what is known of it. trace and batches are empty where no batch was given.

    rows: of the first batch. training: the mode in which the model was handed in; the rest as the caller says. The copy
    is never run: a check runs a copy of its own, `twin` in the mode in which the model was handed in, or `learner` in
    train mode, in which what was frozen in a model that was handed in in train mode stays frozen.
    """

    model: nn.Module
    forward: Callable[[nn.Module, object], object]
    loss: Callable[[object, object], Tensor] | None = None
    lr: float | None = None
    batch_size: int | None = None
    task: str | None = None
    component: str | None = None
    evaluating: bool = False
    training: bool = True
    batches: list = field(default_factory=list)
    trace: Trace = field(default_factory=Trace)
    rows: int | None = None

    def twin(self) -> nn.Module:
        return copy.deepcopy(self.model)

    def learner(self) -> nn.Module:
        return self.twin() if self.training else self.twin().train()

    @property
    def batch_norms(self) -> list[tuple[str, nn.Module]]:
        """path, module of the norms that take statistics over the batch."""
        return [(path, norm) for path, norm, kind in norms_of(self.model) if takes_batch_statistics(norm, kind)]

    def ran(self, path: str) -> Ran | None:
        """The first call of a norm."""
        return next((ran for ran in self.trace.seen if ran.path == path), None)


def twin_of(model: nn.Module) -> nn.Module:
    """A copy of the model without the caller's hooks; ValueError for a model that cannot be copied.

    Hooks of torch itself stay, for by them weight_norm and spectral_norm compute. Tensors that the model keeps of an
    earlier pass are copied without their graph.
    """
    for path, module in model.named_modules():
        if any(is_lazy(own) for own in [*module._parameters.values(), *module._buffers.values()]):
            raise ValueError(f"the lazy layer {path!r} has no shape yet: call the model once on a batch, then check it")
    own = [value for m in model.modules() for value in [*vars(m).values(), *m._buffers.values()]]
    kept = [value for value in own if isinstance(value, Tensor) and not value.is_leaf]
    try:
        twin = copy.deepcopy(model, {id(value): value.detach().clone() for value in kept})
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        mend = "remove what it keeps of earlier passes, or build it anew and load its state_dict"
        raise ValueError(f"the model cannot be copied, and only a copy is looked at ({why}): {mend}") from error
    for hooks in (getattr(module, name) for module in twin.modules() for name in HOOKS):
        for key, hook in list(hooks.items()):
            if (getattr(hook, "__module__", None) or "").split(".")[0] != "torch":
                del hooks[key]
    return twin
