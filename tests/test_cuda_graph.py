"""A run whose steps are replayed is the run whose steps are computed one by one.

Without a GPU the recording is played by a stand-in that repeats the work and writes its results into the same memory:
what stands around a graph (one memory for all batches, gradients that are set to zero, statistics that the warm-up must
not touch) is tested with it. With a GPU the same tests record for real.
"""

import warnings

import pytest
import torch

from mambanorm import loop
from mambanorm.cli.main import main
from mambanorm.loop import build_model, train
from mambanorm.tasks import load_task
from mambanorm.training import cuda_graph, stacked
from mambanorm.training.cuda_graph import ROUND, Graphed, Recordings, obstacle
from mambanorm.training.grid import base_config
from mambanorm.training.stacked import open_stack, train_stacked
from mambanorm.training.store import load_runs

GPU = torch.cuda.is_available()
CUDA, CPU = torch.device("cuda"), torch.device("cpu")


def stand_in(work, warm_ups, device, pool=None):
    """As `cuda_graph.record`, without a GPU: a replay does the work again, into the tensors of the recording."""
    warm_ups()
    kept = [buffer.clone() for buffer in stand_in.buffers]
    found = work()
    for buffer, before in zip(stand_in.buffers, kept, strict=True):  # recording computes nothing
        buffer.copy_(before)

    def replay():
        for own, new in zip(found or (), work() or (), strict=True):
            own.copy_(new)
        stand_in.replays += 1

    return replay, found, "pool"


@pytest.fixture
def graphs(monkeypatch):
    """`train(…, graphs=True)` records, by the stand-in where there is no GPU; yields what is recorded."""
    made = []

    class Seen(Graphed):
        def __init__(self, model, *args):
            stand_in.buffers, stand_in.replays = list(model.buffers()), 0
            super().__init__(model, *args, **({} if GPU else {"record": stand_in}))
            made.append(self)

    monkeypatch.setattr(cuda_graph, "Graphed", Seen)
    if not GPU:
        monkeypatch.setattr(cuda_graph, "obstacle", lambda config, device: obstacle(config, CUDA))
    return made


def config_of(task, **changes):
    return base_config(task, "smoke", **{"arm": "RMSN>SSM>GN", "steps": 6, "eval_every": 3} | changes)


@pytest.mark.parametrize("arm", ["RMSN>SSM>GN", "BN>SSM>None", "None>SSM>NormVary"])
@pytest.mark.parametrize("task", ["digits", "listops"])
def test_a_replayed_run_is_the_run(task, arm, graphs, store):
    config = config_of(task, arm=arm)
    plain, replayed = train(config), train(config, graphs=True)
    torch.testing.assert_close(
        torch.tensor(replayed.curves.fillna(-1.0).to_numpy()),
        torch.tensor(plain.curves.fillna(-1.0).to_numpy()),
        rtol=1e-5 if not GPU else 1e-3,
        atol=1e-6,
    )
    for name, value in plain.checkpoint.items():
        torch.testing.assert_close(replayed.checkpoint[name], value, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        torch.tensor(replayed.diagnostics["ring_outputs"]), torch.tensor(plain.diagnostics["ring_outputs"])
    )
    (made,) = graphs
    assert made.recordings.found
    assert not made.recordings.failed


def test_the_steps_of_one_shape_are_recorded_once(graphs, store):
    train(config_of("digits"), graphs=True)
    assert len(graphs[0].recordings.found) == 1
    assert GPU or stand_in.replays == 6


def test_rows_with_padding_share_a_graph_among_lengths(graphs, store):
    config = config_of("listops")
    data = load_task("listops", "smoke", config.seed)
    longest = {int(length) for length in data.train.lengths}
    assert len(longest) > 1
    train(config, graphs=True)
    shapes = {key[0][0][1] for key in graphs[0].recordings.found}
    assert shapes == {ROUND}  # smoke's rows are shorter than that


def test_a_parameter_without_a_gradient_gets_none(graphs, store):
    """The optimizer would take weight decay from it."""
    plain = train(config_of("digits"))
    replayed = train(config_of("digits"), graphs=True)
    learning, learned = graphs[0].learning, graphs[0].learned
    assert [p.grad is not None for p in learned] == [any(p is one for one in learning) for p in learned]
    assert replayed.curves["grad_norm"].notna().all()
    assert plain.parameters == replayed.parameters


