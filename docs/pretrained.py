"""Write a folder like that of `hf download state-spaces/mamba-130m-hf --local-dir DIR`.

Files and shapes are the same, but the weights are drawn at random and the tokenizer reads bytes.
docs/pretrained.md shows the diagnosis of this folder.

    python docs/pretrained.py mamba-130m-random                          # 129 million weights
    python docs/pretrained.py mamba-tiny-random --layers 2 --width 32    # the same model, tiny

Needs transformers, which `make test` installs. The first folder takes 517 MB.
"""

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import MambaConfig, MambaForCausalLM


def write_random_mamba(folder: Path, layers: int, width: int) -> None:
    """Write config.json, model.safetensors and tokenizer.json of transformers' Mamba, seed 0."""
    torch.manual_seed(0)
    # by default 50,280 tokens, N = 16, E = 2·D
    config = MambaConfig(hidden_size=width, num_hidden_layers=layers)
    MambaForCausalLM(config).save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=768)
    options = parser.parse_args()
    write_random_mamba(options.folder, options.layers, options.width)
    print(f"{options.folder} written, with random weights")
