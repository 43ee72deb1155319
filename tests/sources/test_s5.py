"""The item of source S5, a poster. docs/sources.md lists the items."""

import numpy as np
import torch
from torch import nn

import mambanorm as mn
from mambanorm_study.lessons import preprocessing, trained
from tests.sources.shown import assert_shown
from tests.twins import sample


def test_e1_min_max_standardization_the_two_norms_and_the_vgg():
    """S5, all of it: "transforms input feature values to the range [0, 1]", "a zero mean (μ) and unit
    variance (σ²)", and "in a VGG network using the CIFAR10 dataset that training accuracy is improved
    when employing Batch Normalization".
    """
    x = preprocessing.wines().to_numpy()
    scaled, standard = (preprocessing.SCALINGS[name](x) for name in ("min–max", "standardised"))
    assert (scaled.min(0) == 0).all()
    assert (scaled.max(0) == 1).all()
    np.testing.assert_allclose([standard.mean(0), standard.std(0)], [[0] * 13, [1] * 13], atol=1e-9)
    tokens = sample(6, 5, 8)
    for name, theirs in (("BN", nn.BatchNorm1d(8)), ("LN", nn.LayerNorm(8))):
        y = theirs(tokens.mT).mT if name == "BN" else theirs(tokens)
        torch.testing.assert_close(mn.create_norm(name, 8)(tokens), y, atol=1e-5, rtol=0)
    constant = torch.ones(2, 5, 8)  # a constant feature has no spread, and gives zero
    assert torch.equal(mn.create_norm("LN", 8)(constant), torch.zeros_like(constant))
    curves = trained.batch_norm_curves("quick")
    last = curves[curves.epoch == curves.epoch.max()].groupby(["lr", "arm"]).train_accuracy.mean()
    assert (last.xs("BN", level="arm") > last.xs("none", level="arm")).all()
    assert_shown("01_normalization", "scaling_table", "fig_descent")
