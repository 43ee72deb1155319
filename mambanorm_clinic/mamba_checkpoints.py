"""Checkpoints of mamba-ssm and transformers, loaded into a LanguageModel of this kit.

Sizes and norms are read from the tensors; facts that no tensor shows are in the checkpoint's
config, transformers' or mamba-ssm's.

Sources: huggingface/transformers `models/{mamba,mamba2,falcon_mamba}/configuration_*.py` and
`modeling_*.py`; state-spaces/mamba `models/config_mamba.py`, `modules/mamba2.py`.
"""

import json
import math
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mambanorm.checks import REAL, check_size
from mambanorm.errors import shown
from mambanorm.models.language import LanguageModel

EMBEDDING = "backbone.embedding.weight"
HEAD = "lm_head.weight"
LAYER = "backbone.layers.0."
NEEDED = (
    "needed is the state dict of a whole language model of Mamba-1, Mamba-2 or Falcon-Mamba, its "
    "shards joined"
)
WRAPPERS = ("base_model.", "module.", "_orig_mod.")  # prefixes of PEFT, DDP and torch.compile
LISTED = 240  # letters of a line of torch's error

# transformers' model_type of the supported architectures → name.
FAMILIES = {"mamba": "Mamba-1", "mamba2": "Mamba-2", "falcon_mamba": "Falcon-Mamba"}
# Fields of a config that change logits, and the supported values.
SUPPORTED_VALUES = {
    "hidden_act": ("silu", "swish"),
    "use_bias": (False,),
    "use_conv_bias": (True,),
    "norm_before_gate": (False,),
    "rms_norm": (True,),
}
# mamba-ssm's name of a field that its tensors do not show → transformers'.
MAMBA_SSM_FIELDS = {
    "ngroups": "n_groups",
    "activation": "hidden_act",
    "bias": "use_bias",
    "conv_bias": "use_conv_bias",
    "dt_limit": "time_step_limit",
}
MAMBA_SSM_LAYERS = {"Mamba1": "mamba", "Mamba2": "mamba2"}


def load_mamba_checkpoint(
    state_dict: Mapping[str, Tensor], *, hf_config: object = None, **config: Any
) -> LanguageModel:
    """Return the language model of a checkpoint of Mamba-1, Mamba-2 or Falcon-Mamba.

    Its names are those of mamba-ssm (`backbone.embedding`) or transformers (`…embeddings`). Sizes,
    tying, RMSN or LN and the norm behind Mamba-2's gate are read from the tensors. `hf_config` is
    the checkpoint's config (transformers' object, a dict, or the path of its config.json;
    mamba-ssm's too) and has what tensors do not show: ε, Mamba-2's n_groups, Falcon-Mamba's norms
    on B, C and Δ, and the activation, biases and limits on Δ, of which only the usual ones are
    supported. `config` holds arguments of LanguageModel, and overrides both. The weights become
    float32, so the residual is float32 in any case.

    Give hf_config whenever there is one. Without it ε is 1e-5 and the activation SiLU; a Mamba-2
    needs `n_groups=`; and a Falcon-Mamba is taken for a Mamba-1, whose tensors are the same, with a
    warning unless `arm=` is given.

    Raises ValueError for tensors that are missing, unexpected or of another shape, and for a config
    of another architecture.
    """
    _check_state_dict(state_dict)
    state = {
        re.sub(r"^backbone\.embeddings\.", "backbone.embedding.", name): tensor
        for name, tensor in state_dict.items()
    }
    if LAYER + "in_proj.weight" in state:
        raise ValueError(
            "these are tensors of this kit's LanguageModel, which do not show its norms: make the "
            "model with its arm, then model.load_state_dict(…); in a file of clinic.watch the arm "
            "is noted"
        )
    fields = _read_config(hf_config)
    family = _family_of(state, fields)
    if not fields and "arm" not in config and family == "mamba":
        warnings.warn(
            "taken for Mamba-1: a Falcon-Mamba has the same tensors, and its logits would be "
            "wrong; hf_config= (a config or its path) tells them apart, arm= says that you know",
            stacklevel=2,
        )
    arguments = _read_sizes(state, family, config.get("n_groups", fields.get("n_groups")))
    if fields.get("tie_word_embeddings") is False and HEAD not in state:
        raise ValueError(
            f"missing: {HEAD}, which hf_config says is not tied to the embedding; {NEEDED}"
        )
    with torch.random.fork_rng(devices=[]):
        model = LanguageModel(**{**arguments, **_read_norms(state, family, fields), **config})
    _load_weights(model, state)
    return model


