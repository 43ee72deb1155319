"""What a norm does is measured: those of the kit are what they declare, and one of your own that is not is refused."""

import pytest
import torch
from torch import nn

import mambanorm as mn
from mambanorm.norms.behaviour import CHANNELS, contradiction, measured
from mambanorm.report.study import study_facts
from mambanorm.study.norm_catalog import norm_table


@pytest.mark.parametrize("name", mn.NORMS)
def test_the_kits_norms_are_what_they_declare(name):
    entry, found = mn.NORMS[name], measured(lambda: mn.create_norm(name, CHANNELS))
    assert set(found.axes) == set(entry.axes)
    assert (found.ahead is None) == entry.causal
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


@pytest.fixture
def register(monkeypatch):
    """Registers a class under its name, for one test."""
    known = dict(mn.NORMS)

    def enter(cls, axes=("D",), causal=True, **options):
        return mn.register_norm(
            cls.__name__, equation="", source="a test", axes=axes, causal=causal, learnable="γ", **options
        )(cls)

    yield enter
    mn.NORMS.clear()
    mn.NORMS.update(known)


@pytest.mark.parametrize(("cls", "axes"), [(Spread, ("D",)), (Draws, ())])
def test_an_honest_norm_is_registered(register, cls, axes):
    register(cls, axes)
    assert measured(lambda: cls(CHANNELS)).random == (cls is Draws)
    assert mn.NORMS[cls.__name__].doubt == ""


@pytest.mark.parametrize(
    ("cls", "declared", "said"),
    [
        (Ahead, {}, "declared causal, but position 0 sees position 1"),
        (DrawsAhead, {}, "declared causal, but position 0 sees position 1"),
        (
            Padded,
            dict(axes=("L",), causal=False),
            "takes padding into its statistics: disturbed behind the end of row 1",
        ),
        (Remembers, {}, "keeps something from batch to batch that is not in its state dict"),
        (Channel, {}, "over D, but its outputs look over no axis"),
        (Spread, dict(axes=("L", "D"), causal=False), "over L · D, but its outputs look over D"),
        (Cut, {}, r"it makes \(3, 5, 8\), 0 not finite"),
        (Blank, {}, r"it makes \(3, 6, 8\), 144 not finite"),
    ],
)
def test_one_that_is_not_what_it_declares_is_refused_or_marked(register, cls, declared, said):
    with pytest.raises(ValueError, match=rf"norm '{cls.__name__}' is not registered: .*{said}"):
        register(cls, **declared)
    assert cls.__name__ not in mn.NORMS
    register(cls, **declared, check=False)
    assert mn.NORMS[cls.__name__].doubt
    assert "not what it declares" in norm_table().loc[cls.__name__, "source"]
    assert study_facts("quick", "auto", [], [])[f"Norm {cls.__name__}"].startswith("not what it declares")


def test_the_callers_random_numbers_stay_where_they_were():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    measured(lambda: mn.create_norm("NormVary", CHANNELS))
    assert torch.equal(torch.rand(2), expected)
