"""Checkpoints: a file of mamba-ssm or transformers becomes a LanguageModel of this kit, and a file
that the kit wrote the model that it was written from.

What no tensor shows is in the checkpoint's config, transformers' or mamba-ssm's; in the metadata of
a file that `watch` wrote; and in the config of a stored run.

Sources: huggingface/transformers `models/{mamba,mamba2,falcon_mamba}/configuration_*.py` and
`modeling_*.py`; state-spaces/mamba `models/config_mamba.py`, `modules/mamba2.py`.
"""

from __future__ import annotations

import json
import math
import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mambanorm.checks import REAL, check_size
from mambanorm.errors import shown
from mambanorm.models.classifier import SequenceClassifier
from mambanorm.models.language import LanguageModel
from mambanorm_study.config import RunConfig
from mambanorm_study.models.transformer import TransformerClassifier
from mambanorm_study.models.vision import ImageClassifier
from mambanorm_study.runs.build import build_model
from mambanorm_study.tasks import TASKS, check_task, load_task

EMBEDDING, HEAD, LAYER = "backbone.embedding.weight", "lm_head.weight", "backbone.layers.0."
NEEDED = "needed is the state dict of a whole language model of Mamba-1, Mamba-2 or Falcon-Mamba, its shards joined"
ENDINGS = (".safetensors", ".bin", ".pt", ".pth")  # of the files that hold a state dict
WRAPPERS = ("base_model.", "module.", "_orig_mod.")  # what these put before every name
SHOWN = 240  # letters of a list in an error: enough to see what is wrong


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
    there = " or ".join(found)[:SHOWN] or f"none of {', '.join(ENDINGS)} lies there"
    raise ValueError(f"{path} is a folder: give the path of a file in it, {there}")


