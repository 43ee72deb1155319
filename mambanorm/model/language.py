"""A language model of Mamba blocks, named and nested as mamba-ssm's, so that its checkpoints load.

    embedding → MambaBlock × n_layers → final norm → head, tied to the embedding

Every norm in it must be causal: statistics along L would see the future, which is to be predicted (I3).

    train, val = split(encode(load_text()))                                    # all four from mambanorm.tasks.pydoc
    model = LanguageModel(len(ALPHABET), d_model=64, n_layers=2)
    curve = train_language_model(model, train, val)
    print(decode(model.generate(encode("The ")[None], 200, temperature=0.7)[0]))

Map
    LanguageModel            forward for training; prefill, step, generate for writing, with a constant-size cache
    load_mamba_checkpoint    a state dict of mamba-ssm or transformers → LanguageModel
    read_checkpoint          a file → state dict, without running anything in it
    train_language_model     a few hundred steps on a text; losses in bits a token
    bits                     the loss: −log₂ of the probability given to what came next

Glossary: B rows, L positions, D = d_model, V = vocab_size; E, K, N, R as in block.py.
Source: state-spaces/mamba `models/mixer_seq_simple.py` (names, initial values); huggingface/transformers
`models/mamba/modeling_mamba.py` (names). Deviation: mamba-ssm pads V to a multiple of 8, which nothing here needs.
"""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm.auto import tqdm

from mambanorm.checks import check_beside, check_flag, check_ids, check_size, shown
from mambanorm.model.arms import Arm
from mambanorm.model.block import BlockCache, MambaBlock
from mambanorm.norms import check_causal, check_options, create_norm, known_options
from mambanorm.tasks.pydoc import batches, windows

TO_PREDICT = "which a language model is to predict"


