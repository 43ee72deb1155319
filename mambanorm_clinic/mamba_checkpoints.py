"""Checkpoints of mamba-ssm and transformers, loaded into a LanguageModel of this kit.

Sizes and norms are read from the tensors; what no tensor shows is in the checkpoint's config,
transformers' or mamba-ssm's.

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

from mambanorm.checks import REAL
from mambanorm.errors import shown
from mambanorm.models.language import LanguageModel

EMBEDDING = "backbone.embedding.weight"
HEAD = "lm_head.weight"
LAYER = "backbone.layers.0."
NEEDED = (
    "needed is the state dict of a whole language model of Mamba-1, Mamba-2 or Falcon-Mamba, with "
    "its shards joined and without the prefixes of a wrapper (PEFT, DDP, torch.compile)"
)
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
    "time_step_limit": (  # limits on Δ; in a config.json infinity is {"__float__": "Infinity"}
        [0.0, math.inf],
        (0.0, math.inf),
        [0.0, {"__float__": "Infinity"}],
        None,
    ),
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
    tying, RMSN or LN and the norm after Mamba-2's gate are read from the tensors. `hf_config` is
    the checkpoint's config (transformers' object, a dict, or the path of its config.json;
    mamba-ssm's too) and has what tensors do not show: ε, Mamba-2's n_groups, Falcon-Mamba's norms
    on B, C and Δ, and the activation, biases and limits on Δ, of which only the usual ones are
    supported. `config` holds arguments of LanguageModel, which take precedence. The weights become
    float32, so the residual is float32 in any case.

    Give hf_config whenever there is one. Without it ε is 1e-5 and the activation SiLU; a Mamba-2
    needs `n_groups=`; and a Falcon-Mamba is taken for a Mamba-1, whose tensors are the same, with a
    warning unless `arm=` is given.

    Raises ValueError for tensors that are missing, unexpected or of another shape, and for a config
    of another architecture.
    """
    if not isinstance(state_dict, Mapping):
        raise ValueError(
            f"a state dict maps names to tensors, got {shown(state_dict)}: use "
            "read_checkpoint(path) first"
        )
    state = {
        re.sub(r"^backbone\.embeddings\.", "backbone.embedding.", name): tensor
        for name, tensor in state_dict.items()
    }
    _check_tensors(state)
    fields = _read_config(hf_config)
    family = _family_of(state, fields)
    if not fields and "arm" not in config and family == "mamba":
        warnings.warn(
            "taken for Mamba-1: a Falcon-Mamba has the same tensors, and its logits would be "
            "wrong; give hf_config= (a config or its path), or arm= if it is a Mamba-1",
            stacklevel=2,
        )
    arguments = {
        **_read_sizes(state, family, config.get("n_groups", fields.get("n_groups"))),
        **_read_norms(state, family, fields),
        **config,
    }
    if fields.get("tie_word_embeddings") is False and HEAD not in state:
        raise ValueError(
            f"missing: {HEAD}, which hf_config says is not tied to the embedding; {NEEDED}"
        )
    state.setdefault(HEAD, state[EMBEDDING])
    with torch.random.fork_rng(devices=[]):
        model = LanguageModel(**arguments)
    try:
        model.load_state_dict(state)  # each block accepts mamba-ssm's names
    except RuntimeError as error:
        lines = [line.strip()[:LISTED] for line in str(error).splitlines()[1:]]
        raise ValueError("\n".join(["the checkpoint does not fit", *lines[:4], NEEDED])) from None
    return model


def _check_tensors(state: Mapping[str, Tensor]) -> None:
    invalid = [name for name, x in state.items() if getattr(x, "dtype", None) not in REAL]
    if invalid:
        raise ValueError(
            f"{', '.join(invalid[:4])}: not a tensor of float32, bfloat16 or float16; quantized "
            "weights are not supported"
        )
    if LAYER + "in_proj.weight" in state:
        raise ValueError(
            "these are tensors of this kit's LanguageModel, which do not show its norms: create "
            "the model with its arm, then call model.load_state_dict(…); a file of clinic.watch "
            "also holds the arm"
        )


