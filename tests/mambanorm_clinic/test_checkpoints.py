"""Checkpoints of Mamba-1, Mamba-2 and Falcon-Mamba give transformers' logits, a block with Jamba's
arm its mixer's outputs; any other checkpoint is refused by its name.
"""

import math
import os
import warnings

import pytest
import torch

import mambanorm as mn
import mambanorm_clinic as clinic
from mambanorm.arms import Arm
from mambanorm_study.models.mamba2 import Mamba2Block
from tests.twins import assert_twins, error, results, sample, scrambled, tokens

B, L, V = 3, 13, 40
CONFIGS = {
    "mamba": [
        dict(hidden_size=24),
        dict(
            hidden_size=20,
            expand=3,
            conv_kernel=2,
            state_size=5,
            tie_word_embeddings=False,
            layer_norm_epsilon=0.5,
        ),
        dict(hidden_size=33, state_size=1, time_step_rank=7, conv_kernel=6),
    ],
    "mamba2": [
        dict(hidden_size=24, num_heads=6, head_dim=8, n_groups=1, state_size=5, chunk_size=4),
        dict(
            hidden_size=24,
            num_heads=8,
            head_dim=6,
            n_groups=2,
            state_size=7,
            chunk_size=8,
            layer_norm_epsilon=0.5,
        ),
        dict(
            hidden_size=12,
            num_heads=3,
            head_dim=12,
            expand=3,
            n_groups=3,
            state_size=1,
            conv_kernel=2,
        ),
        dict(
            hidden_size=16,
            num_heads=32,
            head_dim=1,
            n_groups=4,
            state_size=3,
            tie_word_embeddings=True,
        ),
    ],
    "falcon_mamba": [
        dict(hidden_size=24),
        dict(
            hidden_size=20,
            state_size=5,
            layer_norm_epsilon=0.5,
            mixer_rms_eps=0.3,
            tie_word_embeddings=False,
        ),
    ],
}
CLASSES = {"mamba": "Mamba", "mamba2": "Mamba2", "falcon_mamba": "FalconMamba"}
CASES = [(family, config) for family, configs in CONFIGS.items() for config in configs]


def transformers():
    os.environ.setdefault(
        "HF_HUB_OFFLINE", "1"
    )  # read on import: it may look for kernels to download
    module = pytest.importorskip("transformers", reason="transformers is in the dev extra")
    module.logging.set_verbosity_error()  # that there is no fast path is known
    return module


def model_of(family, **differences):
    module, sizes = transformers(), dict(vocab_size=V, num_hidden_layers=2) | differences
    none = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)
    torch.manual_seed(0)
    config = getattr(module, f"{CLASSES[family]}Config")(**sizes, **none)
    model = getattr(module, f"{CLASSES[family]}ForCausalLM")(config).eval()
    return scrambled(model)


IDS = tokens(V, B, L)


@pytest.mark.parametrize(("family", "config"), CASES, ids=str)
@torch.no_grad()
def test_logits_and_greedy_text_are_those_of_transformers(family, config):
    theirs, ids = model_of(family, **config), IDS
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = clinic.load_mamba_checkpoint(theirs.state_dict(), hf_config=theirs.config)
    assert error(ours(ids), theirs(ids).logits) <= 1e-5
    assert ours.tie == theirs.config.tie_word_embeddings
    written = theirs.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False
    )
    assert torch.equal(ours.generate(ids, 6), written)


