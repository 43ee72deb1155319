"""Steps that are replayed give the losses, the weights and the end of steps that are not."""

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mambanorm.kernels import graph_step
from mambanorm.kernels.graph_step import WARM_UP
from mambanorm.loop import build_optimizer, fit
from mambanorm.models.classifier import SequenceClassifier
from tests.fake_graph import use_fake_graphs

STEPS = 8


@pytest.fixture
def modes(monkeypatch):
    return use_fake_graphs(monkeypatch)


def power_of_two(step):
    """Return a rate that changes and that float32 holds exactly, as the graph's rate is float32."""
    return 2.0 ** -(6 + step % 3)


class Training:
    """A small training, with everything that its steps change."""

    def __init__(self, arm="RMSN>SSM>None", *, padded=False, **options):
        torch.manual_seed(0)
        self.model = SequenceClassifier(3, in_features=2, d_model=8, n_layers=2, arm=arm, d_state=2)
        self.optimizer = build_optimizer(self.model, lr=0.01)
        lengths = [torch.randint(2, 7, (4,)) if padded else None for _ in range(STEPS)]
        self.batches = [(torch.randn(4, 6, 2), one, torch.randint(3, (4,))) for one in lengths]
        self.options, self.curve, self.calls = {"lr_of": power_of_two, **options}, [], 0

    def loss_of(self, model, batch, step):
        self.calls += 1
        x, lengths, labels = batch
        for rows in (slice(0, 2), slice(2, 4)):  # two micro-batches
            outputs = model(x[rows], None if lengths is None else lengths[rows])
            yield F.cross_entropy(outputs, labels[rows]) / 2

    def fit(self, **options):
        options = {"loss_of": self.loss_of, "curve": self.curve, **self.options, **options}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.lost = fit(self.model, self.optimizer, self.batches, **options)
        self.reasons = [str(one.message) for one in caught if "CUDA graph" in str(one.message)]
        return self

    def everything(self):
        """Return all results of the training, as one flat dict."""
        optimizer = self.optimizer.state_dict()
        states = {
            (i, key): value for i, s in optimizer["state"].items() for key, value in s.items()
        }
        return {**self.model.state_dict(), **states, "groups": optimizer["param_groups"]}


def assert_same(replayed, ordinary):
    assert replayed.curve == ordinary.curve
    results, expected = replayed.everything(), ordinary.everything()
    assert results.keys() == expected.keys()
    for name, value in expected.items():
        same = torch.equal if isinstance(value, torch.Tensor) else lambda a, b: a == b
        assert same(results[name], value), name


ARMS = ["RMSN>SSM>None", "BN>SSM>BN", "NormVary>SSM>GN"]


@pytest.mark.usefixtures("modes")
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("arm", ARMS)
def test_replayed_steps_give_bit_for_bit_what_ordinary_steps_give(arm, padded):
    replayed = Training(arm, padded=padded, clip=0.5).fit(cuda_graph=True)
    ordinary = Training(arm, padded=padded, clip=0.5).fit()
    assert max(row["grad_norm"] for row in ordinary.curve) > 0.5  # so that it clips
    assert_same(replayed, ordinary)
    assert replayed.reasons == []
    assert (replayed.calls, ordinary.calls) == (WARM_UP + 1, STEPS)


@pytest.mark.usefixtures("modes")
@pytest.mark.parametrize("at", [2, WARM_UP, WARM_UP + 1, 6])
def test_a_replayed_training_ends_at_the_step_at_which_it_diverges(at):
    def plant(training):
        def callback(step):
            if step == at:
                with torch.no_grad():
                    training.model.head.weight[0] = math.inf

        return callback

    trainings = Training(), Training()
    for training, cuda_graph in zip(trainings, (True, False)):
        training.fit(callbacks=[plant(training)], cuda_graph=cuda_graph)
        assert training.lost is training.batches[at]
        assert not math.isfinite(training.curve.pop()["train_loss"])
    assert_same(*trainings)


