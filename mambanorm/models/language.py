"""A language model of Mamba blocks, with mamba-ssm's parameter names, so its checkpoints load.

    embedding → block × n_layers → final norm → head, tied to the embedding

Every norm must be causal: statistics along L would contain the later tokens, which the model is to
predict (I3 in docs/paper.md).

`forward` is for training; `prefill`, `step` and `generate` produce text, with a cache of constant
size. mambanorm_clinic loads checkpoints of mamba-ssm and transformers.

Glossary: B rows, L positions, D = d_model, V = vocab_size; E, K, N, R as in block.py.
Source: state-spaces/mamba `models/mixer_seq_simple.py` (names, initial values);
huggingface/transformers `models/mamba/modeling_mamba.py` (names). Deviation: mamba-ssm pads V to a
multiple of 8; this model does not.
"""

from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from mambanorm.arms import Arm
from mambanorm.block import BlockCache
from mambanorm.checks import check_flag, check_ids, check_like_weight, check_size
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
        arm: the norms of the blocks.
        final_norm: norm after the last block, RMSN by default as in mamba-ssm.
        tie: True if head and embedding share one weight.
        model: type of the blocks, "mamba" or another name in BLOCKS.
        norm_options: each norm gets the options that it accepts, see norm_options.py.
        block_options: options of the blocks, such as d_conv, expand, dt_rank or scan_backend.

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
        """The arm of the blocks, including norms that mambanorm_clinic's `insert_norm` added."""
        return self.blocks[0].arm

    def forward(
        self, ids: Tensor, lengths: None = None, attention_mask: Tensor | None = None
    ) -> Tensor:
        """Return logits (B, L, V).

        attention_mask (B, L): 1 at valid ids, 0 at padding, which may be before or after the valid
        ids of a row. Logits at padding are meaningless. Raises ValueError for a mask with padding
        between valid ids, and for any `lengths`: the model is causal, so padding at the end of a
        row does not change earlier logits.
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
        """Process a prompt (B, L) in one scan.

        Returns logits (B, V) of the id after the prompt, and the cache for `step`. Computes no
        gradients.
        """
        self._check(ids)
        x, cache = self.backbone["embedding"](ids), []
        for block in self.blocks:
            x, block_cache = block.prefill(x)
            cache.append(block_cache)
        return self._logits(x[:, -1:])[:, 0], cache

    def new_cache(self, rows: int) -> list[BlockCache]:
        """Return a cache of zeros for `rows` rows: a list of one BlockCache per block."""
        return [block.new_cache(rows) for block in self.blocks]

    @torch.no_grad()
    def step(self, ids: Tensor, cache: list[BlockCache]) -> Tensor:
        """Process the next id of each row, `ids` (B,), and return logits (B, V) of the id after it.

        Updates the cache and computes no gradients. Raises ValueError for invalid ids, as `forward`
        does, and for the cache of another model.
        """
        self._check(ids, "(B,)")
        if not isinstance(cache, list | tuple):
            raise ValueError(
                f"a step needs the cache from prefill or new_cache, got {shown(cache)}"
            )
        if len(cache) != len(self.blocks):
            raise ValueError(
                f"the cache has {len(cache)} blocks, this model has {len(self.blocks)}"
            )
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
        """Return the prompt (B, L) followed by n generated ids, (B, L + n).

        At temperature 0, the most likely id is chosen; at a higher temperature, ids are drawn with
        probabilities softmax(logits / temperature). The random numbers come from `seed`; if it is
        None, from torch's random state. Raises ValueError for an empty prompt, n < 1, a
        temperature below 0, an attention_mask with padding (one cache cannot hold prompts of
        different lengths), and for logits that are not finite.
        """
        if attention_mask is not None and not bool(attention_mask.all()):
            raise ValueError(
                "generate takes no padding: group the prompts by length, one call for each length"
            )
        check_size("n", n)
        is_number = isinstance(temperature, Real) and not isinstance(temperature, bool)
        if not is_number or not temperature >= 0:
            raise ValueError(
                f"temperature must be 0 (always the most likely id) or above, "
                f"got {shown(temperature)}"
            )
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise ValueError(f"seed must be a whole number or None, got {shown(seed)}")
        logits, cache = self.prefill(prompt)
        generator = None if seed is None else torch.Generator(prompt.device).manual_seed(seed)
        ids = [prompt, choose_ids(logits, temperature, generator)]
        for _ in range(n - 1):
            logits = self.step(ids[-1][:, 0], cache)
            ids.append(choose_ids(logits, temperature, generator))
        return torch.cat(ids, dim=1)

    def _check(self, ids: Tensor, axes: str = "(B, L)") -> None:
        check_ids(ids, self.vocab_size, axes)
        check_like_weight("ids", ids, weight_of(self.lm_head, self), "this model")


def choose_ids(logits: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    """Return the next ids (B, 1) for logits (B, V).

    The ids are the most likely ones at temperature 0, and drawn at random at higher temperatures.
    Raises ValueError unless the largest logit of every row is finite.
    """
    largest = logits.amax(-1, keepdim=True)
    if not bool(largest.isfinite().all()):
        raise ValueError(
            "the model's logits are not finite: the weights, or values computed from the prompt, "
            "are not finite; clinic.diagnose finds the first such value"
        )
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    scaled = (logits - largest) / max(temperature, 1e-6)  # ≤ 0: never +inf
    return torch.multinomial(scaled.softmax(-1), 1, generator=generator)
