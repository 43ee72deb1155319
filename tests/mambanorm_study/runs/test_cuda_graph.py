"""The field `cuda_graph`: which runs are replayed, why others are not, and that results agree."""

import warnings

import numpy as np
import pytest
import torch
from pandas.testing import assert_frame_equal

from mambanorm.kernels.graph_step import WARM_UP
from mambanorm.loop import fit
from mambanorm_study.config import RunConfig
from mambanorm_study.runs import run as run_module
from mambanorm_study.runs.build import build_model
from mambanorm_study.runs.grid import base_config
from mambanorm_study.runs.run import remaining_batches, train, uses_cuda_graph
from mambanorm_study.runs.training_state import TrainingState
from mambanorm_study.tasks import load_task
from tests.fake_graph import use_fake_graphs

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


def smoke(task="digits", **fields):
    return base_config(task, "smoke").but(
        **{"steps": 9, "eval_every": 3, "schedule": "constant_warmup", "warmup_steps": 0}
        | {"lr": 2.0**-8}  # float32 holds this rate exactly
        | fields
    )


def decision(config, device=CUDA):
    """Return whether a run is to be replayed, and the warnings."""
    data = load_task(config.task, config.scale, config.seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answer = uses_cuda_graph(config, data, len(data.train), device)
    return answer, [str(one.message) for one in caught]


def test_the_default_enters_no_run_id_and_a_choice_does():
    values = smoke().values()
    assert values.pop("cuda_graph") == "auto"
    assert RunConfig.from_dict(values).run_id == smoke().run_id
    assert len({smoke(cuda_graph=choice).run_id for choice in ("auto", "on", "off")}) == 3
    with pytest.raises(ValueError, match="unknown cuda_graph 'of': valid are auto, on, off"):
        smoke(cuda_graph="of")


@pytest.mark.parametrize("default", [True, False])
def test_one_constant_decides_what_auto_means(default, monkeypatch):
    monkeypatch.setattr(run_module, "GRAPH_BY_DEFAULT", default)
    assert decision(smoke()) == (default, [])
    assert decision(smoke(), CPU) == (False, [])
    assert decision(smoke(cuda_graph="off")) == (False, [])
    assert decision(smoke(cuda_graph="on")) == (True, [])


@pytest.mark.parametrize("field", ["mixup", "cutmix", "drop_path"])
def test_steps_that_draw_on_the_cpu_are_not_replayed(field):
    answer, (message,) = decision(smoke(cuda_graph="on", **{field: 0.5}))
    assert not answer
    assert message == (
        f"training without a CUDA graph: with {field}=0.5, not every step computes the same"
    )


def test_rows_of_different_lengths_are_replayed_if_padding_them_costs_little():
    assert decision(smoke("listops", batch_size=32, cuda_graph="on")) == (True, [])
    answer, (message,) = decision(smoke("listops", batch_size=1, cuda_graph="on"))
    assert not answer
    assert message.endswith("% more positions")


def test_batches_of_a_replayed_run_have_one_length_and_the_same_tokens():
    config, data = smoke("listops"), load_task("listops", "smoke", 0)
    shapes, tokens = [], []
    for cut in (True, False):
        state = TrainingState(build_model(config, data), config)
        batches = remaining_batches(config, data, len(data.train), CPU, state, cut=cut)
        shapes.append({batch[0].shape for batch in batches})
        tokens.append(state.tokens)
    assert len(shapes[0]) > 1
    assert shapes[1] == {(config.batch_size, data.train.inputs.shape[1])}
    assert tokens[0] == tokens[1]


@pytest.fixture
def replayed_steps(monkeypatch):
    """Let runs replay on the CPU. Return a list with the number of losses that Python computed."""
    use_fake_graphs(monkeypatch)
    calls = []

    def counting_fit(model, optimizer, batches, loss_of, **options):
        def counted(*arguments):
            calls.append(arguments[2])
            return loss_of(*arguments)

        return fit(model, optimizer, batches, counted, **options)

    monkeypatch.setattr(run_module, "fit", counting_fit)
    return calls


def assert_equal_results(one, other):
    for name in (
        "status",
        "test_accuracy",
        "steps",
        "first_nonfinite_step",
        "first_nonfinite_site",
    ):
        assert getattr(one, name) == getattr(other, name), name
    # torch may compute a convolution in another order while the operations are noted
    assert_frame_equal(one.curves, other.curves, rtol=1e-6, atol=0)
    for arrays in ("predictions", "diagnostics", "checkpoint"):
        for name, value in getattr(other, arrays).items():
            np.testing.assert_allclose(getattr(one, arrays)[name], value, 1e-5, 1e-7, err_msg=name)


@pytest.mark.parametrize(
    ("task", "arm"),
    [
        ("digits", "NormVary>SSM>BN"),
        ("diabetes", "RMSN>SSM>GN"),
        ("digits_images", "LN>SSM>LN"),
        ("pydoc", "RMSN>SSM>None"),
    ],
)
def test_a_replayed_run_has_the_results_of_an_ordinary_one(task, arm, replayed_steps):
    config = smoke(task, arm=arm, ema=0.5)
    replayed = train(config.but(cuda_graph="on"))
    assert replayed_steps == [*range(1, WARM_UP + 2)]
    assert_equal_results(replayed, train(config))
    assert replayed.diagnostics["ring_outputs"].shape == (8, config.n_layers)


def test_a_replayed_run_goes_on_from_a_checkpoint(replayed_steps, tmp_path):
    config = smoke(arm="BN>SSM>GN", cuda_graph="on")

    def stop(step, model, loss):
        if step == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, on_step=stop, checkpoint_dir=tmp_path, checkpoint_every_s=0)
    replayed_steps.clear()
    went_on = train(config, checkpoint_dir=tmp_path)
    assert replayed_steps == [6, 7, 8, 9]  # five steps are in the checkpoint
    assert_equal_results(went_on, train(config))


def test_a_replayed_run_diverges_where_an_ordinary_one_does(replayed_steps):
    def plant(step, model, loss):
        if step == 6:
            with torch.no_grad():
                model.blocks[1].out_proj.weight[0, 0] = torch.inf

    replayed, ordinary = (
        train(smoke(cuda_graph=choice), on_step=plant) for choice in ("on", "off")
    )
    assert (replayed.status, replayed.first_nonfinite_step) == ("diverged", 7)
    assert_equal_results(replayed, ordinary)


def test_on_the_cpu_a_run_that_asks_for_a_graph_says_why_it_has_none():
    with pytest.warns(UserWarning, match="the model is on cpu, and CUDA graphs run on CUDA"):
        result = train(smoke(steps=2, eval_every=2, cuda_graph="on"))
    assert result.curves.train_loss.equals(train(smoke(steps=2, eval_every=2)).curves.train_loss)