def _read_sizes(state: dict[str, Tensor], family: str, n_groups: int | None) -> dict[str, Any]:
    """Return LanguageModel's arguments that the tensors show; all layers are like the first one.

    B and C of a Mamba-2 block have G·N channels: raises ValueError unless its number of groups G is
    given.
    """
    layers = {name.split(".")[2] for name in state if name.startswith("backbone.layers.")}
    vocab_size, d_model = _shape(state, EMBEDDING, "(V, D)")
    sizes = {
        "vocab_size": vocab_size,
        "d_model": d_model,
        "n_layers": len(layers),
        "tie": HEAD not in state or torch.equal(state[HEAD], state[EMBEDDING]),
    }
    if family != "mamba2":
        d_inner, d_state = _shape(state, LAYER + "mixer.A_log", "(E, N)")
        return {
            **sizes,
            "expand": d_inner // d_model,
            "d_state": d_state,
            "d_conv": _shape(state, LAYER + "mixer.conv1d.weight", "(E, 1, K)")[2],
            "dt_rank": _shape(state, LAYER + "mixer.dt_proj.weight", "(E, R)")[1],
        }
    (heads,) = _shape(state, LAYER + "mixer.A_log", "(H,)")
    d_inner = _shape(state, LAYER + "mixer.out_proj.weight", "(D, E)")[1]
    convolved, _, d_conv = _shape(state, LAYER + "mixer.conv1d.weight", "(E + 2·G·N, 1, K)")
    channels = (convolved - d_inner) // 2
    if n_groups is None:
        raise ValueError(
            f"the tensors show n_groups · d_state = {channels}, not how many groups there are: "
            "give hf_config= or n_groups="
        )
    return {
        **sizes,
        "model": "mamba2",
        "expand": d_inner // d_model,
        "d_state": channels // n_groups,
        "d_conv": d_conv,
        "head_dim": d_inner // heads,
        "n_groups": n_groups,
    }


def _read_norms(state: dict[str, Tensor], family: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arm, the final norm and the norms' options."""
    arm = "LN>SSM>None" if LAYER + "norm.bias" in state else "RMSN>SSM>None"
    options: dict[str, Any] = {"eps": fields.get("layer_norm_epsilon", 1e-5)}
    if family == "falcon_mamba":  # RMSN without weights, and with another ε, on B, C and Δ
        arm += "+B:RMSN+C:RMSN+delta:RMSN"
        inner = {"affine": False, "eps": fields.get("mixer_rms_eps", 1e-6)}
        options |= {"B": inner, "C": inner, "delta": inner}
    elif LAYER + "mixer.norm.weight" in state:
        arm += "+gated:RMSN"
    final = "LN" if "backbone.norm_f.bias" in state else "RMSN"
    return {"arm": arm, "final_norm": final, "norm_options": options}


def _shape(state: dict[str, Tensor], name: str, axes: str) -> tuple[int, ...]:
    shape = tuple(state[name].shape) if name in state else ()
    if len(shape) != axes.count(", ") + 1 or 0 in shape:
        given, found = (
            ", ".join(list(state)[:4]) or "none",
            f"of shape {shape}" if shape else "none",
        )
        raise ValueError(f"needed is {name} {axes}, got {found}; the tensors are {given}; {NEEDED}")
    return shape


# --------------------------------------------------------------------------------------------------
# the config


def _read_config(hf_config: object) -> dict[str, Any]:
    """Return the fields of a checkpoint's config, by transformers' names; {} for None.

    Raises ValueError for another architecture and for a value that is not supported.
    """
    if hf_config is None:
        return {}
    fields = config_fields(hf_config)
    if "ssm_cfg" in fields:  # mamba-ssm's
        ssm = {"layer": "Mamba1", **(fields["ssm_cfg"] or {})}
        tie = {"tie_word_embeddings": fields.get("tie_embeddings")}
        fields = {MAMBA_SSM_FIELDS.get(name, name): value for name, value in ssm.items()}
        fields = {"n_groups": 1, **tie, **fields, "model_type": MAMBA_SSM_LAYERS.get(ssm["layer"])}
    if fields.get("model_type") not in FAMILIES:
        raise ValueError(
            f"hf_config is of model_type {shown(fields.get('model_type'))}; supported are language "
            "models of Mamba-1, Mamba-2 and Falcon-Mamba"
        )
    for name, allowed in SUPPORTED_VALUES.items():
        if fields.get(name, allowed[0]) not in allowed:
            raise ValueError(
                f"{name}={fields[name]!r} in hf_config is not supported, only {allowed[0]!r}"
            )
    return fields


def config_fields(hf_config: object) -> dict[str, Any]:
    """Return the fields of a config object, a dict, or a config.json (its path or its folder).

    Raises ValueError for a file that is no config.
    """
    if hasattr(hf_config, "to_dict"):
        return hf_config.to_dict()
    if not isinstance(hf_config, str | Path):
        return dict(hf_config)
    path = Path(hf_config)
    path = path / "config.json" if path.is_dir() else path
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no config of a checkpoint: {error}") from None


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
            f"hf_config is of {FAMILIES[family]}, but the tensors are of {FAMILIES[by_tensors]}"
        )
    return family
