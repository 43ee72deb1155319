"""Each piece of advice of `diagnose` cures its own symptom on the model that shows it, and what it
says that a fix does not do, the fix does not do.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import mambanorm as mn
import mambanorm_clinic as clinic
import mambanorm_study as study
from mambanorm.block import init_dt_bias
from mambanorm.inside import record_sites
from tests.mambanorm_clinic.test_diagnosis import (
    X,
    labelled,
    layers_of,
    next_id,
    ours,
    text,
    theirs,
)

IDS = text()


def symptoms_with(model: nn.Module, word: str, batch=X, **options) -> list:
    """Return the symptoms whose message has this word."""
    return [one for one in clinic.diagnose(model, batch, **options).findings if word in one.message]


def classifier(n_layers: int = 8, arm: str = "RMSN>SSM>None") -> mn.SequenceClassifier:
    torch.manual_seed(0)
    return mn.SequenceClassifier(
        3, in_features=8, d_model=16, n_layers=n_layers, arm=arm, scan_backend="reference"
    )


@torch.no_grad()
def scaled(model: nn.Module, factors, part: str = "out_proj") -> nn.Module:
    for block, factor in zip(layers_of(model), factors):
        block.get_submodule(part).weight.mul_(factor)
    return model


# ------------------------------------------------------------------------------------- out of range


def large_scan() -> nn.Module:
    """A scan beyond float16: its C is large."""
    model = classifier(2)
    with torch.no_grad():
        for block in layers_of(model):
            block.x_proj.weight[-block.d_state :] *= 1e9
    return model


def test_beyond_float16_the_wider_type_helps_and_a_norm_behind_the_scan_comes_too_late():
    model = large_scan()
    (found,) = symptoms_with(model, "beyond float16")
    assert found.where == "blocks.0.C"
    assert "bfloat16 or float32 for this tensor" in found.advice
    clinic.insert_norm(model, "n2", "RMSN", X)
    assert symptoms_with(model, "beyond float16")
    with torch.autocast("cpu", torch.float16):
        assert not torch.isfinite(model.head(torch.full((1, 16), 7e4)))[
            0
        ].all()  # what is meant by the symptom
    with torch.autocast("cpu", torch.bfloat16):
        assert not symptoms_with(model, "beyond float16")
    assert not symptoms_with(large_scan().bfloat16(), "beyond float16", X.bfloat16())
    assert torch.isfinite(large_scan()(X)).all()


def trained(model: nn.Module, optimizer, steps: int = 4, clip: float = math.inf) -> bool:
    """Whether the loss stays finite."""
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(**labelled(IDS)).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return math.isfinite(float(model(**labelled(IDS)).loss))


def failed(tmp_path, rate: float) -> tuple:
    """A training that fails: its report, the model with the weights that `watch` wrote, and with
    earlier ones.
    """
    from safetensors.torch import load_file

    model = theirs()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with (
        pytest.raises(clinic.NonFinite) as stopped,
        clinic.watch(model, optimizer, folder=tmp_path),
    ):
        trained(model, optimizer, 80)
    model.load_state_dict(load_file(stopped.value.report.checkpoint))
    return stopped.value.report, model, theirs()


def test_after_a_value_that_is_not_finite_an_earlier_checkpoint_and_a_lower_rate_help(tmp_path):
    report, written, earlier = failed(tmp_path, 100.0)
    words = "go back to an earlier checkpoint and lower the learning rate"
    assert words in report.findings[0].advice
    assert symptoms_with(written, "first non-finite value", labelled(IDS))
    assert trained(earlier, torch.optim.SGD(earlier.parameters(), lr=0.1))
    assert list(clinic.diagnose(earlier, labelled(IDS)).findings) == []


def test_after_a_gradient_that_is_not_finite_clipping_helps_only_before_it(tmp_path):
    """pytorch/pytorch#46849: clip_grad_norm_ turns an infinite gradient into NaN."""
    report, _, earlier = failed(tmp_path, 1e4)
    assert report.first.in_gradient
    assert "repairs no gradient that is already non-finite" in report.findings[0].advice
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.tensor([math.inf, 1.0])
    nn.utils.clip_grad_norm_([weight], 1.0)
    assert weight.grad.isnan().any()
    assert trained(earlier, torch.optim.SGD(earlier.parameters(), lr=0.1), clip=1.0)


def test_a_norm_whose_backward_pass_divides_by_0_is_mended_by_a_larger_eps():
    class Length(nn.Module):
        def __init__(self, eps: float):
            super().__init__()
            self.mix, self.eps = nn.Linear(8, 8, bias=False), eps

        def forward(self, x):
            x = self.mix(x)
            return x * (x.square().mean(-1, keepdim=True) + self.eps).sqrt()

    x = X.clone()
    x[0, 0] = 0
    (found,) = symptoms_with(Length(0.0), "of the backward pass", x)
    assert "use a larger eps in the norm, root or division" in found.advice
    assert list(clinic.diagnose(Length(1e-6), x).findings) == []


