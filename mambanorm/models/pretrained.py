"""Pretrained weights: a checkpoint of mamba-ssm or transformers becomes a LanguageModel of this kit.

checkpoint_in            a file, or the folder of a download → the file with the weights
read_checkpoint          a file → state dict, without running anything in it
load_mamba_checkpoint    a state dict of Mamba-1, Mamba-2 or Falcon-Mamba → LanguageModel

What no tensor shows is in the checkpoint's config; families.py reads that.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mambanorm.basics.checks import REAL, check_size
from mambanorm.models.families import check_architecture, check_sizes_agree, family_of, read_config
from mambanorm.models.language import LanguageModel

EMBEDDING, HEAD, LAYER = "backbone.embedding.weight", "lm_head.weight", "backbone.layers.0."
NEEDED = "needed is the state dict of a whole language model of Mamba-1, Mamba-2 or Falcon-Mamba: join its shards first"
ENDINGS = (".safetensors", ".bin", ".pt", ".pth")  # of the files that hold a state dict
SHOWN = 5  # names of a kind in an error: enough to see what is wrong


def checkpoint_in(path: str | Path) -> Path:
    """The file itself; of a folder its model.safetensors, or the one checkpoint that lies in it.

    ValueError for a folder with none or with several.
    """
    path = Path(path)
    if not path.is_dir():
        return path
    found = sorted(file.name for file in path.iterdir() if file.suffix in ENDINGS)
    if "model.safetensors" in found or len(found) == 1:
        return path / ("model.safetensors" if "model.safetensors" in found else found[0])
    if not found:
        raise ValueError(f"{path} is a folder: give the path of a checkpoint; none ({', '.join(ENDINGS)}) lies in it")
    raise ValueError(f"{path} is a folder: give the path of a file in it, {' or '.join(found[:SHOWN])}{more(found)}")


def read_checkpoint(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a `.safetensors` file or of one that torch has saved, or of the folder it lies in (checkpoint_in);
    nothing in the file is ever run.

    ValueError for a file that is damaged or holds more than tensors, FileNotFoundError for one that is not there.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = checkpoint_in(path)
    try:
        if path.suffix == ".safetensors":
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


def load_mamba_checkpoint(
    state_dict: Mapping[str, Tensor], *, hf_config: object = None, **config: Any
) -> LanguageModel:
    """The language model of a checkpoint, named as in mamba-ssm (`backbone.embedding`) or transformers (`…embeddings`).

    Carries Mamba-1, Mamba-2 and Falcon-Mamba. Sizes, tying, RMSN or LN and the norm behind Mamba-2's gate are read off
    the tensors. `hf_config` is the checkpoint's config (transformers' object, a dict, or the path of its config.json;
    mamba-ssm's too) and tells what they do not show: ε, Mamba-2's n_groups, Falcon-Mamba's norms on B, C and Δ, and
    the activation, biases and limits on Δ, of which only the usual are carried. `config` holds arguments of
    LanguageModel, and overrides both. The weights become float32, so the residual is float32 in any case.

    Give hf_config whenever there is one. Without it ε is 1e-5 and the activation SiLU; a Mamba-2 needs `n_groups=`; and
    a Falcon-Mamba is taken for a Mamba-1, whose tensors are the same, with a warning unless `arm=` is given.

    Raises ValueError for tensors that are missing, unexpected or of another shape, each by mamba-ssm's name; for a
    config that contradicts them; and for another architecture, by its name.
    """
    state = _mamba_ssm_names(state_dict)
    check_architecture(state)
    said = read_config(hf_config)
    family = family_of(state, said, told="arm" in config)
    found = _read_sizes(state, family, config.get("n_groups", said.get("n_groups")))
    check_sizes_agree(found, said)
    if "tie" not in config:
        _check_tie(state, found["tie"], said)
    with torch.random.fork_rng(devices=[]):
        model = LanguageModel(**(found | _read_norms(state, family, said) | config))
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
    if narrow := next(
        (f"{name} is {value.dtype}" for name, value in state_dict.items() if value.dtype not in REAL), None
    ):
        raise ValueError(f"{narrow}: quantized weights are not carried; give float32, bfloat16 or float16")
    return {re.sub(r"^backbone\.embeddings\.", "backbone.embedding.", name): t for name, t in state_dict.items()}


def _check_tie(state: dict[str, Tensor], tied: bool, said: Mapping[str, Any]) -> None:
    """ValueError for a head that is lost, or that the config says is the embedding and is not."""
    if said.get("tie_word_embeddings") is False and HEAD not in state:
        raise ValueError(f"missing: {HEAD}, which hf_config says is not tied to the embedding; {NEEDED}")
    if said.get("tie_word_embeddings") is True and not tied:
        raise ValueError(
            f"hf_config says that {HEAD} is tied to {EMBEDDING}, but the two differ: tie=False takes the head"
        )


def _mamba_ssm_name(name: str) -> str:
    """Our parameter's name as mamba-ssm has it: N1 is `norm`, the rest of a block its `mixer`."""
    found = re.match(r"(backbone\.layers\.\d+\.)(.*)", name)
    if not found or found[2].startswith("n2."):
        return name
    if found[2].startswith("n1."):
        return f"{found[1]}norm.{found[2].removeprefix('n1.')}"
    return f"{found[1]}mixer.{found[2].replace('more.gated.', 'norm.')}"  # Mamba-2's norm behind the gate


