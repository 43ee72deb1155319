"""The norms of the paper's Table 3 and their other scopes: None, BN, IN, GN, LN, RMSN, LN-DL, RMSN-DL, GN-token; Lp, of
which RMSN is the case p = 2; and Scale, a gain and nothing else.

Two families, by the axes a statistic is taken over (Fig. 2): `TokenNorm` and `SequenceNorm`, in base.py.

LN and RMSN are per token, as in all Mamba code. The paper's Table 3 prints Π(X) over D·L instead: that is LN-DL and
RMSN-DL here (I14). GN reduces over L as torch does; GN-token is what Mamba-2 uses.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mambanorm.basics.checks import check_flag, shown
from mambanorm.norms.base import Norm, SequenceNorm, TokenNorm, check_groups, check_values
from mambanorm.norms.masked_moments import blank_padding, channel_moments, finish, follow, pool_batch, pool_channels
from mambanorm.norms.registry import register_norm

TABLE_3 = "Table 3"


@register_norm(
    "None",
    equation="y = x",
    source="the identity",
    axes=(),
    causal=True,
    learnable="nothing",
    use="the control: what does a norm change at all?",
)
class NoNorm(Norm):
    """The identity, y = x, with the same call and the same checks as a norm."""

    def __init__(self, d: int):
        super().__init__(d, eps=0.0, affine=False)

    def normalize(self, x: Tensor, lengths: Tensor | None, gate: Tensor | None, fork: bool):
        return finish(x, x, gate, fork)


@register_norm(
    "BN",
    equation=r"y = \gamma_c \frac{x - \mu_c}{\sqrt{\sigma_c^2 + \epsilon}} + \beta_c",
    source=f"Ioffe & Szegedy 2015; {TABLE_3}",
    axes=("B", "L"),
    causal=False,
    learnable="γ, β",
    use="images in batches of 8 rows or more; eval() uses other statistics than training",
)
class BatchNorm(SequenceNorm):
    """Batch norm over B and L, as torch.nn.BatchNorm1d. It normalises with the biased variance and stores the
    unbiased one. `momentum` is the weight of the new statistic. In eval the running statistics are used."""

    def __init__(self, d: int, *, eps: float = 1e-5, affine: bool = True, momentum: float = 0.1):
        super().__init__(d, eps=eps, affine=affine)
        self.momentum = momentum
        self.register_buffer("running_mean", torch.zeros(d))
        self.register_buffer("running_var", torch.ones(d))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def pooled(self, x: Tensor, lengths: Tensor | None):
        if not self.training:
            return x, self.running_mean, self.running_var
        moments = channel_moments(x, lengths)
        mean, var = pool_batch(moments)
        count = batch_count(x, lengths, "BN")
        with torch.no_grad():
            self.num_batches_tracked += 1
            follow(self.running_mean, mean, self.momentum)
            follow(self.running_var, var * (count / (count - 1)), self.momentum)
        return moments.x, mean, var


def batch_count(x: Tensor, lengths: Tensor | None, name: str) -> int | Tensor:
    """How many values a batch statistic is taken over. Raises ValueError for a single one, whose variance is 0."""
    count = x.shape[0] * x.shape[1] if lengths is None else lengths.sum()
    if not (isinstance(count, Tensor) and count.is_cuda) and count < 2:
        raise ValueError(
            f"{name} in training needs more than one value per channel, got B·L = 1 (shape {tuple(x.shape)}): "
            "use a larger batch, a longer sequence, or a norm that takes its statistics over D"
        )
    return count


@register_norm(
    "IN",
    equation=r"y = \gamma_c \frac{x - \mu_{nc}}{\sqrt{\sigma_{nc}^2 + \epsilon}} + \beta_c",
    source=f"Ulyanov et al. 2017; {TABLE_3}; Eq. 10",
    axes=("L",),
    causal=False,
    learnable="γ, β",
    use="style of images, sequences read as a whole; takes each row's level and scale away",
)
class InstanceNorm(SequenceNorm):
    """Instance norm: each channel of each row over L. No running statistics: train and eval are the same.

    One half of it can be left out, to see which one an effect comes from: with `centre=False` μ is not subtracted, with
    `scale=False` it is not divided by σ."""

    def __init__(self, d: int, *, eps: float = 1e-5, affine: bool = True, centre: bool = True, scale: bool = True):
        check_values(centre=centre, scale=scale)
        super().__init__(d, eps=eps, affine=affine)
        self.centre, self.scale = centre, scale

    def pooled(self, x: Tensor, lengths: Tensor | None):
        x, mean, var, _ = channel_moments(x, lengths)
        return x, mean if self.centre else None, var if self.scale else torch.ones_like(var)


@register_norm(
    "LN",
    equation=r"y = \gamma_c \frac{x - \mu_{nl}}{\sqrt{\sigma_{nl}^2 + \epsilon}} + \beta_c",
    source="Ba et al. 2016, per token as in Mamba code",
    axes=("D",),
    causal=True,
    learnable="γ, β",
    use="Transformers, recurrent nets, language models, any batch size",
)
class LayerNorm(TokenNorm):
    """Layer norm over the channels of one token, as torch.nn.LayerNorm(d)."""

    def __init__(self, d: int, *, eps: float = 1e-5, affine: bool = True):
        super().__init__(d, eps=eps, affine=affine)

    def readable(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (self.d,), self.weight, self.bias, self.eps)


@register_norm(
    "RMSN",
    equation=r"y = \gamma_c \frac{x}{\sqrt{\mathrm{mean}_c\,x^2 + \epsilon}}",
    source="Zhang & Sennrich 2019, per token as in Mamba code",
    axes=("D",),
    causal=True,
    learnable="γ",
    use="as LN, without a mean: large language models, Mamba",
)
class RMSNorm(TokenNorm):
    """Root mean square norm over the channels of one token, as torch.nn.RMSNorm(d, eps=1e-5). It has no β, as in Mamba
    code; `bias=True` adds the β that encyclopaedias print."""

    centred = False

    def __init__(self, d: int, *, eps: float = 1e-5, affine: bool = True, bias: bool = False):
        check_flag("bias", bias)
        super().__init__(d, eps=eps, affine=affine, bias=bias)

    def readable(self, x: Tensor) -> Tensor:
        y = F.rms_norm(x, (self.d,), self.weight, self.eps)
        return y if self.bias is None else y + self.bias


@register_norm(
    "GN",
    equation=r"y = \gamma_c \frac{x - \mu_{ng}}{\sqrt{\sigma_{ng}^2 + \epsilon}} + \beta_c,\quad g \ni c",
    source=f"Wu & He 2018; {TABLE_3}; Eq. 9",
    axes=("L", "D/G"),
    causal=False,
    learnable="γ, β",
    use="images in small batches, sequences read as a whole",
)
class GroupNorm(SequenceNorm):
    """Groups of channels of one row over L and D/G, as torch.nn.GroupNorm (Eq. 9). ValueError unless G divides D."""

    def __init__(self, d: int, *, eps: float = 1e-5, affine: bool = True, groups: int = 4):
        check_groups(d, groups)
        super().__init__(d, eps=eps, affine=affine)
        self.groups = groups

    def pooled(self, x: Tensor, lengths: Tensor | None):
        moments = channel_moments(x, lengths)
        return moments.x, *pool_channels(moments, self.groups)


@register_norm(
    "LN-DL",
    equation=r"y = \gamma_c \frac{x - \mu_{n}}{\sqrt{\sigma_{n}^2 + \epsilon}} + \beta_c",
    source=f"{TABLE_3} as printed; Eq. 11 with the total variance",
    axes=("L", "D"),
    causal=False,
    learnable="γ, β",
    use="what the paper's Table 3 calls LN; sequences read as a whole",
)
class LayerNormDL(GroupNorm):
    """Layer norm over all channels and positions of one row: group norm with one group."""

    def __init__(self, d: int, *, eps: float = 1e-5, affine: bool = True):
        super().__init__(d, eps=eps, affine=affine, groups=1)


@register_norm(
    "RMSN-DL",
    equation=r"y = \gamma_c \frac{x}{\sqrt{\mathrm{mean}_{lc}\,x^2 + \epsilon}}",
    source=f"{TABLE_3} as printed; Eq. 12",
    axes=("L", "D"),
    causal=False,
    learnable="γ",
    use="what the paper's Table 3 calls RMSN; sequences read as a whole",
)
class RMSNormDL(SequenceNorm):
    """Root mean square norm over all channels and positions of one row."""

    def __init__(self, d: int, *, eps: float = 1e-5, affine: bool = True):
        super().__init__(d, eps=eps, affine=affine, bias=False)

    def pooled(self, x: Tensor, lengths: Tensor | None):
        x, m, v, _ = channel_moments(x, lengths)
        return x, None, (v + m.square()).mean(-1, keepdim=True)


@register_norm(
    "GN-token",
    equation=r"y = \gamma_c \frac{x - \mu_{nlg}}{\sqrt{\sigma_{nlg}^2 + \epsilon}} + \beta_c,\quad g \ni c",
    source="Wu & He 2018, per token as in Mamba-2",
    axes=("D/G",),
    causal=True,
    learnable="γ, β",
    use="GN where the future must not be seen: Mamba-2, after the gate",
)
class GroupNormToken(TokenNorm):
    """Group norm over the channel groups of one token. ValueError unless G divides D."""

    def __init__(self, d: int, *, eps: float = 1e-5, affine: bool = True, groups: int = 4):
        check_groups(d, groups)
        super().__init__(d, eps=eps, affine=affine)
        self.groups = groups

    def readable(self, x: Tensor) -> Tensor:
        # not F.group_norm: it computes x·s + (β − μ·s), whose rounding shows with few channels a group
        y = F.layer_norm(x.unflatten(-1, (self.groups, -1)), (self.d // self.groups,), eps=self.eps).flatten(-2)
        return y if self.weight is None else y * self.weight + self.bias


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
    """Divides each token by the p-mean of its channels, 1 ≤ p ≤ ∞: p = 1 by the mean of |x|, p = 2 by the root mean
    square (RMSN), p = ∞ by the largest |x|.

    ε is added to the square of that size for every p, so that p = 2 is RMSN to the digit; the source has none. The
    source allows p > 0; below 1 the gradient at zero is infinite, and p is refused with a ValueError. `bias=True` adds
    β, which the source prints.
    """

    def __init__(self, d: int, *, eps: float = 1e-5, affine: bool = True, p: float = 1.0, bias: bool = False):
        if isinstance(p, bool) or not isinstance(p, int | float) or not p >= 1:
            raise ValueError(
                f"p of the Lp norm must be a number from 1 to infinity, such as 1, 2 or inf, got {shown(p)}"
            )
        check_flag("bias", bias)
        super().__init__(d, eps=eps, affine=affine, bias=bias)
        self.p = float(p)

    def normalize(self, x: Tensor, lengths: Tensor | None, gate: Tensor | None, fork: bool):
        same = blank_padding(x, lengths)
        y = same / torch.hypot(self.size(same), same.new_full((), math.sqrt(self.eps)))
        y = y if self.weight is None else y * self.weight
        return finish(y if self.bias is None else y + self.bias, x, gate, fork)

    def size(self, x: Tensor) -> Tensor:
        """(mean_c |x|^p)^(1/p) of each token, (B, L, D) → (B, L, 1)."""
        if self.p == 1:
            return x.abs().mean(-1, keepdim=True)
        largest = x.abs().amax(-1, keepdim=True)
        if math.isinf(self.p):
            return largest
        tiny = torch.finfo(x.dtype).tiny  # for a token of zeros: its gradient is then 0, not 0/0
        unit = largest.detach().clamp(min=tiny)  # the p-mean of x is that of x/unit times unit: no power can overflow
        return unit * (x / unit).abs().pow(self.p).mean(-1, keepdim=True).clamp(min=tiny).pow(1 / self.p)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, p={self.p:g}"


@register_norm(
    "Scale",
    equation=r"y = \gamma_c\,x",
    source="LayerScale, Touvron et al. 2021; ReZero, Bachlechner et al. 2021, is `scalar=True`",
    axes=(),
    causal=True,
    learnable="γ",
    use="the control: does it take a statistic, or only a gain that is learned?",
)
class Scale(Norm):
    """A norm's learned gain without the norm, x (B, L, D) → (B, L, D): it tells normalizing from scaling.

    γ is one number a channel (LayerScale, Touvron et al. 2021); with `scalar=True` it is one number, `alpha`
    (ReZero, Bachlechner et al. 2021). `init`: where it starts. None = 1, as the γ of every norm, so that it
    begins as None does; and 0 with `scalar`, as ReZero has it. LayerScale starts at 0.1 up to 18 blocks, at 1e-5 up to
    24 and at 1e-6 beyond. Both papers put it at the end of a residual branch; here it stands where the arm has it.

    With `affine=False` nothing is left to learn: it is the identity, as `None` is. ValueError if `init` is given then,
    or is not finite.
    """

    def __init__(self, d: int, *, affine: bool = True, scalar: bool = False, init: float | None = None):
        check_flag("scalar", scalar)
        start = (0.0 if scalar else 1.0) if init is None else init
        check_values(affine=affine, init=start)
        if init is not None and not affine:
            raise ValueError(f"init={init!r} is where the gain of Scale starts: with affine=False there is none")
        super().__init__(d, eps=0.0, affine=affine and not scalar, bias=False)
        self.alpha = nn.Parameter(torch.tensor([float(start)])) if affine and scalar else None
        if self.weight is not None:
            nn.init.constant_(self.weight, start)

    def normalize(self, x: Tensor, lengths: Tensor | None, gate: Tensor | None, fork: bool):
        gain = self.weight if self.alpha is None else self.alpha
        return finish(x if gain is None else blank_padding(x, lengths) * gain, x, gate, fork)

    def extra_repr(self) -> str:
        return f"{self.d}, affine={self.weight is not None or self.alpha is not None}, scalar={self.alpha is not None}"
