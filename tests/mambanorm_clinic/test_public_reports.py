"""Claims about the clinic on what users of Mamba, PEFT, Lightning, accelerate and timm have
reported, rebuilt small.

Each docstring says what was reported where; "found by our audit" where no public thread says it.
"""

from __future__ import annotations

import math
import warnings

import pytest
import safetensors.torch
import torch
from torch import nn

import mambanorm as mn
import mambanorm_clinic as clinic
import mambanorm_study as study
from mambanorm.block import init_dt_bias, initial_A_log
from mambanorm_clinic.mixers import mixers_of, step_size
from tests.mambanorm_clinic.test_diagnosis import image, labelled, next_id, ours, text, theirs
from tests.mambanorm_clinic.test_model_check import IMAGES, ROWS, with_source
from tests.mambanorm_clinic.test_surgery import logits, state
from tests.mambanorm_clinic.test_watching import X, net

IDS = {"input_ids": text()}
PARTS = ("in_proj", "x_proj", "out_proj")


def lora(model: nn.Module, *targets: str) -> nn.Module:
    peft = pytest.importorskip("peft", reason="peft is in the dev extra")
    torch.manual_seed(0)
    return peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_modules=list(targets), init_lora_weights=False)
    )


class Wrapper(nn.Module):
    """A layer inside another that has neither its weight nor its sizes."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def wrapped(family: str) -> nn.Module:
    model = theirs(family)
    for _, mixer in mixers_of(model):
        for part in set(PARTS) & set(mixer._modules):
            setattr(mixer, part, Wrapper(getattr(mixer, part)))
    return model.eval()


def quantized(family: str) -> nn.Module:
    model = theirs(family).eval()
    return torch.ao.quantization.quantize_dynamic(
        model, {n for n, _ in model.named_modules() if n.endswith(PARTS)}
    )


# ------------------------------------------------------------------------ wrapped, replaced, hooked


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated")
@pytest.mark.parametrize("make", [wrapped, quantized])
@pytest.mark.parametrize("family", ["Mamba", "FalconMamba", "Mamba2"])
def test_sites_of_wrapped_projections_are_seen_and_take_a_norm(make, family):
    """Found by our audit: a wrapper without .weight and quantize_dynamic ended in
    AttributeError.
    """
    model, plain = make(family), theirs(family).eval()
    table, expected = (clinic.diagnose(one, labelled(text())).table for one in (model, plain))
    assert list(table.site) == list(expected.site)
    sites = (
        ("n1", "delta", "gated", "branch")
        if family == "Mamba2"
        else ("n1", "delta", "B", "C", "gated", "branch")
    )
    for site in sites:
        done, twin = (
            clinic.insert_norm(model, site, "RMSN", IDS),
            clinic.insert_norm(plain, site, "RMSN", IDS),
        )
        rough = 0.2 if make is quantized else 1e-4
        for norm, other in zip(done.norms, twin.norms, strict=True):
            torch.testing.assert_close(norm.weight, other.weight, rtol=rough, atol=rough)
        done.undo(), twin.undo()


def test_the_step_size_of_a_wrapped_dt_proj_is_that_of_the_layer_inside():
    """huggingface/peft#2274: code that reads a layer's weight goes past what wraps it; here the
    wrapper has none.
    """
    (_, mixer), *_ = mixers_of(theirs())
    dt = torch.randn(2, 5, mixer.time_step_rank)
    expected = step_size(mixer, dt)
    mixer.dt_proj = Wrapper(mixer.dt_proj)
    torch.testing.assert_close(step_size(mixer, dt), expected)


@pytest.mark.parametrize("family", ["Mamba", "Mamba2"])
def test_a_model_with_adapters_is_diagnosed_and_a_norm_that_a_merge_would_drop_is_refused(family):
    """huggingface/peft#2556: merge_and_unload on a Mamba whose wrapped layers are not used as PEFT
    thinks.
    """
    plain, model = theirs(family).eval(), lora(theirs(family), "in_proj").eval()
    assert list(clinic.diagnose(model, labelled(text())).table.site) == list(
        clinic.diagnose(plain, labelled(text())).table.site
    )
    weights = state(model)
    with pytest.raises(ValueError, match=r"in_proj is wrapped by PEFT.*merge first"):
        clinic.insert_norm(model, "n1", "RMSN", IDS)
    assert state(model).keys() == weights.keys()
    merged = model.merge_and_unload()
    torch.testing.assert_close(logits(merged, IDS), logits(model, IDS))
    assert clinic.insert_norm(merged, "n1", "RMSN", IDS).change < 1.5


def test_a_norm_in_this_kits_block_outlives_adapters_and_their_merge():
    """Found by our audit, for norms that hang on a wrapped layer; those of this kit's blocks stand
    beside it.
    """
    model = lora(ours(), "in_proj", "out_proj").eval()
    clinic.insert_norm(model, "gated", "RMSN", text())
    before = logits(model, text())
    torch.testing.assert_close(
        logits(model.merge_and_unload(), text()), before, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("options", [{}, dict(model="mamba2", head_dim=8)])
def test_modules_of_a_block_can_be_asked_for_as_sites(options):
    """Found by our audit: blocks read in_proj's weight, and diagnose said "nothing found" with 0
    sites.
    """
    table = clinic.diagnose(
        ours(**options), text(), sites={"in": "layers.*.in_proj", "conv": "layers.*.conv1d"}
    ).table
    assert table.site.value_counts().to_dict() == {"in": 4, "conv": 4}


def test_a_site_of_which_no_module_is_called_is_an_error_and_one_of_which_some_are_is_told():
    """Found by our audit: a site that was asked for and not seen was passed over."""

    class Experts(nn.Module):
        def __init__(self, routed):
            super().__init__()
            self.experts, self.routed = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)), routed

        def forward(self, x):
            for i in self.routed:
                x = self.experts[i](x)
            return 1.0 * x

    found = clinic.diagnose(Experts([0, 2]), X, sites={"expert": "experts.*"}).findings
    assert "sites expert (1 module: experts.1)" in found.skipped[0]
    with pytest.raises(
        ValueError, match=r"site 'expert': none of its modules was called.*experts\.0, experts\.1"
    ):
        clinic.diagnose(Experts([]), X.requires_grad_(), sites={"expert": "experts.*"})


# -------------------------------------------------------------------------------------- calibration


def with_infinity(model: nn.Module) -> nn.Module:
    """One id's embedding is beyond the range."""
    with torch.no_grad():
        model.get_input_embeddings().weight[int(text()[2, 3])] = math.inf
    return model


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("family", ["Mamba", "Mamba2"])
def test_a_norm_is_not_fitted_to_values_that_are_not_finite(family):
    """Found by our audit: one infinite row made β NaN for all, and the printout said "changes by
    nan %".
    """
    model = with_infinity(theirs(family).eval())
    before = state(model)
    with pytest.raises(ValueError, match=r"gated at .*out_proj is not finite on this batch"):
        clinic.insert_norm(model, "gated", "LN", IDS)
    assert state(model).keys() == before.keys()
    assert not [m for m in model.modules() if m._forward_hooks or m._forward_pre_hooks]
    kit, x = mn.SequenceClassifier(3, in_features=8, d_model=16, n_layers=2), X.detach().clone()
    x[1, 0, 0] = math.inf
    with pytest.raises(ValueError, match=r"n2 at blocks\.0 is not finite on this batch"):
        clinic.insert_norm(kit, "n2", "LN", x)
    assert str(kit.arm) == "RMSN>SSM>None"


