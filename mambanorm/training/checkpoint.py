"""Checkpoints of a long run: its state on disk, so that a run that was killed continues where it stopped.

    <folder>/step-<n>/state.safetensors   model, optimizer, average, best weights, the WeightLog's snapshots and ring
                      curve.parquet       the curve so far
                      progress.json       run_id, step, tokens, seconds, best accuracy and its step, checksums of
                                          the other files and, last, of these numbers themselves

A checkpoint is written into a temporary folder, which is then renamed: it is complete or absent. The one before it is
deleted when the new one has reached the disk, so that a power cut leaves one of them. No file uses pickle. The batch
order needs no file: it follows from the seed and the step. On the same machine, a run that continues gives the same
result bit for bit as one that was never stopped.

`Checkpoint` is of one run: `load` once before the first step, and an observer of the steps.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import uuid
import warnings
from contextlib import suppress
from pathlib import Path

import pandas as pd
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from mambanorm.basics.atomic import folder_to_disk, free_name, make_folder, save_tensors, sha256, to_disk
from mambanorm.basics.later import Later
from mambanorm.config import RunConfig
from mambanorm.diagnostics.weights import WeightLog
from mambanorm.training.observers import Average, Best, Progress

pyarrow = Later("pyarrow")
DAMAGE = (OSError, ValueError, TypeError, KeyError, AttributeError, SafetensorError)
UNFINISHED = ".unfinished-"
NUMBERS = ("step", "tokens", "seconds", "best_accuracy", "best_step")
PROGRESS = ("run_id", *NUMBERS, "sha256")
OWN = "own_sha256"  # the checksum of all other fields of progress.json
FILES = ("state.safetensors", "curve.parquet")


class Checkpoint:
    """Saves the state of a run in `folder`, at most every `every_s` seconds; `folder=None` saves nothing.

    The parts of the state are the objects that `train` uses; `load` fills them in place. ValueError for a negative
    `every_s`.
    """

    def __init__(
        self,
        folder: str | Path | None,
        every_s: float,
        config: RunConfig,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        average: Average,
        log: WeightLog,
        best: Best,
        curve: list[dict],
        progress: Progress,
    ):
        if not every_s >= 0:
            raise ValueError(f"checkpoint_every_s must be a number of seconds from 0 up, got {every_s!r}")
        self.folder = None if folder is None else Path(folder)
        self.every_s, self.config = every_s, config
        self.model, self.optimizer, self.average = model, optimizer, average
        self.log, self.best, self.curve, self.progress = log, best, curve, progress
        self.saved_at = time.monotonic()

    def load(self) -> None:
        """Fills the parts from the checkpoint, if there is one.

        A checkpoint that is damaged or belongs to another run is set aside with a warning. The run then starts
        anew, as where a checkpoint is another user's and cannot be read: that one stays where it is.
        """
        newest = max([] if self.folder is None else self.folder.glob("step-*"), key=_step, default=None)
        if newest is None:
            return
        try:
            progress, curve, state = self._read(newest)
        except FileNotFoundError as error:
            if os.path.lexists(newest):
                return self._set_aside(newest, error)
            return self.load()  # another process that trains this run has replaced it just now
        except PermissionError as error:  # another user's: not damaged, and not ours to move
            warnings.warn(f"cannot go on from {newest}, the run starts anew: {error.strerror}", stacklevel=3)
            return
        except (*DAMAGE, pyarrow.ArrowException) as error:
            return self._set_aside(newest, error)
        self.curve[:] = curve
        self._put(state, progress)

    def _set_aside(self, newest: Path, error: BaseException) -> None:
        aside = free_name(self.folder)
        self.folder.rename(aside)
        warnings.warn(f"cannot go on from {newest}: {error}; set aside as {aside.name}", stacklevel=4)

    def __call__(self, step: int) -> None:
        """Saves a checkpoint if `every_s` seconds have passed. If it cannot be written, warns; the run goes on."""
        if self.folder is None or time.monotonic() - self.saved_at < self.every_s:
            return
        try:
            self._save(step)
        except OSError as error:  # a full disk, say
            warnings.warn(f"no checkpoint at step {step}: {error}", stacklevel=3)
        self.saved_at = time.monotonic()

    def _save(self, step: int) -> None:
        now, best = self.progress, self.best
        make_folder(self.folder)
        final, new = self.folder / f"step-{step}", self.folder / f"{UNFINISHED}{uuid.uuid4().hex}"
        new.mkdir()
        try:
            # cloned, because tensors that share their memory are refused
            tensors = {name: value.detach().cpu().contiguous().clone() for name, value in self._take().items()}
            save_tensors(new / "state.safetensors", tensors)
            pd.DataFrame(self.curve).to_parquet(new / "curve.parquet", index=False)
            progress = (self.config.run_id, step, now.tokens, now.seconds, best.accuracy, best.step, _digests(new))
            numbers = dict(zip(PROGRESS, progress, strict=True))
            (new / "progress.json").write_text(json.dumps({**numbers, OWN: _digest_of(numbers)}))
            folder_to_disk(new)
            if not final.exists():  # another process may be training the same run
                new.rename(final)
            to_disk(self.folder)
        finally:
            shutil.rmtree(new, ignore_errors=True)
        for other in self.folder.iterdir():  # the previous checkpoint, and what a killed process left half-written
            if other != final and _step(other) < step:  # another process may be further
                _delete(other)

    def _take(self) -> dict[str, Tensor]:
        """Every tensor of the state; the first part of its name says which object it belongs to."""
        state = _named("model", self.model.state_dict()) | _named("best", self.best.state or {})
        state |= _named("average", self.average.state_dict())
        for i, moments in self.optimizer.state_dict()["state"].items():  # some optimizers have none, or None among them
            state |= _named(f"optimizer.{i}", {key: value for key, value in moments.items() if value is not None})
        for i, shot in enumerate(self.log.snapshots):
            state |= _named(f"snapshot.{i}", {key: torch.as_tensor(value) for key, value in shot.items()})
        for i, (step, weights, outputs) in enumerate(self.log.ring):
            state |= _named(f"ring.{i}", {"step": torch.tensor(step), "outputs": outputs} | dict(enumerate(weights)))
        return state

    def _read(self, path: Path) -> tuple[dict, list[dict], dict]:
        """Reads all of a checkpoint before any of it is used. One of DAMAGE unless it is whole and fits this run."""
        written = json.loads((path / "progress.json").read_text())
        progress = {name: written[name] for name in PROGRESS}
        if odd := [name for name in NUMBERS if type(progress[name]) not in (int, float)]:
            raise ValueError(f"its {odd[0]} is {progress[odd[0]]!r}, needed is a number")
        if progress["run_id"] != self.config.run_id:
            raise ValueError(f"it belongs to run {progress['run_id']}, not to {self.config.run_id}")
        if written.get(OWN) != _digest_of(progress):
            raise ValueError("its progress.json was altered: its checksum is not the one it was written with")
        if progress["sha256"] != _digests(path):
            raise ValueError("its files are truncated or altered: their checksums are not those it was written with")
        curve = pd.read_parquet(path / "curve.parquet").to_dict("records")
        if not len(curve) == progress["step"] == _step(path):
            raise ValueError(f"its curve has {len(curve)} steps, its name says {_step(path)}")
        state = _tree(load_file(path / "state.safetensors"))
        shapes = {name: value.shape for name, value in self.model.state_dict().items()}
        for part in ("model", "best"):
            if part in state and shapes != {name: value.shape for name, value in state[part].items()}:
                raise ValueError(f"its {part} weights are those of another model")
        return progress, curve, {"model": state["model"], "optimizer": state.get("optimizer", {}), **state}

    def _put(self, state: dict, progress: dict) -> None:
        """Fills the parts in place."""
        device = next(self.model.parameters()).device
        self.model.load_state_dict(state["model"])
        self.average.load_state_dict(state.get("average", {}))
        optimizer = self.optimizer.state_dict() | {"state": {int(i): v for i, v in _inner(state["optimizer"])}}
        self.optimizer.load_state_dict(optimizer)
        self.best.accuracy, self.best.step = progress["best_accuracy"], progress["best_step"]
        if "best" in state:
            self.best.state = {name: value.to(device) for name, value in state["best"].items()}
        self.log.snapshots[:] = [
            {key: value.numpy() for key, value in shot.items()} for _, shot in _inner(state.get("snapshot", {}))
        ]
        self.log.ring.clear()
        for _, kept in _inner(state.get("ring", {})):
            step, outputs = int(kept.pop("step")), kept.pop("outputs", self.log.outputs)  # NaN in an earlier version
            self.log.ring.append((step, [kept[i].to(device) for i in sorted(kept, key=int)], outputs.to(device)))
        self.progress.go_on(progress["tokens"], progress["seconds"])


def _delete(checkpoint: Path) -> None:
    """Renamed first: a process that reads it finds it whole or gone, never in part."""
    gone = checkpoint.with_name(f"{UNFINISHED}{uuid.uuid4().hex}")
    with suppress(OSError):
        checkpoint.rename(gone)
        shutil.rmtree(gone)


def _digests(path: Path) -> dict[str, str]:
    """Checksums of a checkpoint's files. Safetensors has none, so an altered weight would go unnoticed."""
    return {name: sha256(path / name) for name in FILES}


def _digest_of(numbers: dict) -> str:
    """The checksum of the values in progress.json, whatever the layout of the file."""
    return hashlib.sha256(json.dumps(numbers, sort_keys=True).encode()).hexdigest()


def _named(owner: str, tensors: dict) -> dict[str, Tensor]:
    return {f"{owner}.{name}": value for name, value in tensors.items()}


def _tree(tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """`{"model.head.bias": t}` → `{"model": {"head.bias": t}}`; cloned, so that no tensor depends on the file."""
    tree: dict[str, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        owner, _, rest = name.partition(".")
        tree.setdefault(owner, {})[rest] = value.clone()
    return tree


def _inner(tensors: dict[str, Tensor]) -> list[tuple[str, dict[str, Tensor]]]:
    """`{"0.step": a, "0.exp_avg": b, …}` → `[("0", {"step": a, "exp_avg": b}), …]`, in the order of the numbers."""
    return sorted(_tree(tensors).items(), key=lambda item: int(item[0]))


def _step(path: Path) -> int:
    """The step in the name of a checkpoint; −1 for any other folder."""
    number = path.name.removeprefix("step-")
    return int(number) if number.isdigit() else -1
