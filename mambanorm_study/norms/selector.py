"""Norms of AutoNorm (study source S2) and what it is made of: functions of one token, learned,
without its statistics.

The source writes DyT(x) = x ⊙ α, and calls it "Dynamic Transformer Normalization". The published
DyT is Dynamic Tanh (Zhu et al. 2025, Transformers without Normalization), which is the default;
`linear=True` is the source's. The source's public code applies its selector once and blends even
where it is called frozen; its text is built here.

All three look at one token only. They are causal, and padding cannot matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from mambanorm.checks import check_flag
from mambanorm.errors import unknown
from mambanorm.norms.base import Norm
from mambanorm.norms.classic import LayerNorm
from mambanorm.norms.masked_moments import blank_padding, is_recomputed
from mambanorm.norms.registry import register_norm

MODES = ("learned", "disable", "random", "fixed")


@contextmanager
def fresh_numbers() -> Iterator[None]:
    """Random numbers of their own for what is made inside. The stream outside moves by one number,
    whatever is drawn; so what follows starts the same beside any norm, and repeats nothing."""
    seed = int(torch.randint(2**62, (), device="cpu"))  # also where models are built on meta
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@register_norm(
    "DyT",
    equation=r"y = \gamma_c \tanh(\alpha x) + \beta_c",
    source="Zhu et al. 2025; x ⊙ α, as S2 has it, is `linear=True`",
    axes=(),
    causal=True,
    learnable="γ, β, α",
    use="Transformers without any statistic",
)
class DyT(Norm):
    """Dynamic Tanh: every number for itself, no statistic. α is one number; with `linear=True` it
    is one a channel, and the norm is x ⊙ α without γ and β. α starts at 0.5, and at 1 with `linear`
    (the identity)."""

    def __init__(self, d: int, *, affine: bool = True, linear: bool = False):
        check_flag("affine", affine), check_flag("linear", linear)
        super().__init__(d, affine=affine and not linear)
        self.linear = linear
        self.alpha = nn.Parameter(torch.full((d,), 1.0) if linear else torch.full((1,), 0.5))

    def normalize(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        return self.bounded(blank_padding(x, lengths))

    def bounded(self, x: Tensor) -> Tensor:
        return self.scaled(x * self.alpha if self.linear else torch.tanh(self.alpha * x))


@register_norm(
    "Derf",
    equation=r"y = \gamma_c\,\mathrm{erf}(\alpha x + s) + \beta_c",
    source="Chen et al. 2025, Stronger Normalization-Free Transformers",
    axes=(),
    causal=True,
    learnable="γ, β, α, s",
    use="as DyT, with erf and a shift",
)
class Derf(Norm):
    """The error function in DyT's place, with a learned shift s of its argument, α = 0.5 and s = 0
    at the start."""

    def __init__(self, d: int, *, affine: bool = True):
        super().__init__(d, affine=affine)
        self.alpha = nn.Parameter(torch.tensor([0.5]))
        self.shift = nn.Parameter(torch.tensor([0.0]))

    def normalize(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        return self.scaled(torch.erf(self.alpha * blank_padding(x, lengths) + self.shift))


@register_norm(
    "NormSelector",
    equation=r"y = w_0\,\mathrm{DyT}(x) + w_1\,\mathrm{LN}(x),\quad w = \mathrm{softmax}(\mathrm{MLP}(x_{nl}))",
    source="S2, AutoNorm, §IV.A",
    axes=("D",),
    causal=True,
    learnable="those of DyT and LN, an MLP",
    use="a research question: does a choice for each token help?",
)
class NormSelector(Norm):
    """Two norms blended by weights that depend on the token, x (B, L, D) → (B, L, D).

    mode: "learned", from ½ each at the start; "disable", LN alone, bit for bit; "random", one draw
    w₀ ~ U(0, 1) for each forward pass in training and its mean ½ in eval; "fixed", ½ always (our
    control). The MLP's width is D/4, at least 4. `linear`: DyT as the source states it. The draws
    depend on the torch seed at construction and on their number alone, and go on after a
    checkpoint. `observer("selector", w)` is shown the weights (B, L, 2) of each forward pass.
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
            with fresh_numbers():
                self.selector = nn.Sequential(nn.Linear(d, hidden), nn.GELU(), nn.Linear(hidden, 2))
            for parameter in self.selector[-1].parameters():  # what is not ½ was learned
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
        return torch.addcmul(
            self.ln.normalize(blank, None) * w[..., 1:], self.dyt.bounded(blank), w[..., :1]
        )

    def weights(self, x: Tensor) -> Tensor:
        """w₀ of DyT and w₁ of LN, (B, L, 2)."""
        if self.mode == "learned":
            return self.selector(x).softmax(-1)
        first = {"disable": 0.0, "fixed": 0.5}.get(self.mode)
        first = (self._draw() if self.training else 0.5) if first is None else first
        return x.new_tensor([first, 1 - first]).expand(*x.shape[:2], 2)

    def _draw(self) -> float:
        """Return the next of the draws, from a generator of its own: nothing else's random numbers
        move."""
        if is_recomputed():
            told = "the random weights of NormSelector cannot be drawn again: leave this norm out of activation "
            raise RuntimeError(f"{told}checkpointing, or use mode='fixed'")
        own = torch.Generator().manual_seed((int(self.seed) + int(self.draws)) % 2**62)
        self.draws += 1
        return float(torch.rand((), generator=own))
