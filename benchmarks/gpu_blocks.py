"""The part `block` of benchmarks.gpu: training steps of four Mamba blocks beside mamba-ssm's.

mamba-ssm's block is x + Mamba(RMSNorm(x)), which MambaBlock(d_model, "RMSN", "None") equals.

Glossary: B rows, L positions, N state size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.gpu_errors import check_errors, relative_error
from benchmarks.gpu_times import FEW_STEPS, device_ms, peak_mb, ratio, timed
from benchmarks.gpu_workers import Cases, Setting
from benchmarks.runs import seconds_of
from mambanorm import MambaBlock

SHAPES = {  # (B, L, d_model, N)
    "listops": (32, 2048, 128, 64),
    "cifar10": (64, 1024, 64, 16),
    "130M": (8, 1024, 768, 16),
    "130M long": (2, 8192, 768, 16),
}
TINY_SHAPES = {"tiny": (1, 8, 4, 4)}
EQUAL_SHAPE = (2, 257, 256, 16)
LAYERS = 4
SLEEP_CYCLES = 60_000_000  # about 30 ms, in which the host launches a whole step
PEER = "mamba_ssm's block"

MakeBlock = Callable[[int, int], nn.Module]  # from d_model and N


def block_times(setting: Setting) -> Cases:
    """Yield the comparison of one block with mamba-ssm's, then steps of ours and of mamba-ssm's."""
    shape = TINY_SHAPES["tiny"] if setting.tiny else EQUAL_SHAPE
    yield f"one block beside mamba_ssm's {shape}, float32", partial(equality_row, setting, shape)
    makers: dict[str, MakeBlock] = {
        PEER: make_peer_block,
        "ours, scan by triton": partial(make_our_block, "triton"),
        "ours, scan by mamba_ssm": partial(make_our_block, "mamba_ssm"),
    }
    for title, shape in (TINY_SHAPES if setting.tiny else SHAPES).items():
        for precision in ("bf16",) if setting.tiny else ("bf16", "float32"):
            peer_ms: dict[str, float] = {}  # filled by the first maker
            for name, make_block in makers.items():
                case = f"{title} {shape}, {precision}: {name}"
                measure = partial(block_row, setting, shape, precision)
                yield case, partial(measure, name, make_block, peer_ms)


class PeerBlock(nn.Module):
    """mamba-ssm's block in a plain residual stream: x + Mamba(RMSNorm(x)).

    Raises ImportError if mamba-ssm is missing.
    """

    def __init__(self, d_model: int, d_state: int):
        super().__init__()
        from mamba_ssm.modules.mamba_simple import Mamba
        from mamba_ssm.ops.triton.layer_norm import RMSNorm

        self.norm, self.mixer = RMSNorm(d_model), Mamba(d_model, d_state=d_state)

    def forward(self, x: Tensor) -> Tensor:
        """Return y (B, L, d_model) for x (B, L, d_model)."""
        return x + self.mixer(self.norm(x))


def make_peer_block(d_model: int, d_state: int) -> nn.Module:
    """Return mamba-ssm's block."""
    return PeerBlock(d_model, d_state)


def make_our_block(backend: str, d_model: int, d_state: int) -> nn.Module:
    """Return our block with the given scan. Raise ImportError if the scan's package is missing."""
    if backend == "mamba_ssm":
        import mamba_ssm.ops.selective_scan_interface  # noqa: F401
    return MambaBlock(d_model, "RMSN", "None", d_state=d_state, scan_backend=backend)


def equality_row(setting: Setting, shape: tuple[int, ...]) -> dict:
    """Return by how much output and gradients of our block differ from mamba-ssm's with the same
    weights. Raise ErrorTooLarge above the limit.
    """
    batch, length, d_model, d_state = shape
    torch.manual_seed(0)
    peer = make_peer_block(d_model, d_state).to(setting.device)
    ours = make_our_block("triton", d_model, d_state).to(setting.device)
    ours.load_state_dict(peer.state_dict())
    x = torch.randn(batch, length, d_model, device=setting.device)
    direction = torch.randn_like(x)
    output, grads = output_and_grads(ours, x, direction)
    peer_output, peer_grads = output_and_grads(peer, x, direction)
    errors = [relative_error(output, peer_output)]
    for name, grad in peer_grads.items():
        errors.append(relative_error(grads[our_name(name)], grad))
    columns = {"output_error": errors[0], "gradient_error": max(errors[1:])}
    return {**columns, **check_errors(errors)}


def our_name(name: str) -> str:
    """Return the name that a parameter of mamba-ssm's block has in MambaBlock."""
    return name.removeprefix("mixer.").replace("norm.", "n1.")


def output_and_grads(
    block: nn.Module, x: Tensor, direction: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return a block's output, and the gradients of x and of all parameters along a direction."""
    leaves = {"x": x.detach().requires_grad_(), **dict(block.named_parameters())}
    output = block(leaves["x"])
    grads = torch.autograd.grad(output, list(leaves.values()), direction)
    return output, dict(zip(leaves, grads, strict=True))


def block_row(
    setting: Setting,
    shape: tuple[int, ...],
    precision: str,
    name: str,
    make_block: MakeBlock,
    peer_ms: dict[str, float],
) -> dict:
    """Return time and memory of a training step of several blocks with AdamW."""
    device, (batch, length, d_model, d_state) = setting.device, shape
    torch.manual_seed(0)
    layers = [make_block(d_model, d_state) for _ in range(1 if setting.tiny else LAYERS)]
    model = nn.Sequential(*layers).to(device)
    x = torch.randn(batch, length, d_model, device=device, requires_grad=True)
    base = torch.cuda.memory_allocated(device) if device.type == "cuda" else None
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        optimizer.zero_grad()
        x.grad = None
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()

    times = timed(setting, partial(device_ms, device, step, SLEEP_CYCLES))
    if name == PEER:
        peer_ms["ms"] = times["ms"]
    return {
        **times,
        "of_mamba_ssm": ratio(times["ms"], peer_ms.get("ms")),
        "wall_ms": wall_ms(setting, step),
        "memory_mb": peak_mb(device, step, base),
    }


def wall_ms(setting: Setting, step: Callable[[], None]) -> float:
    """Return the milliseconds of a step on the clock, Python included."""

    def steps() -> None:
        for _ in range(FEW_STEPS if setting.seconds else 1):
            step()
        if setting.device.type == "cuda":
            torch.cuda.synchronize(setting.device)

    if setting.device.type == "cuda":
        torch.cuda.synchronize(setting.device)
    return 1e3 * seconds_of(steps) / (FEW_STEPS if setting.seconds else 1)