# ---------------------------------------------------------------------------------- parametrization


MIXERS = {
    "kit": (ours, text()),
    "kit, Mamba-2": (lambda: ours(model="mamba2", head_dim=8), text()),
    "kit, images": (image, torch.randn(2, 4, 4, 1)),
    "Mamba": (theirs, IDS),
    "FalconMamba": (lambda: theirs("FalconMamba"), IDS),
    "Mamba2": (lambda: theirs("Mamba2"), IDS),
}


def weights_named(model: nn.Module, *ends: str) -> list[nn.Parameter]:
    return [p for name, p in model.named_parameters() if name.endswith(ends)]


def about(findings, word: str) -> list:
    return [finding for finding in findings if word in finding.message]


@pytest.mark.parametrize("name", MIXERS)
def test_rates_at_which_no_state_forgets_are_found_and_the_advice_mends_them(name):
    """state-spaces/mamba#996 and #72: A drifts to 0, the state becomes a sum, and training ends in
    NaN.
    """
    make, batch = MIXERS[name]
    model = make()
    with torch.no_grad():
        for A_log in weights_named(model, "A_log", "A_logs"):
            A_log.fill_(-40.0)
    (found,) = about(clinic.diagnose(model, batch).findings, "forgets nothing")
    assert found.severity == "serious"
    with torch.no_grad():
        for A_log in weights_named(model, "A_log", "A_logs"):  # as the advice says
            A_log.copy_(
                torch.empty_like(A_log).uniform_(1, 16).log()
                if A_log.dim() == 1
                else initial_A_log(*A_log.shape)
            )
    assert not about(clinic.diagnose(model, batch).findings, "A")


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize(
    "spoil", [nn.init.zeros_, lambda bias: bias.data.add_(8.0), lambda bias: bias.data.sub_(8.0)]
)
def test_a_step_size_that_an_outer_initialization_has_set_is_told_and_mended(name, spoil):
    """athms/mad-lab#3, hustvl/Vim#19, huggingface/transformers#43717: dt_proj.bias is overwritten,
    by zeros or ones.
    """
    make, batch = MIXERS[name]
    model = make()
    biases = weights_named(model, "dt_proj.bias", "dt_bias", "dt_projs_bias")
    for bias in biases:
        spoil(bias)
    (found,) = about(clinic.diagnose(model, batch).findings, "softplus of the bias of Δ")
    assert f"in {len(biases)} layers" in found.message
    assert found.source == "notebook 16, Q2"
    assert ("lies in 0.693…0.693" in found.message) == (spoil is nn.init.zeros_)
    for bias in biases:
        init_dt_bias(bias)
    assert not about(clinic.diagnose(model, batch).findings, "Δ")


