"""Which architecture a checkpoint is of, and what its config says that no tensor shows.

check_architecture   refuses other architectures by name, as their tensors tell
read_config          transformers' or mamba-ssm's config → its fields by transformers' names, checked
family_of            "mamba", "mamba2" or "falcon_mamba"

Sources: huggingface/transformers `models/{mamba,mamba2,falcon_mamba}/configuration_*.py` and `modeling_*.py`;
state-spaces/mamba `models/config_mamba.py`, `modules/mamba2.py`.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from mambanorm.basics.checks import shown

FAMILIES = {"mamba": "Mamba-1", "mamba2": "Mamba-2", "falcon_mamba": "Falcon-Mamba"}
"""transformers' model_type of what is carried → its name."""

CARRIED = "carried are language models of Mamba-1, Mamba-2 and Falcon-Mamba"

OTHERS = {
    r"\.rg_lru\.": "RecurrentGemma",
    r"\.mamba\.(dt|b|c)_layernorm\.": "Jamba",
    r"\.mamba\.x_proj_weight|shared_transf|mamba_decoder": "Zamba or Zamba2",
    r"\.mamba\.": "a hybrid of Mamba and attention, such as Bamba or Falcon-H1",
    r"\.mixer\.(q_proj|Wqkv|up_proj|experts)": "a hybrid of Mamba and attention, such as Nemotron-H",
    r"time_mix|time_decay": "RWKV",
    r"\.(self_attn|attn|attention|self_attention)\.": "a Transformer, such as GPT or Llama",
}
"""What a tensor's name tells, the most special first: a hybrid has attention too."""

ONLY = {
    "hidden_act": ("silu", "swish"),
    "use_bias": (False,),
    "use_conv_bias": (True,),
    "norm_before_gate": (False,),
    "rms_norm": (True,),
}
"""Fields that change logits, and the values with which they are carried."""

FROM_MAMBA_SSM = {
    "ngroups": "n_groups", "headdim": "head_dim", "d_state": "state_size", "d_conv": "conv_kernel",
    "activation": "hidden_act", "bias": "use_bias", "conv_bias": "use_conv_bias", "dt_limit": "time_step_limit",
    "d_model": "hidden_size", "n_layer": "num_hidden_layers", "tie_embeddings": "tie_word_embeddings",
}  # fmt: skip
"""mamba-ssm's name of a field → transformers'."""

SIZES = {
    "d_model": "hidden_size", "n_layers": "num_hidden_layers", "d_state": "state_size", "d_conv": "conv_kernel",
    "head_dim": "head_dim", "n_groups": "n_groups",
}  # fmt: skip
"""Our name of a size → transformers'."""


def check_architecture(names: Iterable[str]) -> None:
    """ValueError naming the architecture if the tensors' names are those of one that is not carried."""
    names = list(names)
    for pattern, what in OTHERS.items():
        if found := next((name for name in names if re.search(pattern, name)), None):
            raise ValueError(f"this is a checkpoint of {what}, as {found} tells: {CARRIED}")


def read_config(hf_config: object) -> dict[str, Any]:
    """The fields of a checkpoint's config, by transformers' names; {} for None.

    Takes transformers' config object, a dict, or the path of a config.json or of the folder it lies in; mamba-ssm's own
    config too. ValueError for another architecture, named, for a field's value that is not carried (ONLY; limits on
    Δ), and for what is no config.
    """
    if hf_config is None:
        return {}
    fields = _as_dict(hf_config)
    if "ssm_cfg" in fields:
        fields = _of_mamba_ssm(fields)
    kind = fields.get("model_type")
    if kind not in FAMILIES:
        raise ValueError(f"hf_config is of model_type {shown(kind)}, which is not carried: {CARRIED}")
    for name, allowed in ONLY.items():
        if name in fields and fields[name] not in allowed:
            raise ValueError(f"{name}={shown(fields[name])} in hf_config is not carried, only {allowed[0]!r}")
    low, high = map(_number, fields.get("time_step_limit") or (0.0, math.inf))
    if low > 0 or high < math.inf:
        raise ValueError(f"time_step_limit=({low}, {high}) in hf_config is not carried: Δ has no limits here")
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
        raise ValueError(f"hf_config must be a config, a dict or the path of a config.json, got {shown(hf_config)}")
    return dict(hf_config)


def _of_mamba_ssm(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of mamba-ssm's config that its tensors do not show or have to agree with, with its defaults."""
    ssm = config["ssm_cfg"] or {}
    layer = ssm.get("layer", "Mamba1")
    whole = {name: config[name] for name in ("d_model", "n_layer", "tie_embeddings") if name in config}
    fields = {FROM_MAMBA_SSM.get(name, name): value for name, value in {**ssm, **whole}.items()}
    return {"n_groups": 1, **fields, "model_type": {"Mamba1": "mamba", "Mamba2": "mamba2"}.get(layer, layer)}


def _number(value: object) -> float:
    """transformers writes infinity as {"__float__": "Infinity"}."""
    return float(value["__float__"] if isinstance(value, Mapping) else value)


def family_of(state: Mapping[str, Tensor], config: Mapping[str, Any], *, told: bool) -> str:
    """Mamba-2 by its dt_bias. Mamba-1 and Falcon-Mamba have the same tensors: without a config it is taken for Mamba-1,
    with a warning unless `told`. ValueError where config and tensors contradict each other."""
    seen = "mamba2" if any(name.endswith(".mixer.dt_bias") for name in state) else "mamba"
    said = config.get("model_type", seen)
    if (said == "mamba2") != (seen == "mamba2"):
        raise ValueError(f"hf_config is of {FAMILIES[said]}, but the tensors are of {FAMILIES[seen]}: give its own")
    if not config and not told and seen == "mamba":
        warnings.warn(
            "taken for Mamba-1: a Falcon-Mamba has the same tensors, and its logits would be wrong; "
            "hf_config= (a config or its path) tells them apart, arm= says that you know",
            stacklevel=3,
        )
    return said


def check_sizes_agree(found: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """ValueError where the config states another size than the tensors have: it is another checkpoint's."""
    for ours, theirs in SIZES.items():
        if ours in found and theirs in config and found[ours] != config[theirs]:
            raise ValueError(f"hf_config has {theirs}={config[theirs]!r}, the tensors {found[ours]}: give their own")
