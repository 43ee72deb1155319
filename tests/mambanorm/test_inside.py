"""Every model of the kit can be recorded and measured by depth, and what cannot be is refused in
words.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import mambanorm as mn
import mambanorm_study as study
from mambanorm.arms import SITES
from mambanorm.inside import blocks_of
from mambanorm_study import figures
from mambanorm_study.models.transformer import TRANSFORMER_SITES, TransformerClassifier
from mambanorm_study.tables.growth import norms_by_depth
from tests.twins import sample

IDS, SHORT = torch.arange(14).reshape(2, 7) % 5, torch.tensor([7, 3])
OF_MAMBA = dict(d_model=8, n_layers=2, arm="RMSN>SSM>GN-token")
OF_TRANSFORMER = dict(d_model=8, n_layers=2, n_heads=2)
EVERY_MODEL = {  # name → the model, its input, whether it takes lengths
    "classifier of ids": (lambda: mn.SequenceClassifier(4, vocab_size=5, **OF_MAMBA), IDS, True),
    "classifier of values": (
        lambda: mn.SequenceClassifier(4, in_features=2, **OF_MAMBA),
        sample(2, 7, 2),
        True,
    ),
    "language model": (lambda: mn.LanguageModel(5, **OF_MAMBA), IDS, True),
    "images": (
        lambda: study.ImageClassifier(3, in_channels=1, **OF_MAMBA),
        sample(2, 4, 6, 1),
        False,
    ),
    "halved images": (
        lambda: study.ImageClassifier(3, in_channels=1, patch=2, down_sample=(1,), **OF_MAMBA),
        sample(2, 8, 8, 1),
        False,
    ),
    "Transformer of ids": (
        lambda: TransformerClassifier(4, vocab_size=5, **OF_TRANSFORMER),
        IDS,
        True,
    ),
    "Transformer of values": (
        lambda: TransformerClassifier(4, in_features=2, arm="LN>MHA>LN", **OF_TRANSFORMER),
        sample(2, 7, 2),
        True,
    ),
    "Transformer of images": (
        lambda: TransformerClassifier(4, in_channels=1, patch=2, **OF_TRANSFORMER),
        sample(2, 4, 6, 1),
        False,
    ),
    "blocks in a row": (
        lambda: torch.nn.Sequential(mn.MambaBlock(8), mn.MambaBlock(8)),
        sample(2, 7, 8),
        False,
    ),
}


def outputs_by_hooks(model, x, lengths):
    """(depth, site) → what the blocks and their branches gave, (B, L, D), seen by torch's hooks,
    without a recorder.
    """
    found, hooks = {}, []
    for depth, (_, block) in enumerate(blocks_of(model), start=1):
        for site in ("attention", "feed_forward"):
            if hasattr(block, site):
                keep = lambda _m, _x, y, key=(depth, site): found.__setitem__(key, y)
                hooks.append(getattr(block, site).register_forward_hook(keep))

        def whole(module, given, y, depth=depth):
            if not hasattr(module, "attention"):
                found[depth, "branch"] = (y - given[0]).reshape(len(y), -1, y.shape[-1])
            found[depth, "residual"] = y.reshape(len(y), -1, y.shape[-1])

        hooks.append(block.register_forward_hook(whole))
    with torch.no_grad():
        model(x) if lengths is None or isinstance(model, mn.LanguageModel) else model(x, lengths)
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", EVERY_MODEL)
def test_token_norms_are_those_of_the_blocks_outputs_in_every_model_of_the_kit(name, padded):
    make, x, takes_lengths = EVERY_MODEL[name]
    torch.manual_seed(0)
    model, lengths = make(), SHORT if padded else None
    if padded and not takes_lengths:
        with pytest.raises((TypeError, ValueError)):
            mn.token_norms(model, x, lengths)
        return
    frame, outputs = (
        pd.DataFrame(mn.token_norms(model, x, lengths)),
        outputs_by_hooks(model, x, lengths),
    )
    assert set(map(tuple, frame[["depth", "site"]].to_numpy())) == set(outputs)
    for (depth, site), y in outputs.items():
        l2 = y.double().norm(dim=-1)
        expected = (
            l2.flatten() if lengths is None else torch.cat([row[:n] for row, n in zip(l2, lengths)])
        )
        found = frame[(frame.depth == depth) & (frame.site == site)].l2.to_numpy()
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-3, atol=1e-5)
    table = norms_by_depth({"it": model}, x, lengths)
    assert set(table["mode"]) == {"train", "eval"}
    assert table[table["mode"] == "train"].l2.tolist() == frame.l2.tolist()
    assert set(table.n_layers) == {2}
    assert figures.fig_token_norms(table, phase="initial").axes


@pytest.mark.parametrize("name", EVERY_MODEL)
def test_recording_shows_every_site_of_every_model_and_leaves_its_output(name):
    make, x, _ = EVERY_MODEL[name]
    torch.manual_seed(0)
    model = make().eval()
    plain = model(x)
    with mn.record_sites(model) as seen:
        torch.testing.assert_close(model(x), plain, rtol=1e-4, atol=1e-5)
    frame = pd.DataFrame(seen.rows())
    for _, block in blocks_of(model):
        assert block.observer is None
    sites = set(TRANSFORMER_SITES if "Transformer" in name else SITES) | (
        {"selector"} & set(frame.site)
    )
    assert [set(rows.site) for _, rows in frame.groupby("depth")] == [sites, sites]
    assert not frame.nonfinite.any()
    by_direction = (
        ("B", "C", "delta", "delta_after", "step_size")
        if name in ("images", "halved images")
        else ()
    )
    for _, _, site, value in seen.values:
        assert value.dim() == 3
        assert len(value) == (8 if site in by_direction else 2), site


def test_a_language_models_padding_is_left_out_of_the_rows_and_changes_no_other():
    language = EVERY_MODEL["language model"][0]()
    whole, short = (
        pd.DataFrame(mn.token_norms(language, IDS, n)).query("site == 'residual' and depth == 1")
        for n in (None, SHORT)
    )
    first = whole.l2.to_numpy().reshape(2, 7)
    assert np.array_equal(short.l2.to_numpy(), np.concatenate([first[0], first[1, :3]]))


def test_what_the_diagnostics_cannot_take_is_refused_in_words():
    language, x = EVERY_MODEL["language model"][0](), EVERY_MODEL["blocks in a row"][1]
    blocks, transformer = (
        EVERY_MODEL["blocks in a row"][0](),
        EVERY_MODEL["Transformer of ids"][0](),
    )
    for call, message in [
        (
            lambda: mn.token_norms(language, IDS, torch.tensor([7, 8])),
            r"lengths must lie in 1\.\.7",
        ),
        (
            lambda: mn.token_norms(language, IDS.tolist()),
            "x is .*; a tensor with the model's inputs is needed",
        ),
        (
            lambda: mn.token_norms(torch.nn.Linear(8, 8), x),
            "Linear holds none of this kit's blocks",
        ),
        (lambda: mn.token_norms(None, x), "a model is a torch.nn.Module, got None"),
        (
            lambda: mn.record_sites(transformer, "scan").__enter__(),
            "site of TransformerClassifier 'scan': valid are x",
        ),
        (
            lambda: mn.record_sites(blocks, ["x", "scann"]).__enter__(),
            "unknown site of Sequential 'scann'.*did you mean 'scan'",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
    with mn.record_sites(blocks, "scan") as seen:
        blocks(x)
    assert {site for _, _, site, _ in seen.values} == {"scan"}
