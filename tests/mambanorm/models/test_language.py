"""The language model is transformers' Mamba, takes its checkpoints, goes step by step, and sees no
future.
"""

import copy
import math
import os
import pickle
import re

import pytest
import torch

import mambanorm as mn
import mambanorm_clinic as clinic
from mambanorm.arms import MORE_SITES
from mambanorm.block import BlockCache
from mambanorm_study.tasks import pydoc
from tests.twins import error, scrambled, tokens

CAUSAL = [name for name, entry in mn.NORMS.items() if entry.causal]
FUTURE = [name for name, entry in mn.NORMS.items() if not entry.causal]
V, D, L, B = 23, 15, 13, 3
FIVE = {"groups": 5}  # divides D and 2·D


def language_model(arm="RMSN>SSM>None", **options):
    torch.manual_seed(0)
    return scrambled(
        mn.LanguageModel(
            V, **{"d_model": D, "n_layers": 2, "arm": arm, "norm_options": FIVE} | options
        )
    )


# names and initial values


def test_the_head_is_tied_unless_asked_and_initial_values_are_mamba_ssm_s():
    torch.manual_seed(0)
    tied, free = (mn.LanguageModel(300, d_model=64, n_layers=4, tie=tie) for tie in (True, False))
    assert tied.lm_head.weight is tied.backbone.embedding.weight
    assert free.lm_head.weight is not free.backbone.embedding.weight
    for model in (tied, free):
        assert abs(model.backbone.embedding.weight.std() - 0.02) < 0.001
        bound = 128**-0.5 / 2  # kaiming_uniform(√5) is U(±1/√fan_in), divided by √n_layers
        assert 0.95 * bound < model.backbone.layers[0].out_proj.weight.abs().max() <= bound
    assert 0.95 / 8 < free.lm_head.weight.abs().max() <= 1 / 8  # PyTorch's: U(±1/√64)


# checkpoints


def as_mamba_ssm(model):
    """Our weights as mamba-ssm names them."""

    def renamed(name):
        layer, own = re.match(r"(backbone\.layers\.\d+\.)?(.*)", name).groups()
        if layer is None:
            return own
        return layer + (own.replace("n1.", "norm.") if own.startswith("n1.") else f"mixer.{own}")

    return {renamed(name): tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize(("arm", "tie"), [("RMSN>SSM>None", True), ("LN>SSM>None", False)])
def test_mamba_ssm_naming_loads_strictly_with_every_size_read_off_the_tensors(arm, tie):
    sizes = dict(
        d_model=18, n_layers=11, d_state=3, d_conv=5, expand=3, dt_rank=4
    )  # more than ten layers
    model = language_model(arm, final_norm=arm.split(">")[0], tie=tie, norm_options=None, **sizes)
    state = torch.random.get_rng_state()
    loaded = clinic.load_mamba_checkpoint(as_mamba_ssm(model))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert str(loaded.arm) == arm
    assert (loaded.lm_head.weight is loaded.backbone.embedding.weight) == tie
    assert torch.equal(loaded(tokens(V, B, L)), model(tokens(V, B, L)))


def test_a_tied_checkpoint_may_leave_the_head_out_and_half_precision_becomes_float32():
    model = language_model()
    state = {
        name: tensor.bfloat16()
        for name, tensor in as_mamba_ssm(model).items()
        if name != "lm_head.weight"
    }
    loaded = clinic.load_mamba_checkpoint(state)
    assert loaded.tie
    assert {p.dtype for p in loaded.parameters()} == {torch.float32}
    assert torch.equal(loaded.lm_head.weight, state["backbone.embedding.weight"].float())
    for none, said in (
        ("model.safetensors", "call read_checkpoint"),
        ({}, "the first tensors of the checkpoint are none"),
    ):
        with pytest.raises(ValueError, match=said):
            clinic.load_mamba_checkpoint(none)


@pytest.mark.parametrize(
    ("name", "tensor", "config", "message"),
    [
        ("backbone.layers.1.mixer.D", None, {}, r"Missing key.*backbone\.layers\.1\.D.*Mamba-1"),
        (
            "backbone.layers.0.mixer.A_log",
            None,
            {},
            r"a tensor .*mixer\.A_log of shape \(E, N\) is needed, got none.*Mamba-1",
        ),
        (
            "backbone.norm_f.weight",
            torch.ones(14),
            {},
            r"size mismatch for .*norm_f\.weight.*\[14\].*\[15\]",
        ),
        ("step", 3, {}, r"step: not a tensor of float32"),
    ],
)
def test_a_checkpoint_that_does_not_fit_says_what_was_expected(name, tensor, config, message):
    state = as_mamba_ssm(language_model()) | {name: tensor}
    with pytest.raises(ValueError, match=f"(?s){message}"):
        clinic.load_mamba_checkpoint(
            {key: x for key, x in state.items() if x is not None}, **config
        )


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", lambda whole: whole[: len(whole) // 2]),
        ("pytorch_model.bin", lambda whole: b"<html>"),
    ],
)
def test_a_file_gives_what_was_saved_and_a_damaged_one_is_refused_by_name(name, damage, tmp_path):
    from safetensors.torch import save_file

    path, state = tmp_path / name, as_mamba_ssm(language_model())
    (save_file if name.endswith("safetensors") else torch.save)(state, path)
    read = clinic.read_checkpoint(path)
    assert read.keys() == state.keys()
    assert all(torch.equal(read[key], state[key]) for key in state)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=f"{name} is truncated, altered or no checkpoint"):
        clinic.read_checkpoint(path)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        clinic.read_checkpoint(path)


class Bomb:
    def __reduce__(self):
        return os.mkdir, (os.environ["MAMBANORM_TEST_BOMB"],)