class LanguageModel(nn.Module):
    """Embedding, n_layers blocks, a final norm and a linear head: ids (B, L) → logits (B, L, V) of the next one.

    With `tie` the head's weight is the embedding's. A final norm stands there as in mamba-ssm. `norm_options` go to
    whichever norm knows them. Raises ValueError for an unknown arm, size or norm, and for a norm that is not causal.
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        d_model: int,
        n_layers: int,
        arm: str | Arm = "RMSN>SSM>None",
        final_norm: str | None = "RMSN",
        tie: bool = True,
        d_state: int = 16,
        d_conv: int = 4,
        expand: int = 2,
        dt_rank: int | None = None,
        norm_options: dict[str, Any] | None = None,
        scan_backend: str = "auto",
    ):
        super().__init__()
        for name, size in (("vocab_size", vocab_size), ("d_model", d_model), ("n_layers", n_layers)):
            check_size(name, size)
        check_flag("tie", tie)
        self.arm, self.vocab_size, self.tie = Arm.parse(arm), vocab_size, tie
        check_causal((*self.arm, final_norm), TO_PREDICT)
        check_options((final_norm, *self.arm), norm_options)
        options = dict(d_state=d_state, d_conv=d_conv, expand=expand, dt_rank=dt_rank, scan_backend=scan_backend)
        own = known_options(self.arm, norm_options)
        blocks = [MambaBlock(d_model, *self.arm, norm_options=own, **options) for _ in range(n_layers)]
        self.backbone = nn.ModuleDict({"embedding": nn.Embedding(vocab_size, d_model), "layers": nn.ModuleList(blocks)})
        with torch.random.fork_rng(devices=[]):
            norm_f = create_norm(final_norm, d_model, **known_options([final_norm], norm_options))
        self.backbone["norm_f"] = norm_f
        self.lm_head = nn.Linear(d_model, vocab_size, bias=False)
        self._init_weights()
        if tie:
            self.lm_head.weight = self.backbone.embedding.weight

    @torch.no_grad()
    def _init_weights(self) -> None:
        """mamba-ssm's: embedding N(0, .02), out_proj / √n_layers; other linear weights as PyTorch has them."""
        nn.init.normal_(self.backbone.embedding.weight, std=0.02)
        for block in self.backbone.layers:
            block.out_proj.weight /= math.sqrt(len(self.backbone.layers))

    def forward(self, ids: Tensor) -> Tensor:
        self._check(ids)
        x = self.backbone.embedding(ids)  # (B, L, D)
        for block in self.backbone.layers:
            x = block(x)
        return self.lm_head(self.backbone.norm_f(x))

    @torch.no_grad()
    def prefill(self, ids: Tensor) -> tuple[Tensor, list[BlockCache]]:
        """Reads a prompt (B, L) by the parallel scan: logits (B, V) of the next id, and the cache to step on from."""
        self._check(ids)
        x, cache = self.backbone.embedding(ids), []
        for block in self.backbone.layers:
            x, kept = block.prefill(x)
            cache.append(kept)
        return self.lm_head(self.backbone.norm_f(x[:, -1:]))[:, 0], cache

    def new_cache(self, rows: int) -> list[BlockCache]:
        """The cache of so many rows before their first position, one BlockCache a block."""
        return [block.new_cache(rows) for block in self.backbone.layers]

    @torch.no_grad()
    def step(self, ids: Tensor, cache: list[BlockCache]) -> Tensor:
        """One more id a row, (B,) → logits (B, V) of what comes next; the cache moves on. Without gradient.

        ValueError for ids of another kind and for another model's cache.
        """
        self._check(ids, "(B,)")
        if not isinstance(cache, list | tuple):
            raise ValueError(f"a step needs the cache of prefill or new_cache, got {shown(cache)}")
        if len(cache) != len(self.backbone.layers):
            raise ValueError(f"the cache is of {len(cache)} blocks, this model has {len(self.backbone.layers)}")
        x = self.backbone.embedding(ids)  # (B, D)
        for block, kept in zip(self.backbone.layers, cache):
            x = block.step(x, kept)
        return self.lm_head(self.backbone.norm_f(x[:, None]))[:, 0]

    def generate(self, prompt: Tensor, n: int, *, temperature: float = 0.0, seed: int | None = None) -> Tensor:
        """The prompt (B, L) and n ids more, (B, L + n).

        Temperature 0 always takes the likeliest; above it ids are drawn with probability softmax(logits / temperature),
        by the seed or else by torch's random state. ValueError for an empty prompt, n < 1 or a temperature below 0.
        """
        check_size("n", n)
        if isinstance(temperature, bool) or not isinstance(temperature, Real) or not temperature >= 0:
            raise ValueError(f"temperature must be 0 (always the likeliest) or above, got {shown(temperature)}")
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
        check_beside("ids", ids, self.lm_head.weight, "this model")


