"""The norms of the paper's Table 3, and LN, RMSN and GN over other axes.

The norms are None, BN, IN, LN, RMSN and GN, then LN-DL, RMSN-DL and GN-token. base.py has their
base classes `TokenNorm` and `SequenceNorm`, which differ in the axes of a statistic (the paper's
Fig. 2).

LN and RMSN are per token, as in all Mamba code. The paper's Table 3 prints statistics Π(X) over D·L
instead: these norms are LN-DL and RMSN-DL here (I14 in docs/paper.md). GN takes its statistics
over L as well, as torch's GroupNorm does; GN-token takes them per token, as Mamba-2's norm does.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mambanorm.checks import check_flag, check_size, is_ordinary
from mambanorm.norms.base import (
    Norm,
    SequenceNorm,
    Statistics,
    TokenNorm,
    check_groups,
    check_values,
)
from mambanorm.norms.masked_moments import (
    channel_moments,
    is_recomputed,
    pool_batch,
    pool_channels,
    update_running,
)
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
    """The identity, y = x, with the signature and the checks of all other norms."""

    def __init__(self, d: int):
        super().__init__(d, affine=False)

    def normalize(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        return x


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
    """Batch norm over B and L, as torch.nn.BatchNorm1d.

    Training mode normalizes with the batch's biased variance, but updates the running variance with
    the unbiased variance; `momentum` is the weight of the new value. Eval mode normalizes with the
    running statistics.

    This class is not a subclass of torch's BatchNorm1d, which expects (B, D, L) and takes no
    lengths. So torch's update_bn and convert_sync_batchnorm ignore this class. In place of
    update_bn, use mambanorm_clinic's `update_statistics`. Processes do not share statistics.
    """

    def __init__(self, d: int, *, eps: float = 1e-5, affine: bool = True, momentum: float = 0.1):
        super().__init__(d, eps=eps, affine=affine)
        self.momentum = momentum
        self.running_mean = nn.Buffer(torch.zeros(d))
        self.running_var = nn.Buffer(torch.ones(d))
        self.num_batches_tracked = nn.Buffer(torch.tensor(0))

    def pool_statistics(self, x: Tensor, lengths: Tensor | None) -> Statistics:
        if not self.training:
            return x, self.running_mean, self.running_var
        moments = channel_moments(x, lengths)
        mean, var = pool_batch(moments)
        count = batch_count(x, lengths, "BN")
        if not is_recomputed():
            with torch.no_grad():
                self.num_batches_tracked.add_(1)
                update_running(self.running_mean, mean, self.momentum)
                update_running(self.running_var, var * (count / (count - 1)), self.momentum)
        return moments.x, mean, var


def batch_count(x: Tensor, lengths: Tensor | None, name: str) -> int | Tensor:
    """Return the number of values per channel in a batch statistic: the valid positions of x.

    `name` is the norm's name in the message. Raises ValueError for a single value, whose variance
    is 0. Lengths on a GPU or in compiled code are not checked.
    """
    count = x.shape[0] * x.shape[1] if lengths is None else lengths.sum()
    is_readable = not isinstance(count, Tensor) or (count.is_cpu and is_ordinary(count))
    if is_readable and count < 2:
        raise ValueError(
            f"{name} in training needs more than one value per channel, got B·L = 1 "
            f"(shape {tuple(x.shape)}): use a larger batch, a longer sequence, or a norm that "
            "takes its statistics over D"
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
    """Instance norm: statistics of each channel of each row over L.

    The norm has no running statistics, so training and eval mode are the same. `centre=False` does
    not subtract μ and `scale=False` does not divide by σ, to separate the two effects.
    """

    def __init__(
        self,
        d: int,
        *,
        eps: float = 1e-5,
        affine: bool = True,
        centre: bool = True,
        scale: bool = True,
    ):
        check_values(centre=centre, scale=scale)
        super().__init__(d, eps=eps, affine=affine)
        self.centre, self.scale = centre, scale

    def pool_statistics(self, x: Tensor, lengths: Tensor | None) -> Statistics:
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
    """Layer norm over the channels of one token; equal to torch.nn.LayerNorm(d)."""

    fused = True

    def __init__(self, d: int, *, eps: float = 1e-5, affine: bool = True):
        super().__init__(d, eps=eps, affine=affine)

    def reference(self, x: Tensor) -> Tensor:
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
    """Root mean square norm over the channels of one token, as torch.nn.RMSNorm(d, eps=1e-5).

    The norm has no β, as in Mamba code; `bias=True` adds a β. group_size: number of channels that
    share a statistic, as in mamba-ssm's RMSNormGated; None means all. It must divide d.
    """

    centred = False
    fused = True

    def __init__(
        self,
        d: int,
        *,
        eps: float = 1e-5,
        affine: bool = True,
        bias: bool = False,
        group_size: int | None = None,
    ):
        check_flag("bias", bias)
        super().__init__(d, eps=eps, affine=affine, bias=bias)
        if group_size is not None:
            check_size("group_size", group_size)
            if d % group_size:
                raise ValueError(f"group_size must divide the {d} channels, got {group_size}")
            self.groups = d // group_size

    def reference(self, x: Tensor) -> Tensor:
        if self.weight is not None:
            x = x.to(self.weight.dtype)  # autocast mixes dtypes, which is slow on CUDA
        if self.groups > 1:
            y = F.rms_norm(
                x.unflatten(-1, (self.groups, -1)), (self.d // self.groups,), eps=self.eps
            )
            return self.apply_affine(y.flatten(-2))
        y = F.rms_norm(x, (self.d,), self.weight, self.eps)
        return y if self.bias is None else y + self.bias


@register_norm(
    "GN",
    equation=r"y = \gamma_c \frac{x - \mu_{ng}}{\sqrt{\sigma_{ng}^2 + \epsilon}} + \beta_c,"
    r"\quad g \ni c",
    source=f"Wu & He 2018; {TABLE_3}; Eq. 9",
    axes=("L", "D/G"),
    causal=False,
    learnable="γ, β",
    use="images in small batches, sequences read as a whole",
)
class GroupNorm(SequenceNorm):
    """Group norm: statistics of each channel group of each row over L and D/G.

    As torch.nn.GroupNorm and Eq. 9 of the paper. Raises ValueError unless G divides D.
    """

    def __init__(self, d: int, *, eps: float = 1e-5, affine: bool = True, groups: int = 4):
        check_groups(d, groups)
        super().__init__(d, eps=eps, affine=affine)
        self.groups = groups

    def pool_statistics(self, x: Tensor, lengths: Tensor | None) -> Statistics:
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

    def pool_statistics(self, x: Tensor, lengths: Tensor | None) -> Statistics:
        x, m, v, _ = channel_moments(x, lengths)
        return x, None, (v + m.square()).mean(-1, keepdim=True)


@register_norm(
    "GN-token",
    equation=r"y = \gamma_c \frac{x - \mu_{nlg}}{\sqrt{\sigma_{nlg}^2 + \epsilon}} + \beta_c,"
    r"\quad g \ni c",
    source="Wu & He 2018, per token as in Mamba-2",
    axes=("D/G",),
    causal=True,
    learnable="γ, β",
    use="GN where the future must not be seen: Mamba-2, after the gate",
)
class GroupNormToken(TokenNorm):
    """Group norm over the channel groups of one token.

    Raises ValueError unless G divides D.
    """

    fused = True

    def __init__(self, d: int, *, eps: float = 1e-5, affine: bool = True, groups: int = 4):
        check_groups(d, groups)
        super().__init__(d, eps=eps, affine=affine)
        self.groups = groups

    def reference(self, x: Tensor) -> Tensor:
        # not F.group_norm: its x·s + (β − μ·s) loses digits if a group has few channels
        y = F.layer_norm(x.unflatten(-1, (self.groups, -1)), (self.d // self.groups,), eps=self.eps)
        return self.apply_affine(y.flatten(-2))
