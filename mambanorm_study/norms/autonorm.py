"""NormSelector, which blends DyT and LN, and two norms without statistics, DyT and Derf.

NormSelector is the norm of AutoNorm (source S2 in docs/sources.md). S2 writes DyT(x) = x ⊙ α and
calls it "Dynamic Transformer Normalization". The published DyT is Dynamic Tanh (Zhu et al. 2025,
Transformers without Normalization). Dynamic Tanh is the default here; `linear=True` gives x ⊙ α.
S2's public code applies the selector only once, and the models that it names "frozen" also blend
DyT and LN. This file follows S2's text, not S2's public code.

Each of the three norms reads one token at a time, so it is causal, and padding has no effect.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from mambanorm.errors import unknown
from mambanorm.norms.base import Norm
from mambanorm.norms.classic import LayerNorm
from mambanorm.norms.masked_moments import blank_padding, is_recomputed
from mambanorm.norms.registry import register_norm

MODES = ("learned", "disable", "random", "fixed")


@contextmanager
def separate_random_numbers() -> Iterator[None]:
    """Draw random numbers inside the `with` block from a separate stream.

    The global stream advances by one number, the seed of the separate stream. So weights that are
    initialized after the `with` block do not depend on what the block draws, and do not repeat the
    numbers drawn there.
    """
    # drawn on the CPU, because tensors on torch's meta device have no values
    seed = int(torch.randint(2**62, (), device="cpu"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@register_norm(
    "DyT",
    equation=r"y = \gamma_c \tanh(\alpha x) + \beta_c",
    source="Zhu et al. 2025; `linear=True` gives S2's x ⊙ α",
    axes=(),
    causal=True,
    learnable="γ, β, α",
    use="Transformers without any statistic",
)
class DyT(Norm):
    """Dynamic Tanh: each value is transformed independently, without a statistic.

    α is one number and starts at 0.5. With `linear=True` the norm is x ⊙ α without γ and β; then α
    has one number per channel and starts at 1, so the norm starts as the identity.
    """

    def __init__(self, d: int, *, affine: bool = True, linear: bool = False):
        super().__init__(d, affine=affine and not linear)
        self.linear = linear
        self.alpha = nn.Parameter(torch.full((d,), 1.0) if linear else torch.full((1,), 0.5))

    def normalize(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        return self.transform(blank_padding(x, lengths))

    def transform(self, x: Tensor) -> Tensor:
        """Return γ ⊙ tanh(α·x) + β, or x ⊙ α if `linear`. The padding of x must be zero."""
        return self.apply_affine(x * self.alpha if self.linear else torch.tanh(self.alpha * x))


@register_norm(
    "Derf",
    equation=r"y = \gamma_c\,\mathrm{erf}(\alpha x + s) + \beta_c",
    source="Chen et al. 2025, Stronger Normalization-Free Transformers",
    axes=(),
    causal=True,
    learnable="γ, β, α, s",
    use="where DyT is used; has erf instead of tanh, and a shift",
)
class Derf(DyT):
    """Return γ ⊙ erf(α·x + s) + β: DyT with the error function instead of tanh, and with a shift s.

    α and s are learned, one number each; α starts at 0.5, s at 0.
    """

    def __init__(self, d: int, *, affine: bool = True):
        super().__init__(d, affine=affine)
        self.shift = nn.Parameter(torch.tensor([0.0]))

    def transform(self, x: Tensor) -> Tensor:
        """Return γ ⊙ erf(α·x + s) + β. The padding of x must be zero."""
        return self.apply_affine(torch.erf(self.alpha * x + self.shift))


@register_norm(
    "NormSelector",
    equation=r"y = w_0\,\mathrm{DyT}(x) + w_1\,\mathrm{LN}(x),"
    r"\quad w = \mathrm{softmax}(\mathrm{MLP}(x_{nl}))",
    source="S2, AutoNorm, §IV.A",
    axes=("D",),
    causal=True,
    learnable="the parameters of DyT and LN, and an MLP",
    use="a research question: does it help to weight DyT and LN for each token?",
)
class NormSelector(Norm):
    """Return w₀·DyT(x) + w₁·LN(x), x (B, L, D) → (B, L, D), with w₀ + w₁ = 1.

    mode: "learned": an MLP (the selector; its hidden width is D/4, at least 4) computes the weights
    of each token, and both start at ½. "disable": LN alone, bit for bit. "random": each forward
    pass in training draws one w₀ ~ U(0, 1); in eval both weights are ½. "fixed": both weights are
    always ½ (our control). linear: if True, DyT is x ⊙ α, as in source S2 (docs/sources.md).

    The random weights depend only on the torch seed at construction and on the number of earlier
    draws, so a run that resumes from a checkpoint continues their sequence. If `observer` is set,
    each forward pass calls `observer("selector", w)` with the weights (B, L, 2).
    """

    members = ("DyT", "LN")
    sites = ("selector",)

    def __init__(
        self,
        d: int,
        *,
        eps: float = 1e-5,
        affine: bool = True,
        mode: str = "learned",
        linear: bool = False,
    ):
        if mode not in MODES:
            raise unknown("mode of NormSelector", mode, MODES)
        super().__init__(d, eps=eps, affine=False)
        self.mode = mode
        self.observer: Callable[[str, Tensor], None] | None = None
        self.ln = LayerNorm(d, eps=eps, affine=affine)
        if mode != "disable":
            self.dyt = DyT(d, affine=affine, linear=linear)
        if mode == "learned":
            hidden = max(4, d // 4)
            with separate_random_numbers():
                self.selector = nn.Sequential(nn.Linear(d, hidden), nn.GELU(), nn.Linear(hidden, 2))
            for parameter in self.selector[-1].parameters():  # both weights start at ½
                nn.init.zeros_(parameter)
        if mode == "random":
            self.register_buffer("seed", torch.randint(2**62, ()))
            self.register_buffer("draws", torch.tensor(0))

    def normalize(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        blank = blank_padding(x, lengths)
        w = self.weights(blank)
        if self.observer is not None:
            self.observer("selector", w)
        if self.mode == "disable":
            return self.ln.normalize(x, lengths)
        ln = self.ln.normalize(blank, None)
        return torch.addcmul(ln * w[..., 1:], self.dyt.transform(blank), w[..., :1])

    def weights(self, x: Tensor) -> Tensor:
        """Return the weights w₀ of DyT and w₁ of LN for each token of x, (B, L, 2)."""
        if self.mode == "learned":
            return self.selector(x).softmax(-1)
        w0 = 0.0 if self.mode == "disable" else 0.5
        if self.mode == "random" and self.training:
            w0 = self._draw_w0()
        return x.new_tensor([w0, 1 - w0]).expand(*x.shape[:2], 2)

    def _draw_w0(self) -> float:
        """Return the next random w₀, which depends on the buffers `seed` and `draws` only."""
        if is_recomputed():
            raise RuntimeError(
                "activation checkpointing cannot draw the random weights of NormSelector again: "
                "leave this norm out of activation checkpointing, or use mode='fixed'"
            )
        generator = torch.Generator().manual_seed((int(self.seed) + int(self.draws)) % 2**62)
        self.draws += 1
        return float(torch.rand((), generator=generator))