def _load_weights(model: LanguageModel, state: dict[str, Tensor]) -> None:
    if model.tie:
        state.setdefault(HEAD, state[EMBEDDING])
        if not torch.equal(state[HEAD], state[EMBEDDING]):
            raise ValueError(
                f"tie=True, but {HEAD} differs from {EMBEDDING}: leave tie out, the tensors show it"
            )
    try:
        model.load_state_dict(state)  # each block takes mamba-ssm's names itself
    except RuntimeError as error:
        lines = [line.strip()[:LISTED] for line in str(error).splitlines()[1:]]
        raise ValueError("\n".join(["the checkpoint does not fit", *lines[:4], NEEDED])) from None


def _check_state_dict(state_dict: Mapping[str, Tensor]) -> None:
    if not isinstance(state_dict, Mapping):
        raise ValueError(
            f"expected a state dict, names → tensors, got {state_dict!r}: use "
            "read_checkpoint(path) first"
        )
    wrapped = [name for name in state_dict if str(name).startswith(WRAPPERS)]
    if wrapped:
        raise ValueError(
            f"{wrapped[0]} is of a wrapped model (PEFT, DDP or torch.compile): load it into one so "
            "wrapped"
        )
    invalid = [
        name
        for name, value in state_dict.items()
        if not isinstance(name, str) or not isinstance(value, Tensor)
    ]
    if invalid:
        raise ValueError(
            f"a state dict maps names to tensors; other things are under {invalid[:4]}: pick the "
            "weights out"
        )
    for name, value in state_dict.items():
        if value.dtype not in REAL:
            raise ValueError(
                f"{name} is {value.dtype}: quantized weights are not carried; give float32, "
                "bfloat16 or float16"
            )


def _read_sizes(state: dict[str, Tensor], family: str, n_groups: int | None) -> dict[str, Any]:
    """Return LanguageModel's arguments that the tensors show; all layers are as the first one."""
    layers = {name.split(".")[2] for name in state if name.startswith("backbone.layers.")}
    vocab_size, d_model = _shape(state, EMBEDDING, "(V, D)")
    sizes = {
        "vocab_size": vocab_size,
        "d_model": d_model,
        "n_layers": len(layers),
        "tie": HEAD not in state or torch.equal(state[HEAD], state[EMBEDDING]),
    }
    if family == "mamba2":
        return {**sizes, **_read_mamba2_sizes(state, d_model, n_groups)}
    d_inner, d_state = _shape(state, LAYER + "mixer.A_log", "(E, N)")
    return {
        **sizes,
        "expand": d_inner // d_model,
        "d_state": d_state,
        "d_conv": _shape(state, LAYER + "mixer.conv1d.weight", "(E, 1, K)")[2],
        "dt_rank": _shape(state, LAYER + "mixer.dt_proj.weight", "(E, R)")[1],
    }


def _read_mamba2_sizes(
    state: dict[str, Tensor], d_model: int, n_groups: int | None
) -> dict[str, Any]:
    """Return the sizes of a Mamba-2 block, whose B and C have G·N channels.

    Raises ValueError unless the number of groups G is given.
    """
    (heads,) = _shape(state, LAYER + "mixer.A_log", "(H,)")
    d_inner = _shape(state, LAYER + "mixer.out_proj.weight", "(D, E)")[1]
    convolved, _, d_conv = _shape(state, LAYER + "mixer.conv1d.weight", "(E + 2·G·N, 1, K)")
    channels = (convolved - d_inner) // 2
    if n_groups is None:
        raise ValueError(
            f"the tensors show n_groups · d_state = {channels}, not how many groups there are: "
            "give hf_config= or n_groups="
        )
    check_size("n_groups", n_groups)
    return {
        "model": "mamba2",
        "expand": d_inner // d_model,
        "d_state": channels // n_groups,
        "d_conv": d_conv,
        "head_dim": d_inner // heads,
        "n_groups": n_groups,
    }