def test_a_file_that_would_run_code_is_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setenv("MAMBANORM_TEST_BOMB", str(tmp_path / "exploded"))
    torch.save({"backbone.embedding.weight": Bomb()}, tmp_path / "model.bin")
    with pytest.raises(ValueError, match=r"model\.bin .*holds other objects.*safetensors"):
        clinic.read_checkpoint(tmp_path / "model.bin")
    assert not (tmp_path / "exploded").exists()
    pickle.loads(pickle.dumps(Bomb()))
    assert (tmp_path / "exploded").exists()  # it would have


# step by step


SIZES = dict(d_state=3, dt_rank=2), dict(d_conv=1, d_state=1), dict(d_conv=7, expand=3, dt_rank=5)


@pytest.mark.parametrize(
    ("n1", "n2", "sizes"), list(zip(CAUSAL, CAUSAL[1:] + CAUSAL[:1], 4 * SIZES))
)
def test_step_by_step_equals_the_parallel_forward_for_every_causal_norm(n1, n2, sizes):
    model, ids = language_model(f"{n1}>SSM>{n2}", final_norm=n1, **sizes).double(), tokens(V, B, L)
    whole = model(ids)
    for read in (0, 1, 2, 7):  # shorter and longer than the convolution; 0: from the empty cache
        logits, cache = model.prefill(ids[:, :read]) if read else (None, model.new_cache(B))
        if read:
            assert error(logits, whole[:, read - 1]) <= 1e-12
        for t in range(read, L):
            assert error(model.step(ids[:, t], cache), whole[:, t]) <= 1e-12, (read, t)


def test_a_copied_cache_goes_its_own_way():
    model, ids = language_model(), tokens(V, B, L)
    _, cache = model.prefill(ids)
    model.step(ids[:, 0], [copy.copy(kept) for kept in cache])
    assert (
        error(model.step(ids[:, 3], cache), model(torch.cat([ids, ids[:, 3:4]], 1))[:, -1]) <= 1e-5
    )


def test_a_step_carries_no_gradient_and_keeps_the_dtype_of_the_weights():
    model = language_model()
    logits, cache = model.prefill(tokens(V, B, L))
    assert not logits.requires_grad
    assert not model.step(tokens(V, B), cache).requires_grad
    half = language_model().bfloat16()
    for cache in (half.prefill(tokens(V, B, L))[1], half.new_cache(B)):
        assert cache[0].state.dtype == torch.float32
        assert half.step(tokens(V, B), cache).dtype == torch.bfloat16
        assert cache[0].state.dtype == torch.float32


# generation


def test_greedy_text_is_what_the_whole_forward_finds_likeliest():
    model, prompt = language_model(), tokens(V, B, 2)
    written = model.generate(prompt, 9)
    assert torch.equal(written[:, :2], prompt)
    for t in range(2, 11):
        assert torch.equal(model(written[:, :t])[:, -1].argmax(-1), written[:, t])
    assert torch.equal(model.generate(prompt, 9, temperature=1e-40, seed=0), written)


def test_drawn_text_is_decided_by_the_seed_and_follows_the_probabilities():
    model = language_model()
    prompt = tokens(V, 1, 5).expand(4000, 5)
    first, again, other = (
        model.generate(prompt, 2, temperature=2.0, seed=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    p = (model(prompt[:1])[0, -1] / 2.0).softmax(-1)
    drawn = torch.bincount(first[:, 5], minlength=V) / len(first)
    assert (drawn - p).abs().max() < 4 * 0.5 / math.sqrt(len(first))  # four standard errors at most
    torch.manual_seed(5)
    unseeded = [model.generate(prompt, 1, temperature=2.0) for _ in range(2)]
    assert not torch.equal(*unseeded)


# no future


@pytest.mark.parametrize("norm", FUTURE)
def test_a_norm_that_sees_the_future_is_refused_wherever_it_stands(norm):
    axes = " · ".join(mn.NORMS[norm].axes)
    why = rf"'{norm}' sees the future.*over {axes} contain later positions.*choose a causal norm: .*LN, RMSN.*GN-token"
    arms = [
        f"{norm}>SSM>None",
        f"RMSN>SSM>{norm}",
        *(f"RMSN>SSM>None+{site}:{norm}" for site in MORE_SITES),
    ]
    for where in (*({"arm": arm} for arm in arms), {"final_norm": norm}):
        with pytest.raises(ValueError, match=why):
            mn.LanguageModel(V, d_model=16, n_layers=1, **where)
    for norms in ((norm, "None"), ("RMSN", norm)):
        block, x = (
            mn.MambaBlock(16, *norms).eval(),
            torch.zeros(B, L, 16),
        )  # BN too, although its mode is eval
        with pytest.raises(ValueError, match=why):
            block.step(x[:, 0], BlockCache(torch.zeros(B, 3, 32), torch.zeros(B, 32, 16)))
        with pytest.raises(ValueError, match=why):
            block.prefill(x)


# a text to learn


def test_text_round_trips_and_its_unigram_entropy_is_that_of_its_counts():
    text = pydoc.load_text()
    assert pydoc.decode(pydoc.encode(text)) == text
    assert pydoc.unigram_entropy(pydoc.encode("aaaabbcd")) == 1.75


def test_what_is_outside_the_alphabet_or_fills_no_window_is_refused():
    for character in "é\t":
        with pytest.raises(ValueError, match="unknown character"):
            pydoc.encode(f"a{character}")
    assert pydoc.cut_windows(torch.arange(12), 5).tolist() == [
        [0, 1, 2, 3, 4, 5],
        [5, 6, 7, 8, 9, 10],
    ]
    with pytest.raises(ValueError, match="from 1 to 49 for 50 characters"):
        pydoc.cut_windows(torch.arange(50), 50)
