"""Claims about insert_norm: γ and β are those of least squares, the record tells the change, undo
leaves no trace.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import mambanorm as mn
import mambanorm_clinic as clinic
from mambanorm.norms import create_norm
from mambanorm_clinic import surgery
from tests.mambanorm_clinic.test_diagnosis import V, labelled, ours, text, theirs

X = torch.randn(4, 12, 8, generator=torch.Generator().manual_seed(0))
CASES = [
    *[("Mamba", site) for site in ("n1", "delta", "C", "gated")],
    ("FalconMamba", "B"),
    ("Jamba", "delta"),
    *[("Mamba2", site) for site in ("delta", "branch")],
]


def classifier(arm="RMSN>SSM>None") -> mn.SequenceClassifier:
    torch.manual_seed(0)
    sizes = dict(d_model=16, n_layers=3, dt_rank=3)
    return mn.SequenceClassifier(
        3, in_features=8, **sizes, arm=arm, scan_backend="reference"
    ).eval()


def state(model: nn.Module) -> dict:
    return {name: value.clone() for name, value in model.state_dict().items()}


@torch.no_grad()
def logits(model: nn.Module, batch) -> torch.Tensor:
    return model(**batch).logits if isinstance(batch, dict) else model(batch)


@pytest.mark.parametrize(("family", "site"), CASES)
def test_the_record_tells_the_change_and_undo_leaves_no_trace(family, site):
    model, batch = theirs(family).eval(), {"input_ids": text()}
    before, weights = logits(model, batch), state(model)
    done = clinic.insert_norm(model, site, "RMSN", batch)
    after = logits(model, batch)
    expected = float((after.double() - before.double()).norm() / before.double().norm())
    assert done.change == pytest.approx(expected, rel=1e-6)
    assert 0 < done.change < 1.5
    assert len(done.layers) == len(done.norms) == (3 if family == "Jamba" else 4)
    added = model.state_dict().keys() - weights.keys()
    assert {name.removesuffix(".weight") for name in added} == set(done.layers["where"])
    assert f"RMSN at {site} of {len(done.norms)} layers" in str(done)
    worst = done.layers.loc[done.layers.change.idxmax(), "where"]
    assert f"the values at the site change most in {worst} (" in str(done)
    done.undo()
    done.undo()
    assert torch.equal(logits(model, batch), before)
    assert model.state_dict().keys() == weights.keys()
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert not [m for m in model.modules() if m._forward_hooks or m._forward_pre_hooks]


@pytest.mark.parametrize("norm", ["RMSN", "LN", "GN-token", "DyT"])
def test_gamma_and_beta_are_those_of_least_squares_in_every_channel(norm):
    model, batch = theirs().eval(), {"input_ids": text()}
    mixer, before = model.backbone.layers[0].mixer, []
    hook = mixer.out_proj.register_forward_pre_hook(
        lambda _m, args: before.append(args[0].detach().double())
    )
    logits(model, batch)
    hook.remove()
    done = clinic.insert_norm(model, "gated", norm, batch)
    fitted = done.norms[0]
    target = before[0].flatten(0, 1).numpy()
    fresh = create_norm(norm, target.shape[1]).double()
    with torch.no_grad():
        normed = fresh(before[0]).flatten(0, 1).numpy()
    for channel in (0, 17, 63):
        columns = [normed[:, channel]] + ([np.ones(len(normed))] if fitted.bias is not None else [])
        solved, *_ = np.linalg.lstsq(np.stack(columns, 1), target[:, channel], rcond=None)
        assert float(fitted.weight[channel]) == pytest.approx(solved[0], rel=1e-4, abs=1e-7)
        if fitted.bias is not None:
            assert float(fitted.bias[channel]) == pytest.approx(solved[1], rel=1e-3, abs=1e-6)


@pytest.mark.parametrize(
    ("family", "site", "part", "there"),
    [
        ("Mamba", "dt", "x_proj", slice(2)),
        ("Mamba", "B", "x_proj", slice(2, 10)),
        ("Mamba2", "dt", "in_proj", slice(-8, None)),
    ],
)
def test_only_the_sites_own_channels_are_normalized_and_dt_is_another_name_for_delta(
    family, site, part, there
):
    """dt: R = 2 numbers of x_proj's output in Mamba, the last of in_proj's, one for each of 8
    heads, in Mamba-2.
    """
    model, batch, seen = theirs(family).eval(), {"input_ids": text()}, {}
    module = model.backbone.layers[1].mixer.get_submodule(part)
    hook = module.register_forward_hook(lambda _m, args, out: seen.update(given=args[0], plain=out))
    done = clinic.insert_norm(model, site, "RMSN", batch)
    hook.remove()
    assert done.site == ("delta" if site == "dt" else site)
    module.register_forward_hook(lambda _m, args, out: seen.update(given=args[0], normed=out))
    logits(model, batch)
    plain = seen["given"] @ module.weight.t()
    with torch.no_grad():
        expected = done.norms[1](plain[..., there].contiguous())
    torch.testing.assert_close(seen["normed"][..., there], expected)
    kept = torch.ones(plain.shape[-1], dtype=torch.bool)
    kept[there] = False
    torch.testing.assert_close(seen["normed"][..., kept], plain[..., kept])
    assert surgery.relative_change(expected, plain[..., there]) > 0.05


@pytest.mark.parametrize(
    ("family", "site"),
    [("Mamba", "delta"), ("Mamba", "gated"), ("Mamba2", "delta"), ("Mamba2", "branch")],
)
def test_the_same_weights_get_the_same_norm_in_transformers_model_and_in_this_kits(family, site):
    model, batch = theirs(family).eval(), {"input_ids": text()}
    own = clinic.load_mamba_checkpoint(model.state_dict(), hf_config=model.config).eval()
    torch.testing.assert_close(logits(own, text()), logits(model, batch))
    norms = [
        clinic.insert_norm(one, site, "LN", given).norms
        for one, given in ((model, batch), (own, text()))
    ]
    torch.testing.assert_close(logits(own, text()), logits(model, batch), rtol=1e-4, atol=1e-5)
    for his, mine in zip(*norms, strict=True):
        torch.testing.assert_close(his.weight, mine.weight, rtol=1e-3, atol=1e-5)


SURGERIES = [
    ("RMSN>SSM>None", "n2", "RMSN>SSM>LN"),
    ("None>SSM>None", "n1", "LN>SSM>None"),
    ("None>SSM>GN", "n1", "LN>SSM>GN"),
    *(
        ("RMSN>SSM>None+B:RMSN", site, str(mn.Arm.parse(f"RMSN>SSM>None+B:RMSN+{site}:LN")))
        for site in surgery.KIT_SITES
        if site not in ("n1", "n2", "B")
    ),
]


@pytest.mark.parametrize(("arm", "site", "after"), SURGERIES)
def test_in_this_kits_blocks_the_result_is_the_arm_and_its_checkpoint_loads(arm, site, after):
    model = classifier(arm)
    before, weights = logits(model, X), state(model)
    done = clinic.insert_norm(model, site, "LN", X)
    changed = logits(model, X)
    assert surgery.relative_change(changed, before) == pytest.approx(done.change, rel=1e-5)
    assert {str(block.arm) for block in model.blocks} == {after}
    other = classifier(after)
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(logits(other, X), changed)
    done.undo()
    assert torch.equal(logits(model, X), before)
    assert state(model).keys() == weights.keys()
    assert {str(block.arm) for block in model.blocks} == {arm}


def test_batch_norm_starts_with_the_statistics_of_the_calibration_batch():
    model = classifier()
    done = clinic.insert_norm(model, "n2", "BN", X)
    assert done.change < 1e-4  # an affine function of each channel, which γ and β take back
    assert all(norm.running_mean.abs().max() > 0 for norm in done.norms)


def test_the_new_norms_learn_and_a_copy_of_the_model_uses_its_own():
    model, ids = theirs(), text()
    done = clinic.insert_norm(model, "gated", "RMSN", {"input_ids": ids})
    twin = copy.deepcopy(model)
    model(**labelled(ids)).loss.backward()
    assert all(norm.weight.grad.abs().max() > 0 for norm in done.norms)
    before = logits(twin, {"input_ids": ids})
    with torch.no_grad():
        done.norms[0].weight.zero_()
    assert torch.equal(logits(twin, {"input_ids": ids}), before)
    fresh = theirs()
    missing, unexpected = fresh.load_state_dict(model.state_dict(), strict=False)
    assert (missing, set(unexpected)) == ([], {f"{name}.weight" for name in done.layers["where"]})


def test_of_a_block_that_runs_twice_the_change_is_that_of_its_first_run():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.block = mn.MambaBlock(8, scan_backend="reference")

        def forward(self, x):
            return self.block(self.block(x) * 3)

    model, once = Twice(), mn.MambaBlock(8, scan_backend="reference")
    once.load_state_dict(model.block.state_dict())
    assert clinic.insert_norm(model, "n2", "LN", X).layers.change.tolist() == pytest.approx(
        clinic.insert_norm(once, "n2", "LN", X).layers.change.tolist()
    )


IDS = {"input_ids": text()}
REFUSED = [
    (
        theirs,
        "gate",
        "RMSN",
        IDS,
        r"unknown site without a norm in MambaForCausalLM 'gate'.*did you mean 'gated'",
    ),
    (
        lambda: theirs("Mamba2"),
        "B",
        "RMSN",
        IDS,
        r"unknown site without a norm in Mamba2ForCausalLM 'B'",
    ),
    (theirs, "gated", "RMS", IDS, r"unknown norm 'RMS'.*did you mean 'RMSN'"),
    (
        lambda: nn.Sequential(nn.Linear(8, 8)),
        "gated",
        "RMSN",
        X,
        "norms cannot be inserted into Sequential, only",
    ),
    (theirs, "gated", "IN", IDS, "norm 'IN' sees the future"),
    (ours, "n2", "BN", text(), "norm 'BN' sees the future"),
    (lambda: nn.Sequential(ours()), "n2", "IN", text(), "norm 'IN' sees the future"),
    (theirs, "gated", "RMSN", {"ids": text()}, "refuses this batch"),
    (classifier, "n1", "LN", X, r"unknown site without a norm in SequenceClassifier 'n1'"),
    (classifier, "scan", "LN", X, r"unknown site without a norm in SequenceClassifier 'scan'"),
]


def test_bad_input_is_refused_in_words_and_leaves_the_model_as_it_was():
    for make, site, norm, batch, words in REFUSED:
        model = make()
        weights = state(model)
        with pytest.raises(ValueError, match=words):
            clinic.insert_norm(model, site, norm, batch)
        assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
        assert not [m for m in model.modules() if m._forward_hooks or m._forward_pre_hooks]
    model = theirs()
    with pytest.raises(TypeError, match="unknown option of norm RMSN 'epsilon'"):
        clinic.insert_norm(model, "gated", "RMSN", IDS, epsilon=1e-6)
    clinic.insert_norm(model, "gated", "RMSN", IDS, eps=1e-6)
    with pytest.raises(
        ValueError, match=r"unknown site without a norm in MambaForCausalLM 'gated'"
    ):
        clinic.insert_norm(model, "gated", "LN", IDS)


def test_a_mixer_that_a_fused_kernel_computes_is_refused():
    model = theirs().eval()
    for layer in model.backbone.layers:
        layer.mixer.forward = lambda hidden_states, **_: hidden_states
    with pytest.raises(ValueError, match="is not called: the model computes it in a fused kernel"):
        clinic.insert_norm(model, "gated", "RMSN", {"input_ids": torch.arange(V)[None]})


@pytest.mark.parametrize("make", [classifier, ours])
def test_the_models_arm_is_the_one_that_stands_there(make):
    model = make()
    batch = X if make is classifier else text()
    n2, gated = (
        clinic.insert_norm(model, "n2", "LN", batch),
        clinic.insert_norm(model, "gated", "RMSN", batch),
    )
    assert str(model.arm) == "RMSN>SSM>LN+gated:RMSN"
    assert str(copy.deepcopy(model).arm) == str(model.arm)
    n2.undo()
    assert str(model.arm) == "RMSN>SSM>None+gated:RMSN"
    gated.undo()
    assert str(model.arm) == "RMSN>SSM>None"
