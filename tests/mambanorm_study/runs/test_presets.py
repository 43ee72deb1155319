"""Every preset is a config, and each number that the paper states stands in it as the paper states
it.
"""

import json
import re

import pytest
import torch

from mambanorm_study.config import RunConfig, run_id_of
from mambanorm_study.runs.grid import base_config, grid
from mambanorm_study.runs.presets import DIFFERENCES, PAPER, PAPER_SEED, VISION_TASKS, epochs
from mambanorm_study.runs.training_state import optimizer_of
from mambanorm_study.tasks import TASKS

# Appendix C's own sentences, as they stand in the paper. C.3's rows are those of the Long Range
# Arena's files.
C3 = """The model configuration included 4 layers with a hidden dimension of 128 and state dimension of 64. We used the
ADAMW optimizer (learning rate: 0.0001) with cosine_warmup scheduler and batch size 32. The architecture featured a
convolution kernel size of 4 and expansion factor of 2, trained for 30 epochs."""
C4 = """The model comprised 4 layers with hidden dimension 128 and state dimension 64. Training utilized ADAMW optimizer
(learning rate: 0.0001, weight decay: 0.1) with constant_warmup scheduler (2000 steps). The architecture included
convolution kernel size 4 and expansion factor 2. Training ran for 65 epochs with batch size 32 on a single GPU. The
random seed was set to 2222."""
C5 = """The model used 4 layers with hidden dimension 64. Training employed ADAMW optimizer (learning rate: 0.001,
weight decay: 0.1) with cosine_warmup scheduler (2000 steps). The model trained for 40 epochs with batch size 50."""
C6 = """The Mamba_Norm model used 6 layers with hidden dimension 128. Training utilized ADAMW optimizer (learning rate:
0.0002, weight decay: 0.05, β1 = 0.9, β2 = 0.95) with constant_warmup scheduler (5000 steps). The architecture included
state dimension 64, kernel size 4, and expansion factor 2. Training ran for 50 epochs with batch size 32 across 10
GPUs."""

STATED = {
    "n_layers": r"(\d+) layers",
    "d_model": r"hidden dimension(?: of)? (\d+)",
    "d_state": r"state dimension(?: of)? (\d+)",
    "d_conv": r"kernel size(?: of)? (\d+)",
    "expand": r"expansion factor(?: of)? (\d+)",
    "lr": r"learning rate: ([\d.]+)",
    "weight_decay": r"weight decay: ([\d.]+)",
    "schedule": r"(\w+_warmup) scheduler",
    "warmup_steps": r"scheduler \((\d+) steps\)",
    "batch_size": r"batch size (\d+)",
    "epochs": r"for (\d+) epochs",
}
ALL = set(STATED)


def stated(text: str) -> dict[str, str]:
    """What a paragraph states, by field."""
    text = " ".join(text.split())
    found = {name: re.search(pattern, text) for name, pattern in STATED.items()}
    return {name: match[1] for name, match in found.items() if match}