@pytest.mark.usefixtures("modes")
def test_a_non_finite_gradient_of_a_finite_loss_is_not_used_by_the_optimizer():
    class Spike(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.save_for_backward(factor)
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0], None

    def run(cuda_graph):
        training = Training()
        training.batches = [(*batch, torch.ones(())) for batch in training.batches]
        training.batches[5][3].fill_(math.inf)
        loss_of = lambda model, batch, step: [
            Spike.apply(F.cross_entropy(model(batch[0]), batch[2]), batch[3])
        ]
        return training.fit(loss_of=loss_of, cuda_graph=cuda_graph)

    replayed, ordinary = run(True), run(False)
    assert replayed.lost is replayed.batches[5]
    assert math.isfinite(replayed.curve[-1]["train_loss"])
    assert not math.isfinite(replayed.curve.pop()["grad_norm"])
    ordinary.curve.pop()
    assert_same(replayed, ordinary)


@pytest.mark.usefixtures("modes")
def test_evaluations_and_changed_weights_between_steps_are_seen():
    def run(cuda_graph):
        training = Training("BN>SSM>BN")

        def callback(step):
            training.model.eval()(training.batches[0][0])
            with torch.no_grad():
                training.model.head.bias.mul_(0.5)

        return training.fit(callbacks=[callback], cuda_graph=cuda_graph)

    assert_same(run(True), run(False))


class Reading(nn.Module):
    """A norm of someone's own that branches on a value."""

    def forward(self, x, lengths=None):
        return x if x.sum().item() > 0 else 2 * x


def read_on_the_host(training):
    training.model.stem_norm = Reading()


def hook(training):
    training.model.blocks[1].register_forward_hook(lambda *_: None)


def observe(training):
    training.model.blocks[0].observer = lambda site, value: None


def sgd(training):
    training.optimizer = torch.optim.SGD(training.model.parameters(), 0.1)


def shorten(training):
    x, lengths, labels = training.batches[6]
    training.batches[6] = (x[:, :5], lengths, labels)


def nest(training):
    training.batches = [list(batch) for batch in training.batches]


@pytest.mark.usefixtures("modes")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (read_on_the_host, "the capture failed, RuntimeError: operation not permitted when"),
        (hook, "a hook or an observer at blocks.1 reads"),
        (observe, "a hook or an observer at blocks.0 reads"),
        (sgd, "it needs a fused Adam or AdamW"),
        (shorten, "the batch of step 7 has another shape"),
        (nest, "a batch must be a tuple of tensors on cpu or None"),
    ],
)
def test_what_cannot_be_replayed_is_trained_step_by_step_with_the_reason(change, reason):
    replayed, ordinary = Training(), Training()
    for training, cuda_graph in ((replayed, True), (ordinary, False)):
        change(training)
        training.fit(cuda_graph=cuda_graph)
    assert_same(replayed, ordinary)
    assert replayed.lost is None
    (message,) = replayed.reasons  # once
    assert message.startswith(f"training without a CUDA graph: {reason}")


def test_a_line_that_waits_for_the_gpu_is_named_and_nothing_is_captured(modes, monkeypatch):
    monkeypatch.setattr(torch.cuda, "graph", None)

    def loss_of(model, batch, step):
        if modes[-1] == "warn":
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        yield F.cross_entropy(model(batch[0]), batch[2])

    training = Training().fit(loss_of=loss_of, cuda_graph=True)
    assert training.reasons[0].endswith("of test_graph_step.py waits for the GPU")
    assert (len(training.curve), modes) == (STEPS, [0, "warn", 0])


def test_on_the_cpu_there_is_nothing_to_replay():
    training = Training().fit(cuda_graph=True)
    assert_same(training, Training().fit())
    (reason,) = training.reasons
    assert reason.endswith("the model is on cpu, and CUDA graphs run on CUDA")
    assert graph_step.DEVICE_TYPE == "cuda"
