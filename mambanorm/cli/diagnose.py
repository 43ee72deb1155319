"""`mambanorm diagnose`: a checkpoint of a Mamba language model run on a text, and what is found in it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from mambanorm.cli import arguments as arg
from mambanorm.cli.arguments import Parser

if TYPE_CHECKING:
    from torch import Tensor

BYTES = 256


def add_diagnose(command: Parser) -> None:
    help_text = "a Mamba, Mamba-2 or Falcon-Mamba of mamba-ssm or transformers: .safetensors, .bin or .pt, or the "
    help_text += "folder of a download; config.json beside it says which; or a file of mn.watch, or the folder of a run"
    command.add_argument("checkpoint", metavar="CHECKPOINT", help=help_text)
    help_text = "a text in UTF-8, read with tokenizer.json beside the checkpoint, else by characters or bytes"
    command.add_argument("--text", type=arg.file, required=True, metavar="FILE", help=help_text)
    command.add_argument("--length", type=arg.whole(1), default=256, metavar="L", help="positions a row (default: 256)")
    command.add_argument("--rows", type=arg.whole(1), default=4, metavar="B", help="rows of the batch (default: 4)")
    command.add_argument("--html", type=arg.file, metavar="FILE", help="write a page with the picture and all numbers")


@arg.command(
    add_diagnose,
    "model.safetensors --text novel.txt",
    "mamba-130m/ --text novel.txt",
    "clinic/step-000120.safetensors --text novel.txt",
    "pytorch_model.bin --text novel.txt --length 512 --html diagnosis.html",
)
def diagnose(options: argparse.Namespace) -> int:
    """Look into a checkpoint: activations, gradients and weights on a text, and what to try."""
    from torch.nn.functional import cross_entropy

    from mambanorm import look
    from mambanorm.basics.atomic import write_text
    from mambanorm.models.language import LanguageModel
    from mambanorm.models.pretrained import checkpoint_in, load_model
    from mambanorm.tasks.files import read_text
    from mambanorm.tasks.pydoc import windows

    if options.html and not options.html.endswith(".html"):
        raise ValueError(f"--html writes a page over what is there: give a name that ends in .html, got {options.html}")
    checkpoint = Path(checkpoint_in(options.checkpoint))
    model = load_model(checkpoint)
    if not isinstance(model, LanguageModel):
        how = "in Python mn.diagnose(mn.load_model(path), batch) looks into it"
        raise ValueError(f"{checkpoint} holds a {type(model).__name__}, which cannot be run on a text: {how}")
    ids = ids_of(read_text(Path(options.text)), model.vocab_size, checkpoint.with_name("tokenizer.json"))
    if len(ids) < 2:
        raise ValueError(
            f"{options.text} is {len(ids)} tokens long: at least 2 are needed, one to read and one to predict"
        )
    batch = windows(ids, min(options.length, len(ids) - 1))[: options.rows]
    pair = batch[:, :-1].contiguous(), batch[:, 1:].contiguous()
    loss = lambda logits, target: cross_entropy(logits.flatten(0, 1), target.flatten())  # noqa: E731
    found = look.diagnose(model, pair, loss=loss)
    print(found)
    if options.html:
        from mambanorm.report.page import page

        write_text(Path(options.html), page(f"{checkpoint.name}: a diagnosis", found._repr_html_()))
        print(f"{options.html} written")
    return 0


def ids_of(text: str, vocab_size: int, tokenizer: Path) -> Tensor:
    """Text → ids (n,) as the model reads them: by its tokenizer where there is a file of it; else by the characters of
    this kit's models or by bytes, if the vocabulary has that size. ValueError where none of them fits."""
    import torch

    from mambanorm.tasks.pydoc import ALPHABET, encode

    if tokenizer.is_file():
        from tokenizers import Tokenizer

        return torch.tensor(Tokenizer.from_file(str(tokenizer)).encode(text).ids, dtype=torch.int64)
    if vocab_size == len(ALPHABET):
        return encode(text)
    if vocab_size == BYTES:
        return torch.tensor(list(text.encode()), dtype=torch.int64)
    raise ValueError(
        f"the model knows {vocab_size:,} tokens and nothing says which: put its tokenizer.json beside the checkpoint "
        f"(models of {len(ALPHABET)} tokens read this kit's characters, models of {BYTES} bytes)"
    )