@pytest.mark.parametrize("site", ["delta", "B", "C"])
def test_a_norm_on_what_the_scan_reads_cures_nothing_at_once_and_bounds_it_later(site):
    """As the advice says: keeps the values as they are, and bounds them in further training."""

    def largest(model) -> float:
        with torch.no_grad(), record_sites(model, site) as seen:
            model(X)
        return float(seen.tensors(site)[0].abs().max())

    def grow(model) -> None:
        with torch.no_grad():
            layers_of(model)[0].x_proj.weight.mul_(1e4)

    model, plain = classifier(2), classifier(2)
    before = largest(model)
    clinic.insert_norm(model, site, "RMSN", X)
    assert largest(model) == pytest.approx(before, rel=1.0)
    grow(model), grow(plain)
    assert largest(model) == pytest.approx(before, rel=1.0)
    assert largest(plain) > 1e3 * before


def test_a_loss_of_log_0_and_code_that_makes_nan_of_small_values_are_mended_by_a_clamp():
    model = nn.Linear(8, 8)

    def loss(eps):
        return lambda out, _: (out - out.detach()).square().sum().clamp(min=eps).log()

    (found,) = symptoms_with(model, "the loss is -inf", (X, X), loss=loss(0.0))
    assert "log of 0" in found.advice
    assert list(clinic.diagnose(model, (X, X), loss=loss(1e-6)).findings) == []

    class Log(nn.Module):
        def __init__(self, eps: float):
            super().__init__()
            self.mix, self.eps = nn.Linear(8, 8), eps

        def forward(self, x):
            x = self.mix(x)
            return torch.log(x.clamp(min=self.eps) if self.eps else x)

    (found,) = symptoms_with(Log(0.0), "first non-finite value")
    assert "clamp the argument or add an eps" in found.advice
    assert list(clinic.diagnose(Log(1e-3), X).findings) == []


# ------------------------------------------------------------------------------ weights and buffers


def test_lost_weights_are_mended_by_a_checkpoint_and_lost_statistics_by_batches():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(6))
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    (found,) = symptoms_with(model, "are not finite")
    assert "go back to an earlier checkpoint" in found.advice
    model.load_state_dict(kept)
    model[1].running_var[2] = math.inf
    (found,) = symptoms_with(model, "is not finite before the pass begins")
    assert "reset_running_stats()" in found.advice
    model[1].reset_running_stats()
    model.train()(X)
    assert list(clinic.diagnose(model, X).findings) == []


@pytest.mark.parametrize("make", [ours, lambda: ours(model="mamba2", head_dim=8)])
def test_a_dead_state_is_mended_by_a_sound_bias_or_smaller_weights_and_by_no_norm(make):
    model = make()
    block = layers_of(model)[1]
    bias = block.dt_bias if hasattr(block, "dt_bias") else block.dt_proj.bias
    with torch.no_grad():
        bias.add_(-60.0)
    (found,) = symptoms_with(model, "dead state", IDS)
    clinic.insert_norm(model, "delta", "RMSN", IDS)
    assert symptoms_with(model, "dead state", IDS), "they do not cure this"
    assert "do not cure this" in found.advice
    assert "mambanorm.block.init_dt_bias(bias)" in found.advice
    init_dt_bias(bias)
    assert list(clinic.diagnose(model, IDS).findings) == []


def test_a_dead_state_of_large_weights_is_mended_by_smaller_ones():
    model = ours()
    block = layers_of(model)[1]
    block.x_proj.register_forward_hook(lambda _m, _args, y: y.abs())
    nn.init.constant_(block.dt_proj.weight, -1e9)
    (found,) = symptoms_with(model, "dead state", IDS)
    assert "If the bias is sound, scale dt_proj.weight down" in found.advice
    with torch.no_grad():
        block.dt_proj.weight.mul_(1e-10)
    assert not symptoms_with(model, "dead state", IDS)


# ---------------------------------------------------------------------------------- growth and flow


class Bidirectional(nn.Module):
    """Two directions whose blocks each contain their input, in lists of their own or side by
    side.
    """

    def __init__(self, share: float, lists: bool):
        super().__init__()
        torch.manual_seed(0)
        blocks = [mn.MambaBlock(8, scan_backend="reference") for _ in range(16)]
        pairs = list(zip(blocks[::2], blocks[1::2], strict=True))
        self.layers = nn.ModuleList(
            nn.ModuleList(part) for part in (zip(*pairs, strict=True) if lists else pairs)
        )
        self.share, self.lists = share, lists

    def forward(self, x):
        for f, g in zip(*self.layers, strict=True) if self.lists else self.layers:
            x = self.share * (f(x) + g(x.flip(1)).flip(1))
        return x


