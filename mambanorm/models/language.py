"""A language model of Mamba blocks. Names and nesting are mamba-ssm's, so its checkpoints load.

    embedding → block × n_layers → final norm → head, tied to the embedding

Every norm must be causal: statistics along L would see the future, which is to be predicted (I3).

`forward` is for training; `prefill`, `step` and `generate` produce text, with a cache of constant
size. The clinic loads checkpoints of mamba-ssm and transformers.

Glossary: B rows, L positions, D = d_model, V = vocab_size; E, K, N, R as in block.py.
Source: state-spaces/mamba `models/mixer_seq_simple.py` (names, initial values);
huggingface/transformers `models/mamba/modeling_mamba.py` (names). Deviation: mamba-ssm pads V to a
multiple of 8, which nothing here needs.
"""

from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from mambanorm.arms import Arm
from mambanorm.block import BlockCache
from mambanorm.checks import check_beside, check_flag, check_ids, check_size
from mambanorm.errors import shown
from mambanorm.models.padding import move_padding_to_end, restore_order
from mambanorm.models.parts import (
    EMBEDDING_STD,
    make_blocks,
    scale_out_proj,
    stores_arguments,
    weight_of,
)
from mambanorm.norm_options import check_arm_options, common_options, options_of_blocks
from mambanorm.norms import check_causal, create_norm, known_options

TO_PREDICT = "which a language model is to predict"


class LanguageModel(nn.Module):
    """Embedding, n_layers blocks, final norm, linear head: ids (B, L) → logits (B, L, V).

    Args:
        vocab_size: V.
        arm: the norms of the blocks; final_norm is RMSN by default, as in mamba-ssm.
        tie: the head's weight is the embedding's.
        model: kind of blocks, "mamba" or another name in BLOCKS.
        norm_options: each norm gets the options that it knows.
        block_options: options of the block, such as d_conv, expand, dt_rank or scan_backend.

    Raises ValueError for an unknown arm, size or norm, and for a norm that is not causal.
    """

    backbone: nn.ModuleDict

    @stores_arguments
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
        sizes = {"vocab_size": vocab_size, "d_model": d_model, "n_layers": n_layers}
        for name, size in sizes.items():
            check_size(name, size)
        check_flag("tie", tie)
        arm = Arm.parse(arm)
        self.vocab_size, self.tie = vocab_size, tie
        check_causal((*arm.norms, final_norm), TO_PREDICT)
        check_arm_options(arm, norm_options, (final_norm,))
        block_options |= {"norm_options": options_of_blocks(arm, norm_options), "d_state": d_state}
        blocks = make_blocks(model, n_layers, d_model, arm, **block_options)
        embedding = nn.Embedding(vocab_size, d_model)
        self.backbone = nn.ModuleDict({"embedding": embedding, "layers": blocks})
        with torch.random.fork_rng(devices=[]):
            options = known_options([final_norm], common_options(norm_options))
            self.backbone["norm_f"] = create_norm(final_norm, d_model, **options)
        self.lm_head = nn.Linear(d_model, vocab_size, bias=False)
        nn.init.normal_(embedding.weight, std=EMBEDDING_STD)
        scale_out_proj(blocks)
        if tie:
            self.lm_head.weight = embedding.weight

    @property
    def blocks(self) -> Any:
        """The blocks, a ModuleList in order of depth."""
        return self.backbone["layers"]

    @property
    def arm(self) -> Arm:
        """The norms that are in the blocks now; `insert_norm` changes them."""
        return self.blocks[0].arm

    def forward(
        self, ids: Tensor, lengths: None = None, attention_mask: Tensor | None = None
    ) -> Tensor:
        """Return logits (B, L, V).

        attention_mask (B, L): 1 at valid ids, 0 at padding on either side of them. Logits at
        padding mean nothing. Raises ValueError for a mask with a gap, and for lengths: the model is
        causal, so padding at the end of a row changes nothing before it.
        """
        if lengths is not None:
            raise ValueError(
                "a language model takes no lengths: leave them out, or give attention_mask="
            )
        if attention_mask is not None:
            ids, _, order = move_padding_to_end(ids, attention_mask)
            return restore_order(self(ids), order)
        self._check(ids)
        x = self.backbone["embedding"](ids)  # (B, L, D)
        for block in self.blocks:
            x = block(x)
        return self._logits(x)

    def _logits(self, x: Tensor) -> Tensor:
        return self.lm_head(self.backbone["norm_f"](x))

    @torch.no_grad()
    def prefill(self, ids: Tensor) -> tuple[Tensor, list[BlockCache]]:
        """Read a prompt (B, L) in one scan.

        Returns logits (B, V) of the next id and the cache for `step`.
        """
        self._check(ids)
        x, cache = self.backbone["embedding"](ids), []
        for block in self.blocks:
            x, block_cache = block.prefill(x)
            cache.append(block_cache)
        return self._logits(x[:, -1:])[:, 0], cache

    def new_cache(self, rows: int) -> list[BlockCache]:
        """Return the cache of each block before the first position, for this number of rows."""
        return [block.new_cache(rows) for block in self.blocks]

    @torch.no_grad()
    def step(self, ids: Tensor, cache: list[BlockCache]) -> Tensor:
        """Read the next id of each row, (B,), and return logits (B, V) of the id after it.

        Without gradient; the cache is updated. Raises ValueError for ids that `forward` would not
        take, and for the cache of another model.
        """
        self._check(ids, "(B,)")
        if not isinstance(cache, list | tuple):
            raise ValueError(f"a step needs the cache of prefill or new_cache, got {shown(cache)}")
        if len(cache) != len(self.blocks):
            raise ValueError(f"the cache has {len(cache)} blocks, this model {len(self.blocks)}")
        x = self.backbone["embedding"](ids)  # (B, D)
        for block, block_cache in zip(self.blocks, cache):
            x = block.step(x, block_cache)
        return self._logits(x[:, None])[:, 0]

    def generate(
        self,
        prompt: Tensor,
        n: int,
        *,
        temperature: float = 0.0,
        seed: int | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """Return the prompt (B, L) with n more ids, (B, L + n).

        At temperature 0 the likeliest id is taken; above it ids are drawn with probability
        softmax(logits / temperature), by the seed or by torch's random state. Raises ValueError for
        an empty prompt, n < 1, a temperature below 0, an attention_mask with padding (prompts of
        several lengths do not share a cache), and for logits that are not finite.
        """
        if attention_mask is not None and not bool(attention_mask.all()):
            raise ValueError(
                "generate takes no padding: group the prompts by length, one call for each length"
            )
        check_size("n", n)
        is_number = isinstance(temperature, Real) and not isinstance(temperature, bool)
        if not is_number or not temperature >= 0:
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

    Raises ValueError unless each row's largest logit is finite.
    """
    largest = logits.amax(-1, keepdim=True)
    if not bool(largest.isfinite().all()):
        raise ValueError(
            "the model's logits are not finite: its weights or the prompt's states are not "
            "(clinic.diagnose)"
        )
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    scaled = (logits - largest) / max(temperature, 1e-6)  # ≤ 0: never +inf
    return torch.multinomial(scaled.softmax(-1), 1, generator=generator)
