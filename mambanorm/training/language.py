"""Training a language model on one text: a few hundred steps, losses in bits a token.

    train, val = split(encode(load_text()))                                    # these from mambanorm.tasks.pydoc
    model = LanguageModel(len(ALPHABET), d_model=64, n_layers=2)
    curve = train_language_model(model, train, val)
    print(decode(model.generate(encode("The ")[None], 200, temperature=0.7)[0]))

Glossary: B rows, L positions, V = vocab_size.
"""

from __future__ import annotations

import math
from numbers import Real

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm.auto import tqdm

from mambanorm.basics.checks import check_ids, check_size, shown
from mambanorm.kernels.threads import plain_torch
from mambanorm.loop import fit
from mambanorm.models.language import LanguageModel
from mambanorm.tasks.pydoc import batches, windows


@plain_torch()
def train_language_model(
    model: LanguageModel,
    train_ids: Tensor,
    val_ids: Tensor,
    *,
    steps: int = 400,
    batch_size: int = 16,
    length: int = 128,
    lr: float = 4e-3,
    seed: int = 0,
    eval_every: int = 100,
    progress: bool = True,
) -> pd.DataFrame:
    """Trains the model on one text of ids (n,) and tests it on another; returns the curve, one row a step.

    Columns: step; train_bits, on the step's batch before the update; val_bits, on all of val_ids after it (NaN between
    evaluations). Both are bits a token, here a character. The seed decides the batches. A loss or gradient that is not
    finite ends the training. Torch is as it comes: an autocast or no_grad around the call does nothing. ValueError for
    too short a text and for impossible sizes.
    """
    for name, size in dict(steps=steps, batch_size=batch_size, length=length, eval_every=eval_every).items():
        check_size(name, size)
    for ids in (train_ids, val_ids):
        check_ids(ids, model.vocab_size, "(n,)")
    if isinstance(lr, bool) or not isinstance(lr, Real) or not 0 <= lr < math.inf:
        raise ValueError(f"lr must be a finite number of at least 0, got {shown(lr)}")
    device, curve = model.lm_head.weight.device, []
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)  # A_log and D must not decay
    order = batches(train_ids, steps=steps, batch_size=batch_size, length=length, seed=seed)

    def loss_of(model: nn.Module, batch: Tensor, step: int) -> list[Tensor]:
        return [bits(model, batch.to(device))]

    with tqdm(order, total=steps, desc="language model", unit="step", disable=not progress) as bar:

        def look(step: int) -> None:
            if step % eval_every == 0 or step == steps:
                curve[-1]["val_bits"] = evaluate_bits(model, val_ids, batch_size=batch_size, length=length)
                bar.set_postfix(bits=f"{curve[-1]['val_bits']:.2f}")

        model.train()
        # clipped, because the first steps at this rate would overshoot
        fit(model, optimizer, bar, loss_of, rate=lambda step: lr, curve=curve, observers=[look], clip=1.0)
    frame = pd.DataFrame(curve).rename(columns={"train_loss": "train_bits"})
    return frame.reindex(columns=["step", "train_bits", "val_bits"])


def bits(model: nn.Module, batch: Tensor) -> Tensor:
    """Mean of −log₂ p(next id) over windows (B, L + 1), of which the first L are read and the last L predicted."""
    logits = model(batch[:, :-1])  # (B, L, V)
    return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()) / math.log(2)


@torch.no_grad()
def evaluate_bits(model: LanguageModel, ids: Tensor, *, batch_size: int = 16, length: int = 128) -> float:
    """Bits a token over a text (n,), read in consecutive windows; the model's mode is left as found."""
    was_training, device = model.training, model.lm_head.weight.device
    model.eval()
    parts = windows(ids, length).split(batch_size)
    total = sum(bits(model, part.to(device)).item() * len(part) for part in parts)
    model.train(was_training)
    return total / sum(map(len, parts))
