"""GANs of the handwritten digits, with norms in the generator and in the discriminator: how good are their samples?

The quality is the energy distance between samples and test images, D² = 2·E|x − y| − E|x − x'| − E|y − y'| over pixels
(Székely & Rizzo 2013): 0 for the same distribution. Beside it stands the distance of as many training images, which
is what a perfect generator would reach, and a sample of the images.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mambanorm.advice.blocks import Discriminator, Generator
from mambanorm.advice.fitting import digits, shuffled

ARMS = (("None", "None"), ("BN", "None"), ("IN", "None"), ("None", "BN"))
"""Norm of the generator, norm of the discriminator; the guide advises None or IN, and None or LN."""
SHOWN = 16


def gan(scale: str, seed: int) -> list[dict]:
    """One row an arm: generator, discriminator, distance, best (of real images), samples, losses (discriminator's)."""
    data, rows = digits(scale, seed), []
    train, test = data["train"][0], data["test"][0]
    draw = torch.Generator().manual_seed(seed)
    best = energy_distance(train[torch.randperm(len(train), generator=draw)[: len(test)]], test)
    steps = {"smoke": 4, "quick": 150, "evening": 150}.get(scale, 1000)
    for generator_norm, discriminator_norm in ARMS:
        torch.manual_seed(seed)
        generator, discriminator = Generator(norm=generator_norm), Discriminator(norm=discriminator_norm)
        losses = play(generator, discriminator, train, steps, seed)
        with torch.no_grad():
            samples = generator.eval()(torch.randn(len(test), generator.noise, generator=draw))
        facts = dict(generator=generator_norm, discriminator=discriminator_norm, best=best, losses=losses)
        rows.append(facts | dict(distance=energy_distance(samples, test), samples=samples[:SHOWN].flatten().tolist()))
    return rows


def play(generator: nn.Module, discriminator: nn.Module, real: Tensor, steps: int, seed: int) -> list[float]:
    """Adam on both in turn, with the losses of Goodfellow et al. 2014 (the generator's is the non-saturating one).

    Real and generated images share a batch, as in the guide's warning. Returns the discriminator's losses.
    """
    draw = torch.Generator().manual_seed(seed)
    learn = [torch.optim.Adam(m.parameters(), 1e-3, betas=(0.5, 0.999)) for m in (generator, discriminator)]
    losses, truth = [], torch.cat([torch.ones(32), torch.zeros(32)])
    for rows in shuffled(len(real), 32, steps, seed):
        fake = generator(torch.randn(32, generator.noise, generator=draw))
        loss = F.binary_cross_entropy_with_logits(discriminator(torch.cat([real[rows], fake.detach()])), truth)
        learn[1].zero_grad()
        loss.backward()
        learn[1].step()
        losses.append(loss.item())
        score = discriminator(torch.cat([real[rows], fake]))[32:]
        learn[0].zero_grad()
        F.binary_cross_entropy_with_logits(score, torch.ones(32)).backward()
        learn[0].step()
    return losses


def energy_distance(x: Tensor, y: Tensor) -> float:
    """The energy distance D between two samples of images, in units of pixels' root sum of squares."""
    x, y = x.flatten(1).double(), y.flatten(1).double()
    n, m = len(x), len(y)
    within = torch.cdist(x, x).sum() / (n * (n - 1)) + torch.cdist(y, y).sum() / (m * (m - 1))
    return float((2 * torch.cdist(x, y).mean() - within).clamp(min=0).sqrt())
