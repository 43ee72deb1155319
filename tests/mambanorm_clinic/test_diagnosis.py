"""Claims about diagnose: its numbers are those of slow twins, its first site is that of a search,
sound models pass.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import kurtosis
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import mambanorm as mn
import mambanorm_clinic as clinic
import mambanorm_study as study
from mambanorm.inside import describe, record_sites
from mambanorm_clinic import NonFinite, diagnosis, sites
from mambanorm_clinic.calling import tensors_in
from mambanorm_clinic.rules import PassRecord, find_symptoms
from mambanorm_clinic.sites import layers_of, site_locations
from mambanorm_clinic.surgery import sites_for_norms
from mambanorm_clinic.symptoms import NonFiniteValue

V, B, L = 50, 4, 24
X = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(0))
SIZES = dict(vocab_size=V, hidden_size=32, num_hidden_layers=4, state_size=8)


def text(seed: int = 0) -> torch.Tensor:
    """Random ids (B, L), repeated once: a text that a model can learn to copy."""
    return torch.randint(V, (B, L // 2), generator=torch.Generator().manual_seed(seed)).repeat(1, 2)


def labelled(ids: torch.Tensor) -> dict:
    return {"input_ids": ids, "labels": ids}


def theirs(family: str = "Mamba") -> nn.Module:
    """A small causal language model of transformers, with seeded weights."""
    transformers = pytest.importorskip("transformers", reason="transformers is in the dev extra")
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")
    heads = dict(num_heads=8, head_dim=8, n_groups=2, chunk_size=8)
    jamba = dict(
        vocab_size=V, hidden_size=32, num_hidden_layers=4, mamba_d_state=8, intermediate_size=64
    )
    jamba |= dict(
        num_attention_heads=4, num_key_value_heads=2, attn_layer_period=4, attn_layer_offset=2
    )
    sizes = {"Mamba2": SIZES | heads, "Jamba": jamba | dict(num_experts=2, use_mamba_kernels=False)}
    return getattr(transformers, f"{family}ForCausalLM")(config(**sizes.get(family, SIZES)))


def ours(arm: str = "RMSN>SSM>None", **options) -> mn.LanguageModel:
    torch.manual_seed(0)
    return mn.LanguageModel(V, d_model=32, n_layers=4, arm=arm, scan_backend="reference", **options)


def next_id(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def trained_until_it_fails(model, optimizer, folder, loss=None, steps=80, half=False) -> NonFinite:
    """Trains on one text under `watch`, which stops before a non-finite gradient reaches the
    weights.
    """

    def train() -> None:
        ids = text()
        with clinic.watch(model, optimizer, folder=folder) as watched:
            for _ in range(steps):
                with torch.autocast("cpu", torch.float16, enabled=half):
                    value = (
                        model(**labelled(ids)).loss
                        if loss is None
                        else watched.loss(loss(model(ids), ids))
                    )
                optimizer.zero_grad()
                value.backward()
                optimizer.step()

    with pytest.raises(NonFinite) as stopped:
        train()
    assert all(weight.isfinite().all() for weight in model.parameters()), (
        "the weights are those before the failure"
    )
    return stopped.value


# ----------------------------------------------------------------------- the first non-finite value


def first_by_search(model: nn.Module, batch: dict) -> str:
    """Brute force: hooks on all modules that keep every tensor; the first module with a non-finite
    one.
    """
    kept, hooks = [], []

    def note(where: str, values) -> None:
        tensors = (
            value
            for value in values
            if isinstance(value, torch.Tensor) and value.is_floating_point()
        )
        kept.extend((where, tensor.detach().clone()) for tensor in tensors)

    for name, module in model.named_modules():
        hooks.append(
            module.register_forward_pre_hook(
                lambda _m, args, kwargs, name=name: note(
                    f"{name}:input", [*args, *kwargs.values()]
                ),
                with_kwargs=True,
            )
        )
        hooks.append(
            module.register_forward_hook(
                lambda _m, _args, out, name=name: note(
                    name,
                    out
                    if isinstance(out, tuple)
                    else out.values()
                    if isinstance(out, dict)
                    else [out],
                )
            )
        )
    with torch.no_grad():
        model(**batch)
    for hook in hooks:
        hook.remove()
    return next(where for where, value in kept if not np.isfinite(value.numpy()).all())


def test_the_first_site_is_that_of_a_search_over_all_modules(tmp_path):
    model = theirs()
    error = trained_until_it_fails(model, torch.optim.SGD(model.parameters(), lr=100.0), tmp_path)
    found = clinic.diagnose(model, labelled(text()))
    module = first_by_search(model, labelled(text()))
    assert found.first.where == module
    assert error.report.first == found.first
    assert not error.report.first.in_gradient
    (symptom,) = [
        finding for finding in found.findings if "first non-finite value" in finding.message
    ]
    assert (symptom.severity, symptom.where) == ("serious", module)
    assert found.first.site in symptom.message
    assert math.isfinite(found.first.before_max)


def test_where_float16_ends_within_a_product_the_norm_is_proposed_for_what_goes_into_it(tmp_path):
    """AdamW in float16's range: what the scan hands on is finite in float32, and out_proj takes it
    in float16.
    """
    model, ids = theirs(), text()
    error = trained_until_it_fails(
        model, torch.optim.AdamW(model.parameters(), lr=0.1), tmp_path, half=True
    )
    with torch.autocast("cpu", torch.float16):
        found = clinic.diagnose(model, labelled(ids))
        assert first_by_search(model, labelled(ids)) == found.first.where
    assert error.report.first == found.first
    assert found.first.where.endswith("mixer.out_proj")
    assert (found.first.site, found.first.before_site) == ("", "gated")
    assert sites.FLOAT16_MAX < found.first.before_max < math.inf
    assert found.first.half
    assert "bfloat16 or float32 for this tensor" in found.findings[0].advice
    assert "clinic.insert_norm(model, 'C', 'RMSN', batch)" in found.findings[0].advice
    with torch.autocast("cpu", torch.bfloat16):
        assert list(clinic.diagnose(model, labelled(ids)).findings) == []


@pytest.mark.parametrize(
    ("where", "site"), [("blocks.3.scan", "scan"), ("a.out_proj:input", "gated")]
)
def test_where_the_scan_itself_overflows_the_norms_are_proposed_for_what_it_reads(where, site):
    first = NonFiniteValue(
        where, site, 4, "a.x_proj", 28.5, "dt" if site == "gated" else "step_size"
    )

    def advice(*norm_sites):
        record = PassRecord(
            pd.DataFrame(columns=diagnosis.COLUMNS),
            pd.DataFrame(columns=diagnosis.WEIGHT_COLUMNS),
            first,
            loss=math.nan,
            norm_sites=norm_sites,
        )
        return find_symptoms(record)[0].advice

    text = advice("n1", "delta", "B", "C", "gated")
    for inside in ("delta", "B", "C"):
        assert f"clinic.insert_norm(model, {inside!r}, 'RMSN', batch)" in text
    assert "do not cure this" in text
    assert "'B'" not in advice("n1", "delta", "gated")  # Mamba-2 of transformers
    assert "insert_norm" not in advice("gated"), "it would stand behind the scan, too late"
    for site, front in (("delta", "conv"), ("step_size", "delta")):
        first = NonFiniteValue(f"blocks.0.{site}", site, 1, "blocks.0.C", 3.0, "x")
        assert f"clinic.insert_norm(model, {front!r}, 'RMSN', batch)" in advice(
            "conv", "delta", "n2"
        )


def test_a_gradient_that_overflows_behind_a_finite_forward_pass_is_found(tmp_path):
    model = theirs()
    error = trained_until_it_fails(model, torch.optim.SGD(model.parameters(), lr=1e4), tmp_path)
    found = clinic.diagnose(model, labelled(text()))
    assert found.first is None
    assert found.first_gradient == error.report.first
    assert error.report.first.in_gradient
    gradients = []  # brute force: keep the gradient of every module's output
    for name, module in model.named_modules():
        module.register_forward_hook(
            lambda _m, _a, out, name=name: (
                [
                    t.register_hook(
                        lambda g, name=name: gradients.append((name, bool(g.isfinite().all())))
                    )
                    for t in tensors_in(out)
                    if t.requires_grad
                ]
                and None
            )
        )
    model(**labelled(text())).loss.backward()
    assert found.first_gradient.where == next(name for name, finite in gradients if not finite)


def test_weights_that_are_lost_already_are_said_to_be_lost():
    model = theirs()
    optimizer = torch.optim.SGD(model.parameters(), lr=100.0)
    for _ in range(6):  # nobody watches: NaN spreads
        optimizer.zero_grad()
        model(**labelled(text())).loss.backward()
        optimizer.step()
    findings = clinic.diagnose(model, labelled(text())).findings
    assert "are not finite" in findings[0].message
    assert "checkpoint" in findings[0].advice
    assert sum("first non-finite value" in finding.message for finding in findings) == 0


# ------------------------------------------------------------------------------------------ numbers


def test_a_tensor_is_described_by_its_finite_values():
    x = 1e3 * torch.randn(3, 5, 11, generator=torch.Generator().manual_seed(1))
    finite = x.flatten()[1:].double().numpy()
    x[0, 0, 0] = math.inf
    size = np.abs(finite)
    facts = dict(rms=np.sqrt((finite**2).mean()), max_abs=size.max(), p999=np.quantile(size, 0.999))
    facts |= dict(kurtosis=kurtosis(finite, fisher=False), nonfinite=1 / 165)
    assert describe(x) == pytest.approx(facts)
    assert describe(x.bfloat16()) == pytest.approx(facts, rel=0.02)
    row = clinic.diagnose(nn.Identity(), x[:, 1:].requires_grad_()).table.iloc[0]
    largest = float(x[:, 1:].abs().max())
    assert row.room_float16 == pytest.approx(np.log2(65504 / largest))


def test_gradients_are_those_of_backward_and_weights_are_described():
    model, ids = theirs(), text()
    found = clinic.diagnose(model, labelled(ids))
    site = {}
    module = model.get_submodule("backbone.layers.2.mixer.out_proj")
    keep = partial(site.__setitem__, "grad")
    hook = module.register_forward_pre_hook(lambda _m, args: args[0].register_hook(keep) and None)
    model(**labelled(ids)).loss.backward()
    hook.remove()
    (row,) = found.table[(found.table.site == "gated") & (found.table.depth == 3)].itertuples()
    assert row.grad_rms == pytest.approx(
        float(site["grad"].double().square().mean().sqrt()), rel=1e-6
    )
    for name, weight in model.named_parameters():
        (row,) = found.weights[found.weights.weight == name].itertuples()
        if weight.norm() > 0:
            assert row.grad_to_weight == pytest.approx(
                float(weight.grad.norm() / weight.norm()), rel=1e-5
            )


def test_the_sites_of_this_kits_blocks_are_those_of_the_recorder():
    model, ids = ours("RMSN>SSM>GN-token"), text()
    table = clinic.diagnose(model, ids).table
    with torch.no_grad(), record_sites(model) as seen:
        model(ids)
    frame, table = (
        pd.DataFrame(seen.rows()),
        table[table.site != "decay"],
    )  # the clinic alone makes it, from step_size
    assert list(zip(table.depth, table.site)) == list(zip(frame.depth, frame.site))
    for name in ("rms", "max_abs", "p999", "kurtosis", "nonfinite"):
        np.testing.assert_allclose(
            table[name], frame[name], rtol=1e-6
        )  # under hooks no layer is fused


MAMBA_1 = ("x", "n1", "z", "conv", "dt", "B", "C")
MADE = ("step_size", "decay")
FAMILIES = {
    "Mamba": (*MAMBA_1, *MADE, "gated", "branch", "residual"),
    "FalconMamba": (*MAMBA_1, "dt_norm", *MADE, "B_norm", "C_norm", "gated", "branch", "residual"),
    "Jamba": (*MAMBA_1, "dt_norm", *MADE, "B_norm", "C_norm", "gated", "branch", "residual"),
    "Mamba2": ("x", "n1", "dt", *MADE, "scan", "z", "gated", "branch", "residual"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_site_of_every_family_is_seen_with_its_gradient_and_a_sound_model_has_no_finding(
    family,
):
    model = theirs(family).train(family in ("Mamba", "Jamba"))
    found = clinic.diagnose(model, labelled(text()))
    assert tuple(dict.fromkeys(found.table.site)) == FAMILIES[family]
    assert found.table.depth.max() == (3 if family == "Jamba" else 4)
    assert len(layers_of(model)) == 4  # of Jamba's one is attention
    assert found.table[~found.table.site.isin(MADE)].grad_rms.gt(0).all()
    assert [finding.message[:31] for finding in found.findings] == [
        "softplus of the bias of Δ lies in 0.693…0.693"[:31]
    ] * (
        family == "Jamba"  # which transformers makes with a bias of 0
    )
    assert found.findings.skipped == ()


def test_parts_of_a_projection_are_the_tensors_that_the_mixer_splits_and_takes():
    def row(table, site, value):
        (found,) = table[(table.site == site) & (table.depth == 2)].itertuples()
        assert found.rms == pytest.approx(float(value.detach().double().square().mean().sqrt())), (
            site
        )

    model, outputs, given = theirs().eval(), [], []
    mixer = model.backbone.layers[1].mixer
    mixer.x_proj.register_forward_hook(lambda _m, _a, out: outputs.append(out))
    table = clinic.diagnose(model, labelled(text())).table
    sizes = [mixer.time_step_rank, mixer.ssm_state_size, mixer.ssm_state_size]
    for site, value in zip(("dt", "B", "C"), outputs[0].split(sizes, dim=-1), strict=True):
        row(table, site, value)
    model = theirs("Mamba2").eval()
    model.backbone.layers[1].mixer.norm.register_forward_pre_hook(
        lambda _m, args: given.extend(args)
    )
    table = clinic.diagnose(model, labelled(text())).table
    for site, value in zip(("scan", "z"), given):
        row(table, site, value)


HEADS = dict(model="mamba2", head_dim=8)


def image() -> study.ImageClassifier:
    torch.manual_seed(0)
    return study.ImageClassifier(3, in_channels=1, d_model=8, n_layers=2, scan_backend="reference")


@pytest.mark.parametrize("make", [ours, partial(ours, **HEADS), image])
def test_the_decay_of_this_kits_blocks_is_that_of_the_state_that_forgets_most_slowly(make):
    model = make()
    x = torch.randn(2, 4, 4, 1) if make is image else text()
    table, blocks = clinic.diagnose(model, x).table, layers_of(model)
    with torch.no_grad(), record_sites(model, "step_size") as seen:
        model(x)
    for depth, (block, delta) in enumerate(zip(blocks, seen.tensors("step_size"), strict=True), 1):
        A = -torch.exp(dict(block.named_parameters()).get("A_logs", getattr(block, "A_log", None)))
        A = A.view(-1, delta.shape[-1], A.shape[-1] if A.dim() > 1 else 1)  # (directions, E, N)
        whole = torch.exp(delta.unflatten(0, (len(A), -1))[..., None] * A[:, None, None]).amax(-1)
        (row,) = table[(table.site == "decay") & (table.depth == depth)].itertuples()
        assert row.rms == pytest.approx(float(whole.double().square().mean().sqrt()), rel=1e-5)
        assert row.max_abs == pytest.approx(float(whole.max()), rel=1e-5)


@pytest.mark.parametrize("family", ["Mamba", "FalconMamba", "Jamba", "Mamba2"])
def test_the_step_size_of_other_families_is_what_their_softplus_puts_out(family, monkeypatch):
    model, seen, softplus = theirs(family).eval(), [], F.softplus
    monkeypatch.setattr(F, "softplus", lambda x: seen.append(softplus(x)) or seen[-1])
    with torch.no_grad():
        model(**labelled(text()))
    monkeypatch.undo()
    table = clinic.diagnose(model, labelled(text())).table
    found = table[table.site == "step_size"]
    assert len(seen) == len(found)
    for row, delta in zip(found.itertuples(), seen, strict=True):
        assert row.rms == pytest.approx(float(delta.double().square().mean().sqrt()), rel=1e-5)


# ---------------------------------------------------------------------------------- one's own model


class Own(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        layers = (
            nn.ModuleDict({"norm": nn.LayerNorm(8), "mix": nn.Linear(8, 8)}) for _ in range(depth)
        )
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer.mix(layer.norm(x))
        return x


def test_a_map_names_the_sites_and_without_one_every_module_that_has_none_inside_is_one():
    table = clinic.diagnose(
        Own(), X, sites={"before": "layers.*.norm:input", "behind": "mix"}
    ).table
    assert list(zip(table.site, table.depth)) == [
        (s, d) for d in (1, 2, 3) for s in ("before", "behind")
    ]
    assert table["where"].iloc[0] == "layers.0.norm:input"
    assert table.rms.iloc[0] == pytest.approx(float(X.double().square().mean().sqrt()))
    for pattern in ("mixer", "backbone.layers.*.mixer.x_proj"):
        assert len(site_locations(theirs(), {"a": pattern})) == 4
    table = clinic.diagnose(Own(), X).table
    assert list(dict.fromkeys(table.site)) == ["layers.*.norm", "layers.*.mix"]
    assert list(zip(table.site, table.depth))[:3] == [
        ("layers.*.norm", 1),
        ("layers.*.mix", 1),
        ("layers.*.norm", 2),
    ]
    assert table["where"].iloc[0] == "layers.0.norm"
    assert table.rms.iloc[0] == pytest.approx(
        float(F.layer_norm(X, (8,)).double().square().mean().sqrt())
    )


def test_the_model_is_left_alone():
    model = mn.SequenceClassifier(
        3, in_features=8, d_model=16, n_layers=2, arm="BN>SSM>None", scan_backend="reference"
    )
    model.head.weight.grad = torch.ones_like(model.head.weight)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random, observers = torch.get_rng_state(), [block.observer for block in model.blocks]
    clinic.diagnose(model, X)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.head.weight.grad.eq(1).all()
    assert all(weight.grad is None for weight in model.blocks.parameters())
    assert torch.equal(torch.get_rng_state(), random)
    assert [block.observer for block in model.blocks] == observers
    assert not [m for m in model.modules() if m._forward_hooks or m._forward_pre_hooks]


def test_it_shows_itself_with_findings_picture_and_tables():
    page = clinic.diagnose(theirs(), labelled(text()))._repr_html_()
    assert "nothing found" in page
    assert "data:image/png;base64," in page
    assert page.count("<details>") == 2


# ----------------------------------------------------------------------------------------- findings


def symptoms_in(frame: dict, weights=()) -> list:
    columns = dict(
        depth=1,
        site="residual",
        layer="l",
        where="l",
        rms=1.0,
        max_abs=4.0,
        p999=3.0,
        kurtosis=3.0,
        nonfinite=0.0,
        grad_rms=1.0,
    )
    table = pd.DataFrame(columns | frame)
    weights = pd.DataFrame(weights, columns=diagnosis.WEIGHT_COLUMNS).fillna({"nonfinite": 0.0})
    largest = {f"{i}": value for i, value in enumerate(table.max_abs)}
    return list(find_symptoms(PassRecord(table, weights, largest=largest)))


EIGHT = np.arange(1, 9)


def test_growth_over_depth_is_told_and_a_sum_of_branches_is_not():
    assert symptoms_in(dict(depth=EIGHT, rms=np.sqrt(EIGHT))) == []
    (finding,) = symptoms_in(dict(depth=EIGHT, rms=2.0**EIGHT, max_abs=4 * 2.0**EIGHT))
    assert (
        "grows by 2.1 decades over 8 layers, from 2 in layer 1 to 256 in layer 8" in finding.message
    )
    assert "H10" in finding.source
    assert (
        symptoms_in(dict(depth=EIGHT[:5], rms=[0.1, 1e-3, 1e-2, 0.09, 0.1], max_abs=0.1)) == []
    )  # not between its ends


def test_magnitudes_beyond_float16_and_vanishing_gradients_are_told():
    assert symptoms_in(dict(max_abs=[4.0, 6e4], rms=[1.0, 3e4])) == []
    for frame, said in (
        (
            dict(max_abs=[4.0, 7e4], rms=[1.0, 3e4]),
            "reaches 7e+04, the first of 1 tensor beyond float16's 65,504",
        ),
    ):
        (finding,) = symptoms_in(frame)
        assert said in finding.message
        assert "insert_norm" not in finding.advice
    weights = [
        dict(weight=f"{i}.weight", shape=(8, 8), rms=0.5, grad_to_weight=10.0**-i) for i in range(8)
    ]
    (finding,) = symptoms_in({"depth": [1]}, weights)
    assert (
        finding.where,
        "gradients explode: the RMS of the first layers' gradients, 2.8e-01" in finding.message,
    ) == ("0.weight", True)
    assert (
        symptoms_in({"depth": [1]}, [*weights, dict(weight="head.weight", shape=(8, 3), rms=0.0)])
        == []
    )  # as heads begin


DEAD = [
    (ours, 1e6),
    (ours, -60.0),
    (theirs, 60.0),
    (partial(theirs, "Jamba"), 1e6),
    (partial(ours, **HEADS), 60.0),
]


@pytest.mark.parametrize(("make", "bias"), DEAD)
def test_a_step_size_that_leaves_no_state_is_named_with_its_layer_and_nothing_behind_it_is_blamed(
    make, bias
):
    model = make()
    depth = 3 if len(layers_of(model)) > 3 else 2  # Jamba has three Mamba layers
    weights = [
        p for name, p in model.named_parameters() if name.endswith(("dt_proj.bias", "dt_bias"))
    ]
    with torch.no_grad():
        weights[depth - 1] += bias
    own = isinstance(model, mn.LanguageModel)
    found = clinic.diagnose(
        model, (text(), text()) if own else labelled(text()), loss=next_id if own else None
    ).findings
    (finding,) = found
    assert finding.severity == "serious"
    assert f"step_size of layer {depth}" in finding.message
    assert "a dead state, in 1 layer" in finding.message
    assert ("exp(ΔA) is" if bias > 0 else "nothing enters") in finding.message
    assert "Δ's bias" in finding.advice
    assert "the faults found may have changed them" in found.skipped[-1]


def test_what_a_fused_kernel_hides_is_said():
    model = theirs()
    model.backbone.layers[0].mixer.out_proj.forward = None

    class Fused(nn.Module):
        def forward(self, hidden_states, **_):
            return hidden_states

    for layer in model.backbone.layers:
        layer.mixer.forward = Fused().forward
    found = clinic.diagnose(model, labelled(text()))
    assert "gated" in found.findings.skipped[0]
    assert set(found.table.site) == {"x", "n1", "branch", "residual"}


# ------------------------------------------------------------------- models that it does not expect


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))


class Attention(nn.Module):
    """Scores whose future is −inf, handed to a module, as many write it."""

    def __init__(self, behind: float = 1.0):
        super().__init__()
        self.q, self.softmax, self.behind = nn.Linear(8, 8), nn.Softmax(-1), behind
        self.register_buffer("mask", torch.full((6, 6), -math.inf).triu(1))

    def forward(self, x):
        q = self.q(x)
        return self.behind * (self.softmax(q @ q.transpose(1, 2) + self.mask) @ x)


def test_a_mask_is_neither_a_first_value_nor_a_large_magnitude():
    class Finite(Attention):
        def __init__(self):
            super().__init__()
            self.mask = torch.full((6, 6), torch.finfo(torch.float32).min).triu(1)

    for model, x in (
        (Attention(), X),
        (Finite(), X),
        (nn.Softmax(-1), Finite().mask[:4] + X[0, :4, :6]),
    ):
        found = clinic.diagnose(model, x)
        assert found.table.nonfinite.max() == 0  # of q and of the softmax
        assert found.first is None
        assert list(found.findings) == []
    assert (
        clinic.diagnose(Attention(behind=math.inf), X).first.where == ""
    )  # what comes behind it is still found


def test_minus_infinity_that_spreads_is_the_first_value():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with torch.no_grad():
        model[0].weight.zero_(), model[0].bias.fill_(-math.inf)
    assert clinic.diagnose(model, X).first.where == "0"
    masked = clinic.diagnose(Attention().softmax, torch.full((1, 2, 3), -math.inf))
    assert masked.first.where == ":input"
    assert "the model's input" in masked.findings[0].message


def test_what_a_checkpointed_layer_computes_again_is_no_second_call():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(net() for _ in range(2))

        def forward(self, x):
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False)
            return x

    table = clinic.diagnose(Checkpointed(), X).table
    assert table["where"].is_unique
    assert table.grad_rms.gt(0).all()


def test_a_compiled_model_is_looked_at_as_it_is_written():
    plain, compiled = net(), torch.compile(net(), backend="eager")
    columns = ["rms", "max_abs", "grad_rms"]
    assert (
        clinic.diagnose(compiled, X).table[columns].equals(clinic.diagnose(plain, X).table[columns])
    )


def test_a_bare_block_names_its_sites_plainly():
    table = clinic.diagnose(mn.MambaBlock(8, scan_backend="reference"), X).table
    assert table["where"].iloc[0] == "x"


def test_a_surgery_is_proposed_only_where_no_norm_stands():
    assert sites_for_norms(net()) == ()
    assert "dt" not in sites_for_norms(theirs("Mamba2"))
    assert {"n2", "gated"} <= set(sites_for_norms(ours()))
    assert "n2" not in sites_for_norms(ours("RMSN>SSM>LN"))


class OwnBlock(nn.Module):
    """A norm, a mixer, and `own`, a function of what the mixer puts out."""

    def __init__(self, own=lambda h: h):
        super().__init__()
        self.norm, self.mixer, self.own = nn.LayerNorm(8), nn.Linear(8, 8), own

    def forward(self, x):
        return x + self.own(self.mixer(self.norm(x)))


def stack(**own) -> nn.Sequential:
    """Five blocks of one's own, between an embedding and a head; `three` is the function of block
    3.
    """
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 8),
        *(OwnBlock(own.get("three", lambda h: h)) if i == 3 else OwnBlock() for i in range(1, 6)),
        nn.Linear(8, 8),
    )


def test_what_overflows_is_not_taken_for_a_logarithm():
    assert "log" not in clinic.diagnose(stack(three=lambda h: 1e38 * h * 1e3), X).findings[0].advice


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

    assert "log" in clinic.diagnose(Model(), X).findings[0].advice
    (finding,) = clinic.diagnose(net(), X * math.nan).findings
    assert "look at the data" in finding.advice


def test_what_leaves_float16_is_told_in_a_module_of_ones_own():
    class Gate(nn.Module):
        def forward(self, h):
            return 1e5 * h

    model = stack(three=Gate())
    found = clinic.diagnose(model, X)
    assert "beyond float16's 65,504" in found.findings[0].message
    assert found.findings[0].where == "3.own"
    assert "3.own" in set(found.table["where"])
    assert f"{len(list(model.modules()))} modules" in repr(found)
    assert list(clinic.diagnose(stack(), X).findings) == []
    mapped = clinic.diagnose(
        model, X, sites={"norm": "*.norm", "mixer": "*.mixer"}
    )  # a map hides no module
    assert set(mapped.table.site) == {"norm", "mixer"}
    assert mapped.findings[0].where == "3.own"


def test_a_buffer_that_is_not_finite_is_named_and_what_follows_from_it_is_not():
    norm = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(6))
    for broken in (math.nan, math.inf):
        norm[1].running_var[2] = broken
        for model in (norm.train(), norm.eval()):
            (finding,) = clinic.diagnose(model, X).findings
            assert (finding.severity, finding.where) == ("serious", "1.running_var")
            assert "is not finite before the pass begins" in finding.message


def test_a_buffer_of_a_mask_or_of_a_lowest_value_that_no_pass_has_set_is_no_finding():
    model = net()
    model.register_buffer("best", torch.tensor(math.inf))
    model.register_buffer("mask", torch.full((6, 6), -math.inf).triu(1))
    model.register_buffer("steps", torch.tensor(3))
    assert list(clinic.diagnose(model, X).findings) == []
    model = stack(three=torch.log)
    model[1].register_buffer("best", torch.tensor(math.inf))
    (finding,) = clinic.diagnose(model, X).findings
    assert finding.where == "3"


# ---------------------------------------------------------------------------------------- bad input


def test_bad_input_is_refused_in_words():
    for given, options, words in [
        (("mamba", X), {}, "torch.nn.Module, got 'mamba'"),
        (
            (theirs(), X),
            dict(sites={"scan": "layers.*.scan"}),
            r"unknown module for site 'scan' 'layers.\*.scan'.*did you mean",
        ),
        (
            (theirs(), X),
            dict(sites={"a": "ixer"}),
            "unknown module",
        ),  # it matches the end of a path, part by part
        ((theirs(), X), dict(sites={"scan": "out_proj:in"}), r"side.*'in'.*input"),
        (
            (theirs(), X),
            {},
            r"MambaForCausalLM refuses this batch \(torch.float32 \(4, 6, 8\) on cpu\): ",
        ),
        ((ours(), text()), dict(loss=next_id), "needs targets, and the batch has none"),
        (
            (ours(), (text(), text())),
            dict(loss=lambda out, _: out),
            r"a tensor of one number, got \(4, 24, 50\)",
        ),
    ]:
        with pytest.raises(ValueError, match=words):
            clinic.diagnose(*given, **options)
