"""adaLN: layer norm with scale and shift from the model's input, in every kind of model."""

import copy

import pytest
import torch
from torch import nn

import mambanorm as mn
import mambanorm_study as study
from mambanorm.operations.layers import is_plain
from mambanorm_study.norms.adaptive import AdaptiveLayerNorm
from mambanorm_study.runs.build import build_model
from mambanorm_study.runs.grid import base_config

ARM = "adaLN>SSM>adaLN"


def randomise(model: nn.Module) -> nn.Module:
    """Change every parameter, so that the maps of the condition are not zero."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def classifier(arm: str = ARM, **options) -> mn.SequenceClassifier:
    torch.manual_seed(0)
    return mn.SequenceClassifier(3, in_features=2, d_model=8, n_layers=2, arm=arm, **options)


def language_model(arm: str = ARM, **options) -> mn.LanguageModel:
    torch.manual_seed(0)
    return mn.LanguageModel(11, d_model=8, n_layers=2, arm=arm, **options)


def adaptive_norms(model: nn.Module) -> list[AdaptiveLayerNorm]:
    return [module for module in model.modules() if isinstance(module, AdaptiveLayerNorm)]


# ------------------------------------------------------------------------------------ what it is


def test_a_model_with_adaln_starts_as_the_same_model_with_ln():
    x = torch.randn(4, 6, 2)
    torch.testing.assert_close(classifier()(x), classifier("LN>SSM>LN")(x))
    ids = torch.randint(0, 11, (2, 7))
    torch.testing.assert_close(language_model()(ids), language_model("LN>SSM>LN")(ids))


def test_adaln_equals_its_equation():
    """y = (γ + s(c)) ⊗ x̂ + β + t(c), with c the mean of the row's embedded input."""
    model, x = randomise(classifier()).double(), torch.randn(4, 6, 2).double()
    with mn.record_sites(model, ("x", "n1")) as recorder:
        model(x)
    block_input, output = (value.value for value in recorder.values[:2])
    norm = model.blocks[0].n1
    mean, var = block_input.mean(-1, keepdim=True), block_input.var(-1, correction=0, keepdim=True)
    x_hat = (block_input - mean) / torch.sqrt(var + 1e-5)
    s, t = (model.stem(x).mean(1) @ norm.condition_weight.T).chunk(2, -1)
    expected = (norm.weight + s[:, None]) * x_hat + norm.bias + t[:, None]
    torch.testing.assert_close(output, expected)


def test_the_maps_of_the_condition_are_learned():
    """From zero they move at the first step: their gradient is not zero."""
    model = classifier()
    model(torch.randn(4, 6, 2)).square().sum().backward()
    for norm in adaptive_norms(model):
        assert norm.condition_weight.shape == (2 * norm.d, 8)
        assert not norm.condition_weight.any()
        assert norm.condition_weight.grad.abs().sum() > 0


def test_without_gamma_and_beta_the_maps_stay():
    (norm, *_) = adaptive_norms(classifier(norm_options={"affine": False}))
    assert {name for name, _ in norm.named_parameters()} == {"condition_weight"}


# ------------------------------------------------------------------------------ where it gets c


def test_padding_and_the_other_rows_change_no_output():
    model, x = randomise(classifier(stem_norm="adaLN", final_norm="adaLN")), torch.randn(4, 6, 2)
    lengths = torch.tensor([6, 3, 1, 5])
    together = model(x, lengths)
    noisy = x.masked_fill(torch.arange(6)[None, :, None] >= lengths[:, None, None], torch.nan)
    torch.testing.assert_close(model(noisy, lengths), together)
    for row, n in enumerate(lengths):
        torch.testing.assert_close(model(x[row : row + 1, :n]), together[row : row + 1])


def test_a_later_value_reaches_earlier_outputs_in_a_classifier_but_not_in_a_language_model():
    x, ids = torch.randn(2, 6, 2), torch.randint(0, 11, (2, 7))
    model = randomise(classifier())
    with mn.record_sites(model, "n1") as recorder:
        model(x)
        model(torch.cat([x[:, :-1], x[:, -1:] + 1], 1))
    before, after = (value.value[:, :-1] for value in recorder.values[::2])
    assert (before - after).abs().min(-1).values.max() > 1e-4
    model = randomise(language_model(final_norm="adaLN"))
    other = torch.cat([ids[:, :-1], (ids[:, -1:] + 1) % 11], 1)
    assert torch.equal(model(ids)[:, :-1], model(other)[:, :-1])


