"""NormVary, the paper's adaptive norm: a learned mixture of statistics (Appendix D, Eq. 8–16).

    μ  = Σ_i w^μ_i μ_i,   σ² = Σ_i w^σ_i σ²_i,   w = softmax(z)            (Eq. 13)
    y  = γ·(x − μ)/√(σ² + ε) + β                                           (Eq. 14)

The members of the mixture (BN, GN, IN, LN, RMSN) share one set of per-channel moments, from which
the statistics of each member are pooled. x is normalized once, with the mixed statistics.

Choices of this implementation where the paper is open or inconsistent:
- Eq. 13 writes one w_i for μ and σ²; here the means and the variances have separate softmaxes.
- Eq. 8 and 11 leave out the variance of the means (I2 in docs/paper.md). By default
  (`statistics="total"`), this variance is added by the law of total variance; `"literal"` computes
  the printed equations.
- z starts at zero; G = 4, ε = 1e-5, α = 0.9. In eval mode BN uses its running statistics.

NormVary's statistics contain later positions, so NormVary is not causal. mambanorm_study has a
causal version for language models, NormVary-token, and SwitchNorm, NormVary's predecessor.
"""

import torch
from torch import Tensor, nn

from mambanorm.errors import unknown
from mambanorm.kernels.backends import fused_on_cpu
from mambanorm.norms.base import SequenceNorm, Statistics, check_groups, check_values
from mambanorm.norms.classic import batch_count
from mambanorm.norms.masked_moments import (
    Moments,
    channel_moments,
    is_recomputed,
    pool_batch,
    pool_channels,
    update_running,
)
from mambanorm.norms.registry import register_norm

STATISTICS = ("total", "literal")
# One mean (None for a member without a mean) and one variance per member, each broadcastable to
# (B, 1, D).
MemberStatistics = tuple[list[Tensor | None], list[Tensor]]


class StatisticsMixture(SequenceNorm):
    """Base of NormVary and SwitchNorm: the parameters and the mixture weights.

    A subclass lists the names of its `members` and defines `member_statistics`.
    """

    members: tuple[str, ...]
    groups = 1
    statistics = "total"

    def __init__(
        self, d: int, *, eps: float, affine: bool, momentum: float, learn_weights: bool = True
    ):
        check_values(affine=affine, momentum=momentum, learn_weights=learn_weights)
        super().__init__(d, eps=eps, affine=False)
        self.momentum = momentum
        self.gamma = nn.Parameter(torch.ones(d)) if affine else None
        self.beta = nn.Parameter(torch.zeros(d)) if affine else None
        zeros = torch.zeros(len(self.members))
        self.mean_logits = nn.Parameter(zeros, requires_grad=learn_weights)
        self.var_logits = nn.Parameter(zeros.clone(), requires_grad=learn_weights)
        self.running_mean = nn.Buffer(torch.zeros(d))
        self.running_var = nn.Buffer(torch.ones(d))

    def mixture_weights(self) -> tuple[Tensor, Tensor]:
        """Return two tensors (members,): the weights of the means and those of the variances.

        See Eq. 13 of the paper.
        """
        dtype = torch.promote_types(self.mean_logits.dtype, torch.float32)  # the statistics' dtype
        return self.mean_logits.softmax(0, dtype), self.var_logits.softmax(0, dtype)

    def scale_and_shift(self) -> tuple[Tensor | None, Tensor | None]:
        """Return γ and β, each None if the norm has none."""
        return self.gamma, self.beta

    def pool_statistics(self, x: Tensor, lengths: Tensor | None) -> Statistics:
        """Return x, μ and σ² (Eq. 13 of the paper), mixed by the fused loop if it can take x."""
        moments = channel_moments(x, lengths)
        if self.training:
            batch_count(x, lengths, type(self).__name__)
        if fused_on_cpu(x):
            from mambanorm.kernels.norm import mixed_statistics  # importing Numba takes a moment

            mean, var = mixed_statistics(self, moments)
        else:
            mean, var = mix(*self.mixture_weights(), *self.member_statistics(moments))
        return moments.x, mean, var

    def member_statistics(self, moments: Moments) -> MemberStatistics:
        """Return the means and the variances of all members, in the order of `members`."""
        raise NotImplementedError

    def batch_statistics(self, moments: Moments) -> tuple[Tensor, Tensor]:
        """Return BN's mean and variance: in training mode those of the batch (Eq. 8 of the paper).

        Eval mode returns the running mean and variance. Training mode also updates these running
        statistics (Eq. 15–16 of the paper).
        """
        if not self.training:
            return self.running_mean, self.running_var
        if self.statistics == "total":
            mean, var = pool_batch(moments)
        else:
            mean, var = moments.m.mean(0, keepdim=True), moments.v.mean(0, keepdim=True)
        self.track(mean, var)
        return mean, var

    @torch.no_grad()
    def track(self, mean: Tensor, var: Tensor) -> None:
        """Update the running statistics with a batch's mean and variance (Eq. 15–16 of the paper).

        A forward pass that activation checkpointing repeats does not update them again.
        """
        if not is_recomputed():
            update_running(self.running_mean, mean, self.momentum)
            update_running(self.running_var, var, self.momentum)


