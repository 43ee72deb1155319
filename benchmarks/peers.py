"""What is measured, built: our code, the peers, the floor under them, the naive twin of NormVary.

`prepare(case)` builds the weights of a case and returns `bind(batch, length)`, which makes the
inputs of one size and returns the thing to be timed. So one model is warmed up at a tiny size,
judged at a small one and timed at its own.

Every model is stem (one real feature → D) → 4 layers → mean over positions → head, trained by the
same AdamW; ours is the arm RMSN>SSM>None, the original Mamba, which is what the peers have.
transformers adds a last RMSNorm. A peer that is not installed raises Missing. Weights are random,
nothing is downloaded.

The floor is every matrix product that such a step cannot do without: for each layer in_proj,
x_proj, dt_proj and out_proj, forward, and backward for the input and for the weight. Nothing else:
no scan, no norm, no optimizer.

Sources of the peers: alxndrTL/mamba.py, `mambapy/mamba.py`; huggingface/transformers,
`models/mamba/modeling_mamba.py`.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.cases import NAIVE, Case
from mambanorm import Arm, MambaBlock, SequenceClassifier, create_norm, selective_scan
from mambanorm_clinic import watch
from mambanorm_study import Mamba2Block

CLASSES = 10
HEAD_DIM = 16  # channels of a head of Mamba-2, as the study has them
Run = Callable[[], object]
Bind = Callable[[int, int], Run]


class Missing(Exception):
    """A peer that is not installed."""


def peer(module: str) -> ModuleType:
    """Somebody else's module. Raises Missing with how to get it."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise Missing(f'no {package} here ({error}): pip install -e ".[bench]"') from None


def prepare(case: Case) -> Bind:
    """The weights of a case; `bind(batch, length)` then gives what is to be timed. Raises
    Missing."""
    torch.manual_seed(0)
    return KINDS[case.kind](case)


# --------------------------------------------------------------------------------------------------
# the scan alone


def prepare_scan(case: Case, *, backward: bool = True) -> Bind:
    """Forward and backward with gradients of every input, or forward without a graph; no gate, bias
    and softplus, for mambapy's function has none."""
    scan = SCANS[case.name]()

    def bind(batch: int, length: int) -> Run:
        inputs = scan_inputs(batch, length, case.width, case.state)
        direction = torch.randn(batch, length, case.width)
        if backward:
            return lambda: torch.autograd.grad(scan(*inputs), inputs, direction)
        return torch.no_grad()(lambda: scan(*inputs))

    return bind


def scan_inputs(batch: int, length: int, width: int, state: int) -> list[Tensor]:
    """Inputs as a Mamba layer makes them, channels last: u, delta (B, L, D), A (D, N), B, C (B, L,
    N), D (D,)."""
    u, B, C = (torch.randn(batch, length, n) for n in (width, state, state))
    delta = torch.rand(batch, length, width) * 0.1
    A = -torch.arange(1.0, state + 1).repeat(width, 1)
    return [x.requires_grad_() for x in (u, delta, A, B, C, torch.ones(width))]


def through(backend: str) -> Callable[..., Tensor]:
    """`selective_scan` with one back end, taking and returning (B, L, D)."""

    def scan(u, delta, A, B, C, D):
        rows = (x.transpose(1, 2) for x in (u, delta))
        return selective_scan(
            *rows, A, B.transpose(1, 2), C.transpose(1, 2), D, backend=backend
        ).transpose(1, 2)

    return scan


def mambapy_scan() -> Callable[..., Tensor]:
    """The scan as mambapy's model writes it."""
    pscan = peer("mambapy.pscan").pscan

    def scan(u, delta, A, B, C, D):
        deltaA = torch.exp(delta.unsqueeze(-1) * A)  # (B, L, D, N)
        BX = delta.unsqueeze(-1) * B.unsqueeze(2) * u.unsqueeze(-1)
        return (pscan(deltaA, BX) @ C.unsqueeze(-1)).squeeze(3) + D * u

    return scan