@pytest.mark.parametrize(
    ("task", "text", "rows", "left_out"),
    [
        ("listops", C3, 96_000, {"weight_decay", "warmup_steps"}),
        (
            "imdb",
            C4,
            25_000,
            set(),
        ),  # "50,000 movie reviews (25,000 each for training and testing)"
        (
            "cifar10",
            C5,
            50_000,
            {"d_state", "d_conv", "expand"},
        ),  # "Each version splits into 50,000 training"
        ("cifar100", C5, 50_000, {"d_state", "d_conv", "expand"}),
        ("pathfinder64", C6, 160_000, set()),
    ],
)
def test_paper_presets_have_every_number_of_their_paragraph(task, text, rows, left_out):
    config, told = base_config(task, "paper"), stated(text)
    assert set(told) == ALL - left_out
    wanted = told.pop("epochs")
    assert config.steps == int(wanted) * (rows // config.batch_size)
    for name, value in told.items():
        assert getattr(config, name) == type(getattr(config, name))(value), name


def test_pathfinder_has_the_papers_betas_and_its_optimizer_takes_them():
    betas = tuple(map(float, re.search(r"β1 = ([\d.]+), β2 = ([\d.]+)", C6).groups()))
    optimizer = optimizer_of(torch.nn.Linear(2, 2), base_config("pathfinder64", "paper"))
    assert {group["betas"] for group in optimizer.param_groups} == {betas} == {(0.9, 0.95)}
    assert (
        base_config("pathfinder64", "lab").betas
        == base_config("listops", "paper").betas
        == (0.9, 0.999)
    )


def test_betas_and_optimizer_are_part_of_a_run_where_they_are_not_the_presets():
    """A run that was stored before the config named them keeps its run_id, and what it was trained
    with.
    """
    config = base_config("digits", "quick")
    before = json.loads(config.to_json())
    del before["betas"], before["optimizer"]
    assert RunConfig.from_dict(before) == config
    assert (config.run_id, config.betas) == (run_id_of(before), (0.9, 0.999))
    assert config.but(betas=[0.8, 0.9]).run_id != config.run_id


@pytest.mark.parametrize("betas", [(0.9,), (0.9, 1.0), 0.9, (True, 0.9)])
def test_impossible_betas_are_refused(betas):
    with pytest.raises(ValueError, match="betas must be two numbers from 0 to below 1"):
        base_config(betas=betas)


def test_the_papers_seed_makes_one_run_an_arm():
    assert int(re.search(r"random seed was set to (\d+)", " ".join(C4.split()))[1]) == PAPER_SEED
    configs = grid(["RMSN>SSM>None", "RMSN>SSM>GN"], ["imdb"], scale="paper", seeds=[PAPER_SEED])
    assert [config.seed for config in configs] == [2222, 2222]
    assert base_config("imdb", "paper").seed == PAPER_SEED


def test_imagenet_presets_count_the_papers_images_and_epochs():
    # C.1: "the number of training epochs on the ImageNet-1k dataset was reduced from 300 to 100"
    large, small = base_config("imagenet1k", "paper"), base_config("imagenet100", "paper")
    assert large.steps == 100 * (1_281_167 // large.batch_size)
    # §4.1: "It contains 100 categories […] The training set includes 1300 images per category"
    assert small.steps == 300 * (100 * 1_300 // small.batch_size)
    for config in (large, small):  # VMamba warms up for 20 of its epochs
        assert config.warmup_steps == 20 * config.eval_every
        assert config.n_layers == sum([2, 2, 9, 2])
        assert config.lr == pytest.approx(5e-4 * config.batch_size / 512)


# VMamba's classification/config.py, with what its configs/vssm/vssm_tiny_224.yaml and its main.py
# set: the options that are fields of a run
VMAMBA_TINY = {
    "drop_path": 0.2,  # MODEL.DROP_PATH_RATE
    "label_smoothing": 0.1,  # MODEL.LABEL_SMOOTHING
    "d_model": 96,  # MODEL.VSSM.EMBED_DIM
    "d_state": 16,  # MODEL.VSSM.SSM_D_STATE
    "expand": 2,  # MODEL.VSSM.SSM_RATIO
    "d_conv": 3,  # MODEL.VSSM.SSM_CONV
    "weight_decay": 0.05,  # TRAIN.WEIGHT_DECAY
    "clip": 5.0,  # TRAIN.CLIP_GRAD
    "betas": (0.9, 0.999),  # TRAIN.OPTIMIZER.BETAS
    "mixup": 0.8,  # AUG.MIXUP
    "cutmix": 1.0,  # AUG.CUTMIX
    "ema": 0.9999,  # --model_ema_decay
    "precision": "bf16",  # AMP_ENABLE, there with float16
}


@pytest.mark.parametrize("task", ["imagenet100", "imagenet1k"])
def test_imagenet_presets_have_vmambas_recipe(task):
    config = base_config(task, "paper")
    assert {name: getattr(config, name) for name in VMAMBA_TINY} == VMAMBA_TINY
    assert base_config("cifar10_images", "paper").clip == base_config(task, "lab").clip == 0


def test_every_task_has_settings_and_a_kind_at_every_scale():
    ours = {
        n: t
        for n, t in TASKS.items()
        if getattr(t.load, "func", t.load).__module__.startswith("mambanorm_study.")
    }
    assert set(PAPER) == set(ours)  # other tests may have registered tasks of their own
    assert set(VISION_TASKS) == {name for name, task in ours.items() if task.kind == "image"}


@pytest.mark.parametrize("scale", DIFFERENCES)
def test_every_task_of_the_paper_has_a_config_at_every_scale(scale):
    for task in PAPER:
        config = base_config(task, scale)
        assert config.warmup_steps < config.steps
        assert config.eval_every <= config.steps
        assert scale == "smoke" or task in DIFFERENCES[scale]


def test_epochs_drop_their_remainder_as_the_batch_order_does():
    assert epochs(3, rows=103, batch=10) == dict(batch_size=10, steps=30, eval_every=10)
