"""Claims about the clinic under models and loops that it does not expect: nothing is left behind, nothing made up."""

from __future__ import annotations

import math

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.checkpoint import checkpoint

import mambanorm as mn
from mambanorm.clinic import NonFinite, watching
from mambanorm.clinic.surgery import sites_for_norms
from tests.test_clinic import found_in, ours, theirs

X = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(0))


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


# ------------------------------------------------------------------------------------------------------------- diagnose


class Attention(nn.Module):
    """Scores whose future is −inf, handed to a module, as many write it."""

    def __init__(self, behind: float = 1.0):
        super().__init__()
        self.q, self.softmax, self.behind = nn.Linear(8, 8), nn.Softmax(-1), behind
        self.register_buffer("mask", torch.full((6, 6), -math.inf).triu(1))

    def forward(self, x):
        q = self.q(x)
        return self.behind * (self.softmax(q @ q.transpose(1, 2) + self.mask) @ x)


def test_a_mask_of_minus_infinity_is_no_first_value():
    found = mn.diagnose(Attention(), X)
    assert found.table.nonfinite.max() == 0  # of q and of the softmax
    assert found.first is None
    assert list(found.findings) == []
    assert mn.diagnose(Attention(behind=math.inf), X).first.where == ""  # what comes behind it is still found


def test_minus_infinity_that_spreads_is_the_first_value():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with torch.no_grad():
        model[0].weight.zero_(), model[0].bias.fill_(-math.inf)
    assert mn.diagnose(model, X).first.where == "0"
    masked = mn.diagnose(Attention().softmax, torch.full((1, 2, 3), -math.inf))
    assert masked.first.where == ":input"
    assert "the model's input" in masked.findings[0].found


class HandsOutWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.position, self.same, self.mix = nn.Parameter(torch.ones(6, 8)), nn.Identity(), nn.Linear(8, 8)

    def forward(self, x):
        return self.mix(x + self.same(self.position))


def test_no_hook_stays_on_a_weight_or_an_input_that_goes_through_a_module(tmp_path):
    x, model = X.clone().requires_grad_(), HandsOutWeights()
    table = mn.diagnose(model, x).table
    assert table[table.site == "same"].grad_rms.gt(0).all()  # it was seen all the same
    with mn.watch(model, sgd(model), folder=tmp_path):
        model(x).sum().backward()
    assert not any(t._backward_hooks for t in (x, *model.parameters()))


def test_a_loss_that_is_infinite_by_itself_is_told_before_the_gradients_that_it_spoils(tmp_path):
    model = net()

    def log_of_zero(out, _=None):
        return (out - out.detach()).square().sum().log()

    (finding,) = mn.diagnose(model, (X, X), loss=log_of_zero).findings
    assert "every site is finite and the loss is -inf" in finding.found
    with mn.watch(model, optimizer := sgd(model), folder=tmp_path) as seen:
        seen.loss(log_of_zero(model(X))).backward()
        with pytest.raises(NonFinite, match="every site is finite and the loss is -inf"):
            optimizer.step()


def test_what_a_checkpointed_layer_computes_again_is_no_second_call():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(net() for _ in range(2))

        def forward(self, x):
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False)
            return x

    table = mn.diagnose(Checkpointed(), X).table
    assert table["where"].is_unique
    assert table.grad_rms.gt(0).all()


def test_a_compiled_model_is_looked_at_as_it_is_written():
    plain, compiled = net(), torch.compile(net(), backend="eager")
    columns = ["rms", "max_abs", "grad_rms"]
    assert mn.diagnose(compiled, X).table[columns].equals(mn.diagnose(plain, X).table[columns])


def test_a_dataclass_is_looked_into_and_a_bare_block_names_its_sites_plainly():
    from dataclasses import dataclass

    @dataclass
    class Output:
        hidden: torch.Tensor

    class Wrapped(nn.Linear):
        def forward(self, x):
            return Output(math.inf * super().forward(x))

    assert mn.diagnose(Wrapped(8, 8), X).first.where == ""
    table = mn.diagnose(mn.MambaBlock(8, scan_backend="reference"), X).table
    assert table["where"].iloc[0] == "x"