SCANS = {
    "ours": lambda: through("cpu"),
    "reference": lambda: through("reference"),
    "mambapy": mambapy_scan,
}


# --------------------------------------------------------------------------------------------------
# the whole step


def prepare_step(case: Case) -> Bind:
    """Forward, backward and AdamW of a model; of the floor, its matrix products."""
    if case.name == "floor":
        return lambda batch, length: floor(batch * length, case.width, case.state, case.layers)
    model = MODELS[case.name](case)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    if case.name == "watched":
        # never left: what is timed is a step inside it, a hundredth of a copy of the weights left
        # out
        watch(model, optimizer, folder=Path(tempfile.gettempdir()) / "mambanorm-watch").__enter__()

    def bind(batch: int, length: int) -> Run:
        inputs, labels = torch.randn(batch, length, 1), torch.randint(CLASSES, (batch,))

        def run() -> None:
            loss = F.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        return run

    return bind


def ours(case: Case) -> nn.Module:
    sizes = dict(d_model=case.width, n_layers=case.layers, d_state=case.state)
    return SequenceClassifier(CLASSES, in_features=1, arm="RMSN>SSM>None", **sizes)


class Wrapped(nn.Module):
    """A peer's layers between our stem and our head."""

    def __init__(
        self,
        width: int,
        layers: nn.Module,
        call: Callable[[nn.Module, Tensor], Tensor] | None = None,
    ):
        super().__init__()
        self.stem, self.layers, self.head = nn.Linear(1, width), layers, nn.Linear(width, CLASSES)
        self.call = call or nn.Module.__call__

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.call(self.layers, self.stem(x)).mean(1))  # (B, L, D) inside


def mambapy(case: Case) -> nn.Module:
    module = peer("mambapy.mamba")
    config = module.MambaConfig(
        d_model=case.width, n_layers=case.layers, d_state=case.state, pscan=True
    )
    return Wrapped(case.width, module.Mamba(config))


def transformers(case: Case, *, use_mambapy: bool = False) -> nn.Module:
    """transformers' model: by default a loop over the positions, with `use_mambapy` mambapy's
    scan."""
    if use_mambapy:
        peer("mambapy.pscan")
    os.environ.setdefault(
        "HF_HUB_OFFLINE", "1"
    )  # read on import: it may look for kernels to download
    module = peer("transformers.models.mamba")
    peer("transformers").logging.set_verbosity_error()  # that there is no fast path is known
    sizes = dict(hidden_size=case.width, num_hidden_layers=case.layers, state_size=case.state)
    config = module.MambaConfig(vocab_size=1, pad_token_id=0, **sizes, use_mambapy=use_mambapy)
    model = module.MambaModel(config)
    return Wrapped(
        case.width,
        model,
        lambda model, x: model(inputs_embeds=x, use_cache=False).last_hidden_state,
    )


MODELS = {
    "ours": ours,
    "watched": ours,
    "mambapy": mambapy,
    "transformers": transformers,
    "transformers+mambapy": lambda case: transformers(case, use_mambapy=True),
}


# --------------------------------------------------------------------------------------------------
# the floor


def gemms(width: int, state: int) -> dict[str, tuple[int, int]]:
    """The weights of one layer that are applied to every token: name → (out, in)."""
    inner, rank = 2 * width, math.ceil(width / 16)
    shapes = {"in_proj": (2 * inner, width), "x_proj": (rank + 2 * state, inner)}
    return shapes | {"dt_proj": (inner, rank), "out_proj": (width, inner)}


def floor(tokens: int, width: int, state: int, layers: int) -> Run:
    """Every matrix product of a step by `torch.mm(…, out=)`, in the order of the step.

    All matrices are allocated beforehand, and each layer has its own, so that the caches are no
    warmer than in a step.
    """
    matrices = [
        [_matrices(tokens, *shape) for shape in gemms(width, state).values()]
        for _ in range(layers)
    ]  # fmt: skip

    def run() -> None:
        for layer in matrices:
            for x, weight, y, _, _ in layer:
                torch.mm(x, weight.t(), out=y)
        for layer in reversed(matrices):
            for x, weight, y, x_grad, weight_grad in reversed(
                layer
            ):  # y stands for its own gradient
                torch.mm(y, weight, out=x_grad)
                torch.mm(y.t(), x, out=weight_grad)

    return run


