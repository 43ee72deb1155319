"""IN taken apart: each half does what its name says, and a task that the mean alone tells is lost
with the mean.
"""

import pytest
import torch

import mambanorm as mn
import mambanorm_study as study
from mambanorm_study import figures
from mambanorm_study.tables import instance_norm_parts
from mambanorm_study.tasks import synthetic

ALL_ROWS, LENGTH = synthetic.SIZES, synthetic.LENGTH


def rows(dtype=torch.float64):
    torch.manual_seed(3)
    return 5 * torch.randn(4, 9, 6, dtype=dtype) + torch.arange(6)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32]
)  # the readable twin and the fused one
def test_the_halves_of_in_centre_and_scale_and_make_in_together(dtype):
    x, close = rows(dtype), torch.testing.assert_close
    whole, centred, scaled = (
        mn.create_norm("IN", 6, **options).to(dtype)(x)
        for options in ({}, dict(scale=False), dict(centre=False))
    )
    std = x.var(1, unbiased=False, keepdim=True).add(1e-5).sqrt()
    close(centred, (x - x.mean(1, keepdim=True)) / (1 + 1e-5) ** 0.5)
    close(scaled, x / std)
    close(whole, (x - x.mean(1, keepdim=True)) / std)
    assert torch.equal(mn.create_norm("IN", 6, centre=True, scale=True).to(dtype)(x), whole)


@pytest.mark.parametrize(
    "options", [dict(centre=False), dict(scale=False), dict(centre=False, scale=False)]
)
def test_the_gradient_of_a_half_is_right_and_padding_stays_out(options):
    norm, x = mn.create_norm("IN", 6, **options).double(), rows().requires_grad_()
    assert torch.autograd.gradcheck(norm, (x,))
    lengths = torch.tensor([9, 4, 7, 1])
    alone = norm(x[1:2, :4])
    torch.testing.assert_close(norm(x, lengths)[1:2, :4], alone)


def test_a_half_is_asked_for_with_a_flag():
    with pytest.raises(ValueError, match="centre must be True or False, got 'no'"):
        mn.create_norm("IN", 6, centre="no")


def test_the_mean_alone_tells_the_classes_of_level():
    data = study.load_task("level", "quick", 0)
    assert [len(split) for split in (data.train, data.val, data.test)] == list(ALL_ROWS)
    assert data.train.inputs.shape == (ALL_ROWS[0], LENGTH, 1)
    level = data.train.inputs.mean(1)[:, 0]
    clear = (level.abs() - 0.5).abs() > 1e-5
    assert torch.equal((level.abs() > 0.5)[clear], data.train.labels.bool()[clear])
    assert 0.4 < data.train.labels.float().mean() < 0.6
    centred = data.train.inputs - data.train.inputs.mean(1, keepdim=True)
    assert centred.flatten(1).mean(1).abs().max() < 1e-5
    assert instance_norm_parts.accuracy_from_moments("level", "quick") > 0.95
    other = study.load_task("level", "quick", 1)
    assert not torch.equal(other.train.inputs, data.train.inputs)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("halves")
    return study.sweep(
        instance_norm_parts.parts_runs("smoke", 1), workers=0, progress=False, runs_dir=folder
    )


def test_every_part_has_its_runs_and_its_bar(runs):
    frame = instance_norm_parts.with_parts(runs.sample(frac=1, random_state=0))
    assert frame.groupby("task").part.apply(list).to_dict() == {
        t: list(instance_norm_parts.PARTS) for t in instance_norm_parts.PARTS_TASKS
    }
    other = runs.assign(arm="LN>SSM>LN")
    assert instance_norm_parts.with_parts(other).empty
    figure = figures.fig_halves(frame)
    assert [len(ax.patches) for ax in figure.axes] == [len(instance_norm_parts.PARTS)] * 2