@register_norm(
    "NormVary",
    equation=r"y = \gamma_c \frac{x - \sum_i w^\mu_i \mu_i}"
    r"{\sqrt{\sum_i w^\sigma_i \sigma_i^2 + \epsilon}} + \beta_c",
    source="the paper's Appendix D, Eq. 8–16",
    axes=("B", "L", "D"),
    causal=False,
    learnable="γ, β, 5 + 5 mixture logits",
    use="the paper's proposal before the SSM; costs all five members",
)
class NormVary(StatisticsMixture):
    """Learned mixture of BN, GN, IN, LN-DL and RMSN-DL, x (B, L, D) → (B, L, D).

    Parameters: `mean_logits` and `var_logits` (5 values each, initially zero), `gamma` and `beta`.
    Buffers: BN's `running_mean` and `running_var` (the paper's Eq. 15–16, with the biased variance
    as printed there). `learn_weights=False` keeps all weights at 1/5. Raises ValueError for unknown
    `statistics`, for groups that do not divide d, and in training mode for B·L = 1.
    """

    members = ("BN", "GN", "IN", "LN", "RMSN")

    def __init__(
        self,
        d: int,
        *,
        eps: float = 1e-5,
        affine: bool = True,
        groups: int = 4,
        momentum: float = 0.1,
        statistics: str = "total",
        learn_weights: bool = True,
    ):
        check_groups(d, groups)
        if statistics not in STATISTICS:
            raise unknown("NormVary statistics", statistics, STATISTICS)
        super().__init__(d, eps=eps, affine=affine, momentum=momentum, learn_weights=learn_weights)
        self.groups, self.statistics = groups, statistics

    def member_statistics(self, moments: Moments) -> MemberStatistics:
        """Return the means and the variances of the five members, in the order of `members`.

        RMSN's mean is None (Eq. 12 of the paper).
        """
        _, m, v, _ = moments
        bn_mean, bn_var = self.batch_statistics(moments)
        gn_mean, gn_var = pool_channels(moments, self.groups)
        ln_mean, ln_var = m.mean(-1, keepdim=True), v.mean(-1, keepdim=True)
        rms = ln_var + m.square().mean(-1, keepdim=True)
        if self.statistics == "total":
            ln_var = ln_var + (m - ln_mean).square().mean(-1, keepdim=True)
        return [bn_mean, gn_mean, m, ln_mean, None], [bn_var, gn_var, v, ln_var, rms]


def mix(
    w_mean: Tensor, w_var: Tensor, means: list[Tensor | None], variances: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return μ = Σ_i w^μ_i μ_i and σ² = Σ_i w^σ_i σ²_i (Eq. 13 of the paper)."""
    mean = sum(w * m for w, m in zip(w_mean, means, strict=True) if m is not None)
    var = sum(w * v for w, v in zip(w_var, variances, strict=True))
    return mean, var


@register_norm(
    "NormVary-fixed",
    equation=r"NormVary with $w^\mu_i = w^\sigma_i = 1/5$",
    source="our control: what do the learned weights add?",
    axes=("B", "L", "D"),
    causal=False,
    learnable="γ, β",
    use="the control: is it the mixing or the learning that helps?",
)
def fixed_normvary(
    d: int,
    *,
    eps: float = 1e-5,
    affine: bool = True,
    groups: int = 4,
    momentum: float = 0.1,
    statistics: str = "total",
) -> NormVary:
    """Return a NormVary with constant weights 1/5, the control for learned weights."""
    return NormVary(
        d,
        eps=eps,
        affine=affine,
        groups=groups,
        momentum=momentum,
        statistics=statistics,
        learn_weights=False,
    )
