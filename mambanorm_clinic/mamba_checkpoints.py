"""`load_mamba_checkpoint`: load a checkpoint of mamba-ssm or transformers into a LanguageModel.

The model's sizes and the types of its norms are read from the tensors, all other settings from the
config.

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
    "give the state dict of a whole language model of Mamba-1, Mamba-2 or Falcon-Mamba, with all "
    "shards joined and without the prefixes of a wrapper (PEFT, DDP, torch.compile)"
)
ERROR_LENGTH = 600  # longest shown part of torch's error message, in characters

FAMILIES = ("mamba", "mamba2", "falcon_mamba")  # supported values of transformers' model_type
# Fields of a transformers config that change the logits → the supported values of each field.
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
# Name of a config field in mamba-ssm → its name in transformers, for the settings that the tensors
# do not show.
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

    state_dict: the checkpoint's tensors under the parameter names of mamba-ssm or transformers. The
    tensors show the sizes, the type of the norms (RMSN or LN), whether Mamba-2 has a norm after its
    gate, and whether embedding and head are tied. hf_config: the checkpoint's config, as an object,
    a dict, or the path of a config.json, in the format of transformers or mamba-ssm. The config has
    the settings that the tensors do not show: ε, Mamba-2's n_groups, and whether the model is a
    Falcon-Mamba, which has norms on B, C and Δ. config: arguments of LanguageModel, which take
    precedence over hf_config and the tensors.

    Pass hf_config if the checkpoint has one. Without hf_config, ε is 1e-5 and the activation is
    SiLU; a Mamba-2 needs `n_groups=`; and a Falcon-Mamba is loaded as a Mamba-1, because both have
    the same tensors. So whenever a Mamba-1 is loaded without hf_config, a warning says that it may
    be a Falcon-Mamba, unless `arm=` is given.

    Raises ValueError for tensors that are missing, unexpected or of a wrong shape, and for a config
    that is not supported: for example, if activation, biases or limits on Δ differ from the
    defaults.
    """
    if not isinstance(state_dict, Mapping):
        raise ValueError(
            f"a state dict maps names to tensors, got {shown(state_dict)}: call "
            "read_checkpoint(path) to read it from a file"
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
        model.load_state_dict(state)  # each block also accepts the parameter names of mamba-ssm
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
            "these are tensors of this kit's LanguageModel, which do not show the model's norms: "
            "create the model with its arm, then call model.load_state_dict(…). If clinic.watch "
            "wrote the file, the file also contains the arm: call clinic.load_model(path)"
        )


def _read_sizes(state: dict[str, Tensor], family: str, n_groups: int | None) -> dict[str, Any]:
    """Return the arguments of LanguageModel that follow from the tensors, as a map name → value.

    state: the state dict. family: one of FAMILIES. Widths are read from the first layer. n_groups:
    required for Mamba-2, because the shapes only show n_groups · d_state, the number of channels of
    B (and of C). Raises ValueError if n_groups or a tensor is missing.
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
    """Return the arguments arm, final_norm and norm_options of LanguageModel, as a dict.

    state: the state dict. family: one of FAMILIES. fields: the result of `_read_config`.
    """
    arm = "LN>SSM>None" if LAYER + "norm.bias" in state else "RMSN>SSM>None"
    options: dict[str, Any] = {"eps": fields.get("layer_norm_epsilon", 1e-5)}
    # Falcon-Mamba also has RMSN on B, C and Δ, without weights and with a separate ε
    if family == "falcon_mamba":
        arm += "+B:RMSN+C:RMSN+delta:RMSN"
        inner_options = {"affine": False, "eps": fields.get("mixer_rms_eps", 1e-6)}
        options |= {"B": inner_options, "C": inner_options, "delta": inner_options}
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
            f"a tensor {name} of shape {axes} is needed, got {shape or 'none'}; the first tensors "
            f"of the checkpoint are {', '.join(list(state)[:4]) or 'none'}; {NEEDED}"
        )
    return shape


# --------------------------------------------------------------------------------------------------
# the config


def _read_config(hf_config: object) -> dict[str, Any]:
    """Return a checkpoint's config as a map from the names of fields in transformers to values.

    The map is empty if hf_config is None. Raises ValueError for an architecture or a value that is
    not supported.
    """
    if hf_config is None:
        return {}
    fields = config_fields(hf_config)
    if "ssm_cfg" in fields:  # the config is in mamba-ssm's format
        ssm_fields = {"layer": "Mamba1", **(fields["ssm_cfg"] or {})}
        tie = {"tie_word_embeddings": fields.get("tie_embeddings")}
        fields = {MAMBA_SSM_FIELDS.get(name, name): value for name, value in ssm_fields.items()}
        fields = {
            "n_groups": 1,
            **tie,
            **fields,
            "model_type": MAMBA_SSM_LAYERS.get(ssm_fields["layer"]),
        }
    if fields.get("model_type") not in FAMILIES:
        raise ValueError(
            f"model_type {shown(fields.get('model_type'))} in hf_config is not supported, only "
            "language models of Mamba-1, Mamba-2 and Falcon-Mamba"
        )
    for name, allowed in SUPPORTED_VALUES.items():
        if fields.get(name, allowed[0]) not in allowed:
            raise ValueError(
                f"{name}={fields[name]!r} in hf_config is not supported, only {allowed[0]!r}"
            )
    return fields


def config_fields(hf_config: object) -> dict[str, Any]:
    """Return a config as a dict from the name of each field to its value.

    hf_config: a config object of transformers, a dict, or the path of a config.json or of the
    folder that contains this file. Raises ValueError if the file is not in JSON format.
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
        raise ValueError(f"{path} is not the config of a checkpoint: {error}") from None
