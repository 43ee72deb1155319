"""What a plan counts is what a model does, and it needs no data."""

import math
from importlib import import_module

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import mambanorm_study as study
from mambanorm.models.classifier import SequenceClassifier
from mambanorm.norms import create_norm
from mambanorm_study.basics.settings import ROOT
from mambanorm_study.cli import main as cli
from mambanorm_study.runs.build import build_model
from mambanorm_study.runs.grid import base_config
from mambanorm_study.runs.presets import PAPER
from mambanorm_study.tables.flops import flops_per_value, norm_flops, row_flops
from mambanorm_study.tables.plan import plan, plan_table, shape_of, table_text
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


def scan_flops(model, length: int) -> int:
    """FLOPs of the scans of a row by the formula; a VSSBlock scans in four directions, and halving
    the image leaves a quarter of the positions.
    """
    flops = 0
    for depth, block in enumerate(model.blocks, start=1):
        directions = 4 if hasattr(block, "A_logs") else 1
        if hasattr(block, "d_state"):
            flops += length * directions * block.d_inner * (7 * block.d_state + 3)
        if str(depth) in getattr(model, "merging", {}):
            length //= 4
    return flops


def conv_flops(model, length: int) -> int:
    """FLOPs of the convolutions along a sequence."""
    convs = [layer for layer in model.modules() if isinstance(layer, torch.nn.Conv1d)]
    return sum(2 * length * layer.weight.numel() for layer in convs)


@pytest.mark.parametrize(("task", "changes"), MODELS)
def test_flops_are_those_that_torch_counts(task, changes):
    """In float64 all products are torch's own. It counts neither scans nor norms, and of the
    convolutions only those of images.
    """
    config = base_config(task, "smoke", **changes)
    shape = shape_of(config)
    model, x = build_model(config, shape).double(), shape.random_inputs(3)
    work = counted(lambda: model(x.double() if x.is_floating_point() else x), images=x.dim() == 4)
    formulas = scan_flops(model, shape.length) + conv_flops(model, shape.length)
    formulas += norm_flops(model, shape.length)
    squeeze = [
        p.numel() for name, p in model.named_parameters() if "squeeze" in name and p.dim() > 1
    ]
    assert 3 * (row_flops(model, shape.length) + 2 * sum(squeeze) - formulas) == work


def test_a_training_step_takes_three_times_the_forward_pass():
    model = SequenceClassifier(5, vocab_size=7, d_model=12, n_layers=2, d_state=6).double()
    x, labels = torch.randint(0, 7, (2, 11)), torch.tensor([0, 1])
    step = counted(lambda: F.cross_entropy(model(x), labels).backward())
    products = row_flops(model, 11) - scan_flops(model, 11) - conv_flops(model, 11)
    products -= norm_flops(model, 11)
    assert step == 3 * 2 * products


# norms


class Counted:
    """A number that counts the operations on it, for an equation written down with numbers."""

    operations = 0

    def __init__(self, value: float):
        self.value = value

    def _operation(self, value: float) -> "Counted":
        Counted.operations += 1
        return Counted(value)

    def __add__(self, other):
        return self._operation(self.value + getattr(other, "value", other))

    def __sub__(self, other):
        return self._operation(self.value - getattr(other, "value", other))

    def __mul__(self, other):
        return self._operation(self.value * getattr(other, "value", other))

    def __truediv__(self, other):
        return self._operation(self.value / getattr(other, "value", other))

    def tanh(self):
        return self._operation(math.tanh(self.value))

    def inverse_root(self):
        return self._operation(self.value**-0.5)


def total(values):
    result = Counted(0.0)
    for value in values:
        result = result + value
    return result


def layer_norm(x, gamma, beta):
    mean = total(x) / len(x)
    centred = [value - mean for value in x]
    scale = (total(c * c for c in centred) / len(x) + 1e-5).inverse_root()
    return [c * scale * gamma + beta for c in centred]


def rms_norm(x, gamma):
    scale = (total(value * value for value in x) / len(x) + 1e-5).inverse_root()
    return [value * scale * gamma for value in x]


def dyt(x, alpha, gamma, beta):
    return [(value * alpha).tanh() * gamma + beta for value in x]


