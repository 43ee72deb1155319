"""Claims about `mambanorm diagnose`: it reads a checkpoint and a text as the model does, and
refuses what it cannot.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import mambanorm as mn
import mambanorm_clinic as clinic
import mambanorm_study as study
from mambanorm_clinic.commands import token_ids
from mambanorm_study.basics.settings import ROOT
from mambanorm_study.cli.main import main
from mambanorm_study.tasks.pydoc import ALPHABET, encode

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
    code, out, err = call(
        capsys, path, "--text", text, "--length", "16", "--rows", "2", "--html", str(page)
    )
    assert (code, err) == (0, "")
    assert out.startswith("LanguageModel: ")
    assert "nothing found" in out
    assert "the loss given" in out
    assert "<title>" in page.read_text()
    assert "every weight" in page.read_text()
    code, _, err = call(capsys, path, "--text", text, "--html", str(path))
    assert code == 2
    assert "--html must end in .html, so that no other file is overwritten; got" in err
    assert b"<title>" not in Path(path).read_bytes()


def test_the_config_beside_a_checkpoint_tells_a_falcon_mamba_from_a_mamba(tmp_path, capsys):
    path, text = checkpoint(tmp_path)
    said = {}
    for kind in ("mamba", "falcon_mamba", ""):
        (tmp_path / "config.json").write_text(f'{{"model_type": "{kind}"}}')
        if not kind:
            (tmp_path / "config.json").unlink()
        code, said[kind], err = call(capsys, path, "--text", text, "--length", "16", "--rows", "2")
        assert code == 0
        assert ("loaded as a Mamba-1" in err) == (not kind)
    assert said[""] == said["mamba"] != said["falcon_mamba"]


def test_the_folder_of_a_download_is_diagnosed_as_its_page_shows_and_says_it_is_random(
    tmp_path, capsys, monkeypatch
):
    """docs/pretrained.py, at two layers: a folder of transformers' own files, under the names that
    a download has.
    """
    pytest.importorskip("transformers")
    folder, page = tmp_path / "mamba-tiny-random", (ROOT / "docs" / "pretrained.md").read_text()
    monkeypatch.setattr(
        "sys.argv", ["pretrained.py", str(folder), "--layers", "2", "--width", "32"]
    )
    runpy.run_path(str(ROOT / "docs" / "pretrained.py"), run_name="__main__")
    capsys.readouterr()
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        path.name for path in folder.iterdir()
    }
    text = str(ROOT / "LICENSE")
    code, out, _ = call(capsys, str(folder), "--text", text, "--length", "16", "--rows", "2")
    first = (
        r"LanguageModel: \d+ sites in \d+ layers, \d+ modules, \d+ weights; "
        r"loss [\d.]+ \(the loss given\)"
    )
    assert code == 0
    assert re.match(first, out)
    (shown,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    assert re.match(first, shown)
    assert "sites in 24 layers" in shown
    assert (
        "drawn at random" in page.split("```text")[0].rsplit("\n\n", 2)[-2]
    )  # said right above it


def test_a_sick_checkpoint_is_told_where(tmp_path, capsys):
    path, text = checkpoint(tmp_path, scale=1e9)
    code, out, _ = call(capsys, path, "--text", text, "--length", "16")
    assert code == 0
    assert "branch of layer 2" in out or "residual of layer 2" in out
    assert "try:" in out


# --------------------------------------------------------------------------------------------------
# what the kit has written

IDS, VALUES, IMAGES = torch.arange(18).view(2, 9), torch.randn(2, 9, 4), torch.randn(2, 8, 8, 1)
SIZES = dict(d_model=16, n_layers=2)
MADE = {
    "LN and GN, which have the same tensors": (
        lambda: mn.LanguageModel(
            96, **SIZES, arm="LN>SSM>GN-token", norm_options={"groups": 2, "eps": 1e-3}
        ),
        IDS,
    ),
    "Mamba-2": (
        lambda: mn.LanguageModel(96, **SIZES, arm=mn.Arm("RMSN", None), model="mamba2", head_dim=8),
        IDS,
    ),
    "an untied head": (
        lambda: mn.LanguageModel(vocab_size=96, tie=False, final_norm="LN", **SIZES),
        IDS,
    ),
    "a classifier": (
        lambda: mn.SequenceClassifier(3, in_features=4, arm="IN>SSM>BN", **SIZES),
        VALUES,
    ),
    "positions": (
        lambda: mn.SequenceClassifier(
            3, vocab_size=96, positional="learned", positions=(9,), **SIZES
        ),
        IDS,
    ),
    "images": (
        lambda: study.ImageClassifier(
            3, in_channels=1, patch=2, down_sample=(1,), down_norm="LN", **SIZES
        ),
        IMAGES,
    ),
    "a Transformer": (lambda: study.TransformerClassifier(3, vocab_size=96, **SIZES), IDS),
}


def written_by_watch(model, x, folder):
    """The file that `watch` writes when the loss is infinite."""
    watched = clinic.watch(model, torch.optim.SGD(model.parameters()), folder=folder)
    with watched:
        watched.loss(model(x).sum() * torch.inf).backward()
        with pytest.raises(clinic.NonFinite) as stopped:
            watched.optimizer.step()
    return stopped.value.report.checkpoint


@pytest.mark.parametrize("kind", MADE)
def test_what_watch_wrote_of_a_model_of_the_kit_is_that_model_again(kind, tmp_path):
    torch.manual_seed(0)
    make, x = MADE[kind]
    model = make()
    path = written_by_watch(model, x, tmp_path)
    for place in (path, tmp_path):
        read = clinic.load_model(place)
        assert type(read) is type(model)
        assert torch.equal(read.eval()(x), model.eval()(x))


def test_diagnose_runs_a_language_model_that_watch_wrote_and_names_another_model(tmp_path, capsys):
    """It said: missing: backbone.layers.0.mixer.A_log."""
    _, text = checkpoint(tmp_path)
    for kind, said in (
        ("Mamba-2", ""),
        ("a classifier", "SequenceClassifier"),
        ("images", "ImageClassifier"),
    ):
        path = written_by_watch(MADE[kind][0](), MADE[kind][1], tmp_path / kind)
        code, out, err = call(capsys, str(path), "--text", text, "--length", "16")
        assert code == (2 if said else 0)
        assert (
            f"step-000001.safetensors holds a {said}, which cannot read a text: in Python" in err
            or not said
        )
        assert out.startswith("LanguageModel: ") or said


def test_a_norm_inserted_in_every_block_is_read_again_and_another_change_is_named(tmp_path):
    torch.manual_seed(0)
    model = mn.LanguageModel(96, **SIZES)
    clinic.insert_norm(model, "n2", "LN", IDS)
    read = clinic.load_model(written_by_watch(model, IDS, tmp_path / "inserted"))
    assert str(read.arm) == "RMSN>SSM>LN"
    assert torch.equal(read(IDS), model(IDS))
    model.backbone.layers[1].n1 = mn.create_norm("LN", 16)
    path = written_by_watch(model, IDS, tmp_path / "changed")
    with pytest.raises(
        ValueError,
        match=r"000001\.safetensors holds a LanguageModel that was changed after it was",
    ):
        clinic.load_model(path)
    model.load_state_dict(clinic.read_checkpoint(path))


def test_the_file_of_another_model_and_tensors_without_a_word_of_their_norms_are_refused(tmp_path):
    path = written_by_watch(torch.nn.Linear(9, 2), torch.ones(2, 9), tmp_path)
    with pytest.raises(ValueError, match=r"a tensor backbone\.embedding\.weight of shape"):
        clinic.load_model(path)
    save_file(mn.LanguageModel(96, tie=False, **SIZES).state_dict(), tmp_path / "mine.safetensors")
    with pytest.raises(
        ValueError,
        match="tensors of this kit's LanguageModel, which do not show the model's norms: create the",
    ):
        clinic.load_model(tmp_path / "mine.safetensors")


@pytest.mark.parametrize("task", ["pydoc", "digits"])
def test_a_stored_run_is_its_model_again(task, tmp_path, store, capsys):
    config = study.base_config(task, "smoke", seed=3)
    study.sweep([config], workers=0, progress=False)
    folder = study.find_run(config).path
    read, data = clinic.load_model(folder), study.load_task(task, "smoke", 3)
    assert sorted(read.state_dict()) == sorted(study.find_run(config).checkpoint)
    assert torch.isfinite(read(data.test.batch([0])[0])).all()
    (tmp_path / "text.txt").write_text(TEXT)
    code, out, err = call(
        capsys, str(folder), "--text", str(tmp_path / "text.txt"), "--length", "16"
    )
    assert (code, "LanguageModel: " in out, "holds a SequenceClassifier" in err) == (
        (0, True, False) if task == "pydoc" else (2, False, True)
    )


def test_text_is_read_by_tokenizer_characters_or_bytes(tmp_path):
    none = tmp_path / "tokenizer.json"
    assert torch.equal(token_ids(TEXT, len(ALPHABET), none), encode(TEXT))
    assert token_ids("aé", 256, none).tolist() == [97, 0xC3, 0xA9]
    with pytest.raises(ValueError, match=r"has 50,280 tokens.*tokenizer.json"):
        token_ids(TEXT, 50280, none)
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers comes with transformers")
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"scan": 5, "fox": 7, "?": 0}, unk_token="?")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(none))
    assert token_ids("fox scan dog", 50280, none).tolist() == [7, 5, 0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path, text: (path,), "required: --text"),
        (lambda path, text: (path, "--text", path), "model.safetensors is not UTF-8 text"),
        (lambda path, text: (text, "--text", text), "no checkpoint"),
        (lambda path, text: (path, "--text", one_token(text)), "1 tokens long: at least 2"),
        (lambda path, text: (path, "--text", text, "--rows", "0"), "'0' is no whole number from 1"),
    ],
)
def test_bad_input_is_refused_in_words(tmp_path, capsys, change, said):
    code, out, err = call(capsys, *change(*checkpoint(tmp_path)))
    assert (code, out) == (2, "")
    assert said in err