def _read_sizes(state: dict[str, Tensor], family: str, n_groups: int | None) -> dict[str, Any]:
    """LanguageModel's arguments as the tensors show them; the first layer stands for all."""
    numbers = {int(found[1]) for name in state if (found := re.match(r"backbone\.layers\.(\d+)\.", name))}
    if numbers != set(range(len(numbers))):
        raise ValueError(f"layers are numbered {sorted(numbers)[:SHOWN]}…, expected 0, 1, 2, …; {NEEDED}")
    vocab_size, d_model = _shape(state, EMBEDDING, "(V, D)")
    sizes = _read_mamba2(state, n_groups) if family == "mamba2" else _read_mamba(state)
    d_inner = sizes.pop("d_inner")
    if d_inner % d_model:
        raise ValueError(
            f"E = {d_inner} is no multiple of D = {d_model}: a block here is a whole number of times wider"
        )
    return dict(
        vocab_size=vocab_size,
        d_model=d_model,
        n_layers=len(numbers),
        tie=HEAD not in state or torch.equal(state[HEAD], state[EMBEDDING]),
        expand=d_inner // d_model,
        **sizes,
    )


def _read_mamba(state: dict[str, Tensor]) -> dict[str, Any]:
    """The sizes of a Mamba-1 or Falcon-Mamba block."""
    d_inner, d_state = _shape(state, LAYER + "mixer.A_log", "(E, N)")
    d_conv = _shape(state, LAYER + "mixer.conv1d.weight", "(E, 1, K)")[2]
    dt_rank = _shape(state, LAYER + "mixer.dt_proj.weight", "(E, R)")[1]
    return dict(d_inner=d_inner, d_state=d_state, d_conv=d_conv, dt_rank=dt_rank)


def _read_mamba2(state: dict[str, Tensor], n_groups: int | None) -> dict[str, Any]:
    """The sizes of a Mamba-2 block. B and C are G·N wide: ValueError where nobody says what G is, or it cannot be."""
    (heads,) = _shape(state, LAYER + "mixer.A_log", "(H,)")
    d_inner = _shape(state, LAYER + "mixer.out_proj.weight", "(D, E)")[1]
    convolved, _, d_conv = _shape(state, LAYER + "mixer.conv1d.weight", "(E + 2·G·N, 1, K)")
    bc = (convolved - d_inner) // 2
    if n_groups is None:
        raise ValueError(
            f"the tensors show n_groups · d_state = {bc}, not how many groups there are: give hf_config= or n_groups="
        )
    check_size("n_groups", n_groups)
    if d_inner % heads or bc % n_groups or bc < n_groups:
        raise ValueError(
            f"{heads} heads in E = {d_inner} channels and n_groups={n_groups} in B and C of {bc} channels do not fit"
        )
    d_state = bc // n_groups
    own = dict(model="mamba2", head_dim=d_inner // heads, n_groups=n_groups)
    return dict(d_inner=d_inner, d_state=d_state, d_conv=d_conv, **own)


def _read_norms(state: dict[str, Tensor], family: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """Arm, final norm and ε, as the tensors show and the config says."""
    first = "LN" if LAYER + "norm.bias" in state else "RMSN"
    options = {"eps": said["layer_norm_epsilon"]} if "layer_norm_epsilon" in said else {}
    further = "+gated:RMSN" if LAYER + "mixer.norm.weight" in state else ""
    if family == "falcon_mamba":
        further, options = _falcon_norms(said, options)
    final_norm = "LN" if "backbone.norm_f.bias" in state else "RMSN"
    return dict(arm=f"{first}>SSM>None{further}", final_norm=final_norm, norm_options=options)


def _falcon_norms(said: Mapping[str, Any], options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Falcon-Mamba's RMSN without weights on B, C and Δ, the last before its projection; with an ε of their own."""
    sites, own = ("B", "C", "delta"), {"affine": False, "eps": said.get("mixer_rms_eps", 1e-6)}
    return "".join(f"+{site}:RMSN" for site in sites), options | {site: own for site in sites}


def _shape(state: dict[str, Tensor], name: str, form: str) -> tuple[int, ...]:
    """The shape of a tensor that sizes are read off. ValueError where it is missing or has another number of axes."""
    if name not in state:
        raise ValueError(f"missing: {name} {form}, given: {', '.join(list(state)[:4]) or 'nothing'}, …; {NEEDED}")
    if state[name].dim() != form.count(", ") + 1 or 0 in state[name].shape:
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
