"""Read the tensors of a checkpoint file, and build the model to which they belong.

If `watch` wrote the file, the file's metadata describe the model. Otherwise the model is
described by the config.json of a stored run, of mamba-ssm, or of transformers (see
mamba_checkpoints.py).
"""

import hashlib
import json
import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mambanorm.models.classifier import SequenceClassifier
from mambanorm.models.language import LanguageModel
from mambanorm_clinic.mamba_checkpoints import config_fields, load_mamba_checkpoint
from mambanorm_study.config import RunConfig
from mambanorm_study.models.transformer import TransformerClassifier
from mambanorm_study.models.vision import ImageClassifier
from mambanorm_study.runs.build import build_model
from mambanorm_study.tasks import TASKS, check_task, load_task

SUFFIXES = (".safetensors", ".bin", ".pt", ".pth")  # suffixes of files that hold a state dict
MODELS = {
    cls.__name__: cls
    for cls in (LanguageModel, SequenceClassifier, ImageClassifier, TransformerClassifier)
}
METADATA_KEY = "mambanorm"  # key of this kit's entry in a .safetensors file's metadata


def checkpoint_in(path: str | Path) -> Path:
    """Return the path of a checkpoint file, given the path of the file or of its folder.

    From a folder the file model.safetensors is chosen or, if there is none, the only checkpoint
    file. Raises ValueError for a folder that contains no checkpoint file, and for a folder that
    contains several but no model.safetensors.
    """
    path = Path(path)
    if not path.is_dir():
        return path
    names = sorted(file.name for file in path.iterdir() if file.suffix in SUFFIXES)
    names = ["model.safetensors"] if "model.safetensors" in names else names
    if len(names) == 1:
        return path / names[0]
    choices = " or ".join(names) or f"none of {', '.join(SUFFIXES)} is there"
    raise ValueError(f"{path} is a folder: give the path of a file in it, {choices}")


def read_checkpoint(path: str | Path) -> dict[str, Tensor]:
    """Return the state dict in a `.safetensors` file, or in a file that `torch.save` wrote.

    path: the file or its folder (see `checkpoint_in`). No code in the file is run. Raises
    ValueError for a file that is damaged or contains other objects than tensors, and
    FileNotFoundError for a missing file.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = checkpoint_in(path)
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, EOFError, KeyError, RuntimeError) as error:
        raise ValueError(
            f"{path} is truncated, altered or no checkpoint, or it holds other objects than "
            f"tensors, which are not loaded because they can run code ({error!r}): download or "
            "copy the file again, or use a .safetensors file"
        ) from error


def metadata_of(model: nn.Module) -> dict[str, str]:
    """Return the metadata of a model, to be written into a .safetensors file with the tensors.

    For a model of this kit the metadata contain the model's class, the arguments of the class (with
    the current arm) and a hash of the model's printed structure, so that `load_model` can build the
    model again. For any other model they contain only the format.
    """
    name = type(model).__name__
    if MODELS.get(name) is not type(model):
        return {"format": "pt"}
    facts = {
        "model": name,
        "arguments": {**model.arguments, "arm": str(model.arm)},
        "layout": _structure_hash(model),
    }
    return {"format": "pt", METADATA_KEY: json.dumps(facts, default=str)}


def _structure_hash(model: nn.Module) -> str:
    return hashlib.sha256(str(model).encode()).hexdigest()


def load_model(path: str | Path) -> nn.Module:
    """Return the model of a checkpoint, on the CPU and in float32.

    path: a file that `watch` wrote, the folder of a stored run, or a checkpoint that
    `load_mamba_checkpoint` can load, with its config.json in the same folder. Raises ValueError if
    no model can be built from the file.
    """
    path = checkpoint_in(path)
    state = read_checkpoint(path)
    metadata = _read_metadata(path)
    config_path = path.with_name("config.json")
    config = config_fields(config_path) if config_path.is_file() and not metadata else None
    if metadata:
        model = _model_from_metadata(metadata, path)
    elif config is not None and {"task", "arm"} <= config.keys():
        run = RunConfig.from_dict(config)
        shape_of = TASKS[check_task(run.task)].shape
        data = shape_of(run.scale) if shape_of else load_task(run.task, run.scale, run.seed)
        model = build_model(run, data)
    else:
        return load_mamba_checkpoint(state, hf_config=config)
    model.load_state_dict(state)
    return model


def _read_metadata(path: Path) -> dict[str, Any]:
    """Return the facts that `metadata_of` wrote into a file's metadata, {} if there are none."""
    from safetensors import safe_open

    if path.suffix != ".safetensors":
        return {}
    with safe_open(path, "pt") as file:
        return json.loads((file.metadata() or {}).get(METADATA_KEY, "{}"))


def _model_from_metadata(metadata: dict[str, Any], path: Path) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        model = MODELS[metadata["model"]](**metadata["arguments"])
    if _structure_hash(model) != metadata["layout"]:
        raise ValueError(
            f"{path} holds a {metadata['model']} that was changed after it was created: create a "
            "model and change it in the same way, then call "
            "model.load_state_dict(clinic.read_checkpoint(path))"
        )
    return model