def test_advice_names_a_surgery_only_where_it_can_be_done():
    assert "insert_norm" not in found_in(dict(max_abs=[4.0, 7e4], rms=[1.0, 3e4]))[0].try_this
    assert sites_for_norms(net()) == ()
    assert "dt" not in sites_for_norms(theirs("Mamba2"))
    assert {"n2", "gated"} <= set(sites_for_norms(ours()))
    assert "n2" not in sites_for_norms(ours("RMSN>SSM>LN"))


# ---------------------------------------------------------------------------------------------------------------- watch


def fail_at(steps, model, folder, **options) -> tuple[watching.Watched, list]:
    """Six steps, some with an infinite factor; the loop catches what is raised and goes on."""
    optimizer, reports = sgd(model), []
    with mn.watch(model, optimizer, folder=folder, **options) as seen:
        for i in range(6):
            optimizer.zero_grad()
            model(X * (math.inf if i in steps else 1)).square().mean().backward()
            try:
                optimizer.step()
            except NonFinite as error:
                reports.append(error.report)
    return seen, reports


def test_a_loop_that_catches_the_error_is_watched_on(tmp_path):
    model = net()
    seen, reports = fail_at((2, 4), model, tmp_path)
    assert [(r.step, r.last_finite_step) for r in reports] == [(3, 2), (4, 3)]  # the third was not made
    assert seen.step == 4
    assert all(weight.isfinite().all() for weight in model.parameters())


class Batch(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.register_buffer("mask", torch.tensor(-math.inf))

    def forward(self, x):
        return self.norm(self.mix(x).transpose(1, 2))


def test_running_statistics_that_the_batch_has_spoilt_are_put_back(tmp_path):
    model, plain = Batch(), Batch()
    plain.load_state_dict(model.state_dict())
    _, (report,) = fail_at((5,), model, tmp_path)
    optimizer = sgd(plain)
    for _ in range(5):
        optimizer.zero_grad()
        plain(X).square().mean().backward()
        optimizer.step()
    assert report.last_finite_step == 5
    saved = load_file(report.checkpoint)
    for name, value in plain.state_dict().items():
        assert torch.equal(saved[name], value), name
        assert torch.equal(model.state_dict()[name], value), name
    assert "norm" not in report.findings[0].where
    assert report.first.where == ":input"


def test_a_copy_of_lost_weights_never_replaces_a_finite_one(tmp_path):
    model = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 8))
    optimizer = sgd(model)
    with mn.watch(model, optimizer, every=2, folder=tmp_path) as seen:
        for i in range(8):
            optimizer.zero_grad()
            model(torch.tensor([[9 if i == 7 else 0]])).square().mean().backward()
            if i == 7:
                with pytest.raises(NonFinite) as stopped:
                    optimizer.step()
                break
            optimizer.step()
            if i == 2:
                with torch.no_grad():
                    model[0].weight[9] = math.inf  # a row that no batch reads
        assert seen.report is stopped.value.report
    assert seen.report.last_finite_step == 2
    assert all(value.isfinite().all() for value in load_file(seen.report.checkpoint).values())


def test_of_accumulated_gradients_nothing_is_said_of_a_batch_that_is_gone(tmp_path):
    model = net()
    optimizer = sgd(model)
    with mn.watch(model, optimizer, folder=tmp_path) as seen:
        (model(X) * math.inf).sum().backward()
        seen.loss(model(X).sum()).backward()
        with pytest.raises(NonFinite) as stopped:
            optimizer.step()
    report = stopped.value.report
    assert (report.first, list(report.findings)) == (None, [])
    assert "it may be another's" in report.findings.skipped[0]


def test_sparse_gradients_and_losses_beyond_float16_are_watched(tmp_path):
    model = nn.Sequential(nn.Embedding(5, 8, sparse=True), nn.Linear(8, 8))
    optimizer = sgd(model)
    with mn.watch(model, optimizer, folder=tmp_path) as seen:
        model(torch.tensor([[0, 0, 1]])).sum().backward()
        dense = torch.cat([p.grad.to_dense().flatten() for p in model.parameters()]).norm()
        optimizer.step()
    assert seen.steps.grad_norm.tolist() == pytest.approx([float(dense)])
    half = net().half()
    optimizer = sgd(half)
    with mn.watch(half, optimizer, folder=tmp_path) as seen:
        seen.loss(7e4 + half(X.half()).float().mean()).backward()
        optimizer.step()
    assert seen.steps.loss.tolist() == pytest.approx([7e4], rel=1e-4)
    for loss, got in ((3.0, "3.0"), (X, r"\(4, 6, 8\)")):
        with pytest.raises(ValueError, match=f"a tensor of one number, got {got}"):
            seen.loss(loss)