def test_a_trained_model_is_silent_and_adapters_hide_no_parameters():
    """Found by our audit: the rules must not speak of models that are sound."""
    model, ids = ours(), text()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    for _ in range(20):
        optimizer.zero_grad()
        next_id(model(ids), ids).backward()
        optimizer.step()
    assert list(clinic.diagnose(model, ids).findings) == []
    model = lora(theirs(), "in_proj", "dt_proj")
    for bias in weights_named(model, "dt_proj.base_layer.bias"):
        nn.init.zeros_(bias)
    assert about(clinic.diagnose(model, labelled(ids)).findings, "lies in 0.693…0.693")


# ----------------------------------------------------------------------------------- what sees what


class Tiny(nn.Module):
    """Ids (B, L) → logits (B, L, V), with a norm of (B, D, L) between."""

    def __init__(self, norm: nn.Module | None = None):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.norm, self.head = (
            nn.Embedding(50, 8),
            norm or nn.Identity(),
            nn.Linear(8, 50),
        )

    def forward(self, input_ids):
        return self.head(self.norm(self.embed(input_ids).transpose(1, 2)).transpose(1, 2))


TinyCausalLM = type("TinyCausalLM", (Tiny,), {})
TinyMaskedLM = type("TinyMaskedLM", (Tiny,), {})


class Chunks(nn.Module):
    """Adds to each position a sum over all."""

    def forward(self, x):
        return x + x.sum(1, keepdim=True)


def test_a_language_model_whose_earlier_logits_see_the_last_id_is_told():
    """Found by our audit: a sum across chunks, and GroupNorm over L, passed check_model."""
    sick = ours()
    sick.backbone.norm_f = nn.Sequential(Chunks(), sick.backbone.norm_f)
    for model, severity in (
        (TinyCausalLM(nn.GroupNorm(1, 8)), "serious"),
        (Tiny(nn.GroupNorm(1, 8)), "warning"),
        (sick, "serious"),
    ):
        (found,) = about(clinic.check_model(model, text()), "if the last id is changed")
        assert (found.severity, "masked model" in found.message) == (
            severity,
            severity == "warning",
        )
    for model, batch in (
        (TinyMaskedLM(nn.GroupNorm(1, 8)), text()),
        (TinyCausalLM(), text()),
        (ours(), text()),
        (theirs(), labelled(text())),
        (TinyCausalLM(nn.Dropout()), IDS),
    ):
        assert not about(clinic.check_model(model, batch), "if the last id is changed")


