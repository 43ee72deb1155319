"""What a norm does is measured: those of the kit are what they declare, and one of your own that is
not is refused.
"""

import pytest
import torch
from torch import nn

import mambanorm as mn
from mambanorm.norms.behaviour import CHANNELS, contradiction, measure
from mambanorm_study.report.study import study_facts
from mambanorm_study.tables.norm_catalog import norm_table


@pytest.mark.parametrize("name", mn.NORMS)
def test_the_kits_norms_are_what_they_declare(name):
    entry, found = mn.NORMS[name], measure(lambda: mn.create_norm(name, CHANNELS))
    assert set(found.axes) == set(entry.axes)
    assert (found.looks_ahead is None) == entry.causal
    assert contradiction(found, entry.axes, entry.causal) == ""


class Spread(nn.Module):
    """An honest norm: x over the median absolute deviation of a position's channels."""

    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x, lengths=None):
        return self.weight * x / (self.statistic(x) + 1e-5)

    def statistic(self, x):
        return (x - x.median(-1, keepdim=True).values).abs().median(-1, keepdim=True).values


class Ahead(Spread):
    def statistic(self, x):
        return super().statistic(torch.cat([x[:, 1:], x[:, -1:]], 1))


class Padded(Spread):
    def statistic(self, x):
        return x.abs().mean(1, keepdim=True)


class Remembers(Spread):
    last = 1.0

    def statistic(self, x):
        now, self.last = self.last, x.detach().abs().mean()
        return 0.5 * now + super().statistic(x)


class Channel(Spread):
    def statistic(self, x):
        return x.abs()


class Cut(Spread):
    def forward(self, x, lengths=None):
        return x[:, 1:]


class Blank(Spread):
    def statistic(self, x):
        return x * torch.nan


class Draws(Spread):
    def statistic(self, x):
        return 1 + torch.rand_like(x)


class DrawsAhead(Ahead):
    def statistic(self, x):
        return super().statistic(x) + torch.rand_like(x[..., :1])


class Root(torch.autograd.Function):
    """x over its root mean square; its backward leaves the statistic out."""

    @staticmethod
    def forward(ctx, x, weight):
        size = x.square().mean(-1, keepdim=True).add(1e-5).sqrt()
        ctx.save_for_backward(x, size, weight)
        return weight * x / size

    @staticmethod
    def backward(ctx, grad):
        x, size, weight = ctx.saved_tensors
        return grad * weight / size, (grad * x / size).sum((0, 1))


class WrongBackward(Spread):
    def forward(self, x, lengths=None):
        return Root.apply(x, self.weight)


class WrongBesidePadding(Spread):
    """Its backward is wrong only where lengths are given."""

    def forward(self, x, lengths=None):
        y = self.weight * torch.nn.functional.rms_norm(x, x.shape[-1:], eps=1e-5)
        return y if lengths is None else Root.apply(x, self.weight)


class WrongWeight(Spread):
    def forward(self, x, lengths=None):
        return torch.nn.functional.rms_norm(x, x.shape[-1:], eps=1e-5) * (
            2 * self.weight.detach() - self.weight
        )


class NoGraph(Spread):
    def forward(self, x, lengths=None):
        return super().forward(x.detach()).detach()


class In32(Spread):
    """An honest norm that computes in float32, as many do, and returns the dtype of x."""

    def forward(self, x, lengths=None):
        return torch.nn.functional.rms_norm(x.float(), x.shape[-1:], self.weight.float()).to(
            x.dtype
        )


class Returns32(Spread):
    def forward(self, x, lengths=None):
        return super().forward(x).float()


class Widens(Spread):
    """Half precision comes back as float32, all else as it is."""

    def forward(self, x, lengths=None):
        y = super().forward(x)
        return y.float() if x.dtype in (torch.float16, torch.bfloat16) else y


class NotInHalf(Spread):
    """An honest norm that torch cannot compute in 16 bits."""

    def statistic(self, x):
        return torch.quantile(x.abs(), 0.5, -1, keepdim=True)


@pytest.fixture
def register(monkeypatch):
    """Registers a class under its name, for one test."""
    known = dict(mn.NORMS)

    def enter(cls, axes=("D",), causal=True, **options):
        return mn.register_norm(
            cls.__name__,
            equation="",
            source="a test",
            axes=axes,
            causal=causal,
            learnable="γ",
            **options,
        )(cls)

    yield enter
    mn.NORMS.clear()
    mn.NORMS.update(known)


@pytest.mark.parametrize(
    ("cls", "axes"), [(Spread, ("D",)), (Draws, ()), (In32, ("D",)), (NotInHalf, ("D",))]
)
def test_an_honest_norm_is_registered(register, cls, axes):
    register(cls, axes)
    assert measure(lambda: cls(CHANNELS)).random == (cls is Draws)
    assert mn.NORMS[cls.__name__].doubt == ""


@pytest.mark.parametrize(
    ("cls", "declared", "said"),
    [
        (Ahead, {}, "declared causal, but position 0 sees position 1"),
        (DrawsAhead, {}, "declared causal, but position 0 sees position 1"),
        (
            Padded,
            dict(axes=("L",), causal=False),
            "takes padding into its statistics: a change of row 1's padding",
        ),
        (Remembers, {}, "keeps a value from one batch to the next that is not in its state dict"),
        (Channel, {}, "over D, but its outputs depend on inputs along no axis"),
        (
            Spread,
            dict(axes=("L", "D"), causal=False),
            "over L · D, but its outputs depend on inputs along D",
        ),
        (Cut, {}, r"it returns shape \(3, 5, 8\) with 0 non-finite"),
        (Blank, {}, r"it returns shape \(3, 6, 8\) with 144 non-finite"),
        (
            WrongBackward,
            {},
            r"its backward is wrong: the gradient is [\d.]+ % off finite differences\.",
        ),
        (
            WrongBesidePadding,
            {},
            r"the gradient is [\d.]+ % off finite differences where lengths are given",
        ),
        (
            WrongWeight,
            {},
            r"its backward is wrong: the gradient is [\d.]+ % off finite differences\.",
        ),
        (NoGraph, {}, "its backward is wrong: the gradient is 100 % off"),
        (
            Returns32,
            {},
            r"x's dtype \(float32 for float64, float32 for bfloat16, float32 for float16\): return",
        ),
        (
            Widens,
            {},
            r"x's dtype \(float32 for bfloat16, float32 for float16\): return y\.to\(x\.dtype\)",
        ),
    ],
)
def test_one_that_is_not_what_it_declares_is_refused_or_marked(register, cls, declared, said):
    with pytest.raises(ValueError, match=rf"norm '{cls.__name__}' is not registered: .*{said}"):
        register(cls, **declared)
    assert cls.__name__ not in mn.NORMS
    register(cls, **declared, check=False)
    assert mn.NORMS[cls.__name__].doubt
    assert "not what it declares" in norm_table().loc[cls.__name__, "source"]
    assert study_facts("quick", "auto", [], [])[f"Norm {cls.__name__}"].startswith(
        "not what it declares"
    )


def test_the_callers_random_numbers_stay_where_they_were():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    measure(lambda: mn.create_norm("NormVary", CHANNELS))
    assert torch.equal(torch.rand(2), expected)
