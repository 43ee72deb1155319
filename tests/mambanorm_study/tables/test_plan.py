"""What a plan counts is what a model does, and it needs no data."""

import math
from importlib import import_module

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import mambanorm_study as study
from mambanorm.arms import MORE_SITES
from mambanorm.models.classifier import SequenceClassifier
from mambanorm_study.basics.settings import ROOT
from mambanorm_study.cli import main as cli
from mambanorm_study.models.vision import ImageClassifier
from mambanorm_study.runs.build import build_model
from mambanorm_study.runs.grid import base_config
from mambanorm_study.runs.presets import PAPER
from mambanorm_study.tables.plan import (
    activation_floats,
    forward_flops,
    plan,
    plan_table,
    shape_of,
    table_text,
)
from mambanorm_study.tasks import Shape, load_task

plan_module = import_module("mambanorm_study.tables.plan")  # study.plan is the function
MODELS = [
    *(
        ("digits", dict(arm="LN>SSM>GN+B:LN+gated:RMSN")),
        ("listops", {}),
        ("digits", dict(model="mamba2")),
    ),
    ("digits_images", dict(arm="LN>SSM>GN", d_model=32, n_layers=3, down_sample=[1, 2])),
    *((task, dict(arm="AutoNorm")) for task in ("digits", "digits_images", "diabetes", "listops")),
]


def counted(work, images: bool = False) -> int:
    """FLOPs of `work()` by torch's own counter, which knows the products of one attention on the
    CPU alone.

    Convolutions along a sequence are left out: it counts their padding, and their groups wrongly on
    the way back.
    """
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        work()
    by_operation = {
        str(operation): flops for operation, flops in counter.get_flop_counts()["Global"].items()
    }
    return sum(
        flops
        for operation, flops in by_operation.items()
        if images or "convolution" not in operation
    )


@pytest.mark.parametrize(("task", "changes"), MODELS)
def test_flops_are_those_that_torch_counts(task, changes):
    """In float64 all products are torch's own; scans it does not count, and convolutions those of
    images alone.
    """
    config = base_config(task, "smoke", **changes)
    shape = shape_of(config)
    model, x = build_model(config, shape).double(), shape.batch(3)
    found = forward_flops(model, 3, shape.length)
    work = counted(lambda: model(x.double() if x.is_floating_point() else x), images=x.dim() == 4)
    assert found["linear"] + found["attention"] + found["conv"] * (x.dim() == 4) == work


def test_a_training_step_takes_three_times_the_forward_pass():
    model = SequenceClassifier(5, vocab_size=7, d_model=12, n_layers=2, d_state=6).double()
    x, labels = torch.randint(0, 7, (2, 11)), torch.tensor([0, 1])
    step = counted(lambda: F.cross_entropy(model(x), labels).backward())
    assert step == 3 * forward_flops(model, 2, 11)["linear"]


