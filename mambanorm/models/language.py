"""A language model of Mamba or Mamba-2 blocks, named and nested as mamba-ssm's, so that its
checkpoints load.

    embedding → block × n_layers → final norm → head, tied to the embedding

Every norm in it must be causal: statistics along L would see the future, which is to be predicted
(I3).

`forward` is for training; `prefill`, `step` and `generate` produce text, with a cache of constant
size. The model is trained in runs/run.py. Checkpoints of mamba-ssm and transformers are read in
models/pretrained.py.

Glossary: B rows, L positions, D = d_model, V = vocab_size; E, K, N, R as in block.py. Source:
state-spaces/mamba `models/mixer_seq_simple.py` (names, initial values); huggingface/transformers
`models/mamba/modeling_mamba.py` (names). Deviation: mamba-ssm pads V to a multiple of 8, which
nothing here needs.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from mambanorm.arms import Arm
from mambanorm.block import BlockCache, check_arm_options, common_options, options_of_blocks
from mambanorm.checks import check_beside, check_flag, check_ids, check_size, shown
from mambanorm.models.padding import back_to_their_places, to_the_front
from mambanorm.models.parts import (
    EMBEDDING_STD,
    keeps_arguments,
    make_blocks,
    start_branches,
    weight_of,
)
from mambanorm.norms import check_causal, create_norm, known_options

TO_PREDICT = "which a language model is to predict"


class LanguageModel(nn.Module):
    """Embedding, n_layers blocks, a final norm and a linear head: ids (B, L) → logits (B, L, V) of
    the next one.

    `model`: whose blocks, "mamba" or "mamba2"; `block_options` are theirs, as SequenceClassifier's.
    With `tie` the head's weight is the embedding's. There is a final norm, as in mamba-ssm.
    `norm_options` go to whichever norm knows them. Raises ValueError for an unknown arm, size or
    norm, and for a norm that is not causal.
    """

    @keeps_arguments
    def __init__(
        self,
        vocab_size: int,
        *,
        d_model: int,
        n_layers: int,
        arm: str | Arm = "RMSN>SSM>None",
        final_norm: str | None = "RMSN",
        tie: bool = True,
        model: str = "mamba",
        d_state: int = 16,
        norm_options: dict[str, Any] | None = None,
        **block_options: Any,
    ):
        super().__init__()
        for name, size in (
            ("vocab_size", vocab_size),
            ("d_model", d_model),
            ("n_layers", n_layers),
        ):
            check_size(name, size)
        check_flag("tie", tie)
        arm, self.vocab_size, self.tie = Arm.parse(arm), vocab_size, tie
        check_causal((*arm.norms, final_norm), TO_PREDICT)
        check_arm_options(arm, norm_options, (final_norm,))
        inside, norm_options = options_of_blocks(arm, norm_options), common_options(norm_options)
        blocks = make_blocks(
            model, n_layers, d_model, arm, d_state=d_state, norm_options=inside, **block_options
        )
        self.backbone = nn.ModuleDict(
            {"embedding": nn.Embedding(vocab_size, d_model), "layers": blocks}
        )
        with torch.random.fork_rng(devices=[]):
            norm_f = create_norm(final_norm, d_model, **known_options([final_norm], norm_options))
        self.backbone["norm_f"] = norm_f
        self.lm_head = nn.Linear(d_model, vocab_size, bias=False)
        nn.init.normal_(self.backbone.embedding.weight, std=EMBEDDING_STD)
        start_branches(self.backbone.layers)
        if tie:
            self.lm_head.weight = self.backbone.embedding.weight

    @property
    def arm(self) -> Arm:
        """What stands in the blocks now; surgery changes it."""
        return self.backbone.layers[0].arm

    def forward(
        self, ids: Tensor, lengths: None = None, attention_mask: Tensor | None = None
    ) -> Tensor:
        """Return logits (B, L, V). attention_mask (B, L): 1 at valid ids, 0 at padding on either
        side of them; logits at padding mean nothing. `lengths` makes the call that of the
        classifiers and must be None: padding behind a row changes nothing in it. ValueError for
        lengths, and for a mask with a gap.
        """
        if lengths is not None:
            raise ValueError(
                "a language model takes no lengths: leave them out, or give attention_mask="
            )
        if attention_mask is not None:
            ids, _, order = to_the_front(ids, attention_mask)
            return back_to_their_places(self(ids), order)
        self._check(ids)
        x = self.backbone.embedding(ids)  # (B, L, D)
        for block in self.backbone.layers:
            x = block(x)
        return self.lm_head(self.backbone.norm_f(x))

    @torch.no_grad()
    def prefill(self, ids: Tensor) -> tuple[Tensor, list[BlockCache]]:
        """Reads a prompt (B, L) in one scan: logits (B, V) of the next id, and the cache for
        `step`."""
        self._check(ids)
        x, cache = self.backbone.embedding(ids), []
        for block in self.backbone.layers:
            x, kept = block.prefill(x)
            cache.append(kept)
        return self.lm_head(self.backbone.norm_f(x[:, -1:]))[:, 0], cache

    def new_cache(self, rows: int) -> list[BlockCache]:
        """An empty cache for so many rows, before their first position: one BlockCache a block."""
        return [block.new_cache(rows) for block in self.backbone.layers]

    @torch.no_grad()
    def step(self, ids: Tensor, cache: list[BlockCache]) -> Tensor:
        """One more id a row, (B,) → logits (B, V) of what comes next; the cache moves on. Without
        gradient.

        ValueError for ids of another kind and for another model's cache.
        """
        self._check(ids, "(B,)")
        if not isinstance(cache, list | tuple):
            raise ValueError(f"a step needs the cache of prefill or new_cache, got {shown(cache)}")
        if len(cache) != len(self.backbone.layers):
            raise ValueError(
                f"the cache is of {len(cache)} blocks, this model has {len(self.backbone.layers)}"
            )
        x = self.backbone.embedding(ids)  # (B, D)
        for block, kept in zip(self.backbone.layers, cache):
            x = block.step(x, kept)
        return self.lm_head(self.backbone.norm_f(x[:, None]))[:, 0]

    def generate(
        self,
        prompt: Tensor,
        n: int,
        *,
        temperature: float = 0.0,
        seed: int | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """The prompt (B, L) and n ids more, (B, L + n).

        Temperature 0 always takes the likeliest; above it ids are drawn with probability
        softmax(logits / temperature), by the seed or else by torch's random state. ValueError for
        an empty prompt, n < 1, a temperature below 0, an attention_mask with padding (prompts of
        several lengths do not share a cache), and logits that are not finite.
        """
        if attention_mask is not None and not bool(attention_mask.all()):
            raise ValueError(
                "generate takes no padding: group the prompts by length, one call for each length"
            )
        check_size("n", n)
        if (
            isinstance(temperature, bool)
            or not isinstance(temperature, Real)
            or not temperature >= 0
        ):
            raise ValueError(
                f"temperature must be 0 (always the likeliest) or above, got {shown(temperature)}"
            )
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise ValueError(f"seed must be a whole number or None, got {shown(seed)}")
        logits, cache = self.prefill(prompt)
        generator = None if seed is None else torch.Generator(prompt.device).manual_seed(seed)
        ids = [prompt, choose(logits, temperature, generator)]
        for _ in range(n - 1):
            logits = self.step(ids[-1][:, 0], cache)
            ids.append(choose(logits, temperature, generator))
        return torch.cat(ids, dim=1)

    def _check(self, ids: Tensor, axes: str = "(B, L)") -> None:
        check_ids(ids, self.vocab_size, axes)
        check_beside("ids", ids, weight_of(self.lm_head, self), "this model")


def choose(logits: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    """Return the next ids (B, 1) from logits (B, V): the likeliest at temperature 0, else drawn.
    ValueError unless each row's largest logit is finite."""
    if not bool(logits.amax(-1).isfinite().all()):
        raise ValueError(
            "the model's logits are not finite: its weights or the prompt's states are not (clinic.diagnose)"
        )
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    ahead = logits - logits.amax(-1, keepdim=True)  # ≤ 0, so that no temperature makes it infinite
    return torch.multinomial((ahead / max(temperature, 1e-6)).softmax(-1), 1, generator=generator)
