"""The models and kernels that are timed: ours, the peers, and the floor.

`prepare(case)` builds the weights of a case and returns `bind(batch, length)`. `bind` makes inputs
of one size and returns the function that is timed. So one model is warmed up at a tiny size,
estimated at a small one and timed at full size.

Every model is stem (one real feature → D) → 4 layers → mean over positions → head, trained by the
same AdamW. Ours is the arm RMSN>SSM>None, the original Mamba, which is what the peers have;
transformers adds a last RMSNorm. A peer that is not installed raises Missing. Weights are random
and nothing is downloaded.

The floor is every matrix product that such a step needs: for each layer in_proj, x_proj, dt_proj
and out_proj, forward, and backward for the input and for the weight. It has no scan, no norm and no
optimizer.

Sources of the peers: alxndrTL/mamba.py, `mambapy/mamba.py`; huggingface/transformers,
`models/mamba/modeling_mamba.py`.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.cases import NAIVE, Case
from benchmarks.twins import ChunkedMamba2, NaiveMixture
from mambanorm import Arm, MambaBlock, SequenceClassifier, create_norm, selective_scan
from mambanorm_clinic import watch
from mambanorm_study import Mamba2Block

CLASSES = 10
HEAD_DIM = 16  # channels of a head of Mamba-2, as in the study
Run = Callable[[], object]
Bind = Callable[[int, int], Run]


class Missing(Exception):
    """A peer that is not installed."""


def peer(module: str) -> ModuleType:
    """Return a module of another project. Raise Missing, with how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise Missing(f'{package} is not installed ({error}): pip install -e ".[bench]"') from None


def prepare(case: Case) -> Bind:
    """Return `bind(batch, length)` of a case. Raise Missing if a peer is not installed."""
    torch.manual_seed(0)
    return KINDS[case.kind](case)


# --------------------------------------------------------------------------------------------------
# the scan alone


def prepare_scan(case: Case, *, backward: bool = True) -> Bind:
    """Return the scan, forward and backward to every input, or forward without a graph. It has no
    gate, bias or softplus, because mambapy's function has none.
    """
    scan = SCANS[case.name]()

    def bind(batch: int, length: int) -> Run:
        inputs = scan_inputs(batch, length, case.width, case.state)
        direction = torch.randn(batch, length, case.width)
        if backward:
            return lambda: torch.autograd.grad(scan(*inputs), inputs, direction)
        return torch.no_grad()(lambda: scan(*inputs))

    return bind


def scan_inputs(batch: int, length: int, width: int, state: int) -> list[Tensor]:
    """Return inputs as a Mamba layer makes them, channels last: u, delta (B, L, D), A (D, N), B and
    C (B, L, N), D (D,).
    """
    u, B, C = (torch.randn(batch, length, n) for n in (width, state, state))
    delta = torch.rand(batch, length, width) * 0.1
    A = -torch.arange(1.0, state + 1).repeat(width, 1)
    return [x.requires_grad_() for x in (u, delta, A, B, C, torch.ones(width))]


def our_scan(backend: str) -> Callable[..., Tensor]:
    """Return `selective_scan` by one back end, from and to (B, L, D)."""

    def scan(u, delta, A, B, C, D):
        u, delta, B, C = (x.transpose(1, 2) for x in (u, delta, B, C))
        return selective_scan(u, delta, A, B, C, D, backend=backend).transpose(1, 2)

    return scan


def mambapy_scan() -> Callable[..., Tensor]:
    """Return the scan as mambapy's model writes it."""
    pscan = peer("mambapy.pscan").pscan

    def scan(u, delta, A, B, C, D):
        deltaA = torch.exp(delta.unsqueeze(-1) * A)  # (B, L, D, N)
        BX = delta.unsqueeze(-1) * B.unsqueeze(2) * u.unsqueeze(-1)
        return (pscan(deltaA, BX) @ C.unsqueeze(-1)).squeeze(3) + D * u

    return scan


SCANS = {
    "ours": lambda: our_scan("cpu"),
    "reference": lambda: our_scan("reference"),
    "mambapy": mambapy_scan,
}


# --------------------------------------------------------------------------------------------------
# the whole step


def prepare_step(case: Case) -> Bind:
    """Return forward, backward and AdamW of a model, or the matrix products of the floor."""
    if case.name == "floor":
        return lambda batch, length: floor(batch * length, case.width, case.state, case.layers)
    model = MODELS[case.name](case)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    if case.name == "watched":
        # Entered and never left: the steps inside `watch` are timed, the copy of the weights that
        # it makes every 100 steps is not.
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
    """Return our model, the arm RMSN>SSM>None."""
    sizes = dict(d_model=case.width, n_layers=case.layers, d_state=case.state)
    return SequenceClassifier(CLASSES, in_features=1, arm="RMSN>SSM>None", **sizes)