def _read_norms(state: dict[str, Tensor], family: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    arm = f"{'LN' if LAYER + 'norm.bias' in state else 'RMSN'}>SSM>None"
    options: dict[str, Any] = {}
    if "layer_norm_epsilon" in fields:
        options["eps"] = fields["layer_norm_epsilon"]
    if family == "falcon_mamba":  # RMSN without weights, and with another ε, on B, C and Δ
        eps = fields.get("mixer_rms_eps", 1e-6)
        for site in ("B", "C", "delta"):
            arm += f"+{site}:RMSN"
            options[site] = {"affine": False, "eps": eps}
    elif LAYER + "mixer.norm.weight" in state:
        arm += "+gated:RMSN"
    final_norm = "LN" if "backbone.norm_f.bias" in state else "RMSN"
    return {"arm": arm, "final_norm": final_norm, "norm_options": options}


def _shape(state: dict[str, Tensor], name: str, axes: str) -> tuple[int, ...]:
    if name not in state:
        given = ", ".join(list(state)[:4]) or "nothing"
        raise ValueError(f"missing: {name} {axes}, given: {given}, …; {NEEDED}")
    shape = tuple(state[name].shape)
    if len(shape) != axes.count(", ") + 1 or 0 in shape:
        raise ValueError(f"{name} has shape {shape}, expected {axes}; {NEEDED}")
    return shape


# --------------------------------------------------------------------------------------------------
# the config


def _read_config(hf_config: object) -> dict[str, Any]:
    """Return the fields of a checkpoint's config, by transformers' names; {} for None.

    Raises ValueError for another architecture, for a field's value that is not supported, and for
    what is no config.
    """
    if hf_config is None:
        return {}
    fields = config_fields(hf_config)
    if "ssm_cfg" in fields:
        fields = _from_mamba_ssm(fields)
    kind = fields.get("model_type")
    if kind not in FAMILIES:
        raise ValueError(
            f"hf_config is of model_type {shown(kind)}, which is not carried: carried are language "
            "models of Mamba-1, Mamba-2 and Falcon-Mamba"
        )
    for name, allowed in SUPPORTED_VALUES.items():
        if name in fields and fields[name] not in allowed:
            raise ValueError(
                f"{name}={shown(fields[name])} in hf_config is not carried, only {allowed[0]!r}"
            )
    low, high = map(_number, fields.get("time_step_limit") or (0.0, math.inf))
    if low > 0 or high < math.inf:
        raise ValueError(
            f"time_step_limit=({low}, {high}) in hf_config is not carried: Δ has no limits here"
        )
    return fields


def _number(value: object) -> float:
    """Return a number of a config.json, where infinity is {"__float__": "Infinity"}."""
    return float(value["__float__"] if isinstance(value, Mapping) else value)


def config_fields(hf_config: object) -> dict[str, Any]:
    """Return the fields of a config object, a dict, or a config.json (its path or its folder).

    Raises ValueError for what is no config.
    """
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
            "hf_config must be a config, a dict or the path of a config.json, got "
            f"{shown(hf_config)}"
        )
    return dict(hf_config)


def _from_mamba_ssm(config: Mapping[str, Any]) -> dict[str, Any]:
    ssm_config = config["ssm_cfg"] or {}
    layer = ssm_config.get("layer", "Mamba1")
    fields = {"n_groups": 1}
    for name, value in ssm_config.items():
        fields[MAMBA_SSM_FIELDS.get(name, name)] = value
    if "tie_embeddings" in config:
        fields["tie_word_embeddings"] = config["tie_embeddings"]
    fields["model_type"] = MAMBA_SSM_LAYERS.get(layer, layer)
    return fields


def _family_of(state: Mapping[str, Tensor], fields: Mapping[str, Any]) -> str:
    """Return transformers' model_type of a checkpoint.

    Only Mamba-2 has dt_bias; Mamba-1 and Falcon-Mamba have the same tensors. Raises ValueError if
    config and tensors contradict each other.
    """
    is_mamba2 = any(name.endswith(".mixer.dt_bias") for name in state)
    by_tensors = "mamba2" if is_mamba2 else "mamba"
    family = fields.get("model_type", by_tensors)
    if (family == "mamba2") != is_mamba2:
        raise ValueError(
            f"hf_config is of {FAMILIES[family]}, but the tensors are of {FAMILIES[by_tensors]}: "
            "give its own"
        )
    return family
