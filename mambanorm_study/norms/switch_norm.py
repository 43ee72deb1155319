"""SwitchNorm (Luo et al. 2019), from which NormVary descends."""

from torch import Tensor

from mambanorm.norms.masked_moments import Moments, pool_channels
from mambanorm.norms.normvary import StatisticsMixture
from mambanorm.norms.registry import register_norm


@register_norm(
    "SwitchNorm",
    equation=r"y = \gamma_c \frac{x - \sum_i w^\mu_i \mu_i}"
    r"{\sqrt{\sum_i w^\sigma_i \sigma_i^2 + \epsilon}} + \beta_c"
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
    `running_mean`, `running_var` of the BN member. Raises ValueError in training for B·L = 1.

    Deviations from the authors' code: IN's variance is biased, and no variance is computed as
    E[x²] − μ². `momentum` is the weight of the new statistic; in their code it is the weight of the
    old one. The running variance starts at 1; theirs starts at 0, so that an early evaluation would
    divide by 0. The paper evaluates with statistics averaged over batches, this class with running
    averages.
    """

    members = ("IN", "LN", "BN")

    def __init__(self, d: int, *, eps: float = 1e-5, affine: bool = True, momentum: float = 0.1):
        super().__init__(d, eps=eps, affine=affine, momentum=momentum)

    def member_statistics(self, moments: Moments) -> tuple[list[Tensor | None], list[Tensor]]:
        """Return means and variances of IN, LN and BN, broadcastable to (B, 1, D): Eq. 4."""
        bn_mean, bn_var = self.batch_statistics(moments)
        ln_mean, ln_var = pool_channels(moments, 1)
        return [moments.m, ln_mean, bn_mean], [moments.v, ln_var, bn_var]