def choose(logits: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    """The next ids (B, 1) from logits (B, V): the likeliest at temperature 0, else drawn."""
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    ahead = logits - logits.amax(-1, keepdim=True)  # ≤ 0, so that no temperature makes it infinite
    return torch.multinomial((ahead / max(temperature, 1e-6)).softmax(-1), 1, generator=generator)


# ------------------------------------------------------------------------------------------------------- checkpoints

EMBEDDING, HEAD, LAYER = "backbone.embedding.weight", "lm_head.weight", "backbone.layers.0."
NEEDED = "needed is the state dict of a whole Mamba-1 language model: join its shards first; Mamba-2 is another model"
ENDINGS = (".safetensors", ".bin", ".pt", ".pth")  # of the files that hold a state dict
SHOWN = 5  # names of a kind in an error: enough to see what is wrong


def read_checkpoint(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a `.safetensors` file or of one that torch has saved; nothing in the file is ever run.

    ValueError for a folder and for a file that is damaged or holds more than tensors, FileNotFoundError for one that is
    not there.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if Path(path).is_dir():
        raise ValueError(f"{path} is a folder: {_files_in(Path(path))}")
    try:
        if Path(path).suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except pickle.UnpicklingError:
        raise ValueError(
            f"{path} is no state dict of tensors, or no checkpoint at all: reading it could run code of whoever wrote "
            "it, so it is not read; ask for a .safetensors file"
        ) from None
    except (SafetensorError, OSError, EOFError, KeyError, RuntimeError) as error:
        raise ValueError(f"{path} is truncated, altered or no checkpoint ({error!r}): bring it again") from error


def _files_in(folder: Path) -> str:
    """Which file to give instead of the folder it lies in."""
    found = sorted(file.name for file in folder.iterdir() if file.suffix in ENDINGS)
    if not found:
        return f"give the path of a checkpoint; none ({', '.join(ENDINGS)}) lies in it"
    return f"give the path of a file in it, {' or '.join(found[:SHOWN])}{more(found)}"


def load_mamba_checkpoint(state_dict: Mapping[str, Tensor], **config: Any) -> LanguageModel:
    """The language model of a checkpoint, named as in mamba-ssm (`backbone.embedding`) or transformers (`…embeddings`).

    Sizes, tying and RMSN or LN are read off the tensors. `config`, LanguageModel's own arguments, says what they do not
    show, such as `norm_options={"eps": 1e-6}`, and goes before what they do. The weights become float32. Falcon-Mamba
    and models with another activation than SiLU have the same tensors and are other models: they give wrong logits.

    Raises ValueError for tensors that are missing, unexpected or of another shape, each by mamba-ssm's name.
    """
    state = _mamba_ssm_names(state_dict)
    with torch.random.fork_rng(devices=[]):
        model = LanguageModel(**(_read_config(state) | config))
    if model.tie:
        state.setdefault(HEAD, state[EMBEDDING])
        if not torch.equal(state[HEAD], state[EMBEDDING]):
            raise ValueError(
                f"tie=True, but {HEAD} differs from {EMBEDDING}: leave tie out, it is read off the tensors"
            )
    _check_tensors({_mamba_ssm_name(name): tensor for name, tensor in model.state_dict().items()}, state)
    model.load_state_dict(state)  # each block takes mamba-ssm's names itself
    return model


def _mamba_ssm_names(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """transformers' names as mamba-ssm has them: they differ in one letter. ValueError for what is no state dict."""
    if not isinstance(state_dict, Mapping):
        raise ValueError(f"expected a state dict, names → tensors, got {state_dict!r}: use read_checkpoint(path) first")
    if others := [n for n, value in state_dict.items() if not (isinstance(n, str) and isinstance(value, Tensor))]:
        raise ValueError(
            f"a state dict maps names to tensors; other things are under {others[:4]}: pick the weights out"
        )
    return {re.sub(r"^backbone\.embeddings\.", "backbone.embedding.", name): t for name, t in state_dict.items()}


def _mamba_ssm_name(name: str) -> str:
    """Our parameter's name as mamba-ssm has it: N1 is `norm`, the rest of a block its `mixer`."""
    name = re.sub(r"^(backbone\.layers\.\d+)\.n1\.", r"\1.norm.", name)
    return re.sub(r"^(backbone\.layers\.\d+)\.(?!norm\.|n2\.)", r"\1.mixer.", name)


def _read_config(state: dict[str, Tensor]) -> dict[str, Any]:
    """LanguageModel's arguments as the tensors show them; of the layers, the first speaks for all."""
    numbers = {int(found[1]) for name in state if (found := re.match(r"backbone\.layers\.(\d+)\.", name))}
    if numbers != set(range(len(numbers))):
        raise ValueError(f"layers are numbered {sorted(numbers)[:SHOWN]}…, expected 0, 1, 2, …; {NEEDED}")
    vocab_size, d_model = _shape(state, EMBEDDING, "(V, D)")
    d_inner, d_state = _shape(state, LAYER + "mixer.A_log", "(E, N)")
    if d_inner % d_model:
        raise ValueError(
            f"E = {d_inner} is no multiple of D = {d_model}: a block here is a whole number of times wider"
        )
    return dict(
        vocab_size=vocab_size,
        d_model=d_model,
        n_layers=len(numbers),
        arm="LN>SSM>None" if LAYER + "norm.bias" in state else "RMSN>SSM>None",
        final_norm="LN" if "backbone.norm_f.bias" in state else "RMSN",
        tie=HEAD not in state or torch.equal(state[HEAD], state[EMBEDDING]),
        d_state=d_state,
        d_conv=_shape(state, LAYER + "mixer.conv1d.weight", "(E, 1, K)")[2],
        expand=d_inner // d_model,
        dt_rank=_shape(state, LAYER + "mixer.dt_proj.weight", "(E, R)")[1],
    )


def _shape(state: dict[str, Tensor], name: str, form: str) -> tuple[int, ...]:
    """The shape of a tensor that sizes are read off. ValueError where it is missing or has another number of axes."""
    if name not in state:
        raise ValueError(f"missing: {name} {form}, given: {', '.join(list(state)[:4]) or 'nothing'}, …; {NEEDED}")
    if state[name].dim() != form.count(",") + 1 or 0 in state[name].shape:
        raise ValueError(f"{name} has shape {tuple(state[name].shape)}, expected {form}; {NEEDED}")
    return tuple(state[name].shape)


def _check_tensors(expected: dict[str, Tensor], given: dict[str, Tensor]) -> None:
    """ValueError naming the tensors that are missing, unexpected or of another shape, and what was expected."""
    wanted = {name: tuple(tensor.shape) for name, tensor in expected.items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in given.items()}
    both = [name for name in wanted if name in shapes]
    problems = {
        "missing": [f"{name} {wanted[name]}" for name in wanted if name not in shapes],
        "unexpected": [f"{name} {shapes[name]}" for name in shapes if name not in wanted],
        "of another shape": [f"{n} {shapes[n]}, expected {wanted[n]}" for n in both if shapes[n] != wanted[n]],
    }
    lines = [f"{kind}: {'; '.join(names[:SHOWN])}{more(names)}" for kind, names in problems.items() if names]
    if lines:
        lines += ["in a block only conv1d and dt_proj have a bias, and config must not contradict the tensors", NEEDED]
        raise ValueError("\n".join(["the checkpoint does not fit", *lines]))


def more(names: list[str]) -> str:
    return f"; and {len(names) - SHOWN} more" if len(names) > SHOWN else ""


# ---------------------------------------------------------------------------------------------------------- training


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

    Columns: step; train_bits, of the step's batch before the step; val_bits, of the whole of val_ids after it (NaN
    between evaluations); bits a token, here a character. The seed decides the batches. ValueError for too short a text
    and for impossible sizes.
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
    with tqdm(order, total=steps, desc="language model", unit="step", disable=not progress) as bar:
        for step, batch in enumerate(bar, start=1):
            model.train()
            loss = bits(model, batch.to(device))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # the first steps at this rate would overshoot
            optimizer.step()
            curve.append({"step": step, "train_bits": loss.item(), "val_bits": math.nan})
            if step % eval_every == 0 or step == steps:
                curve[-1]["val_bits"] = evaluate_bits(model, val_ids, batch_size=batch_size, length=length)
                bar.set_postfix(bits=f"{curve[-1]['val_bits']:.2f}")
    return pd.DataFrame(curve)


def bits(model: nn.Module, batch: Tensor) -> Tensor:
    """Mean of −log₂ p(next id) over windows (B, L + 1), of which the first L are read and the last L predicted."""
    logits = model(batch[:, :-1])  # (B, L, V)
    return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()) / math.log(2)


@torch.no_grad()
def evaluate_bits(model: LanguageModel, ids: Tensor, *, batch_size: int = 16, length: int = 128) -> float:
    """Bits a token over a text (n,), read in windows one behind the other; the model's mode is left as found."""
    was_training, device = model.training, model.lm_head.weight.device
    model.eval()
    parts = windows(ids, length).split(batch_size)
    total = sum(bits(model, part.to(device)).item() * len(part) for part in parts)
    model.train(was_training)
    return total / sum(map(len, parts))