def _matrices(tokens: int, n_out: int, n_in: int) -> tuple[Tensor, ...]:
    """Input, weight, output, gradient of the input, gradient of the weight."""
    x, weight = torch.randn(tokens, n_in), torch.randn(n_out, n_in) / math.sqrt(n_in)
    return x, weight, torch.zeros(tokens, n_out), torch.zeros_like(x), torch.zeros_like(weight)


# --------------------------------------------------------------------------------------------------
# norms


def prepare_module(case: Case) -> Bind:
    """Forward and backward of one block or one norm, with the gradients of its input and of its
    parameters.

    The gradient that comes in is a tensor of random numbers: that of a sum would be one number,
    seen everywhere.
    """
    if case.kind == "block":
        module = MambaBlock(case.width, *Arm.parse(case.name), d_state=case.state)
    elif case.kind == "mamba2":
        module = MAMBA2[case.name](case.width, d_state=case.state)
    else:
        module = (
            NaiveMixture(case.width) if case.name == NAIVE else create_norm(case.name, case.width)
        )
    parameters = [p for p in module.parameters() if p.requires_grad]

    def bind(batch: int, length: int) -> Run:
        x = torch.randn(batch, length, case.width, requires_grad=True)
        direction = torch.randn(batch, length, case.width)
        return lambda: torch.autograd.grad(module(x), [x, *parameters], direction)

    return bind


def scan_chunked(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, chunk: int = 64
) -> Tensor:
    """Mamba-2's scan in its own form, plain torch: matrix products inside chunks, a recurrence only
    between them.

    One decay rate a head makes the scan a masked matrix product (Dao & Gu 2024, "Transformers are
    SSMs", section 6):

    (1)  a_t = Δ_t·A,   decay from s to t:  exp(a_(s+1) + … + a_t)
    (2)  inside a chunk     y_t  = Σ_(s≤t) (C_t·B_s) · decay(s→t) · Δ_s·u_s
    (3)  from before it     y_t += decay(start→t) · C_t·h,    h the state at the chunk's start
    (4)  to the next chunk  h    = decay(start→end) · h + Σ_s decay(s→end) · Δ_s·u_s ⊗ B_s
    (5)  y_t += D·u_t

    u (B, L, H, P) of H heads of P channels, delta (B, L, H) behind its softplus, A and D (H,), B
    and C (B, L, G, N) → y (B, L, H, P). Any L: the last chunk may be shorter. It keeps T·T numbers
    a head for each chunk of T positions, the selective scan none.
    """
    heads = u.shape[2] // B.shape[2]
    B, C = (m.repeat_interleave(heads, dim=2) for m in (B, C))  # (B, L, H, N)
    whole = (u * delta[..., None], delta * A, B, C)
    h, ys = u.new_zeros(len(u), *u.shape[2:], B.shape[-1]), []  # (B, H, P, N)
    for x, a, b, c in zip(*(tensor.split(chunk, dim=1) for tensor in whole), strict=True):
        since = a.cumsum(1)  # (B, T, H): log of the decay since the chunk's start (1)
        later = torch.ones(a.shape[1], a.shape[1], dtype=torch.bool, device=a.device).triu(1)
        # masked before exp: forward in time it overflows
        between = (
            (since[:, :, None] - since[:, None]).masked_fill(later[..., None], -torch.inf).exp()
        )  # (B, T, S, H)
        scores = torch.einsum("bthn,bshn->btsh", c, b) * between
        inside = torch.einsum("btsh,bshp->bthp", scores, x)  # (2)
        before = torch.einsum("bthn,bhpn->bthp", c * since.exp()[..., None], h)  # (3)
        left = (since[:, -1:] - since).exp()[..., None]  # (B, T, H, 1): decay to the chunk's end
        h = since[:, -1].exp()[..., None, None] * h + torch.einsum(
            "bshp,bshn->bhpn", x * left, b
        )  # (4)
        ys.append(inside + before)
    return torch.cat(ys, dim=1) + D[:, None] * u  # (5)