def blend(x, w0, w1, first, second):
    return [a * w0 + b * w1 for a, b in zip(first, second, strict=True)]


ONE, NAUGHT = Counted(1.0), Counted(0.0)
EQUATIONS = {
    "LN": ({}, lambda x: layer_norm(x, ONE, NAUGHT)),
    "RMSN": ({}, lambda x: rms_norm(x, ONE)),
    "DyT": ({}, lambda x: dyt(x, Counted(0.5), ONE, NAUGHT)),
    "DyT, linear": ({"linear": True}, lambda x: [value * ONE for value in x]),
    "NormSelector": (
        {"mode": "fixed"},
        lambda x: blend(
            x,
            Counted(0.5),
            Counted(0.5),
            dyt(x, Counted(0.5), ONE, NAUGHT),
            layer_norm(x, ONE, NAUGHT),
        ),
    ),
    "NormSelector, linear": (
        {"mode": "fixed", "linear": True},
        lambda x: blend(
            x, Counted(0.5), Counted(0.5), [v * ONE for v in x], layer_norm(x, ONE, NAUGHT)
        ),
    ),
}


@pytest.mark.parametrize("name", EQUATIONS)
def test_the_operations_of_a_norm_are_those_of_its_equation(name):
    """The equation with numbers gives the norm's values. What it takes per statistic (÷ n, + ε,
    1/√) is the same for any number of channels.
    """
    options, equation = EQUATIONS[name]
    norm = create_norm(name.partition(",")[0], 8, **options)
    taken = {}
    for d in (8, 24):
        x = torch.randn(1, 1, d, generator=torch.Generator().manual_seed(d))
        Counted.operations = 0
        values = equation([Counted(value) for value in x.flatten().tolist()])
        taken[d] = Counted.operations
        expected = create_norm(name.partition(",")[0], d, **options)(x).flatten()
        torch.testing.assert_close(torch.tensor([v.value for v in values]), expected.detach())
    per_value = (taken[24] - taken[8]) / 16
    assert per_value == flops_per_value(norm)
    assert taken[8] - 8 * per_value <= 5


def test_the_arms_of_s2_have_the_flops_of_their_norms():
    """Six norms on 16 positions of 32 channels. Only arms that compute the same tie."""
    names = [
        *("FrozenDyT_Linear", "FrozenDyT", "FrozenLN", "AutoNorm_DisableSelector"),
        *("AutoNorm_FixedSelector", "AutoNorm_RandomSelector", "AutoNorm"),
    ]
    flops = {}
    for arm in names:
        config = base_config("digits_images", "quick", arm=arm)
        flops[arm] = row_flops(build_model(config, shape_of(config)), 16)
    none, values = flops["FrozenDyT_Linear"], 6 * 16 * 32
    assert [(flops[name] - none) / values for name in names[:-1]] == [0, 3, 6, 6, 13, 13]
    mlp = 2 * 6 * 16 * (32 * 8 + 8 * 2)
    assert flops["AutoNorm"] - flops["AutoNorm_RandomSelector"] == mlp