def test_flops_of_scan_and_convolution_follow_the_formula():
    """A Mamba-2's is the selective scan that carries it; a halving of the image leaves a quarter of
    the positions.
    """
    sizes = dict(d_model=12, n_layers=2, d_state=6, d_conv=3)
    for kind, states in ((dict(), 0), (dict(model="mamba2", head_dim=8), 6)):
        found = forward_flops(SequenceClassifier(5, vocab_size=7, **sizes, **kind), 4, 11)
        assert found["scan"] == 2 * 4 * 11 * 24 * (7 * 6 + 3)
        assert found["conv"] == 2 * 4 * 11 * 2 * 3 * (24 + 2 * states)
    sizes = dict(in_channels=3, d_model=20, n_layers=3, d_state=6)
    halved = ImageClassifier(5, down_sample=(1, 2), **sizes)
    scans = [2 * 4 * 64 // 4**i * 2 * 20 * 2**i * (7 * 6 + 3) for i in range(3)]
    assert forward_flops(halved, 2, 64)["scan"] == sum(scans)
    assert activation_floats(halved, 2, 64) < activation_floats(ImageClassifier(5, **sizes), 2, 64)


def test_parameters_are_those_of_the_model_that_is_trained():
    config = base_config("digits", "smoke", arm="NormVary>SSM>GN")
    found = plan(config, measured=False)
    assert found["parameters"] == study.train(config).parameters
    assert found["weights_bytes"] == 4 * found["parameters"]


def test_a_model_that_no_memory_holds_is_counted_and_not_built():
    found = plan(base_config("digits", "smoke", d_model=65_536), measured=False)
    assert found["weights_bytes"] > 10**11


@pytest.mark.parametrize(
    "arm",
    [
        *(
            "RMSN>SSM>None",
            "RMSN>SSM>GN",
            "LN>SSM>LN",
            "preset:Jamba",
            "preset:Mamba-2-norms",
            "preset:Peri-LN",
        ),
        "RMSN>SSM>GN+" + "+".join(f"{site}:LN" for site in MORE_SITES),
    ],
)
def test_activations_are_estimated_within_a_third(arm):
    model, sizes = SequenceClassifier(5, vocab_size=7, d_model=48, n_layers=3, arm=arm), {}

    def see(tensor):
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // 4
        kept.append(tensor)  # so that no two of them get the same address
        return tensor

    kept, own = [], {p.untyped_storage().data_ptr() for p in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(see, lambda tensor: tensor):
        model(torch.randint(0, 7, (4, 512)))
    saved = sum(size for place, size in sizes.items() if place not in own)
    assert activation_floats(model, 4, 512) == pytest.approx(saved, rel=1 / 3)


@pytest.mark.parametrize("task", ["digits", "digits_images", "listops"])
def test_what_a_task_tells_agrees_with_its_data(task, tmp_path, monkeypatch):
    monkeypatch.setenv("MAMBANORM_DATA_DIR", str(tmp_path))
    data, config = load_task(task, "smoke", 0), base_config(task, "smoke")
    shape, real = shape_of(config), plan_module.shape_of_data(data)
    assert (shape.n_classes, shape.length) == (real.n_classes, real.length)
    assert (shape.vocab_size, shape.in_features) == (real.vocab_size, real.in_features)
    assert shape.tokens == pytest.approx(real.tokens, rel=0.2)
    assert shape.batch(3).shape == data.train.inputs[:3].shape
    assert shape.sizes[1:] == real.sizes[1:]


def test_a_large_batch_is_timed_in_part_and_counted_whole(monkeypatch):
    rows = []
    monkeypatch.setattr(plan_module, "POSITIONS_TIMED", 3 * 64)
    monkeypatch.setattr(plan_module, "_median_s", lambda work, _: 0.6)
    monkeypatch.setattr(Shape, "batch", lambda self, n: rows.append(n) or torch.zeros(n, 64, 1))
    config = base_config("digits", "smoke", batch_size=30)
    step_s, row_s = plan_module.measure(config, shape_of(config))
    assert (rows, step_s, row_s) == ([3], pytest.approx(6.0), pytest.approx(0.2))


def test_every_paper_preset_is_planned_without_data_and_has_its_row_on_the_page_of_costs(
    monkeypatch,
):
    """All but the two columns that were timed."""
    with_data = plan_module.load_task
    own = ("digits", "digits_images", "pydoc")  # which scikit-learn and Python carry

    def load(task, *more):
        return with_data(task, *more) if task in own else pytest.fail("no data should be needed")

    monkeypatch.setattr(plan_module, "load_task", load)
    page = [line.split("|") for line in (ROOT / "docs" / "costs.md").read_text().splitlines()]
    cells_of = {
        cells[1].strip(): [cell.strip() for cell in cells[2:9]]
        for cells in page
        if len(cells) == 12
    }
    configs = [base_config(task, "paper") for task in PAPER]
    table = plan_table(configs, measured=False)
    for line in table_text(table).splitlines()[2:]:
        task, *cells = (cell.strip() for cell in line.split("|")[1:9])
        assert cells_of[task] == cells, task
    for config, found in zip(configs, table.to_dict("records"), strict=True):
        assert found["parameters"] > 10_000
        assert found["flops"] == found["steps"] * found["flops_per_step"]
        assert found["tokens"] <= found["steps"] * config.batch_size * shape_of(config).length
        assert math.isnan(found["hours"])
        assert found["bytes"] == sum(v for name, v in found.items() if name.endswith("_bytes"))


def test_the_command_plans_tasks_and_refuses_unknown_ones(capsys):
    asked = "plan --task imdb,listops --arm RMSN>SSM>GN --scale paper --no-measure"
    assert cli.main(asked.split()) == 0
    out = capsys.readouterr().out
    assert "| imdb | `RMSN>SSM>GN` |" in out
    assert cli.main(["plan", "--task", "imbd", "--scale", "paper"]) == 2
    assert "did you mean 'imdb'" in capsys.readouterr().err
    assert cli.main(["plan", "--task", "digits", "--scale", "smoke", "--set", "steps=2"]) == 0
    assert "| digits |" in capsys.readouterr().out
