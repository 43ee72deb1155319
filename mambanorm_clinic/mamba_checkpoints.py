"""`load_mamba_checkpoint`: load a checkpoint of mamba-ssm or transformers into a LanguageModel.

Sizes and norms are read from the tensors; everything else is in the checkpoint's config.

Sources: huggingface/transformers `models/{mamba,mamba2,falcon_mamba}/configuration_*.py` and
`modeling_*.py`; state-spaces/mamba `models/config_mamba.py`, `modules/mamba2.py`.
"""

import json
import math
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
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
ERROR_LENGTH = 600  # characters of torch's error to show

FAMILIES = ("mamba", "mamba2", "falcon_mamba")  # supported values of transformers' model_type
# Fields of a config that change the logits, and their supported values.
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
# Fields that the tensors do not show: mamba-ssm's name, transformers' name.
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
    """Return the language model of a checkpoint of Mamba-1, Mamba-2 or Falcon-Mamba, in float32.

    state_dict: with the parameter names of mamba-ssm or of transformers. They show the sizes, the
    type of the norms (RMSN or LN), the norm after Mamba-2's gate, and whether embedding and head
    are tied. hf_config: the checkpoint's config, of transformers or mamba-ssm, as an object, a
    dict, or the path of a config.json. It has what tensors do not show: ε, Mamba-2's n_groups, and
    whether the model is a Falcon-Mamba, which has norms on B, C and Δ. It is refused if activation,
    biases or limits on Δ differ from the defaults. config: arguments of LanguageModel, which take
    precedence.

    Pass hf_config whenever there is one. Without it, ε is 1e-5 and the activation SiLU; a Mamba-2
    needs `n_groups=`; and a Falcon-Mamba is taken for a Mamba-1, which has the same tensors, with a
    warning unless `arm=` is given.

    Raises ValueError for tensors that are missing, unexpected or of another shape, and for a config
    that is not supported.
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
    # only Mamba-2 has dt_bias; Mamba-1 and Falcon-Mamba have the same tensors
    family = fields.get("model_type", "mamba2" if LAYER + "mixer.dt_bias" in state else "mamba")
    if not fields and "arm" not in config and family == "mamba":
        warnings.warn(
            "this checkpoint is loaded as a Mamba-1. If it is a Falcon-Mamba, which has the same "
            "tensors, the logits are wrong: give hf_config= (a config or its path), or arm= if it "
            "is a Mamba-1",
            stacklevel=2,
        )
    arguments = {
        **_read_sizes(state, family, config.get("n_groups", fields.get("n_groups"))),
        **_read_norms(state, family, fields),
        **config,
    }
    if fields.get("tie_word_embeddings") is False and HEAD not in state:
        raise ValueError(
            f"{HEAD} is missing, although hf_config says that it is not tied to the embedding; "
            f"{NEEDED}"
        )
    state.setdefault(HEAD, state[EMBEDDING])
    with torch.random.fork_rng(devices=[]):
        model = LanguageModel(**arguments)
    try:
        model.load_state_dict(state)  # each block accepts mamba-ssm's names
    except RuntimeError as error:
        raise ValueError(f"{shorten(str(error), ERROR_LENGTH)}; {NEEDED}") from None
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
            "the model with its arm, then call model.load_state_dict(…). A file written by "
            "clinic.watch contains the arm, too: call clinic.load_model(path)"
        )


def _read_sizes(state: dict[str, Tensor], family: str, n_groups: int | None) -> dict[str, Any]:
    """Return the arguments of LanguageModel that the tensors show, read from the first layer.

    n_groups: needed for Mamba-2, because its B and C have n_groups · d_state channels. Raises
    ValueError if it is missing, or a tensor is.
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
            f"the tensors show only the product n_groups · d_state = {channels}: give hf_config= "
            "or n_groups="
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
    if family == "falcon_mamba":  # it has RMSN on B, C and Δ, without weights and with another ε
        arm += "+B:RMSN+C:RMSN+delta:RMSN"
        inner = {"affine": False, "eps": fields.get("mixer_rms_eps", 1e-6)}
        options |= {"B": inner, "C": inner, "delta": inner}
    elif LAYER + "mixer.norm.weight" in state:
        arm += "+gated:RMSN"
    return {
        "arm": arm,
        "final_norm": "LN" if "backbone.norm_f.bias" in state else "RMSN",
        "norm_options": options,
    }


def _shape(state: dict[str, Tensor], name: str, axes: str) -> tuple[int, ...]:
    shape = tuple(state[name].shape) if name in state else ()
    if len(shape) != axes.count(", ") + 1 or 0 in shape:
        raise ValueError(
            f"needed is {name} of shape {axes}, got {shape or 'none'}; the first tensors are "
            f"{', '.join(list(state)[:4]) or 'none'}; {NEEDED}"
        )
    return shape


# --------------------------------------------------------------------------------------------------
# the config


def _read_config(hf_config: object) -> dict[str, Any]:
    """Return the fields of a checkpoint's config under transformers' names, {} for None.

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
    """Return the fields of a config as a dict.

    hf_config: a config of transformers, a dict, or the path of a config.json or of its folder.
    Raises ValueError if the file is not in JSON format.
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
