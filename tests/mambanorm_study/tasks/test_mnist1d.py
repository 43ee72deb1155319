"""MNIST-1D: the authors' generator, new curves for each seed."""

import random

import numpy as np
import pytest
import torch

import mambanorm_study as study
from mambanorm_study.tables.intervals import shared_data_name
from mambanorm_study.tasks import TASKS, mnist1d


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Use a new, empty cache folder."""
    monkeypatch.setenv("MAMBANORM_DATA_DIR", str(tmp_path))
    study.tasks.registry._load.cache_clear()
    yield tmp_path / "mnist1d"
    study.tasks.registry._load.cache_clear()


def made_by_the_authors(curves, seed):
    from mnist1d.data import get_dataset_args, make_dataset

    args = get_dataset_args()
    args.num_samples, args.seed = curves, seed
    return make_dataset(args)


def rows(split):
    return {tuple(row.tolist()) for row in split.inputs[..., 0]}


def test_the_curves_are_those_of_the_generator_with_the_seed():
    data, made = study.load_task("mnist1d", "smoke", 3), made_by_the_authors(200, 3)
    together = torch.cat([data.train.inputs, data.val.inputs, data.test.inputs])[..., 0]
    assert torch.equal(
        together, torch.tensor(np.concatenate([made["x"], made["x_test"]]), dtype=torch.float32)
    )
    assert torch.equal(data.test.labels, torch.tensor(made["y_test"]))
    assert [len(part) for part in (data.train, data.val, data.test)] == [140, 20, 40]
    assert together.unique(dim=0).shape == (200, 40)


def test_no_two_seeds_share_a_curve():
    one, other = (study.load_task("mnist1d", "smoke", seed) for seed in (0, 1))
    assert not (rows(one.train) | rows(one.test)) & (rows(other.train) | rows(other.test))


def test_what_the_seeds_share_is_known_to_the_statistics():
    assert shared_data_name("mnist1d", "quick") == ""


def test_shapes_tell_the_data_without_making_them():
    for name in ("mnist1d", "curves"):
        shape, data = TASKS[name].shape("smoke"), study.load_task(name, "smoke", 0)
        assert shape.sizes == (
            len(data.train),
            len(data.val),
            len(data.test),
        )
        assert (shape.length, shape.in_features, shape.n_classes) == (
            40,
            data.in_features,
            data.n_classes,
        )


def test_the_process_keeps_its_random_numbers():
    np.random.seed(7)
    random.seed(7)
    expected = np.random.RandomState(7).rand(), random.Random(7).random()
    mnist1d.draw_curves(20, seed=1)
    assert (np.random.rand(), random.random()) == expected


def test_curves_are_made_once(folder, monkeypatch):
    first = study.load_task("mnist1d", "smoke", 5)
    assert [file.name for file in folder.iterdir()] == ["200-seed5.npz"]
    study.tasks.registry._load.cache_clear()
    monkeypatch.setattr(mnist1d, "draw_curves", None)  # must not be needed any more
    assert torch.equal(study.load_task("mnist1d", "smoke", 5).val.inputs, first.val.inputs)