def test_a_block_with_the_arm_of_jamba_is_its_mixer():
    transformers()
    from transformers.models.jamba.modeling_jamba import JambaConfig, JambaMambaMixer, JambaRMSNorm

    d, sizes = 20, dict(d_state=5, dt_rank=3, d_conv=3, expand=2)
    attention = dict(
        num_attention_heads=2, num_key_value_heads=2, attn_layer_period=2, attn_layer_offset=1
    )
    mamba = {f"mamba_{name}": size for name, size in sizes.items()}
    config = JambaConfig(
        hidden_size=d, num_hidden_layers=2, num_experts=1, rms_norm_eps=1e-2, **attention, **mamba
    )
    theirs = scrambled(
        torch.nn.ModuleDict({"n1": JambaRMSNorm(d, 1e-2), "mixer": JambaMambaMixer(config, 0)})
    )
    ours, names = (
        mn.MambaBlock(d, *Arm.parse("preset:Jamba"), norm_options={"eps": 1e-2}, **sizes),
        {"mixer.": ""},
    )
    names |= {"dt_layernorm": "more.delta", "b_layernorm": "more.B", "c_layernorm": "more.C"}
    state = theirs.state_dict()
    for told, own in names.items():
        state = {name.replace(told, own): tensor for name, tensor in state.items()}
    ours.load_state_dict(state)
    x = sample(B, L, d)
    assert_twins(
        results(ours, x)[:2], results(lambda x: x + theirs["mixer"](theirs["n1"](x)), x), 1e-5
    )


@torch.no_grad()
def test_half_precision_and_mamba_ssms_names_load_the_same_mamba_2():
    theirs = model_of("mamba2", **CONFIGS["mamba2"][1]).bfloat16()
    state = {
        name.replace("embeddings", "embedding"): tensor
        for name, tensor in theirs.state_dict().items()
    }
    ours = clinic.load_mamba_checkpoint(state, n_groups=2, norm_options={"eps": 0.5})
    assert {p.dtype for p in ours.parameters()} == {torch.float32}
    assert all(isinstance(block, Mamba2Block) for block in ours.backbone.layers)
    assert error(ours(IDS), theirs.float()(IDS).logits) <= 1e-5


@torch.no_grad()
def test_a_mamba_2_without_a_norm_behind_its_gate_has_none():
    theirs = model_of("mamba2", **CONFIGS["mamba2"][0])
    state = {
        name: tensor
        for name, tensor in theirs.state_dict().items()
        if not name.endswith("mixer.norm.weight")
    }
    ours = clinic.load_mamba_checkpoint(state, n_groups=1)
    assert str(ours.arm) == "RMSN>SSM>None"
    assert len(ours.backbone.layers[0].more) == 0
    for layer in theirs.backbone.layers:
        layer.mixer.norm.forward = lambda y, z: y * torch.nn.functional.silu(z)
    assert error(ours(IDS), theirs(IDS).logits) <= 1e-5


@torch.no_grad()
def test_a_config_comes_as_an_object_a_dict_a_file_a_folder_or_mamba_ssms(tmp_path):
    theirs = model_of("mamba2", **CONFIGS["mamba2"][1])
    theirs.config.save_pretrained(tmp_path)
    assert (
        "Infinity" in (tmp_path / "config.json").read_text()
    )  # of time_step_limit, as JSON has no infinity
    ssm = {"layer": "Mamba2", "d_state": 7, "headdim": 6, "ngroups": 2, "chunk_size": 8}
    upstream = {"d_model": 24, "n_layer": 2, "vocab_size": V, "ssm_cfg": ssm, "rms_norm": True}
    expected = theirs(IDS).logits
    for config in (theirs.config, theirs.config.to_dict(), tmp_path, str(tmp_path / "config.json")):
        assert (
            error(
                clinic.load_mamba_checkpoint(theirs.state_dict(), hf_config=config)(IDS), expected
            )
            <= 1e-5
        )
    ours = clinic.load_mamba_checkpoint(
        theirs.state_dict(), hf_config=upstream, norm_options={"eps": 0.5}
    )
    assert error(ours(IDS), expected) <= 1e-5


def test_without_a_config_what_no_tensor_shows_is_asked_for_or_warned_of():
    mamba, mamba2 = (
        model_of(family, **CONFIGS[family][0]).state_dict() for family in ("mamba", "mamba2")
    )
    with pytest.warns(UserWarning, match="loaded as a Mamba-1. If it is a Falcon-Mamba"):
        clinic.load_mamba_checkpoint(mamba)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clinic.load_mamba_checkpoint(mamba, arm="RMSN>SSM>None")
        with pytest.raises(
            ValueError,
            match=r"n_groups · d_state = 5: give hf_config= or n_groups=",
        ):
            clinic.load_mamba_checkpoint(mamba2)


