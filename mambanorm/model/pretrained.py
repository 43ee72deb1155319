"""Pretrained weights: a checkpoint of mamba-ssm or transformers becomes a LanguageModel of this kit.

read_checkpoint          a file → state dict, without running anything in it
load_mamba_checkpoint    a state dict of mamba-ssm or transformers → LanguageModel
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mambanorm.model.language import LanguageModel

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

    Sizes, tying and RMSN or LN are read off the tensors. `config` holds arguments of LanguageModel that they do not
    show, such as `norm_options={"eps": 1e-6}`, and overrides those that they do. The weights become float32.
    Falcon-Mamba and models with another activation than SiLU have the same tensors but are other models: they load, and
    give wrong logits.

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
    """LanguageModel's arguments as the tensors show them; the first layer stands for all."""
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
