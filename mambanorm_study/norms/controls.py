"""Norms beyond the paper's: Lp, of which RMSN is the case p = 2; Scale, a gain and nothing else,
and Constant, a shift and nothing else; NormVary-token, what a single token has of NormVary's
members, for language models (ours); SwitchNorm (Luo et al. 2019), NormVary's forerunner.
"""

import math

import torch
from torch import Tensor, nn

from mambanorm.checks import check_flag
from mambanorm.errors import shown
from mambanorm.norms.base import Norm, check_groups
from mambanorm.norms.masked_moments import Moments, blank_padding, pool_channels
from mambanorm.norms.normvary import StatisticsMixture, mix
from mambanorm.norms.registry import register_norm


@register_norm(
    "Lp",
    equation=r"y = \gamma_c \frac{x}{\sqrt{\|x\|_p^2 + \epsilon}},\quad \|x\|_p = (\mathrm{mean}_c\,|x|^p)^{1/p}",
    source="Wikipedia, Normalization (machine learning): Lp normalization; p = 2 is RMSN",
    axes=("D",),
    causal=True,
    learnable="γ",
    use="as RMSN; p says how much large channels count: 1 the least, ∞ alone",
)
class LpNorm(Norm):
    """Divides each token by the p-mean of its channels, 1 ≤ p ≤ ∞: p = 1 by the mean of |x|, p = 2
    by the root mean square (RMSN), p = ∞ by the largest |x|.

    ε is added to the square of that size for every p, so that p = 2 is RMSN to the digit; the
    source has none. The source allows p > 0; below 1 the gradient at zero is infinite, and p is
    refused with a ValueError.
    """

    def __init__(self, d: int, *, eps: float = 1e-5, affine: bool = True, p: float = 1.0):
        if isinstance(p, bool) or not isinstance(p, int | float) or not p >= 1:
            raise ValueError(
                f"p of the Lp norm must be a number from 1 to infinity, such as 1, 2 or inf, got {shown(p)}"
            )
        super().__init__(d, eps=eps, affine=affine, bias=False)
        self.p = float(p)

    def normalize(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        same = blank_padding(x, lengths)
        return self.scaled(
            same / torch.hypot(self.size(same), same.new_full((), math.sqrt(self.eps)))
        )

    def size(self, x: Tensor) -> Tensor:
        """(mean_c |x|^p)^(1/p) of each token, (B, L, D) → (B, L, 1)."""
        if self.p == 1:
            return x.abs().mean(-1, keepdim=True)
        largest = x.abs().amax(-1, keepdim=True)
        if math.isinf(self.p):
            return largest
        tiny = torch.finfo(x.dtype).tiny  # for a token of zeros: its gradient is then 0, not 0/0
        unit = largest.detach().clamp(
            min=tiny
        )  # the p-mean of x is that of x/unit times unit: no power can overflow
        return unit * (x / unit).abs().pow(self.p).mean(-1, keepdim=True).clamp(min=tiny).pow(
            1 / self.p
        )


@register_norm(
    "Scale",
    equation=r"y = \gamma_c\,x",
    source="LayerScale, Touvron et al. 2021",
    axes=(),
    causal=True,
    learnable="γ",
    use="the control: does it take a statistic, or only a gain that is learned?",
)
class Scale(Norm):
    """A norm's learned gain without the norm, x (B, L, D) → (B, L, D): it tells normalizing from
    scaling.

    γ is one number a channel (LayerScale, Touvron et al. 2021) and starts at 1, as the γ of every
    norm, so that it begins as None does. The paper starts it small at the end of a branch; here it
    stands where the arm has it. With `affine=False` nothing is left to learn: it is the identity,
    as `None` is.
    """

    def __init__(self, d: int, *, affine: bool = True):
        super().__init__(d, affine=affine, bias=False)

    def normalize(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        return x if self.weight is None else blank_padding(x, lengths) * self.weight


@register_norm(
    "Constant",
    equation=r"y = \beta_c",
    source="ours, against Gu & Dao 2023: what they call selection is gone",
    axes=(),
    causal=True,
    learnable="β",
    use="the control at Δ, B and C: what does it matter that they depend on the input?",
)
class Constant(Norm):
    """A learned vector in the input's place, x (B, L, D) → (B, L, D): at the sites B, C and delta
    the scan is no longer selective. β starts at 1/√D, so that constant B and C have the product 1;
    with `affine=False` it stays there."""

    def __init__(self, d: int, *, affine: bool = True):
        check_flag("affine", affine)
        super().__init__(d, affine=False)
        self.bias = nn.Parameter(torch.full((d,), d**-0.5), requires_grad=affine)

    def normalize(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        return self.bias + 0 * blank_padding(x, lengths)  # a gradient of zero, and not none


@register_norm(
    "NormVary-token",
    equation=r"y = \gamma_c \frac{x - \sum_i w^\mu_i \mu_i}{\sqrt{\sum_i w^\sigma_i \sigma_i^2 + \epsilon}} + \beta_c"
    r",\quad i \in \{\mathrm{GN\text{-}token}, \mathrm{LN}, \mathrm{RMSN}\}",
    source="ours: NormVary within one token, so that it is causal",
    axes=("D",),
    causal=True,
    learnable="γ, β, 3 + 3 mixture logits",
    use="a learned mixture where the future must not be seen",
)
class NormVaryToken(Norm):
    """Learned mixture of GN-token, LN and RMSN, x (B, L, D) → (B, L, D): NormVary's members but BN
    and IN, whose statistics a single token does not have. LN has the total variance. ValueError
    unless the groups divide d."""

    members = ("GN-token", "LN", "RMSN")

    def __init__(self, d: int, *, eps: float = 1e-5, affine: bool = True, groups: int = 4):
        check_groups(d, groups)
        super().__init__(d, eps=eps, affine=affine)
        self.groups = groups
        self.mean_logits = nn.Parameter(torch.zeros(3))
        self.var_logits = nn.Parameter(torch.zeros(3))

    def mixture(self) -> tuple[Tensor, Tensor]:
        """The softmax weights of the means and of the variances, (3,) each, in the order of
        `members`."""
        return self.mean_logits.softmax(0), self.var_logits.softmax(0)

    def normalize(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        grouped = blank_padding(x, lengths).unflatten(-1, (self.groups, -1))  # (B, L, G, D/G)
        gn_var, gn_mean = torch.var_mean(grouped, -1, correction=0, keepdim=True)
        ln_mean = gn_mean.mean(-2, keepdim=True)
        ln_var = (gn_var + (gn_mean - ln_mean).square()).mean(-2, keepdim=True)
        mean, var = mix(
            *self.mixture(), [gn_mean, ln_mean, None], [gn_var, ln_var, ln_var + ln_mean.square()]
        )
        return self.scaled(((grouped - mean) * (var + self.eps).rsqrt()).flatten(-2))


@register_norm(
    "SwitchNorm",
    equation=r"y = \gamma_c \frac{x - \sum_i w^\mu_i \mu_i}{\sqrt{\sum_i w^\sigma_i \sigma_i^2 + \epsilon}} + \beta_c"
    r",\quad i \in \{\mathrm{IN}, \mathrm{LN}, \mathrm{BN}\}",
    source="Luo et al. 2019, Eq. 2–5; NormVary descends from it",
    axes=("B", "L", "D"),
    causal=False,
    learnable="γ, β, 3 + 3 mixture logits",
    use="images, where no norm is known to be best; NormVary's forerunner",
)
class SwitchNorm(StatisticsMixture):
    """Learned mixture of IN, LN-DL and BN, x (B, L, D) → (B, L, D) (Luo et al. 2019, Eq. 2–5).

    LN's and BN's statistics are computed from IN's (Eq. 4), by the law of total variance.
    Parameters `mean_logits`, `var_logits` (3 each, zero at start), `gamma`, `beta`; buffers
    `running_mean`, `running_var` of the BN member. In training it raises ValueError for B·L = 1.

    Deviations from the authors' code: IN's variance is the biased one; nothing is computed as E[x²]
    − μ²; the weight of the new statistic is `momentum`, theirs the old one's; the running variance
    starts at 1, theirs at 0, by which an early evaluation would divide. The text evaluates with
    statistics averaged over batches; here they are running ones.
    """

    members = ("IN", "LN", "BN")

    def __init__(self, d: int, *, eps: float = 1e-5, affine: bool = True, momentum: float = 0.1):
        super().__init__(d, eps=eps, affine=affine, momentum=momentum)

    def member_statistics(self, moments: Moments) -> tuple[list[Tensor | None], list[Tensor]]:
        """Means and variances of IN, LN and BN, each broadcastable to (B, 1, D): Eq. 4."""
        bn_mean, bn_var = self.batch_statistics(moments)
        ln_mean, ln_var = pool_channels(moments, 1)
        return [moments.m, ln_mean, bn_mean], [moments.v, ln_var, bn_var]