def changed(config=None, state=None):
    """Loads a sound Mamba-2 whose config or tensors are changed; None takes one out."""
    theirs = model_of("mamba2", **CONFIGS["mamba2"][0])
    tensors = theirs.state_dict() | {
        f"backbone.layers.0.mixer.{name}": x for name, x in (state or {}).items()
    }
    tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    return clinic.load_mamba_checkpoint(tensors, hf_config=theirs.config.to_dict() | (config or {}))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (dict(hidden_act="gelu"), "hidden_act='gelu' in hf_config is not supported, only 'silu'"),
        (dict(time_step_limit=[0.01, math.inf]), "time_step_limit="),
        (
            dict(model_type="jamba"),
            "model_type 'jamba' in hf_config is not supported, only .*Mamba-2",
        ),
        (dict(model_type="mamba"), r"A_log of shape \(E, N\) is needed, got \(6,\)"),
        (dict(n_groups=2), r"size mismatch for .*in_proj\.weight"),
    ],
)
def test_a_config_that_is_not_supported_or_another_checkpoints_is_refused(config, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        changed(config=config)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"norm.weight": torch.ones(47)}, r"size mismatch for .*gated\.weight.*\[47\].*\[48\]"),
        ({"norm.weight": None}, r"Unexpected key.*backbone\.layers\.1\.more\.gated\.weight"),
        ({"A_log": torch.ones(48, 16)}, r"A_log of shape \(H,\) is needed, got \(48, 16\)"),
    ],
)
def test_a_mamba_2_that_does_not_fit_says_what_was_expected(state, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        changed(state=state)


def test_what_is_no_config_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("<html>")
    state = model_of("mamba", hidden_size=8).state_dict()
    for config, message in (
        (tmp_path, "is not the config"),
        ({}, "model_type None"),
    ):
        with pytest.raises(ValueError, match=message):
            clinic.load_mamba_checkpoint(state, hf_config=config)
    with pytest.raises(FileNotFoundError):
        clinic.load_mamba_checkpoint(state, hf_config=tmp_path / "none.json")


def test_another_architecture_is_refused_by_the_names_of_its_tensors():
    name = "transformer.h.0.attn.c_attn.weight"
    with pytest.raises(
        ValueError,
        match=rf"the first tensors of the checkpoint are {name}.*whole language model of Mamba-1",
    ):
        clinic.load_mamba_checkpoint({name: torch.ones(1)}, arm="RMSN>SSM>None")


def test_a_lost_head_a_head_that_contradicts_its_config_and_quantized_weights_are_refused():
    sizes = dict(d_model=8, n_layers=1, scan_backend="reference")
    state = {
        name.replace(".n1.", ".norm.")
        .replace("layers.0.", "layers.0.mixer.")
        .replace("mixer.norm", "norm"): tensor
        for name, tensor in mn.LanguageModel(20, tie=False, **sizes).state_dict().items()
    }
    config = {"model_type": "mamba", "hidden_size": 8, "num_hidden_layers": 1}
    headless = {name: tensor for name, tensor in state.items() if name != "lm_head.weight"}
    assert not clinic.load_mamba_checkpoint(
        state, hf_config=config | {"tie_word_embeddings": False}
    ).tie
    assert clinic.load_mamba_checkpoint(
        headless, hf_config=config | {"tie_word_embeddings": True}
    ).tie
    with pytest.raises(
        ValueError, match="lm_head.weight is missing, although hf_config says that it is not tied"
    ):
        clinic.load_mamba_checkpoint(headless, hf_config=config | {"tie_word_embeddings": False})
    narrow = state | {"lm_head.weight": (100 * state["lm_head.weight"]).to(torch.int8)}
    with pytest.raises(
        ValueError,
        match="lm_head.weight: not a tensor of float32.*quantized weights are not supported",
    ):
        clinic.load_mamba_checkpoint(narrow, hf_config=config)
