"""Claims about check_model on models and batches as people have them: odd outputs, frozen norms, any kind of loader."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import mambanorm as mn
from mambanorm.advice.given import twin_of

ROWS = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(16) % 3
IMAGES = ROWS.view(2, 1, 8, 8)
LEARN = dict(loss=F.cross_entropy, lr=0.1)


class By(nn.Module):
    """A model whose parts are those of a list and whose forward pass is `call(parts, *inputs)`."""

    def __init__(self, call, *parts: nn.Module):
        super().__init__()
        self.parts, self.call = nn.ModuleList(parts), call

    def forward(self, *inputs, **named):
        return self.call(self.parts, *inputs, **named)


@dataclass
class Output:
    logits: Tensor


def mlp(*norms: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), *norms, nn.ReLU(), nn.Linear(8, 3))


def found_by(findings, check: str) -> list:
    return [finding for finding in findings if finding.check.startswith(check)]


def raising(error):
    def call(parts, x):
        raise error

    return By(call, nn.Linear(8, 3), nn.BatchNorm1d(8, momentum=0.0))


# what cannot be looked at is said


@pytest.mark.parametrize("error", [TypeError, KeyError, IndexError, AttributeError, AssertionError])
def test_a_forward_pass_may_raise_anything_and_the_rest_is_looked_at(error):
    found = mn.check_model(raising(error("why")), ROWS)
    assert found_by(found, "check 6")
    assert any(f"fails with {error.__name__}" in why for why in found.skipped)


def test_one_row_in_train_mode_is_not_looked_at_and_said_so():
    model = mlp(nn.BatchNorm1d(8))
    model(ROWS)
    found = mn.check_model(model.eval(), [ROWS[:1]])
    assert not found_by(found, "check 6")  # of one row no variance is told
    assert any(why.startswith("check 8") and "more than 1 value" in why for why in found.skipped)


@pytest.mark.parametrize("loader", [None, [ROWS]])
def test_a_lazy_layer_is_named(loader):
    with pytest.raises(ValueError, match="the lazy layer '0' has no shape yet: call the model once"):
        mn.check_model(nn.Sequential(nn.LazyLinear(3)), loader)


def test_weight_norm_and_cached_activations_do_not_hinder_the_copy():
    cached = By(lambda parts, x: setattr(parts[0], "cache", parts[0](x)) or parts[0].cache, nn.Linear(8, 3))
    for model in (nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(8, 3))), cached):
        model(ROWS)
        assert mn.check_model(model, [(ROWS, LABELS)], **LEARN).skipped == ()
        assert torch.equal(twin_of(model)(ROWS), model(ROWS))


def test_a_model_that_cannot_be_copied_is_said_to_be_so():
    model = mlp()
    model.kept = [model(ROWS)]
    with pytest.raises(ValueError, match="cannot be copied, and only a copy is looked at.*remove what it keeps"):
        mn.check_model(model)


def test_a_dataclass_is_an_output_and_none_is_said_to_be_none():
    assert mn.check_model(By(lambda parts, x: Output(parts[0](x)), mlp()), [ROWS]).skipped == ()
    found = mn.check_model(By(lambda parts, x: None, mlp()), [ROWS])
    assert any("puts out NoneType, in which no tensor was found" in why for why in found.skipped)


def test_a_scalar_output_breaks_no_check():
    model = By(lambda parts, x: parts[0](x).mean(), mlp(nn.BatchNorm1d(8)))
    assert found_by(mn.check_model(model, [ROWS], evaluating=True), "check 7")


@pytest.mark.parametrize("model", [nn.Identity(), mlp().requires_grad_(False)])
def test_without_a_parameter_that_learns_no_rate_is_judged(model):
    batch = (ROWS[:, :3], LABELS) if isinstance(model, nn.Identity) else (ROWS, LABELS)
    found = mn.check_model(model, [batch], **LEARN)
    assert any("no parameter learns" in why for why in found.skipped)


def test_a_loss_that_raises_stops_only_the_checks_that_need_it():
    found = mn.check_model(mlp(nn.BatchNorm1d(8, momentum=0.0)), [(ROWS, ROWS[:3])], **LEARN)
    assert found_by(found, "check 6")
    assert [why.split(":")[0] for why in found.skipped] == ["checks 5, 9, 11", "check 8"]


# what a batch is


def test_targets_are_found_in_tuples_and_in_dicts():
    plain, named = mlp(), By(lambda parts, x: parts[0](x), mlp())
    for model, batch in ((plain, (ROWS, LABELS)), (named, {"x": ROWS, "labels": LABELS})):
        found = mn.check_model(model, [batch], **LEARN)
        assert (list(found), found.skipped) == ([], ())


@pytest.mark.parametrize("loader", [ROWS, [ROWS, LABELS], [(ROWS,)], [{"x": ROWS}]])
def test_a_loss_without_targets_is_refused(loader):
    with pytest.raises(ValueError, match="loss needs targets"):
        mn.check_model(mlp(), loader, **LEARN)


@pytest.mark.parametrize(
    ("loader", "error", "words"),
    [
        ((ROWS, LABELS), ValueError, r"did you mean \[\(X, y\)\]"),
        ((ROWS, [0, 1]), ValueError, "a tuple: did you mean"),
        ({"x": ROWS}, ValueError, r"did you mean \[\{…\}\]"),
        (5, TypeError, "loader must be one tensor, or a list or a DataLoader of batches, got 5"),
    ],
)
def test_what_is_no_list_of_batches_is_refused_with_the_way_out(loader, error, words):
    with pytest.raises(error, match=words):
        mn.check_model(mlp(), loader)


# what is the caller's stays as it is


def test_hooks_of_the_caller_do_not_run_and_stay():
    model, calls = mlp(), []
    model[0].register_forward_hook(lambda *args: calls.append(args))
    mn.check_model(model, [(ROWS, LABELS)], **LEARN)
    assert calls == []
    assert len(model[0]._forward_hooks) == 1


def test_the_generator_of_a_loader_stays_where_it_was():
    data, draw = torch.utils.data.TensorDataset(ROWS, LABELS), torch.Generator().manual_seed(0)
    sampler = torch.utils.data.RandomSampler(data, generator=draw)
    of_batches = torch.utils.data.BatchSampler(sampler, 4, drop_last=False)
    for options in (dict(batch_size=4, shuffle=True, generator=draw), dict(sampler=sampler, batch_size=4),
                    dict(batch_sampler=of_batches)):  # fmt: skip
        before = draw.get_state()
        mn.check_model(mlp(), torch.utils.data.DataLoader(data, **options))
        assert torch.equal(draw.get_state(), before)


# evaluating, as the model is


def trained(*norms: nn.Module) -> nn.Module:
    model = mlp(*norms)
    for _ in range(200):
        model(ROWS)
    return model.eval()


def test_a_norm_without_running_statistics_depends_on_the_batch_in_eval_mode_too():
    (finding,) = mn.check_model(mlp(nn.BatchNorm1d(8, track_running_stats=False)).eval(), [ROWS], evaluating=True)
    assert finding.where == "1"
    assert "eval mode, but without running statistics: with other rows" in finding.found
    assert "track_running_stats=True" in finding.try_this


@pytest.mark.parametrize(("part", "words"), [(nn.BatchNorm1d(8), "with other rows"), (nn.Dropout(), "1 dropout layer")])
def test_a_part_left_in_train_mode_is_found_in_a_model_in_eval_mode(part, words):
    model = trained(part)
    model[1].train()
    (finding,) = mn.check_model(model, [ROWS], evaluating=True)
    assert (finding.where, finding.severity) == ("1", "serious")
    assert words in finding.found


def test_frozen_norms_in_a_model_in_train_mode_do_not_depend_on_the_batch():
    model = trained(nn.BatchNorm1d(8)).train()
    model[1].eval()
    assert not found_by(mn.check_model(model, [ROWS], evaluating=True), "check 7")


def test_it_is_said_what_the_other_rows_are():
    (finding,) = found_by(mn.check_model(mlp(nn.BatchNorm1d(8)), [ROWS], evaluating=True), "check 7")
    assert "its second half replaced by copies of its first row" in finding.found


# provenance and gradients


def head_ends_in_norm(frozen: bool) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 3), nn.LayerNorm(3)).requires_grad_(not frozen)


def test_frozen_weights_hide_nothing():
    seen = [{f.check for f in mn.check_model(head_ends_in_norm(frozen), [ROWS])} for frozen in (False, True)]
    assert seen[0] == seen[1] != set()


def test_a_pass_without_a_graph_is_said_to_be_one():
    model = head_ends_in_norm(False)
    found = mn.check_model(By(lambda parts, x: torch.no_grad()(parts[0])(x), model), [ROWS])
    assert any("the output has no graph" in why for why in found.skipped)


def deep(zero: int | None) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(*(part for _ in range(9) for part in (nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU())))
    model.append(nn.Linear(8, 3))
    if zero is not None:
        nn.init.zeros_(model[zero].weight)
        nn.init.zeros_(model[zero].bias)
    return model


@pytest.mark.parametrize("options", [{}, LEARN])
def test_a_head_that_begins_at_zero_is_no_fault_of_the_gradients(options):
    found = mn.check_model(deep(-1), [(ROWS, LABELS)], **options)
    assert not found_by(found, "check 8")


def test_last_layers_that_the_loss_does_not_reach_are_named():
    def half(parts, x):
        return parts[0](x) + 0 * parts[1](x)

    found = mn.check_model(By(half, deep(None)[:9], deep(None)[:27]), [ROWS])
    (finding,) = found_by(found, "check 8")
    assert "the last layers have no gradient" in finding.found


# post-norm


def torchs(kind: str, layers: int, reused: bool = False, **options):
    make = nn.TransformerEncoderLayer if kind == "encoder" else nn.TransformerDecoderLayer
    made = [make(8, 2, 16, batch_first=True, **options) for _ in range(1 if reused else layers)]

    def call(parts, x):
        x = x.view(2, 8, 8)
        memory = (x,) if kind == "decoder" else ()
        for i in range(layers):
            x = parts[0 if reused else i](x, *memory)
        return x.mean(1)

    return By(call, *made)


def residual(layers: int, place: str):
    """x + norm(f(norm(x))), or norm(x + f(x)) with dropout behind it, by a module or by a function."""

    def call(parts, x):
        drops = {"dropout": parts[-1], "function": F.dropout}
        for i in range(0, len(parts) - 1, 3):
            if place == "sandwich":
                x = x + parts[i + 2](parts[i](parts[i + 1](x)))
            else:
                x = drops[place](parts[i + 1](x + parts[i](x)))
        return x.sum(1, keepdim=True) * x

    made = [part for _ in range(layers) for part in (nn.Linear(8, 8), nn.LayerNorm(8), nn.LayerNorm(8))]
    return By(call, *made, nn.Dropout(0.1))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (torchs("encoder", 24, reused=True), "48 norms behind residual sums, in about 24 layers"),
        (torchs("decoder", 14), "42 norms behind residual sums, in about 14 layers"),
        (residual(30, "dropout"), "30 norms behind residual sums, in about 15 layers"),
        (residual(30, "function"), "30 norms behind residual sums, in about 15 layers"),
    ],
)
def test_post_norm_is_counted_by_the_calls_on_the_residual_stream(model, words):
    (finding,) = found_by(mn.check_model(model, [ROWS]), "check 10")
    assert words in finding.found


def test_decoders_of_torch_are_counted_without_a_pass():
    (finding,) = found_by(mn.check_model(torchs("decoder", 24)), "check 10")
    assert "72 norms behind residual sums, in about 24 layers" in finding.found


@pytest.mark.parametrize("model", [torchs("decoder", 9), torchs("encoder", 12), residual(28, "sandwich")])
def test_nine_decoders_and_a_stream_that_passes_freely_are_not_deep_post_norm(model):
    assert not found_by(mn.check_model(model, [ROWS]), "check 10")


# what a model is made of


def frozen_norm():
    model = trained(nn.BatchNorm1d(8)).train()
    model[1].eval()
    return model


def test_a_frozen_norm_learns_from_no_batch():
    assert not found_by(mn.check_model(frozen_norm(), [ROWS[:2]]), "check 1")


def test_of_a_model_in_eval_mode_it_is_said_what_training_would_do():
    (finding,) = found_by(mn.check_model(trained(nn.BatchNorm1d(8)), [ROWS[:2]]), "check 1")
    assert (finding.severity, "would learn, when trained, from batches of 2" in finding.found) == ("warning", True)


@pytest.mark.parametrize(("shape", "rows"), [((100, 2, 8), 2), ((2, 16, 8), None)])
def test_the_rows_of_a_batch_are_those_of_the_norms_own_input(shape, rows):
    """Here (L, B, C) goes in."""
    model = By(lambda parts, x: parts[1](parts[0](x).permute(1, 2, 0)).sum(2), nn.Linear(8, 4), nn.BatchNorm1d(4))
    found = found_by(mn.check_model(model, [torch.randn(shape)]), "check 1")
    assert [f"batches of {rows}" in finding.found for finding in found] == ([True] if rows else [])


def test_style_transfer_is_told_what_batch_norm_does_with_a_style():
    (finding,) = mn.check_model(mlp(nn.BatchNorm1d(8)), task="style_transfer")
    assert "each image's style stays in, and the output then depends on the batch" in finding.found


@pytest.mark.parametrize(("channels", "fewer"), [(9, 1), (14, 2), (18, 3), (32, 8)])
def test_the_suggested_groups_divide_the_channels(channels, fewer):
    (finding,) = mn.check_model(nn.GroupNorm(channels, channels))
    assert f"such as {fewer}," in finding.try_this


@pytest.mark.parametrize(
    ("norm", "left"),
    [
        (nn.GroupNorm(4, 8), "2 values: only which of the two is larger"),
        (nn.LayerNorm(1), "1 value: nothing"),
        (nn.RMSNorm(1), "1 value: their sign"),
        (mn.create_norm("LN", 1), "1 value: nothing"),
    ],
)
def test_a_statistic_over_one_or_two_values_is_found_for_every_norm(norm, left):
    width = getattr(norm, "num_channels", 1)
    found = mn.check_model(nn.Sequential(nn.Linear(8, width), norm, nn.Linear(width, 3)), [ROWS])
    assert any(left in finding.found and finding.severity == "serious" for finding in found)


def rnn(between: nn.Module, last: bool = False, bidirectional: bool = False) -> nn.Module:
    lstm = nn.LSTM(8, 4, batch_first=True, bidirectional=bidirectional)
    norm = nn.BatchNorm1d(8 if bidirectional else 4)

    def call(parts, x):
        y = parts[1](parts[0](x)[0])
        return parts[2](y[:, -1]) if last else parts[2](y.transpose(1, 2)).sum(2)

    return By(call, lstm, between, norm)


STEPS = torch.randn(16, 5, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("between", [nn.Dropout(), nn.ReLU(), nn.Identity()], ids=lambda m: type(m).__name__)
def test_batch_norm_behind_an_lstm_is_found_through_dropout_and_activations(between):
    (finding,) = found_by(mn.check_model(rnn(between), [STEPS]), "check 2")
    assert "16 rows × 5 steps" in finding.found


def test_without_a_pass_batch_norm_behind_an_lstm_is_only_supposed():
    for model in (rnn(nn.ReLU(), last=True), rnn(nn.ReLU(), bidirectional=True)):
        (finding,) = found_by(mn.check_model(model), "check 2")
        assert (finding.severity, "may be" in finding.found) == ("note", True)
    assert not found_by(mn.check_model(rnn(nn.ReLU(), last=True), [STEPS]), "check 2")


class Critic(nn.Sequential):
    """Of an actor-critic: no part of a GAN."""


class Discriminator(nn.Sequential):
    pass


def test_every_discriminator_is_looked_at_and_a_critic_only_where_the_caller_says_so():
    critic = nn.Sequential(Critic(nn.Linear(8, 8), nn.BatchNorm1d(8)))
    assert not found_by(mn.check_model(critic), "GAN")
    assert found_by(mn.check_model(critic, component="discriminator"), "GAN")
    two = nn.Sequential(*(Discriminator(nn.Linear(8, 8), nn.BatchNorm1d(8)) for _ in range(2)))
    assert [finding.where for finding in found_by(mn.check_model(two), "GAN")] == ["0.1", "1.1"]


@pytest.mark.parametrize(
    ("last", "options", "severity"),
    [
        ((), {}, "warning"),
        ((), LEARN, "serious"),
        ((nn.LogSoftmax(1),), {}, "serious"),
    ],
)
def test_features_may_end_in_a_norm_and_logits_may_not(last, options, severity):
    model = nn.Sequential(nn.Linear(8, 3), nn.LayerNorm(3), *last)
    (finding,) = found_by(mn.check_model(model, [(ROWS, LABELS)], **options), "when not to")
    assert (finding.severity, finding.where) == (severity, "1")


# rates and running statistics


def test_a_rate_that_is_too_low_is_answered_with_a_higher_one():
    torch.manual_seed(0)
    (finding,) = mn.check_model(mlp(), [(ROWS, LABELS)], loss=F.cross_entropy, lr=1e-9)
    assert finding.check == "checks 5, 9 and 11"
    assert "there the loss falls" in finding.try_this
    assert float(finding.try_this.split()[2].strip(":")) > 1e-4


def test_momentum_0_is_seen_once_statistics_were_loaded():
    model = mlp(nn.BatchNorm1d(8, momentum=0.0))
    model.load_state_dict(trained(nn.BatchNorm1d(8)).state_dict())
    assert any("momentum 0" in finding.found for finding in mn.check_model(model, [ROWS]))


def test_stale_statistics_are_seen_where_one_row_allows_no_training_pass():
    model = nn.Sequential(nn.Linear(8, 8), nn.Unflatten(1, (8, 1)), nn.BatchNorm1d(8), nn.Flatten(), nn.Linear(8, 3))
    model(ROWS * 20 + 500)
    found = mn.check_model(model.eval(), [ROWS[:1], ROWS[1:2]])
    assert any("standard deviations" in finding.found for finding in found)


class StillNorm(nn.BatchNorm1d):
    def forward(self, x):
        return F.batch_norm(x, None, None, self.weight, self.bias, training=True)


def test_running_statistics_that_a_training_pass_does_not_move_are_found():
    (finding,) = found_by(mn.check_model(mlp(StillNorm(8)), [ROWS]), "check 6")
    assert "a training pass does not move the running statistics of 1 norm" in finding.found