# --------------------------------------------------------------------------------------- optimizers


def test_weight_decay_on_rates_norms_and_biases_is_told_once_and_the_line_of_code_mends_it(
    tmp_path,
):
    """state-spaces/mamba#798 and athms/mad-lab#5: decay acts on A_log and D, as _no_weight_decay is
    read by nobody.
    """
    model = ours()
    with (
        pytest.warns(
            UserWarning, match=r"weight decay \(0.01\) acts on 2. parameters.*16, Q1"
        ) as told,
        clinic.watch(model, torch.optim.AdamW(model.parameters()), folder=tmp_path),
    ):
        pass
    (warning,) = told
    names = dict(model=model, torch=torch)
    exec(str(warning.message).partition("instead: ")[2], names)  # as the reader would
    spared = {
        n
        for n, p in model.named_parameters()
        if n.endswith(("A_log", ".D", "bias", "norm_f.weight", "n1.weight"))
    }
    assert names["spared"] == spared
    for optimizer in (names["optimizer"], torch.optim.AdamW(model.parameters(), weight_decay=0)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with clinic.watch(model, optimizer, folder=tmp_path):
                pass


def accelerated(model, optimizer):
    accelerate = pytest.importorskip("accelerate", reason="accelerate is in the dev extra")
    return accelerate.Accelerator(cpu=True).prepare(model, optimizer)


class Lightning:
    """What Lightning hands to user code: a wrapper with the real one inside."""

    def __init__(self, optimizer):
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups

    def step(self, closure=None):
        return self.optimizer.step(closure=closure)


CLOSURES = {
    "AdamW": (torch.optim.AdamW, lambda *pair: pair),
    "LBFGS": (lambda p: torch.optim.LBFGS(p, max_iter=3), lambda *pair: pair),
    "Lightning": (torch.optim.SGD, lambda model, optimizer: (model, Lightning(optimizer))),
    "accelerate": (torch.optim.SGD, accelerated),
}


@pytest.mark.filterwarnings("ignore:weight decay")
@pytest.mark.parametrize("name", CLOSURES)
def test_a_gradient_that_a_closure_computes_is_checked_before_the_weights_move(name, tmp_path):
    """Lightning-AI/pytorch-lightning#10167 and huggingface/accelerate#129: backward runs inside
    optimizer.step.
    """
    make, wrap = CLOSURES[name]
    plain = net()
    model, optimizer = wrap(plain, make(plain.parameters()))

    def closure(scale: float = 1.0) -> torch.Tensor:
        plain.zero_grad()
        loss = scale * model(X.detach()).square().mean()
        loss.backward()
        return loss

    with clinic.watch(model, optimizer, folder=tmp_path) as seen:
        for _ in range(3):
            optimizer.step(closure)
        assert seen.step == 3
        assert seen.steps.loss.notna().all()
        before = [p.detach().clone() for p in plain.parameters()]
        with pytest.raises(clinic.NonFinite, match="step 4 is not finite: loss inf"):
            optimizer.step(lambda: closure(math.inf))
        assert all(torch.equal(p, kept) for p, kept in zip(plain.parameters(), before, strict=True))
        optimizer.step(closure)  # a loop that catches the error is watched on
    assert seen.step == 4
    steps = seen.steps.step.tolist()
    assert steps == [1, 2, 3, 4, 4] or name == "LBFGS"


def test_a_watched_closure_trains_to_the_same_bit_and_a_foreign_optimizer_is_refused(tmp_path):
    """kozistr/pytorch_optimizer#484: a wrapper that is no torch.optim.Optimizer."""
    weights = []
    for watching in (False, True):
        model = net().eval()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

        def closure(model=model):
            model.zero_grad()
            loss = model(X.detach()).square().mean()
            loss.backward()
            return loss

        if watching:
            with clinic.watch(model, optimizer, folder=tmp_path):
                optimizer.step(closure)
        else:
            optimizer.step(closure)
        weights.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))
    clinic.watch(model, Lightning(Lightning(optimizer)), folder=tmp_path)
    with pytest.raises(TypeError, match="have one as its attribute `optimizer`, got a object"):
        clinic.watch(model, object(), folder=tmp_path)


# --------------------------------------------------------------------------- norms, by what they do


