"""Claims about the settings of the SSM's parameters: initial values, weight decay and a floor."""

import math

import pytest
import torch

from mambanorm_study import base_config, load_task, train
from mambanorm_study.config import DEFAULTS, SSM_FIELDS
from mambanorm_study.runs.build import build_model
from mambanorm_study.runs.ssm_parameters import (
    A_LOG_NAMES,
    D_NAMES,
    DT_BIAS_NAMES,
    parameters_named,
)
from mambanorm_study.runs.training_state import optimizer_of

MODELS = {
    "curves": {"arm": "RMSN>SSM>None"},
    "curves, Mamba-2": {"arm": "RMSN>SSM>None", "model": "mamba2"},
    "glyphs_images": {"arm": "RMSN>SSM>None"},
    "pydoc": {"arm": "RMSN>SSM>None"},
}


def config_of(name: str, **changes):
    return base_config(name.partition(",")[0], "smoke", **MODELS[name], **changes)


def model_of(config):
    return build_model(config, load_task(config.task, config.scale, config.seed))


@pytest.mark.parametrize("name", MODELS)
def test_only_the_named_parameters_start_elsewhere(name):
    as_usual = model_of(config_of(name)).state_dict()
    changed = model_of(config_of(name, dt_init="zero", a_init="ones")).state_dict()
    biases, decays = (
        parameters_named(changed.items(), DT_BIAS_NAMES),
        parameters_named(changed.items(), A_LOG_NAMES),
    )
    assert len(biases) == len(decays) == 2  # one for each block
    assert all((value == 0).all() for value in biases + decays)
    endings = tuple(f".{end}" for end in DT_BIAS_NAMES + A_LOG_NAMES)
    for key, value in as_usual.items():
        assert torch.equal(value, changed[key]) != key.endswith(endings), key


@pytest.mark.parametrize("name", MODELS)
def test_a_and_d_get_the_weight_decay_that_they_are_given_and_no_other_parameter_does(name):
    config = config_of(name, decay_ssm=0.3, weight_decay=0.2)
    model = model_of(config)
    decays = {
        id(value): group["weight_decay"]
        for group in optimizer_of(model, config).param_groups
        for value in group["params"]
    }
    plain = {
        id(value): group["weight_decay"]
        for group in optimizer_of(model, config.but(decay_ssm=0.0)).param_groups
        for value in group["params"]
    }
    ssm = {id(value) for value in parameters_named(model.named_parameters(), A_LOG_NAMES + D_NAMES)}
    assert len(ssm) == 4
    assert decays == plain | dict.fromkeys(ssm, 0.3)
    assert all(plain[one] == 0 for one in ssm)


def test_decay_pulls_d_to_zero_and_a_to_one():
    strong = dict(decay_ssm=20.0, lr=1e-2, steps=12, eval_every=12)
    decayed, free = (
        train(config_of("curves", **changes)).checkpoint
        for changes in (strong, {**strong, "decay_ssm": 0.0})
    )
    for names in (A_LOG_NAMES, D_NAMES):
        sizes = [
            torch.cat([v.flatten() for v in parameters_named(weights.items(), names)]).abs().mean()
            for weights in (decayed, free)
        ]
        assert sizes[0] < 0.5 * sizes[1]


@pytest.mark.parametrize("changes", [{}, {"ema": 0.5}])
def test_no_a_is_below_the_floor_after_training(changes):
    floor = 1.5  # some of A start below it, at 1
    weights = train(config_of("curves", a_floor=floor, **changes)).checkpoint
    values = torch.cat(
        [value.flatten() for value in parameters_named(weights.items(), A_LOG_NAMES)]
    ).exp()
    assert values.min() == pytest.approx(floor)
    assert values.max() > 2 * floor


@pytest.mark.parametrize("field", SSM_FIELDS)
def test_a_model_without_an_ssm_refuses_them(field):
    value = {"dt_init": "zero", "a_init": "ones"}.get(field, 0.5)
    with pytest.raises(ValueError, match=f"{field}={value!r} has no effect on a model without"):
        base_config("digits_images", "smoke", arm="AutoNorm", **{field: value})
    assert base_config(
        "digits_images", "smoke", arm="AutoNorm", **{field: getattr(DEFAULTS, field)}
    )


def test_a_run_with_a_floor_and_decay_continues_bit_for_bit(tmp_path):
    config = config_of("curves", a_floor=1.5, decay_ssm=0.1)

    def stop(step, *_):
        if step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, on_step=stop, checkpoint_dir=tmp_path, checkpoint_every_s=0)
    resumed = train(config, checkpoint_dir=tmp_path, checkpoint_every_s=math.inf)
    whole = train(config)
    assert all(torch.equal(whole.checkpoint[key], v) for key, v in resumed.checkpoint.items())