class Wrapped(nn.Module):
    """A peer's layers between our stem and our head; `call(layers, x)` keeps (B, L, D)."""

    def __init__(self, width: int, layers: nn.Module, call: Callable[[nn.Module, Tensor], Tensor]):
        super().__init__()
        self.stem, self.layers, self.head = nn.Linear(1, width), layers, nn.Linear(width, CLASSES)
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of x (B, L, 1)."""
        return self.head(self.call(self.layers, self.stem(x)).mean(1))


def mambapy(case: Case) -> nn.Module:
    """Return mambapy's model."""
    module = peer("mambapy.mamba")
    sizes = dict(d_model=case.width, n_layers=case.layers, d_state=case.state)
    layers = module.Mamba(module.MambaConfig(**sizes, pscan=True))
    return Wrapped(case.width, layers, nn.Module.__call__)


def transformers(case: Case, *, use_mambapy: bool = False) -> nn.Module:
    """Return transformers' model: a loop over the positions, or mambapy's scan."""
    if use_mambapy:
        peer("mambapy.pscan")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # else it may look for kernels to download
    module = peer("transformers.models.mamba")
    peer("transformers").logging.set_verbosity_error()  # it warns that it has no fast path
    sizes = dict(hidden_size=case.width, num_hidden_layers=case.layers, state_size=case.state)
    config = module.MambaConfig(vocab_size=1, pad_token_id=0, **sizes, use_mambapy=use_mambapy)

    def call(model: nn.Module, x: Tensor) -> Tensor:
        return model(inputs_embeds=x, use_cache=False).last_hidden_state

    return Wrapped(case.width, module.MambaModel(config), call)


MODELS = {
    "ours": ours,
    "watched": ours,
    "mambapy": mambapy,
    "transformers": transformers,
    "transformers+mambapy": lambda case: transformers(case, use_mambapy=True),
}


# --------------------------------------------------------------------------------------------------
# the floor


def weight_shapes(width: int, state: int) -> list[tuple[int, int]]:
    """Return the shapes (out, in) of a layer's weights: in_proj, x_proj, dt_proj, out_proj."""
    inner, rank = 2 * width, math.ceil(width / 16)
    return [(2 * inner, width), (rank + 2 * state, inner), (inner, rank), (width, inner)]


@dataclass(frozen=True)
class Product:
    """The matrices of one linear layer and of its backward pass. `y` is also its own gradient,
    because the time does not depend on the numbers.
    """

    x: Tensor
    weight: Tensor
    y: Tensor
    x_grad: Tensor
    weight_grad: Tensor


def random_product(tokens: int, n_out: int, n_in: int) -> Product:
    """Return a linear layer from `n_in` to `n_out` features."""
    x, weight = torch.randn(tokens, n_in), torch.randn(n_out, n_in) / math.sqrt(n_in)
    y = torch.zeros(tokens, n_out)
    return Product(x, weight, y, torch.zeros_like(x), torch.zeros_like(weight))


def floor(tokens: int, width: int, state: int, layers: int) -> Run:
    """Return a function that computes every matrix product of a step, in the order of the step.

    All matrices are allocated beforehand, and each layer has its own, so the caches are no warmer
    than in a step.
    """
    shapes = weight_shapes(width, state) * layers
    products = [random_product(tokens, *shape) for shape in shapes]

    def run() -> None:
        for p in products:
            torch.mm(p.x, p.weight.t(), out=p.y)
        for p in reversed(products):
            torch.mm(p.y, p.weight, out=p.x_grad)
            torch.mm(p.y.t(), p.x, out=p.weight_grad)

    return run


# --------------------------------------------------------------------------------------------------
# blocks and norms


def prepare_module(case: Case) -> Bind:
    """Return forward and backward of one block or one norm, to its input and its parameters.

    The incoming gradient is random, because the gradient of a sum would be the same number
    everywhere.
    """
    if case.kind == "block":
        module = MambaBlock(case.width, *Arm.parse(case.name), d_state=case.state)
    elif case.kind == "mamba2":
        module = MAMBA2[case.name](case.width, d_state=case.state)
    elif case.name == NAIVE:
        module = NaiveMixture(case.width)
    else:
        module = create_norm(case.name, case.width)
    parameters = [p for p in module.parameters() if p.requires_grad]

    def bind(batch: int, length: int) -> Run:
        x = torch.randn(batch, length, case.width, requires_grad=True)
        direction = torch.randn(batch, length, case.width)
        return lambda: torch.autograd.grad(module(x), [x, *parameters], direction)

    return bind


MAMBA2 = {
    "ours": partial(Mamba2Block, head_dim=HEAD_DIM),
    "chunked": partial(ChunkedMamba2, head_dim=HEAD_DIM),
    "Mamba-1": MambaBlock,
}

KINDS: dict[str, Callable[[Case], Bind]] = {
    "scan": prepare_scan,
    "scan forward": lambda case: prepare_scan(case, backward=False),
    "step": prepare_step,
    "block": prepare_module,
    "norm": prepare_module,
    "mamba2": prepare_module,
}
