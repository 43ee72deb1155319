"""A GAN on 8×8 digits: which norm in the generator and in the discriminator?

S4 recommends InstanceNorm or no norm in the generator, and no norm or LayerNorm in the
discriminator. It advises against BatchNorm in the discriminator, for three reasons: it "mixes real
and fake samples in batch", it "leaks information (discriminator can detect batch composition)", and
it "hurts training stability". Radford et al. 2016 (DCGAN) use BatchNorm in both.

**The leak.** Score the same rows twice, with the discriminator in train mode: in pure batches, all
real or all generated, and in mixed batches, half real and half generated. Without BatchNorm both
scores are equal. With it, rows of the other kind must move a score by more than other rows of the
same kind, which are the control.

**The training.** A discriminator with BatchNorm can be trained on pure batches, as DCGANs often
are, or on mixed batches (the arm MIXED). The other discriminators do not depend on the other rows.

The quality of generated digits is their Fréchet distance to real digits. It is that of Heusel et
al. 2017, but of the 64 pixels and not of a network's features, so compare it within this file only.

Results are recorded (runs/measurements.py) until this file changes. Sources: docs/sources.md.
Symbols: n rows, C channels, H × W pixels.
"""

from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path

import pandas as pd
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn.functional import softplus

from mambanorm.inside import preserve_state
from mambanorm_study.runs.grid import check_seeds
from mambanorm_study.runs.measurements import digest_of, load_or_measure
from mambanorm_study.tasks import load_task

MIXED = "BN, mixed batches"
GENERATORS, DISCRIMINATORS = ("None", "IN"), ("None", "LN", "BN", MIXED)
REAL = "real digits"  # the row of the real images, in the column generator
SEEDS = {"smoke": 1, "quick": 4, "evening": 4}  # number of seeds; larger scales: 8
STEPS = {"smoke": 4, "quick": 400, "evening": 400}  # training steps; larger scales: 2,000
BATCH, NOISE, RATE = 32, 16, 1e-3  # rows, size of the generator's input, learning rate of Adam

NORMS = {
    "None": lambda channels: nn.Identity(),
    "IN": partial(nn.InstanceNorm2d, affine=True),
    "LN": partial(nn.GroupNorm, 1),  # LayerNorm over C, H and W of an image
    "BN": nn.BatchNorm2d,
    MIXED: nn.BatchNorm2d,
}


def make_generator(norm: str) -> nn.Sequential:
    """Return a generator with a norm of GENERATORS: noise (n, NOISE) → images (n, 1, 8, 8)."""
    return nn.Sequential(
        nn.Linear(NOISE, 128),
        nn.Unflatten(1, (32, 2, 2)),
        nn.ReLU(),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(32, 32, 3, padding=1),
        NORMS[norm](32),
        nn.ReLU(),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(32, 16, 3, padding=1),
        NORMS[norm](16),
        nn.ReLU(),
        nn.Conv2d(16, 1, 3, padding=1),
        nn.Tanh(),
    )


def make_discriminator(norm: str) -> nn.Sequential:
    """Return a discriminator with a norm of DISCRIMINATORS: images (n, 1, 8, 8) → logits (n, 1).

    A positive logit means "real". The first convolution has no norm, as in Radford et al. 2016.
    """
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        NORMS[norm](32),
        nn.LeakyReLU(0.2),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        NORMS[norm](64),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(256, 1),
    )


def scores(
    discriminator: nn.Module, real: Tensor, generated: Tensor, *, mixed: bool
) -> tuple[Tensor, Tensor]:
    """Return the logits (n, 1) of n real and of n generated images, scored in two batches.

    Pure batches are all real or all generated. Mixed batches have the first half of one kind and
    the second half of the other, so that each image keeps its place in its batch.
    """
    if not mixed:
        return discriminator(real), discriminator(generated)
    half = len(real) // 2
    real_first = discriminator(torch.cat([real[:half], generated[half:]]))
    real_last = discriminator(torch.cat([generated[:half], real[half:]]))
    of_real = torch.cat([real_first[:half], real_last[half:]])
    return of_real, torch.cat([real_last[:half], real_first[half:]])