def read_checkpoint(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a `.safetensors` file or of one that torch has saved, or of the folder it lies
    in (checkpoint_in); nothing in the file is ever run.

    ValueError for a file that is damaged or holds more than tensors, FileNotFoundError for one that
    is not there.
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
        raise ValueError(
            f"{path} is truncated, altered or no checkpoint ({error!r}): bring it again"
        ) from error


OF_THE_KIT = {
    one.__name__: one
    for one in (LanguageModel, SequenceClassifier, ImageClassifier, TransformerClassifier)
}
KEY = "mambanorm"  # under which the metadata of a file say which model it holds


def metadata_of(model: nn.Module) -> dict[str, str]:
    """Return the metadata of a .safetensors file with the tensors of a model: for a model of the
    kit, how it is made.

    Where surgery or a wrapper has changed the model, so that its arguments no longer make it, only
    its class is said.
    """
    kind = type(model).__name__
    if OF_THE_KIT.get(kind) is not type(model):
        return {"format": "pt"}
    said: dict[str, Any] = {"model": kind}
    for arm in (
        model.arguments.get("arm"),
        model.arm,
    ):  # the second if a norm was inserted in every block
        arguments = model.arguments | ({} if arm is None else {"arm": str(arm)})
        with torch.random.fork_rng(devices=[]):
            if str(type(model)(**arguments)) == str(model):
                said["arguments"] = arguments
                break
    return {"format": "pt", KEY: json.dumps(said, default=str)}


def load_model(path: str | Path) -> nn.Module:
    """Return the model of a checkpoint, on the CPU and in float32.

    path: a file that `watch` wrote, the folder of a stored run, or what `load_mamba_checkpoint`
    takes, with the config.json beside it. ValueError for a file that no model can be made from.
    """
    path = Path(checkpoint_in(path))
    state, config = read_checkpoint(path), path.with_name("config.json")
    if said := _metadata(path):
        if said.get("model") not in OF_THE_KIT or "arguments" not in said:
            raise ValueError(
                f"{path} holds a {shown(said.get('model'))} that was changed after it was made: make it so again, then "
                "model.load_state_dict(clinic.read_checkpoint(path))"
            )
        with torch.random.fork_rng(devices=[]):
            model = OF_THE_KIT[said["model"]](**said["arguments"])
    elif config.is_file() and {"task", "arm"} <= (fields := _as_dict(config)).keys():
        run = RunConfig.from_dict(fields)
        tell = TASKS[check_task(run.task)].shape
        model = build_model(
            run, tell(run.scale) if tell else load_task(run.task, run.scale, run.seed)
        )
    else:
        return load_mamba_checkpoint(state, hf_config=config if config.is_file() else None)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(
            f"{path} does not fit the model that it names: {str(error).splitlines()[1].strip()}"
        ) from None
    return model


def _metadata(path: Path) -> dict[str, Any]:
    """Return what the kit says in a .safetensors file about its model, {} for another file."""
    from safetensors import safe_open

    if path.suffix != ".safetensors":
        return {}
    with safe_open(path, "pt") as file:
        return json.loads((file.metadata() or {}).get(KEY, "{}"))


def load_mamba_checkpoint(
    state_dict: Mapping[str, Tensor], *, hf_config: object = None, **config: Any
) -> LanguageModel:
    """The language model of a checkpoint, named as in mamba-ssm (`backbone.embedding`) or
    transformers (`…embeddings`).

    Carries Mamba-1, Mamba-2 and Falcon-Mamba. Sizes, tying, RMSN or LN and the norm behind
    Mamba-2's gate are read off the tensors. `hf_config` is the checkpoint's config (transformers'
    object, a dict, or the path of its config.json; mamba-ssm's too) and tells what they do not
    show: ε, Mamba-2's n_groups, Falcon-Mamba's norms on B, C and Δ, and the activation, biases and
    limits on Δ, of which only the usual are carried. `config` holds arguments of LanguageModel, and
    overrides both. The weights become float32, so the residual is float32 in any case.

    Give hf_config whenever there is one. Without it ε is 1e-5 and the activation SiLU; a Mamba-2
    needs `n_groups=`; and a Falcon-Mamba is taken for a Mamba-1, whose tensors are the same, with a
    warning unless `arm=` is given.

    Raises ValueError for tensors that are missing, unexpected or of another shape, and for a config
    of another architecture.
    """
    state = _mamba_ssm_names(state_dict)
    if LAYER + "in_proj.weight" in state:
        how = "make the model with its arm, then model.load_state_dict(…); in a file of clinic.watch the arm is noted"
        raise ValueError(
            f"these are tensors of this kit's LanguageModel, which do not show its norms: {how}"
        )
    said = _read_config(hf_config)
    family = _family_of(state, said, told="arm" in config)
    found = _read_sizes(state, family, config.get("n_groups", said.get("n_groups")))
    if said.get("tie_word_embeddings") is False and HEAD not in state:
        raise ValueError(
            f"missing: {HEAD}, which hf_config says is not tied to the embedding; {NEEDED}"
        )
    with torch.random.fork_rng(devices=[]):
        model = LanguageModel(**(found | _read_norms(state, family, said) | config))
    if model.tie:
        state.setdefault(HEAD, state[EMBEDDING])
        if not torch.equal(state[HEAD], state[EMBEDDING]):
            raise ValueError(
                f"tie=True, but {HEAD} differs from {EMBEDDING}: leave tie out, the tensors show it"
            )
    try:
        model.load_state_dict(state)  # each block takes mamba-ssm's names itself
    except RuntimeError as error:
        lines = [line.strip()[:SHOWN] for line in str(error).splitlines()[1:]]
        raise ValueError("\n".join(["the checkpoint does not fit", *lines[:4], NEEDED])) from None
    return model


def _mamba_ssm_names(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """transformers' names as mamba-ssm has them: they differ in one letter. ValueError for what is
    no state dict."""
    if not isinstance(state_dict, Mapping):
        raise ValueError(
            f"expected a state dict, names → tensors, got {state_dict!r}: use read_checkpoint(path) first"
        )
    if wrapped := [n for n in state_dict if str(n).startswith(WRAPPERS)]:
        raise ValueError(
            f"{wrapped[0]} is of a wrapped model (PEFT, DDP or torch.compile): load it into one so wrapped"
        )
    if others := [
        n
        for n, value in state_dict.items()
        if not (isinstance(n, str) and isinstance(value, Tensor))
    ]:
        raise ValueError(
            f"a state dict maps names to tensors; other things are under {others[:4]}: pick the weights out"
        )
    if narrow := [name for name, value in state_dict.items() if value.dtype not in REAL]:
        given = f"{narrow[0]} is {state_dict[narrow[0]].dtype}"
        raise ValueError(
            f"{given}: quantized weights are not carried; give float32, bfloat16 or float16"
        )
    return {
        re.sub(r"^backbone\.embeddings\.", "backbone.embedding.", name): t
        for name, t in state_dict.items()
    }


def _read_sizes(state: dict[str, Tensor], family: str, n_groups: int | None) -> dict[str, Any]:
    """LanguageModel's arguments as the tensors show them; the first layer stands for all."""
    numbers = {
        found[1] for name in state if (found := re.match(r"backbone\.layers\.(\d+)\.", name))
    }
    vocab_size, d_model = _shape(state, EMBEDDING, "(V, D)")
    if family == "mamba2":
        d_inner, sizes = _read_mamba2(state, n_groups)
    else:
        d_inner, d_state = _shape(state, LAYER + "mixer.A_log", "(E, N)")
        d_conv = _shape(state, LAYER + "mixer.conv1d.weight", "(E, 1, K)")[2]
        dt_rank = _shape(state, LAYER + "mixer.dt_proj.weight", "(E, R)")[1]
        sizes = dict(d_state=d_state, d_conv=d_conv, dt_rank=dt_rank)
    return dict(
        vocab_size=vocab_size,
        d_model=d_model,
        n_layers=len(numbers),
        tie=HEAD not in state or torch.equal(state[HEAD], state[EMBEDDING]),
        expand=d_inner // d_model,
        **sizes,
    )


def _read_mamba2(state: dict[str, Tensor], n_groups: int | None) -> tuple[int, dict[str, Any]]:
    """E and the sizes of a Mamba-2 block. B and C are G·N wide: ValueError where G is not said, or
    cannot be."""
    (heads,) = _shape(state, LAYER + "mixer.A_log", "(H,)")
    d_inner = _shape(state, LAYER + "mixer.out_proj.weight", "(D, E)")[1]
    convolved, _, d_conv = _shape(state, LAYER + "mixer.conv1d.weight", "(E + 2·G·N, 1, K)")
    bc = (convolved - d_inner) // 2
    if n_groups is None:
        told = f"the tensors show n_groups · d_state = {bc}, not how many groups there are"
        raise ValueError(f"{told}: give hf_config= or n_groups=")
    check_size("n_groups", n_groups)
    own = dict(model="mamba2", head_dim=d_inner // heads, n_groups=n_groups)
    return d_inner, dict(d_state=bc // n_groups, d_conv=d_conv, **own)


def _read_norms(state: dict[str, Tensor], family: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """Arm, final norm and ε, as the tensors show and the config says."""
    first = "LN" if LAYER + "norm.bias" in state else "RMSN"
    options = {"eps": said["layer_norm_epsilon"]} if "layer_norm_epsilon" in said else {}
    further = "+gated:RMSN" if LAYER + "mixer.norm.weight" in state else ""
    if (
        family == "falcon_mamba"
    ):  # RMSN without weights on B, C and Δ, the last before its projection; own ε
        sites, own = ("B", "C", "delta"), {"affine": False, "eps": said.get("mixer_rms_eps", 1e-6)}
        further, options = (
            "".join(f"+{site}:RMSN" for site in sites),
            options | {site: own for site in sites},
        )
    final_norm = "LN" if "backbone.norm_f.bias" in state else "RMSN"
    return dict(arm=f"{first}>SSM>None{further}", final_norm=final_norm, norm_options=options)


def _shape(state: dict[str, Tensor], name: str, form: str) -> tuple[int, ...]:
    """The shape of a tensor that sizes are read off. ValueError where it is missing or has another
    number of axes."""
    if name not in state:
        raise ValueError(
            f"missing: {name} {form}, given: {', '.join(list(state)[:4]) or 'nothing'}, …; {NEEDED}"
        )
    if state[name].dim() != form.count(", ") + 1 or 0 in state[name].shape:
        raise ValueError(f"{name} has shape {tuple(state[name].shape)}, expected {form}; {NEEDED}")
    return tuple(state[name].shape)


# which architecture a checkpoint is of, and what its config says

FAMILIES = {"mamba": "Mamba-1", "mamba2": "Mamba-2", "falcon_mamba": "Falcon-Mamba"}
"""transformers' model_type of what is carried → its name."""

CARRIED = "carried are language models of Mamba-1, Mamba-2 and Falcon-Mamba"

ONLY = {
    "hidden_act": ("silu", "swish"),
    "use_bias": (False,),
    "use_conv_bias": (True,),
    "norm_before_gate": (False,),
    "rms_norm": (True,),
}
"""Fields that change logits, and the values with which they are carried."""

FROM_MAMBA_SSM = {
    "ngroups": "n_groups", "activation": "hidden_act", "bias": "use_bias", "conv_bias": "use_conv_bias",
    "dt_limit": "time_step_limit",
}  # fmt: skip
"""mamba-ssm's name of a field that its tensors do not show → transformers'."""


def _read_config(hf_config: object) -> dict[str, Any]:
    """The fields of a checkpoint's config, by transformers' names; {} for None.

    Takes transformers' config object, a dict, or the path of a config.json or of the folder it lies
    in; mamba-ssm's own config too. ValueError for another architecture, named, for a field's value
    that is not carried (ONLY; limits on Δ), and for what is no config.
    """
    if hf_config is None:
        return {}
    fields = _as_dict(hf_config)
    if "ssm_cfg" in fields:
        fields = _of_mamba_ssm(fields)
    kind = fields.get("model_type")
    if kind not in FAMILIES:
        raise ValueError(
            f"hf_config is of model_type {shown(kind)}, which is not carried: {CARRIED}"
        )
    for name, allowed in ONLY.items():
        if name in fields and fields[name] not in allowed:
            raise ValueError(
                f"{name}={shown(fields[name])} in hf_config is not carried, only {allowed[0]!r}"
            )
    limits = fields.get("time_step_limit") or (
        0.0,
        math.inf,
    )  # JSON: infinity as {"__float__": "Infinity"}
    low, high = (float(v["__float__"] if isinstance(v, Mapping) else v) for v in limits)
    if low > 0 or high < math.inf:
        raise ValueError(
            f"time_step_limit=({low}, {high}) in hf_config is not carried: Δ has no limits here"
        )
    return fields


def _as_dict(hf_config: object) -> dict[str, Any]:
    if isinstance(hf_config, str | Path):
        path = Path(hf_config)
        path = path / "config.json" if path.is_dir() else path
        try:
            hf_config = json.loads(path.read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is no config of a checkpoint: {error}") from None
    elif hasattr(hf_config, "to_dict"):
        hf_config = hf_config.to_dict()
    if not isinstance(hf_config, Mapping):
        raise ValueError(
            f"hf_config must be a config, a dict or the path of a config.json, got {shown(hf_config)}"
        )
    return dict(hf_config)


def _of_mamba_ssm(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of mamba-ssm's config that its tensors do not show, with its defaults."""
    ssm = config["ssm_cfg"] or {}
    layer = ssm.get("layer", "Mamba1")
    fields = {FROM_MAMBA_SSM.get(name, name): value for name, value in ssm.items()}
    if "tie_embeddings" in config:
        fields["tie_word_embeddings"] = config["tie_embeddings"]
    return {
        "n_groups": 1,
        **fields,
        "model_type": {"Mamba1": "mamba", "Mamba2": "mamba2"}.get(layer, layer),
    }


def _family_of(state: Mapping[str, Tensor], config: Mapping[str, Any], *, told: bool) -> str:
    """Mamba-2 by its dt_bias. Mamba-1 and Falcon-Mamba have the same tensors: without a config it
    is taken for Mamba-1, with a warning unless `told`. ValueError where config and tensors
    contradict each other."""
    seen = "mamba2" if any(name.endswith(".mixer.dt_bias") for name in state) else "mamba"
    said = config.get("model_type", seen)
    if (said == "mamba2") != (seen == "mamba2"):
        raise ValueError(
            f"hf_config is of {FAMILIES[said]}, but the tensors are of {FAMILIES[seen]}: give its own"
        )
    if not config and not told and seen == "mamba":
        warnings.warn(
            "taken for Mamba-1: a Falcon-Mamba has the same tensors, and its logits would be wrong; "
            "hf_config= (a config or its path) tells them apart, arm= says that you know",
            stacklevel=3,
        )
    return said