class ChunkedMamba2(Mamba2Block):
    """Mamba-2's block with its scan in the plain chunked form, `chunk` positions at a time."""

    chunk = 64

    def scan(
        self, u: Tensor, dt: Tensor, B: Tensor, C: Tensor, at: Callable, context: None
    ) -> Tensor:
        delta, u = (
            at("step_size", F.softplus(dt + self.dt_bias)),
            u.unflatten(-1, (self.n_heads, self.head_dim)),
        )
        B, C = (m.unflatten(-1, (self.n_groups, self.d_state)) for m in (B, C))
        return scan_chunked(u, delta, -torch.exp(self.A_log), B, C, self.D, self.chunk).flatten(2)


MAMBA2 = {
    "ours": lambda width, d_state: Mamba2Block(width, d_state=d_state, head_dim=HEAD_DIM),
    "chunked": lambda width, d_state: ChunkedMamba2(width, d_state=d_state, head_dim=HEAD_DIM),
    "Mamba-1": lambda width, d_state: MambaBlock(width, d_state=d_state),
}


class NaiveMixture(nn.Module):
    """NormVary as one would first write it: five norms' statistics, each computed from x on its own
    (Eq. 8–16)."""

    def __init__(self, d: int, *, eps: float = 1e-5, groups: int = 4, momentum: float = 0.1):
        super().__init__()
        self.eps, self.groups, self.momentum = eps, groups, momentum
        self.gamma, self.beta = nn.Parameter(torch.ones(d)), nn.Parameter(torch.zeros(d))
        self.mean_logits, self.var_logits = (
            nn.Parameter(torch.zeros(5)),
            nn.Parameter(torch.zeros(5)),
        )
        self.register_buffer("running_mean", torch.zeros(d))
        self.register_buffer("running_var", torch.ones(d))

    def forward(self, x: Tensor) -> Tensor:
        members = [
            self.batch(x),
            self.group(x),
            moments(x, 1),
            moments(x, (1, 2)),
            root_mean_square(x),
        ]
        w_mean, w_var = self.mean_logits.softmax(0), self.var_logits.softmax(0)
        mean = sum(w * m for w, (m, _) in zip(w_mean, members, strict=True))
        var = sum(w * v for w, (_, v) in zip(w_var, members, strict=True))
        return (x - mean) / torch.sqrt(var + self.eps) * self.gamma + self.beta

    def batch(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Statistics over B and L; the running ones follow."""
        mean, var = moments(x, (0, 1))
        with torch.no_grad():
            self.running_mean.lerp_(mean.view(-1), self.momentum)
            self.running_var.lerp_(var.view(-1), self.momentum)
        return mean, var

    def group(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Statistics over L and a group of channels, repeated to every channel."""
        B, L, D = x.shape
        per_group = moments(x.view(B, L, self.groups, D // self.groups), (1, 3))
        return tuple(
            s.expand(B, 1, self.groups, D // self.groups).reshape(B, 1, D) for s in per_group
        )


def moments(x: Tensor, axes: int | tuple[int, ...]) -> tuple[Tensor, Tensor]:
    return x.mean(axes, keepdim=True), x.var(axes, correction=0, keepdim=True)


def root_mean_square(x: Tensor) -> tuple[float, Tensor]:
    """Eq. 12: no mean."""
    return 0.0, x.square().mean((1, 2), keepdim=True)


KINDS: dict[str, Callable[[Case], Bind]] = {
    "scan": prepare_scan,
    "scan forward": lambda case: prepare_scan(case, backward=False),
    "step": prepare_step,
    "block": prepare_module,
    "norm": prepare_module,
    "mamba2": prepare_module,
}