# -------------------------------------------------------------------------------------------------------------- surgery


def test_of_a_block_that_runs_twice_the_change_is_that_of_its_first_run():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.block = mn.MambaBlock(8, scan_backend="reference")

        def forward(self, x):
            return self.block(self.block(x) * 3)

    model, once = Twice(), mn.MambaBlock(8, scan_backend="reference")
    once.load_state_dict(model.block.state_dict())
    assert mn.insert_norm(model, "n2", "LN", X).layers.change.tolist() == pytest.approx(
        mn.insert_norm(once, "n2", "LN", X).layers.change.tolist()
    )


# ------------------------------------------------------------------------------------------------------- planted faults


class OwnBlock(nn.Module):
    """A norm, a mixer, and `own`, a function of what the mixer puts out."""

    def __init__(self, own=lambda h: h):
        super().__init__()
        self.norm, self.mixer, self.own = nn.LayerNorm(8), nn.Linear(8, 8), own

    def forward(self, x):
        return x + self.own(self.mixer(self.norm(x)))


def stack(**own) -> nn.Sequential:
    """Five blocks of one's own, between an embedding and a head; `three` is the function of block 3."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), *(OwnBlock(own.get("three", lambda h: h)) if i == 3 else OwnBlock()
                                            for i in range(1, 6)), nn.Linear(8, 8))  # fmt: skip


def report_of(model: nn.Module, folder, before=lambda step: None, x=X, steps=60):
    """The report of `watch` on a training that calls before(step) at each step; None if it raises nothing."""
    optimizer = sgd(model)
    with mn.watch(model, optimizer, folder=folder) as seen:
        for step in range(1, steps + 1):
            before(step)
            optimizer.zero_grad()
            seen.loss(model(x).square().mean()).backward()
            try:
                optimizer.step()
            except NonFinite as error:
                return error.report
    return None


@pytest.mark.parametrize("own", [torch.log, lambda h: (h - h) / (h - h)])
def test_what_turns_nan_at_small_values_is_looked_for_in_the_modules_own_code(tmp_path, own):
    model, batches = stack(three=lambda h: own(h) if batches[-1] >= 9 else h), [0]
    report = report_of(model, tmp_path, before=batches.append)
    assert (report.step, report.first.where) == (9, "3")
    for findings in (report.findings, mn.diagnose(model, X).findings):
        assert "look for log or sqrt of a number below 0 or 0/0" in findings[0].try_this
        assert "norm behind the scan" not in findings[0].try_this


def test_what_overflows_is_not_taken_for_a_logarithm():
    assert "log" not in mn.diagnose(stack(three=lambda h: 1e38 * h * 1e3), X).findings[0].try_this


def test_a_mask_does_not_hide_that_values_are_small_and_an_input_that_is_nan_is_the_datas():
    class Masked(OwnBlock):
        def forward(self, x, mask=None):
            return super().forward(x)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Masked(torch.log)

        def forward(self, x):
            return self.block(x, mask=torch.full((6, 6), torch.finfo(x.dtype).min).triu(1))

    assert "log" in mn.diagnose(Model(), X).findings[0].try_this
    (finding,) = mn.diagnose(net(), X * math.nan).findings
    assert "look at the data" in finding.try_this


@pytest.mark.parametrize("sites", [{"norm": "*.norm", "mixer": "*.mixer"}, None])
def test_a_map_names_sites_and_hides_no_module(sites):
    class Gate(nn.Module):
        def forward(self, h):
            return 1e5 * h

    model = stack(three=Gate())
    found = mn.diagnose(model, X, sites=sites)
    assert "beyond float16's 65,504" in found.findings[0].found
    assert found.findings[0].where == "3.own"
    assert "3.own" in set(found.table["where"]) if sites is None else set(found.table.site) == {"norm", "mixer"}
    assert f"{len(list(model.modules()))} modules" in repr(found)
    assert list(mn.diagnose(stack(), X, sites=sites).findings) == []


def test_a_finite_mask_is_no_large_magnitude():
    class Finite(Attention):
        def __init__(self):
            super().__init__()
            self.mask = torch.full((6, 6), torch.finfo(torch.float32).min).triu(1)

    assert list(mn.diagnose(Finite(), X).findings) == []
    assert list(mn.diagnose(nn.Softmax(-1), Finite().mask[:4] + X[0, :4, :6]).findings) == []


def test_a_buffer_that_is_not_finite_is_named_and_what_follows_from_it_is_not():
    norm = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(6))
    for broken in (math.nan, math.inf):
        norm[1].running_var[2] = broken
        for model in (norm.train(), norm.eval()):
            (finding,) = mn.diagnose(model, X).findings
            assert (finding.severity, finding.where) == ("serious", "1.running_var")
            assert "is not finite before the pass begins" in finding.found


def test_a_buffer_of_a_mask_or_of_a_lowest_value_that_no_pass_has_set_is_no_finding():
    model = net()
    model.register_buffer("best", torch.tensor(math.inf))
    model.register_buffer("mask", torch.full((6, 6), -math.inf).triu(1))
    model.register_buffer("steps", torch.tensor(3))
    assert list(mn.diagnose(model, X).findings) == []
    model = stack(three=torch.log)
    model[1].register_buffer("best", torch.tensor(math.inf))
    (finding,) = mn.diagnose(model, X).findings
    assert finding.where == "3"


class Told(dict):
    """An output as transformers' models have it."""

    loss = property(lambda self: self["loss"])


