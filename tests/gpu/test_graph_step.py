"""On a GPU: steps replayed as CUDA graphs give the results of ordinary steps, in less time.

`pytest -s` prints the largest difference and the time per step of each pair of trainings.
"""

import math
import time
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mambanorm.kernels import graph_step
from mambanorm.loop import build_optimizer, fit
from mambanorm.models.classifier import SequenceClassifier
from mambanorm_study.runs.grid import base_config
from mambanorm_study.runs.run import train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

STEPS = 30
# A rate that float32 holds exactly: a replayed step reads its rate from a float32 tensor, so
# another rate would be rounded, and 30 steps would enlarge the difference.
RATE = 2.0**-8


@pytest.fixture(autouse=True)
def nothing_is_in_the_way():
    """Turn the warning that steps are not replayed into an error."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="training without a CUDA graph")
        yield


def batches_of(n, shape=(32, 40), *, vocabulary=18, padded=False):
    """Return n random batches on the GPU: ids, lengths or None, labels."""
    random = torch.Generator().manual_seed(0)
    draw = lambda low, high, size: torch.randint(low, high, size, generator=random).cuda()
    return [
        (
            draw(1, vocabulary, shape),
            draw(shape[1] // 2, shape[1] + 1, shape[:1]) if padded else None,
            draw(0, 10, shape[:1]),
        )
        for _ in range(n)
    ]


def loss_of(model, batch, step):
    ids, lengths, labels = batch
    with torch.autocast("cuda", torch.bfloat16, enabled=model.is_bf16):
        outputs = model(ids, lengths)
    yield F.cross_entropy(outputs.float(), labels)


def fitted(arm, batches, *, cuda_graph, bf16=False, d_model=32, callback=None, clip=math.inf):
    """Train on the batches. Return losses, norms, the model, and milliseconds per step.

    The first half of the steps is not timed.
    """
    torch.manual_seed(0)
    model = SequenceClassifier(10, vocab_size=18, d_model=d_model, n_layers=4, arm=arm).cuda()
    model.is_bf16 = bf16
    optimizer, curve, times = build_optimizer(model, lr=RATE), [], []

    def observe(step):
        if callback is not None:
            callback(model, step)
        if step in (len(batches) // 2, len(batches)):
            torch.cuda.synchronize()
            times.append(time.perf_counter())

    fit(
        model,
        optimizer,
        batches,
        loss_of,
        lr_of=lambda step: RATE,
        curve=curve,
        callbacks=[observe],
        clip=clip,
        cuda_graph=cuda_graph,
    )
    ms = 1e3 * (times[-1] - times[0]) / (len(batches) - len(batches) // 2)
    return [r["train_loss"] for r in curve], [r["grad_norm"] for r in curve], model, ms


def difference(one, other):
    """Return the largest relative difference of two lists of numbers."""
    one, other = np.array(one), np.array(other)
    return float((np.abs(one - other) / np.abs(other)).max())


@pytest.mark.parametrize(
    ("arm", "options"),
    [
        ("RMSN>SSM>None", {}),
        ("RMSN>SSM>None", {"bf16": True}),
        ("RMSN>SSM>None", {"padded": True, "clip": 0.5}),
        ("BN>SSM>BN", {}),
        ("BN>SSM>BN", {"padded": True}),
        ("NormVary>SSM>GN", {}),
    ],
)
def test_replayed_steps_give_the_losses_and_statistics_of_ordinary_steps(arm, options):
    batches = batches_of(STEPS, padded=options.pop("padded", False))
    runs = [fitted(arm, batches, cuda_graph=cuda_graph, **options) for cuda_graph in (True, False)]
    (losses, norms, model, ms), (other_losses, other_norms, other_model, other_ms) = runs
    largest = max(difference(losses, other_losses), difference(norms, other_norms))
    print(f"\n{arm} {options}: {largest:.1e} relative, {ms:.2f} ms a step, ordinary {other_ms:.2f}")
    assert len(losses) == STEPS
    assert largest <= 1e-5
    for name, value in other_model.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("shape", [(32, 500), (32, 40)])
def test_the_time_of_a_step_is_printed(shape):
    """(32, 500) with 64 channels is ListOps at scale lab; (32, 40) with 32, curves at evening."""
    batches = batches_of(200, shape, padded=shape[1] == 500)
    d_model = 64 if shape[1] == 500 else 32
    replayed, ordinary = (
        fitted("RMSN>SSM>None", batches, cuda_graph=cuda_graph, d_model=d_model)[3]
        for cuda_graph in (True, False)
    )
    print(f"\n{shape}: {replayed:.2f} ms a step, ordinary {ordinary:.2f} ms")


@pytest.mark.parametrize("at", [2, 3, 4, 12])
def test_a_planted_infinity_ends_the_training_at_the_same_step(at):
    def plant(model, step):
        if step == at:
            with torch.no_grad():
                model.head.weight[0] = math.inf

    batches, ends = batches_of(STEPS), []
    for cuda_graph in (True, False):
        torch.manual_seed(0)
        model = SequenceClassifier(10, vocab_size=18, d_model=32, n_layers=2).cuda()
        model.is_bf16, curve = False, []
        lost = fit(
            model,
            build_optimizer(model, lr=RATE),
            batches,
            loss_of,
            lr_of=lambda step: RATE,
            curve=curve,
            callbacks=[lambda step, model=model: plant(model, step)],
            cuda_graph=cuda_graph,
        )
        assert lost is batches[at]
        ends.append((len(curve), model.state_dict()))
    assert ends[0][0] == ends[1][0] == at + 1
    for name, value in ends[1][1].items():
        torch.testing.assert_close(ends[0][1][name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("task", "scale", "batch_size"),
    [("digits", "evening", 32), ("listops", "smoke", 32)],  # without and with padding
)
def test_a_run_goes_on_from_a_checkpoint(task, scale, batch_size, tmp_path):
    config = base_config(task, scale, arm="BN>SSM>None", batch_size=batch_size).but(
        steps=STEPS, eval_every=10, device="cuda", cuda_graph="on"
    )
    whole = train(config)

    def stop(step, model, loss):
        if step == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, on_step=stop, checkpoint_dir=tmp_path, checkpoint_every_s=0)
    resumed = train(config, checkpoint_dir=tmp_path)
    largest = difference(resumed.curves.train_loss, whole.curves.train_loss)
    ordinary = train(config.but(cuda_graph="off"))
    padding = difference(whole.curves.train_loss, ordinary.curves.train_loss)
    print(f"\n{task}: {largest:.1e} after resuming; {padding:.1e} from ordinary steps")
    assert largest <= 1e-5
    assert padding <= 1e-3  # learning rates and, on listops, padded sums are rounded
    assert whole.diagnostics["ring_outputs"].shape == ordinary.diagnostics["ring_outputs"].shape
    ring = whole.diagnostics["ring_outputs"]
    assert len(np.unique(ring[:, 0])) == len(ring)  # each step has its own values


def test_a_step_that_waits_for_the_gpu_is_trained_step_by_step_with_the_reason():
    def reading(model, batch, step):
        for loss in loss_of(model, batch, step):
            yield loss * (1.0 if loss.detach().item() > 0 else 2.0)

    torch.manual_seed(0)
    model = SequenceClassifier(10, vocab_size=18, d_model=32, n_layers=2).cuda()
    model.is_bf16, optimizer = False, build_optimizer(model, lr=RATE)
    options = {"lr_of": lambda step: RATE, "curve": [], "cuda_graph": True}
    with pytest.warns(UserWarning, match="line .* of test_graph_step.py waits for the GPU"):
        fit(model, optimizer, batches_of(8), reading, **options)
    assert len(options["curve"]) == 8 > graph_step.WARM_UP
