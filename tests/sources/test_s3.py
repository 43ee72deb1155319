"""The item of source S3, the extract of an encyclopaedia. docs/sources.md lists the items."""

import torch
from torch import nn

import mambanorm as mn
from mambanorm_study.lessons import why_norms
from tests.sources.shown import assert_shown
from tests.twins import sample, scrambled


def test_c1_the_norms_of_the_extract():
    """S3, Layer normalization, Root mean square layer normalization, Adaptive: "Essentially, it is
    LayerNorm where we enforce". The extract begins with nets without batch norm: "Other works attempt
    to eliminate BatchNorm, such as the Normalizer-Free ResNet.".
    """
    x = sample(3, 6, 8, dtype=torch.float64)
    # LN over D for each time step, and over all values of a row (H·W·C of a CNN)
    each_step = torch.stack([nn.LayerNorm(8).double()(x[:, t]) for t in range(6)], dim=1)
    torch.testing.assert_close(mn.create_norm("LN", 8).double()(x), each_step)
    image = sample(3, 4, 5, 8, dtype=torch.float64)
    whole = nn.LayerNorm((4, 5, 8)).double()(image).flatten(1, 2)
    torch.testing.assert_close(mn.create_norm("LN-DL", 8).double()(image.flatten(1, 2)), whole)
    # RMSNorm, with ε = 0 and β where they are asked for: LN of inputs whose mean is zero
    centred = x - x.mean(-1, keepdim=True)
    rms = mn.create_norm("RMSN", 8, eps=0.0, bias=True).double()
    torch.testing.assert_close(rms(centred), mn.create_norm("LN", 8, eps=0.0).double()(centred))
    assert (
        dict(rms.named_parameters()).keys() == {"gamma", "beta"} or len(list(rms.parameters())) == 2
    )
    # Lp: p = 2 is RMSNorm; p < 1 is accepted
    lp = mn.create_norm("Lp", 8, p=2, eps=0.0).double()
    torch.testing.assert_close(lp(x), mn.create_norm("RMSN", 8, eps=0.0).double()(x))
    half = mn.create_norm("Lp", 8, p=0.5, eps=0.0).double()
    torch.testing.assert_close(half(x), x / x.abs().sqrt().mean(-1, keepdim=True).square())
    # adaLN starts as LN, and its scale and shift then come from the row's input
    torch.manual_seed(0)
    plain = mn.SequenceClassifier(10, in_features=1, d_model=8, n_layers=1, arm="LN>SSM>None")
    torch.manual_seed(0)
    adaptive = mn.SequenceClassifier(10, in_features=1, d_model=8, n_layers=1, arm="adaLN>SSM>None")
    rows = sample(4, 6, 1)
    torch.testing.assert_close(adaptive(rows), plain(rows))
    assert not torch.allclose(scrambled(adaptive)(rows), scrambled(plain)(rows))
    # a net without a norm starts as the identity and learns
    net = why_norms.residual_net("normalizer-free")
    assert not any("Norm" in type(module).__name__ for module in net.modules())
    h = sample(4, why_norms.WIDTH)
    torch.testing.assert_close(net[2](h), h)
    assert_shown("01_normalization", "create_norm")
    assert_shown("11_choosing", "normalizer_free_curves")
