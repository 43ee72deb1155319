"""The images of `paths…`: the label is whether the dots are joined, and no simple statistic shows it."""

import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from mambanorm_study.runs.grid import base_config
from mambanorm_study.runs.run import train
from mambanorm_study.tasks import TASKS, load_task
from mambanorm_study.tasks.paths import DASH, DOT, DRAWINGS, draw_images, draw_layouts, links


def images_of(edge: int, n: int = 300, seed: int = 300) -> tuple[torch.Tensor, torch.Tensor]:
    return draw_images(n, DRAWINGS[edge], torch.Generator().manual_seed(seed))


def reach(images: torch.Tensor) -> torch.Tensor:
    """Return a mask of the lit pixels that can be reached from the first pixel of the first dot.

    A step may cross one dark pixel: the gap inside a dash of a path.
    """
    lit, is_dot = images > 0, (images == DOT).flatten(1)
    reached = F.one_hot(is_dot.int().argmax(1), is_dot.shape[1]).bool().view_as(images)
    while True:
        near = F.max_pool2d(reached[:, None].float(), 5, stride=1, padding=2)[:, 0] > 0
        grown = near & lit
        if grown.equal(reached):
            return reached
        reached = grown


@pytest.mark.parametrize("edge", DRAWINGS)
def test_the_label_is_whether_the_dots_are_joined(edge):
    images, labels = images_of(edge)
    is_dot = images == DOT
    joined = (reach(images) | ~is_dot).flatten(1).all(1)
    assert joined.long().equal(labels)
    assert (is_dot.sum((1, 2)) == 2 * 9).all()
    assert set(images.unique().tolist()) == {0.0, DASH, DOT}
    assert images.any(0).float().mean() > 0.6  # drawings fill the image


@pytest.mark.parametrize("edge", DRAWINGS)
def test_a_path_goes_from_cell_to_neighbouring_cell_and_strays_do_not_touch_it(edge):
    drawing = DRAWINGS[edge]
    cells, orbits = links(drawing.side)
    paths, gap, stray = draw_layouts(200, drawing, torch.Generator().manual_seed(0))
    places = torch.stack([paths // drawing.side, paths % drawing.side], -1)
    assert ((places >= 0) & (places < drawing.side)).all()
    assert (places.diff(dim=1).abs().sum(-1) == 1).all()
    for path, number, strays in zip(paths.tolist(), gap.tolist(), stray, strict=True):
        assert len(set(path)) == drawing.length
        assert len(set(strays.tolist())) == drawing.moved + drawing.distractors
        assert not set(path) & set(cells[strays].flatten().tolist())
        for dash, place in zip(number, strays, strict=False):
            moved = cells.tolist().index(sorted(path[dash : dash + 2]))
            assert orbits[moved] == orbits[place]
            assert 0 < dash < drawing.length - 2  # each of the two parts has a dash


@pytest.mark.parametrize("edge", DRAWINGS)
def test_the_classes_are_balanced(edge):
    for n in (10, 11):
        assert images_of(edge, n)[1].sum() == n // 2


def centres(images: torch.Tensor) -> torch.Tensor:
    """Return (n, 4): row and column of the centre of each dot, in the order of the pixels."""
    is_dot = (images == DOT).float()[:, None]
    edge = images.shape[-1]
    whole = F.avg_pool2d(is_dot, 3, stride=1, padding=1)[:, 0].flatten(1) > 0.99
    numbers = whole.int().topk(2).indices.sort(1).values
    return torch.stack([numbers // edge, numbers % edge], -1).flatten(1).float()


def statistics(images: torch.Tensor) -> torch.Tensor:
    """Return lit pixels in all, in each row and in each column, and where the dots are."""
    lit, dots = (images > 0).float(), centres(images)
    distance = (dots[:, :2] - dots[:, 2:]).abs()
    counts = [lit.sum((1, 2))[:, None], lit.sum(1), lit.sum(2)]
    return torch.cat([*counts, dots, distance, distance.square().sum(1, keepdim=True)], 1)


@pytest.fixture(scope="module")
def many():
    images, labels = images_of(16, 30_000)
    return images, labels, slice(None, 10_000), slice(10_000, None)


def accuracy(x: torch.Tensor, many, *steps) -> float:
    _, labels, train_rows, test_rows = many
    model = make_pipeline(*steps, StandardScaler(), LogisticRegression(max_iter=200))
    model.fit(x[train_rows].numpy(), labels[train_rows].numpy())
    return model.score(x[test_rows].numpy(), labels[test_rows].numpy())


def test_a_linear_classifier_of_the_pixels_is_at_chance(many):
    assert accuracy(many[0].flatten(1), many) <= 0.52


def test_a_classifier_of_simple_statistics_is_at_chance(many):
    x = statistics(many[0])
    assert accuracy(x, many) <= 0.52
    assert accuracy(x[:, -7:], many, PolynomialFeatures(2)) <= 0.52  # of the dots alone


@pytest.mark.parametrize("edge", DRAWINGS)
def test_each_seed_draws_new_images_and_the_same_seed_the_same_ones(edge):
    first, other = (load_task(f"paths{edge}", "smoke", seed) for seed in (0, 1))
    again = TASKS[f"paths{edge}"].load("smoke", 0)
    assert first.test.inputs.equal(again.test.inputs)
    assert first.test.labels.equal(again.test.labels)
    rows = {row.numpy().tobytes() for row in first.train.inputs}
    assert not rows & {row.numpy().tobytes() for row in other.train.inputs}
    shape = TASKS[f"paths{edge}"].shape("smoke")
    assert first.positions == shape.positions == (edge**2,)
    assert tuple(map(len, (first.train, first.val, first.test))) == shape.sizes


def test_a_run_on_paths_trains(tmp_path):
    result = train(base_config("paths16", "smoke"), runs_dir=tmp_path)
    assert result.status == "ok"
