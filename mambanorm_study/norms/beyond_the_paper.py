"""Norms that the paper does not have: Lp, Scale, Constant, NormVary-token and SwitchNorm.

All of these norms except SwitchNorm read one token at a time, so they are causal. Lp generalizes
RMSN, which is Lp with p = 2. Scale (a gain alone) and Constant (a shift alone) are controls.
NormVary-token, our addition for language models, mixes GN-token, LN and RMSN, which compute their
statistics from a single token. NormVary descends from SwitchNorm (Luo et al. 2019).
"""

import math

import torch
from torch import Tensor, nn

from mambanorm.errors import shown
from mambanorm.norms.base import Norm, check_groups
from mambanorm.norms.masked_moments import Moments, blank_padding, pool_channels
from mambanorm.norms.normvary import StatisticsMixture, mix
from mambanorm.norms.registry import register_norm


@register_norm(
    "Lp",
    equation=r"y = \gamma_c \frac{x}{\sqrt{\|x\|_p^2 + \epsilon}},"
    r"\quad \|x\|_p = (\mathrm{mean}_c\,|x|^p)^{1/p}",
    source="Wikipedia, Normalization (machine learning): Lp normalization; p = 2 is RMSN",
    axes=("D",),
    causal=True,
    learnable="γ",
    use="where RMSN is used; a larger p gives large channels more weight, ∞ uses the largest only",
)
class LpNorm(Norm):
    """Divide each token by the power mean of its channels, 0 < p ≤ ∞; x (B, L, D) → (B, L, D).

    The power mean is the mean of |x| for p = 1, the root mean square for p = 2 (RMSN), and the
    largest |x| for p = ∞. For every p, ε is added to the square of the power mean, so that p = 2
    equals RMSN; the source has no ε, which is eps=0. For p < 1 the power mean is no norm: it
    violates the triangle inequality, and its slope has no bound near a channel of 0. Raises
    ValueError unless p > 0.
    """

    def __init__(self, d: int, *, eps: float = 1e-5, affine: bool = True, p: float = 1.0):
        if isinstance(p, bool) or not isinstance(p, int | float) or not p > 0:
            raise ValueError(
                f"p of the Lp norm must be a number above 0, such as 1, 2 or inf, got {shown(p)}"
            )
        super().__init__(d, eps=eps, affine=affine, bias=False)
        self.p = float(p)

    def normalize(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        x = blank_padding(x, lengths)
        return self.apply_affine(
            x / torch.hypot(self.power_mean(x), x.new_full((), math.sqrt(self.eps)))
        )

    def power_mean(self, x: Tensor) -> Tensor:
        """Return the power mean (mean_c |x|^p)^(1/p) of each token, (B, L, D) → (B, L, 1)."""
        if self.p == 1:
            return x.abs().mean(-1, keepdim=True)
        largest = x.detach().abs().amax(-1, keepdim=True)
        largest = largest.clamp(min=torch.finfo(x.dtype).tiny)  # avoids a division by zero
        # |x|^p could overflow without the division by the largest |x|
        norm = torch.linalg.vector_norm(x / largest, self.p, dim=-1, keepdim=True)
        return largest * norm / self.d ** (1 / self.p)


@register_norm(
    "Scale",
    equation=r"y = \gamma_c\,x",
    source="LayerScale, Touvron et al. 2021",
    axes=(),
    causal=True,
    learnable="γ",
    use="a control: does a norm need its statistic, or is a learned gain enough?",
)
class Scale(Norm):
    """Multiply each channel by a learned γ, without any statistic; x (B, L, D) → (B, L, D).

    This control separates the effect of scaling from the effect of normalizing. γ has one number
    per channel and starts at 1, so Scale starts as the identity; with `affine=False` it stays the
    identity. Scale follows LayerScale (Touvron et al. 2021), which is applied at the end of a
    branch and starts with a small γ.
    """

    def __init__(self, d: int, *, affine: bool = True):
        super().__init__(d, affine=affine, bias=False)

    def normalize(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        return x if self.weight is None else blank_padding(x, lengths) * self.weight


@register_norm(
    "Constant",
    equation=r"y = \beta_c",
    source="ours; Constant removes what Gu & Dao 2023 call selection",
    axes=(),
    causal=True,
    learnable="β",
    use="a control at Δ, B and C: does it matter that Δ, B and C depend on the input?",
)
class Constant(Norm):
    """Return a learned vector β at every position, whatever the input; x (B, L, D) → (B, L, D).

    As the norm of B, C and Δ in a Mamba block, Constant removes the selection: the scan's
    coefficients no longer depend on the input. β starts at 1/√D, so that the scalar product of a
    constant B and a constant C is 1. With `affine=False` β is not learned.
    """

    def __init__(self, d: int, *, affine: bool = True):
        super().__init__(d, affine=False)
        self.bias = nn.Parameter(torch.full((d,), d**-0.5), requires_grad=affine)

    def normalize(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        return self.bias + 0 * blank_padding(x, lengths)  # so x gets a gradient of 0, not None


@register_norm(
    "NormVary-token",
    equation=r"y = \gamma_c \frac{x - \sum_i w^\mu_i \mu_i}"
    r"{\sqrt{\sum_i w^\sigma_i \sigma_i^2 + \epsilon}} + \beta_c"
    r",\quad i \in \{\mathrm{GN\text{-}token}, \mathrm{LN}, \mathrm{RMSN}\}",
    source="ours: NormVary within one token, so that it is causal",
    axes=("D",),
    causal=True,
    learnable="γ, β, 3 + 3 mixture logits",
    use="a learned mixture for causal models",
)
class NormVaryToken(Norm):
    """Learned mixture of GN-token, LN and RMSN, x (B, L, D) → (B, L, D).

    The two other members of NormVary, BN and IN, need several tokens and are left out. The variance
    of LN is computed from the means and variances of the groups by the law of total variance.
    Raises ValueError unless `groups` divides d.
    """

    members = ("GN-token", "LN", "RMSN")

    def __init__(self, d: int, *, eps: float = 1e-5, affine: bool = True, groups: int = 4):
        check_groups(d, groups)
        super().__init__(d, eps=eps, affine=affine)
        self.groups = groups
        self.mean_logits = nn.Parameter(torch.zeros(3))
        self.var_logits = nn.Parameter(torch.zeros(3))

    def mixture_weights(self) -> tuple[Tensor, Tensor]:
        """Return the mixture weights of the means (3,) and of the variances (3,), in the order of
        `members`.
        """
        return self.mean_logits.softmax(0), self.var_logits.softmax(0)

    def normalize(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        grouped = blank_padding(x, lengths).unflatten(-1, (self.groups, -1))  # (B, L, G, D/G)
        gn_var, gn_mean = torch.var_mean(grouped, -1, correction=0, keepdim=True)
        ln_mean = gn_mean.mean(-2, keepdim=True)
        ln_var = (gn_var + (gn_mean - ln_mean).square()).mean(-2, keepdim=True)
        means = [gn_mean, ln_mean, None]
        variances = [gn_var, ln_var, ln_var + ln_mean.square()]
        mean, var = mix(*self.mixture_weights(), means, variances)
        return self.apply_affine(((grouped - mean) * (var + self.eps).rsqrt()).flatten(-2))


@register_norm(
    "SwitchNorm",
    equation=r"y = \gamma_c \frac{x - \sum_i w^\mu_i \mu_i}"
    r"{\sqrt{\sum_i w^\sigma_i \sigma_i^2 + \epsilon}} + \beta_c"
    r",\quad i \in \{\mathrm{IN}, \mathrm{LN}, \mathrm{BN}\}",
    source="Luo et al. 2019, Eq. 2–5; NormVary descends from it",
    axes=("B", "L", "D"),
    causal=False,
    learnable="γ, β, 3 + 3 mixture logits",
    use="images, if the best norm is not known",
)
class SwitchNorm(StatisticsMixture):
    """Learned mixture of IN, LN and BN, x (B, L, D) → (B, L, D) (Luo et al. 2019, Eq. 2–5).

    LN here means LN-DL, over the channels and positions of a row. The statistics of LN and BN are
    computed from the statistics of IN (Eq. 4), by the law of total variance. Parameters:
    `mean_logits` (3,) and `var_logits` (3,), which start at zero, `gamma` and `beta`. Buffers:
    `running_mean` and `running_var` of the BN member. Raises ValueError in training for B·L = 1.

    Differences from the authors' code: the variance of IN is biased, and no variance is computed as
    E[x²] − μ². `momentum` is the weight of the new statistic; in the authors' code it is the weight
    of the old statistic. The running variance starts at 1; in the authors' code it starts at 0, so
    an early evaluation would divide by 0. The paper evaluates with statistics that are averaged
    over several batches; this class evaluates with running averages.
    """

    members = ("IN", "LN", "BN")

    def __init__(self, d: int, *, eps: float = 1e-5, affine: bool = True, momentum: float = 0.1):
        super().__init__(d, eps=eps, affine=affine, momentum=momentum)

    def member_statistics(self, moments: Moments) -> tuple[list[Tensor | None], list[Tensor]]:
        """Return two lists (Luo et al. 2019, Eq. 4): the means of IN, LN and BN, and the variances.

        Each entry is broadcastable to (B, 1, D).
        """
        bn_mean, bn_var = self.batch_statistics(moments)
        ln_mean, ln_var = pool_channels(moments, 1)
        return [moments.m, ln_mean, bn_mean], [moments.v, ln_var, bn_var]