def test_norms_at_every_site_are_counted_where_they_stand():
    plain = base_config("digits_images", "smoke", arm="None>SSM>None", down_sample=[1])
    full = plain.but(
        arm="RMSN>SSM>RMSN+B:RMSN", stem_norm="LN", final_norm="LN", down_norm="RMSN", n_layers=2
    )
    models = [build_model(config, shape_of(config)) for config in (plain, full)]
    L, D, E, N = 16, full.d_model, full.expand * full.d_model, full.d_state
    of_blocks = 4 * (L * (D + E + 4 * N) + L // 4 * (2 * D + 2 * E + 4 * N))
    outside = 7 * (L * D + L // 4 * 2 * D) + 4 * (L // 4 * 4 * D)
    assert norm_flops(models[0], L) == 0
    assert norm_flops(models[1], L) == of_blocks + outside
    assert row_flops(models[1], L) - row_flops(models[0], L) == of_blocks + outside


def test_parameters_are_those_of_the_model_that_is_trained():
    config = base_config("digits", "smoke", arm="NormVary>SSM>GN")
    assert plan(config, measured=False)["parameters"] == study.train(config).parameters


def test_memory_is_that_of_the_parameters_and_of_the_tensors_saved_for_a_batch():
    config = base_config("digits", "smoke", batch_size=8)
    one, two = plan(config), plan(config.but(batch_size=16))
    activations = two["bytes"] - one["bytes"]  # of 8 rows
    assert one["bytes"] == pytest.approx(20 * one["parameters"] + activations, rel=0.05)
    x_bytes = 8 * 64 * config.d_model * 4
    assert config.n_layers * 5 * x_bytes < activations < config.n_layers * 40 * x_bytes
    assert math.isnan(plan(config, measured=False)["bytes"])


def test_a_model_that_no_memory_holds_is_refused():
    with pytest.raises(ValueError, match="choose a smaller model"):
        plan(base_config("digits", "smoke", d_model=65_536), measured=False)


@pytest.mark.parametrize("task", ["digits", "digits_images", "listops"])
def test_what_a_task_tells_agrees_with_its_data(task, tmp_path, monkeypatch):
    monkeypatch.setenv("MAMBANORM_DATA_DIR", str(tmp_path))
    data, config = load_task(task, "smoke", 0), base_config(task, "smoke")
    shape, real = shape_of(config), plan_module.shape_of_data(data)
    assert (shape.n_classes, shape.length) == (real.n_classes, real.length)
    assert (shape.vocab_size, shape.in_features) == (real.vocab_size, real.in_features)
    assert shape.tokens == pytest.approx(real.tokens, rel=0.2)
    assert shape.random_inputs(3).shape == data.train.inputs[:3].shape
    assert shape.sizes[1:] == real.sizes[1:]


def test_a_large_batch_is_timed_in_part_and_counted_whole(monkeypatch):
    rows = []
    monkeypatch.setattr(plan_module, "POSITIONS_TIMED", 3 * 64)
    monkeypatch.setattr(
        Shape, "random_inputs", lambda self, n: rows.append(n) or torch.zeros(n, 64, 1)
    )
    small = base_config("digits", "smoke", batch_size=3)
    step_s, saved = measured_step(small)
    large_step_s, large_saved = measured_step(small.but(batch_size=30))
    assert rows == [3, 3]
    assert large_saved == 10 * saved
    assert 3 * step_s < large_step_s < 30 * step_s


def measured_step(config):
    shape = shape_of(config)
    return plan_module.measure(build_model(config, shape), config, shape)


def test_every_paper_preset_is_planned_without_data_and_has_its_row_on_the_page_of_costs(
    monkeypatch,
):
    """All but the three columns that were measured."""
    with_data = plan_module.load_task
    own = ("digits", "digits_images", "pydoc")  # which scikit-learn and Python carry

    def load(task, *more):
        return with_data(task, *more) if task in own else pytest.fail("no data should be needed")

    monkeypatch.setattr(plan_module, "load_task", load)
    page = [line.split("|") for line in (ROOT / "docs" / "costs.md").read_text().splitlines()]
    cells_of = {
        cells[1].strip(): [cell.strip() for cell in cells[2:8]]
        for cells in page
        if len(cells) == 12
    }
    configs = [base_config(task, "paper") for task in PAPER]
    table = plan_table(configs, measured=False)
    for line in table_text(table).splitlines()[2:]:
        task, *cells = (cell.strip() for cell in line.split("|")[1:8])
        assert cells_of[task] == cells, task
    for config, found in zip(configs, table.to_dict("records"), strict=True):
        assert found["parameters"] > 10_000
        assert found["flops"] == found["steps"] * found["flops_per_step"]
        assert found["tokens"] <= found["steps"] * config.batch_size * shape_of(config).length
        assert math.isnan(found["hours"])


def test_the_command_plans_tasks_and_refuses_unknown_ones(capsys):
    asked = "plan --task imdb,listops --arm RMSN>SSM>GN --scale paper --no-measure"
    assert cli.main(asked.split()) == 0
    out = capsys.readouterr().out
    assert "| imdb | `RMSN>SSM>GN` |" in out
    assert cli.main(["plan", "--task", "imbd", "--scale", "paper"]) == 2
    assert "did you mean 'imdb'" in capsys.readouterr().err
    assert cli.main(["plan", "--task", "digits", "--scale", "smoke", "--set", "steps=2"]) == 0
    assert "| digits |" in capsys.readouterr().out