@pytest.mark.parametrize("lists", [False, True])
def test_growth_of_a_sum_of_two_directions_is_mended_by_half_the_sum_and_by_no_norm(lists):
    model = Bidirectional(1.0, lists)
    (found,) = symptoms_with(model, "decades")
    assert "halve the sum" in found.advice
    clinic.insert_norm(model, "n2", "RMSN", X)
    assert "no norm inside the blocks cures that" in found.advice
    assert symptoms_with(model, "decades")
    assert not symptoms_with(Bidirectional(0.5, lists), "decades")


@pytest.mark.parametrize(
    ("make", "batch"),
    [
        (classifier, X),
        (lambda: theirs().float(), {"input_ids": IDS}),
        (lambda: theirs("Mamba2"), {"input_ids": IDS}),
    ],
)
def test_growth_within_the_blocks_is_mended_by_a_norm_of_each_branch_with_unit_gain(make, batch):
    model = make()
    with torch.no_grad():
        for depth, layer in enumerate(
            m for name, m in model.named_modules() if name.endswith("out_proj")
        ):
            layer.weight.mul_(40.0 ** (1 + depth))
    (found,) = symptoms_with(model, "decades", batch)
    assert "because the fitted weights would keep the growth" in found.advice
    norms = clinic.insert_norm(model, "branch", "RMSN", batch).norms
    assert symptoms_with(model, "decades", batch)
    for norm in norms:
        nn.init.ones_(norm.weight)
    assert not symptoms_with(model, "decades", batch)


def test_growth_where_no_norm_can_be_put_is_mended_by_smaller_last_matrices():
    torch.manual_seed(0)
    options = dict(norm_position="before", final_norm="LN")
    model = study.TransformerClassifier(3, in_features=8, d_model=16, n_layers=8, **options)
    last = [(block.attention.out_proj, block.feed_forward[2]) for block in layers_of(model)]
    with torch.no_grad():
        for depth, pair in enumerate(last):
            for layer in pair:
                layer.weight.mul_(4.0**depth), layer.bias.mul_(4.0**depth)
    found = clinic.diagnose(model, X)
    (growth,) = [one for one in found.findings if "decades" in one.message]
    assert growth.advice.startswith("divide the last matrix of each branch (out_proj) by the RMS")
    rms = found.table.set_index(["depth", "site"]).rms
    with torch.no_grad():
        for depth, pair in enumerate(last, 1):
            for layer, site in zip(pair, ("attention", "feed_forward"), strict=True):
                layer.weight.div_(rms[depth, site]), layer.bias.div_(rms[depth, site])
    assert not symptoms_with(model, "decades")


def chain(*, norm: bool = False, residual: bool = False, act=nn.Sigmoid, init=None) -> nn.Module:
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix, self.act = nn.Linear(16, 16), act()
            self.norm = nn.LayerNorm(16) if norm else nn.Identity()
            if init is not None:
                init(self.mix.weight)

        def forward(self, x):
            y = self.act(self.norm(self.mix(x)))
            return x + y if residual else y

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), *(Layer() for _ in range(20)), nn.Linear(16, 9))


def he(weight):
    nn.init.kaiming_normal_(weight, nonlinearity="relu")


@pytest.mark.parametrize(
    ("sick", "mended"),
    [
        (dict(), dict(residual=True)),
        (dict(act=nn.ReLU), dict(act=nn.ReLU, init=he)),
        (dict(act=nn.ReLU), dict(act=nn.ReLU, norm=True)),
        (
            dict(act=nn.Tanh, init=lambda w: nn.init.normal_(w, std=0.05)),
            dict(act=nn.Tanh, norm=True),
        ),
    ],
)
def test_vanishing_gradients_are_mended_by_norms_residual_paths_or_he(sick, mended):
    (found,) = symptoms_with(chain(**sick), "gradients vanish")
    assert "a norm in each layer" in found.advice
    assert not symptoms_with(chain(**mended), "gradients")


def test_what_mends_the_language_model_is_told_in_its_own_words():
    """Each severity has advice, and none names a norm where none can be put."""
    plain = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with torch.no_grad():
        plain[0].weight.mul_(1e38)
    for one in clinic.diagnose(plain, 1e3 * X).findings:
        assert one.advice
        assert "insert_norm" not in one.advice
    assert next_id(ours()(IDS), IDS).isfinite()