def test_a_recording_that_fails_gives_a_warning_and_the_plain_step(graphs, store, monkeypatch):
    def fails(self, batch):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    plain = train(config_of("digits"))
    monkeypatch.setattr(Recordings, "_record", fails)
    with pytest.warns(UserWarning, match="no CUDA graph, the run goes on without: operation not permitted.*capturing$"):
        found = train(config_of("digits"), graphs=True)
    assert found.curves.equals(plain.curves)


@pytest.mark.parametrize("arm", ["RMSN>SSM>GN", "BN>SSM>None"])
@pytest.mark.parametrize("task", ["digits", "listops"])
def test_a_replayed_step_of_a_stack_is_the_step(task, arm, monkeypatch):
    configs = [config_of(task, arm=arm, seed=seed, lr=lr) for seed, lr in ((0, 1e-3), (1, 3e-3), (1, 1e30))]
    plain = [one.curves for one in train_stacked(configs)]
    replaying = []

    def replayed(*given):
        slices, stack, feed = open_stack(*given)
        stand_in.buffers, stand_in.replays = stack.tensors(), 0
        step, recordings = stack.step, Recordings(stack.step, stack.tensors, **({} if GPU else {"record": stand_in}))
        monkeypatch.setattr(stack, "step", lambda *batch: recordings.replay(*batch)[0] or step(*batch))
        replaying.append(recordings)
        return slices, stack, feed

    if not GPU:  # on a GPU it is replayed anyway
        monkeypatch.setattr(stacked, "open_stack", replayed)
    again = [one.curves for one in train_stacked(configs)]
    for one, other in zip(again, plain, strict=True):
        assert len(one) == len(other)
        torch.testing.assert_close(
            *(torch.tensor(curves.fillna(-1.0).to_numpy()) for curves in (one, other)), rtol=1e-5, atol=1e-6
        )
    assert GPU or (replaying[0].found and not replaying[0].failed and stand_in.replays == 6)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (dict(), "CUDA graphs need CUDA, and this run is on cpu"),
        (dict(micro_batch=4), "micro_batch=4 makes steps that are not alike"),
        (dict(mixup=0.2), "mixup=0.2 makes steps that are not alike"),
        (
            dict(arm="NormSelector>SSM>None", norm_options={"n1": {"mode": "random"}}),
            "a NormSelector of mode='random' draws other numbers in each step",
        ),
    ],
)
def test_what_cannot_be_recorded_is_said(changes, told):
    assert obstacle(config_of("digits", **changes), CUDA if changes else CPU) == told


@pytest.mark.skipif(GPU, reason="there is a GPU")
def test_without_a_gpu_the_run_is_the_plain_one_and_says_so(store):
    with pytest.warns(UserWarning, match="no CUDA graph, the run goes on without: CUDA graphs need CUDA"):
        asked = train(config_of("digits"), graphs=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = train(config_of("digits"))
    assert asked.curves.equals(plain.curves)


def test_divergence_is_found_in_a_replayed_step(graphs, store):
    config = config_of("digits", lr=1e30, steps=6, warmup_steps=0)
    plain, replayed = train(config), train(config, graphs=True)
    assert plain.status == replayed.status == "diverged"
    assert replayed.first_nonfinite_step == plain.first_nonfinite_step
    assert replayed.first_nonfinite_site == plain.first_nonfinite_site


@pytest.mark.skipif(GPU, reason="there is a GPU")
@pytest.mark.parametrize("command", ["train", "sweep"])
def test_the_commands_ask_for_graphs(command, store, capsys):
    asked = ["--arm", "LN>SSM>None"] if command == "train" else ["--arms", "LN>SSM>None", "--seeds", "0,"]
    assert main([command, *asked, "--scale", "smoke", "--graphs"]) == 0
    assert "no CUDA graph, the run goes on without: CUDA graphs need CUDA" in capsys.readouterr().err
    assert len(load_runs()) == 1


def test_a_run_says_what_computed_its_scans(monkeypatch):
    """Mamba's own block is fused on CUDA, whatever else is installed; other models take what the scan takes."""
    digits, images = (build_model(config_of(task), load_task(task, "smoke", 0)) for task in ("digits", "digits_images"))
    monkeypatch.setattr(loop, "scan_backend", lambda u: "mamba_ssm")
    monkeypatch.setattr(loop, "obstacle", lambda device_type: None)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
    assert loop.backend_of(digits, CUDA) == "triton"
    assert loop.backend_of(images, CUDA) == loop.backend_of(digits, CPU) == "mamba_ssm"
