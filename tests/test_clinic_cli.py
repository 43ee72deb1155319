"""Claims about `mambanorm diagnose`: it reads a checkpoint and a text as the model does, and refuses what it cannot."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import mambanorm as mn
from mambanorm.basics.settings import ROOT
from mambanorm.cli.diagnose import ids_of
from mambanorm.cli.main import main
from mambanorm.tasks.pydoc import ALPHABET, encode

TEXT = "def scan(x):\n    return x  # the quick brown fox\n" * 4


def as_mamba_ssm(name: str) -> str:
    """A parameter's name in mamba-ssm's checkpoints."""
    name = re.sub(r"^(backbone\.layers\.\d+)\.n1\.", r"\1.norm.", name)
    return re.sub(r"^(backbone\.layers\.\d+)\.(?!norm\.)", r"\1.mixer.", name)


def checkpoint(folder, scale=1.0):
    torch.manual_seed(0)
    model = mn.LanguageModel(len(ALPHABET), d_model=16, n_layers=2, tie=False)
    with torch.no_grad():
        model.backbone.layers[1].out_proj.weight.mul_(scale)
    path = folder / "model.safetensors"
    save_file({as_mamba_ssm(name): value for name, value in model.state_dict().items()}, path)
    (folder / "text.txt").write_text(TEXT)
    (folder / "config.json").write_text('{"model_type": "mamba"}')
    return str(path), str(folder / "text.txt")


def one_token(text: str) -> str:
    Path(text).write_text("a")
    return text


def call(capsys, *argv: str) -> tuple[int, str, str]:
    code = main(["diagnose", *argv])
    return code, *capsys.readouterr()


def test_a_sound_checkpoint_has_no_finding_and_its_page_is_written(tmp_path, capsys):
    path, text = checkpoint(tmp_path)
    page = tmp_path / "page.html"
    code, out, err = call(capsys, path, "--text", text, "--length", "16", "--rows", "2", "--html", str(page))
    assert (code, err) == (0, "")
    assert out.startswith("LanguageModel: ")
    assert "nothing found" in out
    assert "the loss given" in out
    assert "<title>" in page.read_text()
    assert "every weight" in page.read_text()
    code, _, err = call(capsys, path, "--text", text, "--html", str(path))
    kept = b"<title>" not in Path(path).read_bytes()
    assert (code, "give a name that ends in .html, got" in err, kept) == (2, True, True)


def test_the_config_beside_a_checkpoint_tells_a_falcon_mamba_from_a_mamba(tmp_path, capsys):
    path, text = checkpoint(tmp_path)
    said = {}
    for kind in ("mamba", "falcon_mamba", ""):
        (tmp_path / "config.json").write_text(f'{{"model_type": "{kind}"}}')
        if not kind:
            (tmp_path / "config.json").unlink()
        code, said[kind], err = call(capsys, path, "--text", text, "--length", "16", "--rows", "2")
        assert code == 0
        assert ("taken for Mamba-1" in err) == (not kind)
    assert said[""] == said["mamba"] != said["falcon_mamba"]


def test_the_folder_of_a_download_is_diagnosed_and_the_page_that_shows_it_says_that_its_weights_are_random(
    tmp_path, capsys, monkeypatch
):
    """docs/pretrained.py, at two layers: a folder of transformers' own files, under the names that a download has."""
    pytest.importorskip("transformers")
    folder, page = tmp_path / "mamba-tiny-random", (ROOT / "docs" / "pretrained.md").read_text()
    monkeypatch.setattr("sys.argv", ["pretrained.py", str(folder), "--layers", "2", "--width", "32"])
    runpy.run_path(str(ROOT / "docs" / "pretrained.py"), run_name="__main__")
    capsys.readouterr()
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in folder.iterdir()}
    text = str(ROOT / "LICENSE")
    code, out, _ = call(capsys, str(folder), "--text", text, "--length", "16", "--rows", "2")
    first = r"LanguageModel: \d+ sites in \d+ layers, \d+ modules, \d+ weights; loss [\d.]+ \(the loss given\)"
    assert code == 0
    assert re.match(first, out)
    (shown,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    assert re.match(first, shown)
    assert "sites in 24 layers" in shown
    assert "drawn at random" in page.split("```text")[0].rsplit("\n\n", 2)[-2]  # said right above it


def test_a_sick_checkpoint_is_told_where(tmp_path, capsys):
    path, text = checkpoint(tmp_path, scale=1e9)
    code, out, _ = call(capsys, path, "--text", text, "--length", "16")
    assert code == 0
    assert "branch of layer 2" in out or "residual of layer 2" in out
    assert "try:" in out


def test_text_is_read_by_tokenizer_characters_or_bytes(tmp_path):
    none = tmp_path / "tokenizer.json"
    assert torch.equal(ids_of(TEXT, len(ALPHABET), none), encode(TEXT))
    assert ids_of("aé", 256, none).tolist() == [97, 0xC3, 0xA9]
    with pytest.raises(ValueError, match=r"knows 50,280 tokens.*tokenizer.json"):
        ids_of(TEXT, 50280, none)
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers comes with transformers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"scan": 5, "fox": 7, "?": 0}, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(none))
    assert ids_of("fox scan dog", 50280, none).tolist() == [7, 5, 0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path, text: (path,), "required: --text"),
        (lambda path, text: (path, "--text", path), "model.safetensors is no text in UTF-8"),
        (lambda path, text: (text, "--text", text), "no checkpoint"),
        (lambda path, text: (path, "--text", one_token(text)), "1 tokens long: at least 2"),
        (lambda path, text: (path, "--text", text, "--rows", "0"), "'0' is no whole number from 1"),
    ],
)
def test_bad_input_is_refused_in_words(tmp_path, capsys, change, said):
    code, out, err = call(capsys, *change(*checkpoint(tmp_path)))
    assert (code, out) == (2, "")
    assert said in err