class LogFrom(nn.Module):
    """A logarithm of negative numbers from its fourth batch on; its output tells the loss, or does not."""

    def __init__(self, tells: bool):
        super().__init__()
        self.layers = stack(three=lambda h: torch.log(h) if self.batches > 3 else h)
        self.tells, self.batches = tells, 0

    def forward(self, x):
        self.batches += 1
        y = self.layers(x)
        return Told(loss=y.square().mean(), logits=y) if self.tells else y


@pytest.mark.parametrize("told", ["to watch", "by the model", ""])
def test_a_loss_that_stays_nan_behind_a_grad_scaler_is_seen(tmp_path, told):
    model = LogFrom(told == "by the model")
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=2.0)

    def train(seen) -> None:
        for _ in range(40):
            optimizer.zero_grad()
            out = model(X)
            loss = out.loss if model.tells else out.square().mean()
            scaler.scale(seen.loss(loss) if told == "to watch" else loss).backward()
            scaler.step(optimizer)
            scaler.update()

    with (
        mn.watch(model, optimizer, folder=tmp_path) as seen,
        pytest.raises(NonFinite, match="step 4 is not made, 5 ba"),
    ):
        train(seen)
    assert seen.step == 3
    assert seen.report.first.where == "layers.3"
    assert "log or sqrt" in seen.report.findings[0].try_this
    assert all(value.isfinite().all() for value in load_file(seen.report.checkpoint).values())


@pytest.mark.parametrize("fused", [False, True])
def test_a_scaler_that_looks_for_its_scale_and_gradients_that_are_accumulated_are_no_failure(tmp_path, fused):
    """A fused optimizer is called also where the scaler skips."""
    model = net()
    optimizer, scaler = (
        torch.optim.SGD(model.parameters(), lr=0.01, fused=fused),
        torch.amp.GradScaler("cpu", init_scale=2.0**127),
    )
    with mn.watch(model, optimizer, folder=tmp_path) as seen:
        for i in range(40):
            optimizer.zero_grad()
            loss = 1e4 * model(X).square().mean()
            scaler.scale(seen.loss(loss) if i % 2 else loss).backward()
            scaler.step(optimizer)
            scaler.update()
        assert 0 < seen.step < 36  # the scaler has skipped more than four
        optimizer.zero_grad()
        for _ in range(20):
            (model(X).square().mean() / 20).backward()
        optimizer.step()
    assert seen.report is None


def test_a_layer_that_masks_its_output_is_no_failure(tmp_path):
    class Mask(nn.Module):
        def forward(self, x):
            return x.masked_fill(torch.eye(8, dtype=torch.bool)[:6], -math.inf)

    model = nn.Sequential(nn.Linear(8, 8), Mask(), nn.Softmax(-1), nn.Linear(8, 8))
    assert report_of(model, tmp_path, steps=12) is None