class FrozenBatchNorm(nn.Module):
    """torchvision's and detectron2's: buffers only."""

    def __init__(self, c: int):
        super().__init__()
        for name, value in dict(weight=1.0, bias=0.0, running_mean=0.2, running_var=2.0).items():
            self.register_buffer(name, torch.full((c,), value))

    def forward(self, x):
        scale = (self.weight / (self.running_var + 1e-5).sqrt()).view(1, -1, 1, 1)
        return (x - self.running_mean.view(1, -1, 1, 1)) * scale + self.bias.view(1, -1, 1, 1)


class BatchNormAct(nn.BatchNorm2d):
    """timm's: a norm with an activation inside."""

    def __init__(self, c: int):
        super().__init__(c)
        self.drop, self.act = nn.Identity(), nn.ReLU()

    def forward(self, x):
        return self.act(self.drop(super().forward(x)))


def with_norm(norm: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3), norm, nn.Flatten(), nn.Linear(288, 3))


def test_a_frozen_batch_norm_learns_from_no_batch_and_no_change_of_0_percent_is_told():
    """facebookresearch/maskrcnn-benchmark#267: FrozenBatchNorm2d in pre-trained detectors, with
    batches of 2.
    """
    model = with_norm(FrozenBatchNorm(8))
    assert list(clinic.check_model(model, IMAGES[:2])) == []
    assert list(clinic.check_model(model, IMAGES, evaluating=True)) == []
    unused = nn.Sequential(with_norm(nn.BatchNorm2d(8)))
    nn.init.zeros_(unused[0][3].weight)
    assert not [
        one for one in clinic.check_model(unused, IMAGES, evaluating=True) if " 0 %" in one.message
    ]


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, BatchNormAct, nn.SyncBatchNorm])
def test_subclasses_of_batch_norm_have_the_findings_of_batch_norm(norm):
    """huggingface/pytorch-image-models#1254 and pytorch/pytorch#187298: BatchNormAct2d is passed
    by.
    """
    (small,) = with_source(clinic.check_model(with_norm(norm(8)), IMAGES[:2]), "check 1")
    assert small.severity == "serious"
    (forgotten,) = with_source(
        clinic.check_model(with_norm(norm(8)), IMAGES, evaluating=True), "check 7"
    )
    assert "the output for a row changes by" in forgotten.message


CONSTANT = {
    "IN of one position": (lambda: mn.MambaBlock(8, "IN", "None"), torch.randn(8, 1, 8)),
    "LayerNorm of one channel": (
        lambda: nn.Sequential(nn.Linear(8, 1), nn.LayerNorm(1), nn.Linear(1, 3)),
        ROWS,
    ),
}


@pytest.mark.parametrize("name", CONSTANT)
def test_a_norm_whose_output_is_the_same_whatever_comes_in_is_serious(name):
    """pytorch/pytorch#19250 and #45687: InstanceNorm of one element is silently 0."""
    make, x = CONSTANT[name]
    (found,) = about(clinic.check_model(make(), x), "the same output for every input")
    assert found.severity == "serious"
    for sound in (nn.LayerNorm(8), nn.RMSNorm(8), nn.LayerNorm(2)):
        width = sound.normalized_shape[0]
        model = nn.Sequential(nn.Linear(8, width), sound, nn.Linear(width, 3))
        assert not about(clinic.check_model(model, ROWS), "for every input")
        nn.init.zeros_(sound.weight)  # a residual branch that begins at 0
        assert not about(clinic.check_model(model, ROWS), "for every input")


def test_a_fresh_model_of_images_has_no_vanishing_gradients():
    """The matrices of Δ, B and C have small gradients on any model: they are no layers on the way
    back.
    """
    for seed in range(6):
        torch.manual_seed(seed)
        model = study.ImageClassifier(3, in_channels=1, d_model=8, n_layers=2, d_state=4)
        assert "vanish" not in repr(clinic.diagnose(model, torch.randn(1, 4, 4, 1)).findings)


def test_weights_of_a_wrapped_model_are_refused(tmp_path):
    path = tmp_path / "step.safetensors"
    path.write_bytes(safetensors.torch.save({"base_model.model.blocks.0.A_log": torch.ones(2, 2)}))
    with pytest.raises(ValueError, match="without the prefixes of a wrapper"):
        clinic.load_model(path)
