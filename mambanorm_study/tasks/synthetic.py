"""Synthetic tasks whose rows each seed draws anew: `level` and `mqar`.

- `level`: is the mean of a sequence far from zero? A row is noise around a level m, drawn uniformly
  from −1…1; its mean is exactly m. Its class is 1 if |m| > ½, which holds for half of all rows. The
  classes differ in nothing but the mean, and no straight line separates them. So a norm that
  subtracts each channel's mean over the sequence must fail (notebook 03).
- `mqar`: associative recall with many queries a row, the field's test of what a state can hold. A
  row shows PAIRS keys, each followed by its value, then QUERIES of these keys in a random order.
  The label at a query is the value of its key; no other position has a label. Pairs are drawn anew
  in every row, so only the row itself gives the answer.

Sources: `level` is ours. Arora et al. (2024), Zoology, ICLR, arXiv:2312.04927 (MQAR).
"""

import torch

from mambanorm_study.tasks.base import IGNORED, TaskData, consecutive_splits
from mambanorm_study.tasks.registry import register_task
from mambanorm_study.tasks.shape import Shape

SMOKE_SIZES = {"level": (40, 20, 20), "mqar": (64, 16, 32)}
SIZES = {"level": (1_200, 300, 600), "mqar": (20_000, 1_000, 2_000)}
LEVEL_LENGTH = 32
PAIRS, QUERIES = 4, 16  # of a row of mqar
KEYS, VALUES = 8, 8  # each row draws its pairs from these


def _sizes(task: str, scale: str) -> tuple[int, int, int]:
    return SMOKE_SIZES[task] if scale == "smoke" else SIZES[task]


def _level_shape(scale: str) -> Shape:
    sizes = _sizes("level", scale)
    return Shape(2, LEVEL_LENGTH, in_features=1, sizes=sizes, reshuffled=True, fresh=True)


@register_task(
    "level",
    title="Level: is a sequence's mean far from zero?",
    source="ours, made up for notebook 03",
    shape=_level_shape,
)
def load_level(scale: str, seed: int) -> TaskData:
    """Return 1,200 / 300 / 600 rows (smoke: 40 / 20 / 20) as float32 (n, 32, 1), labels 0 and 1."""
    sizes = _sizes("level", scale)
    generator = torch.Generator().manual_seed(seed)
    level = 2 * torch.rand(sum(sizes), 1, generator=generator) - 1
    noise = torch.randn(sum(sizes), LEVEL_LENGTH, generator=generator)
    x = level + noise - noise.mean(1, keepdim=True)
    labels = (level[:, 0].abs() > 0.5).long()
    return TaskData(*consecutive_splits(x[..., None], labels, sizes), n_classes=2, in_features=1)


def _mqar_shape(scale: str) -> Shape:
    return Shape(
        KEYS + VALUES,
        2 * PAIRS + QUERIES,
        vocab_size=KEYS + VALUES,
        sizes=_sizes("mqar", scale),
        reshuffled=True,
        fresh=True,
        per_position=True,
    )


@register_task(
    "mqar",
    title="MQAR: which value went with this key? (associative recall, a label at each query)",
    source="after Arora et al. (2024), Zoology, ICLR, arXiv:2312.04927",
    shape=_mqar_shape,
)
def load_mqar(scale: str, seed: int) -> TaskData:
    """Return 20,000 / 1,000 / 2,000 rows (smoke: 64 / 16 / 32) of ids and labels, (n, L) each.

    Ids below KEYS are keys. Labels are IGNORED except at the queries.
    """
    sizes, vocab_size = _sizes("mqar", scale), KEYS + VALUES
    generator, n = torch.Generator().manual_seed(seed), sum(sizes)
    keys = torch.rand(n, KEYS, generator=generator).argsort(1)[:, :PAIRS]
    values = torch.randint(KEYS, vocab_size, (n, PAIRS), generator=generator)
    queries = torch.randint(PAIRS, (n, QUERIES), generator=generator)
    pairs = torch.stack([keys, values], 2).flatten(1)
    inputs = torch.cat([pairs, keys.gather(1, queries)], 1).to(torch.uint8)
    labels = torch.cat([torch.full_like(pairs, IGNORED), values.gather(1, queries)], 1)
    splits = consecutive_splits(inputs, labels, sizes)
    return TaskData(*splits, n_classes=vocab_size, vocab_size=vocab_size)