def test_a_language_model_with_adaln_generates_step_by_step_what_forward_gives():
    model, ids = randomise(language_model(final_norm="adaLN")), torch.randint(0, 11, (2, 9))
    expected = model(ids)
    logits, cache = model.prefill(ids[:, :4])
    torch.testing.assert_close(logits, expected[:, 3])
    for position in range(4, 9):
        torch.testing.assert_close(model.step(ids[:, position], cache), expected[:, position])
    assert model.generate(ids[:, :3], 5).shape == (2, 8)


def test_a_block_called_without_its_model_says_where_the_condition_comes_from():
    block = classifier().blocks[0]
    with pytest.raises(ValueError, match=r"none yet.*call the model, not a block of it"):
        block(torch.randn(4, 6, 8))
    model = classifier()
    model(torch.randn(4, 6, 2))
    with pytest.raises(ValueError, match=r"one of shape \(4, 1, 8\).*\(3, 6, 8\)"):
        model.blocks[0](torch.randn(3, 6, 8))


@pytest.mark.parametrize("model", ["images", "transformer", "mamba2"])
def test_every_model_of_the_study_has_a_condition(model):
    x = torch.randn(2, 8, 8, 1)
    if model == "images":  # the norm at B gets the four directions at once
        options = dict(in_channels=1, down_sample=(1,), arm=f"{ARM}+B:adaLN", down_norm="adaLN")
        made = study.ImageClassifier(3, d_model=8, n_layers=2, **options)
    elif model == "transformer":
        options = dict(in_channels=1, patch=2, arm="adaLN>MHA>adaLN")
        made = study.TransformerClassifier(3, d_model=8, n_layers=2, **options)
    else:
        x, made = x[..., 0], classifier_of_mamba2()
    y = randomise(made)(x)
    alone = made(x[1:])
    torch.testing.assert_close(y[1:], alone)
    with torch.no_grad():
        for norm in adaptive_norms(made):
            norm.condition_weight.zero_()
    assert (made(x) - y).abs().max() > 1e-4


def classifier_of_mamba2():
    return mn.SequenceClassifier(
        3, in_features=8, d_model=8, n_layers=2, arm=ARM, model="mamba2", head_dim=8
    )


# ----------------------------------------------------------------------- what else a model does


def test_copies_and_checkpoints_keep_the_condition():
    model, x = randomise(classifier()), torch.randn(4, 6, 2)
    y = model(x)
    twin = copy.deepcopy(model)  # although y has a graph of gradients
    assert torch.equal(twin(x), y)
    first, *others = (norm.condition for norm in adaptive_norms(twin))
    assert all(one is first for one in others)
    assert first is not adaptive_norms(model)[0].condition
    loaded = mn.SequenceClassifier(**model.arguments)
    loaded.load_state_dict(model.state_dict())
    assert torch.equal(loaded(x), y)


def test_adaln_compiles():
    model, x = randomise(classifier()), torch.randn(4, 6, 2)
    compiled = torch.compile(model, backend="eager")
    torch.testing.assert_close(compiled(x), model(x))
    torch.testing.assert_close(compiled(x + 1), model(x + 1))


def test_a_run_with_adaln_shares_all_other_initial_weights_and_trains(tmp_path):
    config = base_config("digits", "smoke", arm="adaLN>SSM>None", steps=4)
    data = study.load_task(config.task, config.scale, config.seed)
    adaptive, plain = (
        build_model(config.but(arm=arm), data) for arm in (config.arm, "LN>SSM>None")
    )
    state, shared = adaptive.state_dict(), plain.state_dict()
    assert all(torch.equal(state[name], value) for name, value in shared.items())
    extra = {name for name in state if name not in shared}
    assert {name.rpartition(".")[2] for name in extra} == {"condition_weight"}
    run = study.train(config)
    assert run.status == "ok"


def test_a_model_without_adaln_gets_no_hook():
    model = classifier("LN>SSM>LN")
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert is_plain(model.stem, nn.Linear)
