"""Writes a folder as `hf download state-spaces/mamba-130m-hf --local-dir DIR` leaves it: the same
files and shapes, but weights drawn at random, and a tokenizer that reads bytes. What
docs/pretrained.md shows is the diagnosis of this one.

    python docs/pretrained.py mamba-130m-random                          # 129 million weights, 517
    MB python docs/pretrained.py mamba-tiny-random --layers 2 --width 32    # the same family, in a
    second

Needs transformers (`make setup` brings it).
"""

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import MambaConfig, MambaForCausalLM


def write_random_mamba(folder: Path, layers: int, width: int) -> None:
    """config.json, model.safetensors and tokenizer.json of a Mamba of transformers, seed 0."""
    torch.manual_seed(0)
    config = MambaConfig(
        hidden_size=width, num_hidden_layers=layers
    )  # its defaults: 50,280 tokens, N = 16, E = 2·D
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
    given = parser.parse_args()
    write_random_mamba(given.folder, given.layers, given.width)
    print(f"{given.folder} written: random weights, to be diagnosed as a download would be")
