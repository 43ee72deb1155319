"""Tasks that draw new rows for each seed: glyphs, and curves with many rows to test."""

import pytest
import torch

import mambanorm_study as study
from mambanorm_study.tables.intervals import shared_data_name
from mambanorm_study.tasks import TASKS, glyphs

NAMES = ("curves", "glyphs", "glyphs_images")


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_decides_its_rows_and_no_two_seeds_share_one(name):
    one, again, other = (study.load_task(name, "smoke", seed) for seed in (0, 0, 1))
    assert one is again
    assert shared_data_name(name, "quick") == ""
    rows = [{tuple(row.flatten().tolist()) for row in data.test.inputs} for data in (one, other)]
    assert len(rows[0]) == len(one.test)
    assert not rows[0] & rows[1]


@pytest.mark.parametrize("name", NAMES)
def test_shapes_tell_the_data_without_making_them(name):
    shape, data = TASKS[name].shape("smoke"), study.load_task(name, "smoke", 0)
    assert shape.sizes == tuple(map(len, (data.train, data.val, data.test)))
    same = (
        "n_classes",
        "vocab_size",
        "in_features",
        "in_channels",
        "patch",
        "per_position",
        "positions",
    )
    assert [getattr(shape, field) for field in same] == [getattr(data, field) for field in same]
    assert sum(TASKS[name].shape("evening").sizes[1:]) >= 3_000


@pytest.mark.parametrize("name", NAMES)
def test_a_model_trains_on_them(name):
    result = study.train(study.base_config(name, "smoke", arm="LN>SSM>LN", seed=3))
    assert result.status == "ok"
    assert 0 <= result.test_accuracy <= 1


def test_glyphs_are_read_as_images_and_cell_by_cell():
    images, cells = (study.load_task(name, "smoke", 5).test for name in ("glyphs_images", "glyphs"))
    assert torch.equal(images.labels, cells.labels)
    lower_right_of_the_second_cell = images.inputs[:, 1, 3, 0]
    assert torch.equal(cells.inputs[:, 1, 3], lower_right_of_the_second_cell)


def test_each_glyph_has_ink_and_each_face_draws_it_otherwise():
    ink = glyphs.draw_masters()
    assert ink.shape[:2] == (len(glyphs.CHARACTERS), 16)
    assert (ink.amax((2, 3)) > 0.9).all()
    assert not (ink[:, :, 0].any())
    assert not (ink[:, :, -1].any())
    assert not (ink[..., 0].any())
    assert not (ink[..., -1].any())
    assert len(ink.flatten(0, 1).unique(dim=0)) == ink.shape[0] * ink.shape[1]


def test_rows_without_noise_are_told_by_the_nearest_master_far_more_often_than_by_chance(
    monkeypatch,
):
    monkeypatch.setattr(glyphs, "NOISE", 0.0)
    rows, labels = glyphs.draw_images(400, seed=1)
    means = torch.nn.functional.interpolate(
        glyphs.draw_masters().mean(1, keepdim=True), rows.shape[1:], mode="area"
    )[:, 0]
    like = (
        torch.nn.functional.normalize(rows.flatten(1))
        @ torch.nn.functional.normalize(means.flatten(1)).T
    )
    assert (like.argmax(1) == labels).float().mean() > 0.3  # chance is 0.05