def train_gan(
    generator: nn.Module, discriminator: nn.Module, images: Tensor, steps: int, *, mixed: bool
) -> None:
    """Train both models on images (n, 1, 8, 8), with one step of Adam each per batch.

    The discriminator minimizes the cross-entropy. The generator maximizes the probability that its
    images are real (Radford et al. 2016). mixed: as in `scores`.
    """
    of_generator, of_discriminator = (
        torch.optim.Adam(model.train().parameters(), RATE, betas=(0.5, 0.999))
        for model in (generator, discriminator)
    )
    for _ in range(steps):
        real = images[torch.randint(len(images), (BATCH,))]
        generated = generator(torch.randn(BATCH, NOISE))
        on_real, on_generated = scores(discriminator, real, generated.detach(), mixed=mixed)
        _step(of_discriminator, softplus(-on_real).mean() + softplus(on_generated).mean())
        _, on_generated = scores(discriminator, real, generated, mixed=mixed)
        _step(of_generator, softplus(-on_generated).mean())


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@torch.no_grad()
def batch_leak(discriminator: nn.Module, real: Tensor, generated: Tensor) -> dict[str, float]:
    """Return the mean absolute change of an image's logit if half of its batch is replaced.

    Keys: shift (by images of the other kind), shift_same_kind (the control: by other images of the
    same kind), and pure_accuracy and mixed_accuracy (the share of images whose logit has the right
    sign in pure and in mixed batches, per cent). real, generated: (n, 1, 8, 8), n a multiple of 4;
    each batch has n/2 images. The discriminator is in train mode; its running statistics do not
    change.
    """
    with preserve_state(discriminator):
        discriminator.train()
        pure, mixed, same_kind = [], [], []
        for images, others in ((real, generated), (generated, real)):
            quarters, other_quarters = images.chunk(4), others.chunk(4)
            for i, scored in enumerate(quarters):
                following, next_but_one = (i + 1) % 4, (i + 2) % 4
                for companions, logits in (
                    (quarters[following], pure),
                    (quarters[next_but_one], same_kind),
                    (other_quarters[following], mixed),
                ):
                    logits.append(discriminator(torch.cat([scored, companions]))[: len(scored)])
    pure, mixed, same_kind = (torch.cat(logits) for logits in (pure, mixed, same_kind))
    sign = torch.ones(len(pure), 1)
    sign[len(sign) // 2 :] = -1  # generated images, whose logits should be negative
    return {
        "shift": float((pure - mixed).abs().mean()),
        "shift_same_kind": float((pure - same_kind).abs().mean()),
        "pure_accuracy": 100 * float((sign * pure > 0).double().mean()),
        "mixed_accuracy": 100 * float((sign * mixed > 0).double().mean()),
    }


def frechet_distance(a: Tensor, b: Tensor) -> float:
    """Return the Fréchet distance between two samples of vectors, (n, d) and (m, d).

    ‖μ_a − μ_b‖² + tr(Σ_a + Σ_b − 2·(Σ_a Σ_b)^½) (Heusel et al. 2017, Eq. 6).
    """
    of_a, of_b = a.T.cov(), b.T.cov()
    # the eigenvalues of a product of covariances are real and not negative, up to rounding
    root = torch.linalg.eigvals(of_a @ of_b).real.clamp_min(0).sqrt().sum()
    return float((a.mean(0) - b.mean(0)).square().sum() + of_a.trace() + of_b.trace() - 2 * root)


def quality(classifier: LogisticRegression, images: Tensor, real: Tensor) -> dict:
    """Return the quality of images (n, 1, 8, 8) as a dict.

    Keys: frechet (the distance of their pixels to those of real images), classes (how many of the
    ten digits are at least 2 % of the images, by a classifier of pixels) and samples (the first
    eight images, as whole numbers from 0 to 16).
    """
    pixels = images.flatten(1).double()  # (n, 64)
    counts = torch.as_tensor(classifier.predict(pixels)).bincount(minlength=10)
    return {
        "frechet": frechet_distance(pixels, real.flatten(1).double()),
        "classes": int((counts >= 0.02 * len(images)).sum()),
        "samples": (8 * (pixels[:8] + 1)).round().flatten().tolist(),
    }


def gan_runs(
    scale: str, seeds: int | None = None, *, runs_dir: str | Path | None = None
) -> pd.DataFrame:
    """Return one row for each seed, generator and discriminator, and a row of REAL for each seed.

    Columns: generator, discriminator, those of `quality` and `batch_leak`, and seed. REAL compares
    training images with validation images. seeds: number of seeds; None means SEEDS of the scale.
    """
    listed = check_seeds(SEEDS.get(scale, 8) if seeds is None else seeds, "smoke")
    data_scale = "evening" if scale == "quick" else scale  # the digits of both scales are the same
    steps = STEPS.get(scale, 2_000)
    measure_seed, name = partial(_runs, data_scale, steps), f"gan-{data_scale}-{steps}"
    return load_or_measure(
        ".lessons", name, measure_seed, listed, digest_of(Path(__file__)), runs_dir
    )


def _runs(scale: str, steps: int, seed: int) -> Iterator[dict]:
    data = load_task("digits_images", scale, seed)
    # permuted images of one channel would count as channels_last, where torch rounds differently
    train, val = (split.inputs.reshape(-1, 1, 8, 8) for split in (data.train, data.val))
    real = val[: len(val) // 4 * 4]  # `batch_leak` takes quarters
    classifier = LogisticRegression(max_iter=1_000).fit(train.flatten(1), data.train.labels)
    yield {"generator": REAL, "discriminator": "", **quality(classifier, train[: len(real)], real)}
    for generator_norm, norm in product(GENERATORS, DISCRIMINATORS):
        torch.manual_seed(seed)
        generator, discriminator = make_generator(generator_norm), make_discriminator(norm)
        train_gan(generator, discriminator, train, steps, mixed=norm == MIXED)
        generated = generator(torch.randn(len(real), NOISE)).detach()
        yield {
            "generator": generator_norm,
            "discriminator": norm,
            **batch_leak(discriminator, real, generated),
            **quality(classifier, generated, real),
        }
