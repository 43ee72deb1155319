"""Claims about the paper's own data sets: what is read, what is refused, what the user is told to
do.

Files are the real ones of MAMBANORM_REAL_DATA where they are, and otherwise made here in the
identical layout.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import threading
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from mambanorm_study import tasks, train
from mambanorm_study.cli.main import main
from mambanorm_study.runs.grid import base_config
from mambanorm_study.runs.store import find_run, save_run
from mambanorm_study.tables import robustness
from mambanorm_study.tables.plan import plan, shape_of_data
from mambanorm_study.tasks import (
    LazyInputs,
    Split,
    breakfast,
    files,
    imagenet,
    images,
    imdb,
    load_task,
    pathfinder,
    registry,
)
from mambanorm_study.tasks.files import fetch
from mambanorm_study.tasks.images import decode

CACHES = [registry._load, pathfinder.read_labels, imagenet._list_images]


def refused(task, message, scale="smoke"):
    """Assert that loading the task raises a ValueError that matches; clear the caches."""
    forget()
    with pytest.raises(ValueError, match=message):
        load_task(task, scale, 0)
    forget()


def forget():
    for cache in CACHES:
        cache.cache_clear()


@pytest.fixture(autouse=True)
def data(monkeypatch, tmp_path):
    """Use a new, empty data folder and empty caches."""
    monkeypatch.setenv("MAMBANORM_DATA_DIR", str(tmp_path))
    forget()
    yield tmp_path
    forget()


def real(name):
    """Return the path of a real file, or skip the test."""
    folder = os.environ.get("MAMBANORM_REAL_DATA")
    if not folder:
        pytest.skip("MAMBANORM_REAL_DATA is unset: it names the folder with real files")
    if not (path := Path(folder) / name).exists():
        pytest.skip(f"{path} is missing")
    return path


def trains(task):
    """Assert that a run of four steps at smoke succeeds, and that the task's Shape is correct."""
    assert train(base_config(task, "smoke", arm="RMSN>SSM>None")).status == "ok"
    shape, real = tasks.TASKS[task].shape("smoke"), shape_of_data(load_task(task, "smoke", 0))
    for name in ("length", "in_features", "in_channels", "patch"):
        assert getattr(shape, name) == getattr(real, name), name
    assert (shape.vocab_size is None) == (real.vocab_size is None)


def encoded(array, form="PNG"):
    """Return the content of an image file."""
    Image.fromarray(array).save(buffer := io.BytesIO(), form)
    return buffer.getvalue()


def png(rng, edge, mode="RGB"):
    shape = (edge, edge) if mode == "L" else (edge, edge, 3 if mode == "RGB" else 4)
    return encoded(rng.integers(0, 256, shape, np.uint8))


# ----------------------------------------------------------------------------------------- registry


TO_BRING = [
    *("imdb", "mnist", "svhn", "mnist_images", "svhn_images", "cifar100_images"),
    *("breakfast", "imagenet100", "imagenet1k"),
]


@pytest.mark.parametrize("name", TO_BRING)
def test_absent_data_are_an_error_that_says_what_and_what_to_do(data, name):
    with pytest.raises(
        ValueError, match=f"{name.removesuffix('_images')}.* are missing: no .*README"
    ) as error:
        load_task(name, "smoke", 0)
    assert str(data) in str(error.value)
    assert any(way in str(error.value) for way in ("--prepare", "Download", "Get ILSVRC"))


def test_a_batch_maps_bytes_to_minus_one_to_one_and_lazy_inputs_are_indexed_like_a_tensor():
    stored = torch.arange(180).reshape(3, 4, 5, 3).to(torch.uint8)
    assert torch.equal(Split(stored, torch.zeros(3).long()).batch([2])[0], stored[2:] / 127.5 - 1)
    lazy = LazyInputs(stored.shape, stored.__getitem__)
    for rows in (slice(0, 3, 2), 1, [2, 0], torch.tensor([1, 1]), torch.arange(3) > 1):
        assert torch.equal(lazy[rows], stored[rows])


# ---------------------------------------------------------------------------------------- downloads


CONTENT = np.random.default_rng(0).bytes(300_001)
GOOD = "sha256:" + hashlib.sha256(CONTENT).hexdigest()


class Server(BaseHTTPRequestHandler):
    """Server of `content` that sends only a part of it if `breaks`."""

    content, breaks, requests = CONTENT, False, 0

    def do_HEAD(self):
        is_there = "nothing" not in self.path
        self.send_response(200 if is_there else 404)
        if is_there:
            self.send_header("X-Linked-ETag", f'"{GOOD[7:]}"')
        self.end_headers()

    def do_GET(self):
        type(self).requests += 1
        if "nothing" in self.path:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        self.wfile.write(self.content[: len(self.content) // 2 if self.breaks else None])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    """Yield an address, and the handler class, whose behaviour a test may change."""
    handler = type("Handler", (Server,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}", handler
        http.shutdown()


def test_a_download_is_kept_and_not_repeated(data, server):
    address, handler = server
    for _ in range(2):
        fetch("set", address, {"a.gz": GOOD})
    assert (data / "set" / "a.gz").read_bytes() == CONTENT
    assert handler.requests == 1
    assert [path.name for path in (data / "set").iterdir()] == ["a.gz"]


def test_a_download_that_breaks_off_or_was_altered_is_refused_with_both_checksums(data, server):
    address, handler = server
    handler.breaks = True
    with pytest.raises(ValueError, match=r"a \(150,000 bytes\) is truncated or altered: .*delete"):
        fetch("set", address, {"a": GOOD})
    (data / "set" / "a").unlink()
    handler.breaks, handler.content = False, CONTENT[:-1] + b"!"
    actual = hashlib.sha256(handler.content).hexdigest()
    for _ in range(2):  # also if it was altered after the download
        with pytest.raises(ValueError, match=f"{GOOD[7:]} and is {actual}; delete the file"):
            fetch("set", address, {"a": GOOD})
    with pytest.raises(OSError, match=f"404.*put the file into {data / 'set'} yourself"):
        fetch("set", address, {"nothing": GOOD})
    assert [path.name for path in (data / "set").iterdir()] == ["a"]


def test_a_checksum_that_is_not_written_down_is_the_one_that_the_hub_states(data, server):
    address, handler = server
    with pytest.raises(OSError, match=r"404 Not Found: no checksum is stated.*put the file into"):
        fetch("set", address, {"nothing": ""})
    handler.content = CONTENT[:-1] + b"!"
    with pytest.raises(ValueError, match=f"{GOOD[7:]} and is "):
        fetch("set", address, {"a.parquet": ""})


def test_prepare_downloads_what_a_task_then_reads(data, server, monkeypatch, capsys):
    address, handler = server
    handler.content = content = encoded_rows(np.random.default_rng(0), 120, "img", "fine_label", 32)
    digest = "sha256:" + hashlib.sha256(content).hexdigest()
    digests = {images.TRAIN: digest, images.TEST: digest}
    one = replace(images.SETS["cifar100"], address=address, files=digests)
    monkeypatch.setitem(images.SETS, "cifar100", one)
    for name in ("cifar100", "cifar100_images"):
        prepare = partial(fetch, "cifar100", address, digests)
        monkeypatch.setitem(tasks.TASKS, name, replace(tasks.TASKS[name], prepare=prepare))
    assert main(["tasks", "--prepare", "cifar100,cifar100_images", "--scale", "smoke"]) == 0
    out = capsys.readouterr().out
    assert "cifar100 at scale smoke is ready: 64 train, 32 val, 32 test\n" in out
    assert "cifar100_images at scale smoke is ready: 64 train, 32 val, 32 test\n" in out
    files = sorted(path.name for path in (data / "cifar100").iterdir())
    assert files == [images.TEST, images.TRAIN]
    assert handler.requests == 2


# --------------------------------------------------------------------------------------- pathfinder


def put_lra(root, window=32):
    """Write LRA's folder with three batches of 20; labels alternate, image i has the grey
    value i.
    """
    (root / pathfinder.LRA / "metadata").mkdir(parents=True)
    for k, batch in enumerate((0, 2, 10)):
        place, rows = root / pathfinder.LRA / "imgs" / str(batch), []
        place.mkdir(parents=True)
        for i in range(20):
            (place / f"sample_{i}.png").write_bytes(
                encoded(np.full((window, window), 20 * k + i, np.uint8))
            )
            rows.append(f"imgs/{batch} sample_{i}.png {i} {i % 2} 1.0 14 4 2 0.5 1 1\n")
        (root / pathfinder.LRA / "metadata" / f"{batch}.npy").write_text("".join(rows))


def test_lras_pictures_are_drawn_by_the_runs_seed_and_averaged_at_smoke(data, monkeypatch):
    refused("pathfinder32", "the data of task 'pathfinder32' are missing")
    put_lra(data / "pathfinder32")
    refused("pathfinder32", "pathfinder32's pool has 60 rows, needed are 64 [+] 32 [+] 32")
    monkeypatch.setitem(
        pathfinder.SETTINGS,
        "smoke",
        replace(pathfinder.SETTINGS["smoke"], sizes=(32, 16, 8)),
    )
    made, other = (load_task("pathfinder32", "smoke", seed) for seed in (0, 1))
    assert made.train.inputs.shape == (32, 256, 1)
    assert not torch.equal(made.train.labels, other.train.labels)
    grey = (made.test.batch(slice(None))[0] * 255).round().long()
    assert (grey == grey[:, :1]).all()
    assert torch.equal(grey[:, 0, 0] % 20 % 2, made.test.labels)
    trains("pathfinder32")


def test_at_paper_lras_pictures_have_s4s_split(data, monkeypatch):
    put_lra(data / "pathfinder64", window=64)
    with pytest.raises(ValueError, match="holds 60 images, LRA's release has 200,000: provide all"):
        load_task("pathfinder64", "paper", 0)
    monkeypatch.setattr(pathfinder, "MIN_IMAGES", 60)
    loaded = load_task("pathfinder64", "paper", 0)
    assert [len(split) for split in (loaded.train, loaded.val, loaded.test)] == [48, 6, 6]
    order = torch.randperm(60, generator=torch.Generator().manual_seed(42))
    assert torch.equal(
        (loaded.test.batch(slice(None))[0][:, 7, 0] * 255).round().long(), order[54:]
    )
    assert torch.equal(loaded.train.labels, order[:48] % 2)
    assert loaded.train.inputs.shape == (48, 4096, 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"\x93NUMPY\x01\x00",
            r"2\.npy cannot be read \(.*0x93.*needed are rows of subpath"
            r".*replace this file",
        ),
        (b"\xff\xfe", r"2\.npy cannot be read \(.*0xff"),
        (b"imgs/2 sample_0.png 0\n", r"2\.npy cannot be read \(list index"),
        (
            b"imgs/2 seg/2 sample_0.png 7 1.8\n",
            r"2\.npy cannot be read \(.*row 1: label 7, allowed are 0 to 1",
        ),
    ],
)
def test_metadata_of_pathfinder_that_cannot_be_read_are_refused_by_their_name(
    data, content, message
):
    put_lra(data / "pathfinder32")
    file = data / "pathfinder32" / pathfinder.LRA / "metadata" / "2.npy"
    file.write_bytes(content)
    refused("pathfinder32", message)


def test_a_text_in_another_encoding_is_refused_by_its_name(data):
    for read in (files.read_text, breakfast.read_bundle):
        (data / "a.txt").write_bytes(b"\x93NUMPY")
        with pytest.raises(ValueError, match=r"a\.txt is not UTF-8 text .*0x93"):
            read(data / "a.txt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (encoded(np.zeros((16, 32), np.uint8)), "of 32×16 pixels, needed are 32×32"),
        (b"PNG", r"sample_3\.png is not a readable image"),
    ],
)
def test_a_picture_of_lras_that_is_wrong_is_refused_by_its_name(
    data, content, message, monkeypatch
):
    monkeypatch.setattr(pathfinder, "MIN_IMAGES", 60)
    put_lra(data / "pathfinder32")
    (data / "pathfinder32" / pathfinder.LRA / "imgs" / "0" / "sample_3.png").write_bytes(content)
    refused("pathfinder32", message, "paper")


# ----------------------------------------------------------------------------------------- pictures


def encoded_rows(rng, n, picture, label, edge, mode="RGB", n_classes=10):
    """Return a Parquet file as in a Hugging Face repository: a struct {bytes, path} and a
    label.
    """
    rows = [{"bytes": png(rng, edge, mode), "path": f"{i}.png"} for i in range(n)]
    table = pa.table({picture: rows, label: rng.integers(0, n_classes, n)})
    if label == "fine_label":
        table = table.append_column("coarse_label", table[label])
    pq.write_table(table, buffer := io.BytesIO())
    return buffer.getvalue()


def put_idx(data, name, part, pictures, labels):
    """Write a pair of gzipped idx files, and accept their checksums."""
    (data / name).mkdir(exist_ok=True)
    for kind, array in ((images.IMAGES, pictures), (images.LABELS, labels)):
        sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
        content = bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()
        (data / name / images.IDX[part].format(kind)).write_bytes(gzip.compress(content, 1))


@pytest.fixture
def any_checksum(monkeypatch):
    """Accept idx files of the test's own under the published names."""
    for name in ("mnist", "fashion_mnist"):
        one = images.SETS[name]
        monkeypatch.setitem(images.SETS, name, replace(one, files=dict.fromkeys(one.files, "")))


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_idx_files_give_back_their_images_and_train(data, any_checksum, name):
    pictures = np.random.default_rng(0).integers(0, 256, (200, 28, 28), np.uint8)
    put_idx(data, name, "train", pictures, np.arange(200) % 10)
    put_idx(data, name, "test", pictures[:80], np.arange(80) % 10)
    stored = images.read_idx(name, images.IDX["train"].format(images.IMAGES))
    assert np.array_equal(stored, pictures)
    assert load_task(name, "smoke", 0).train.inputs.shape == (64, 49, 1)
    trains(name)
    put_idx(data, name, "test", pictures[:80], np.full(80, 10))
    forget()
    refused(name, "row 1: label 10, allowed are 0 to 9")


def test_an_altered_idx_file_is_refused(data):
    pictures = np.zeros((9, 28, 28), np.uint8)
    put_idx(data, "mnist", "train", pictures, np.zeros(9))
    refused("mnist", r"train-images-idx3-ubyte\.gz .* truncated or altered: its md5 ")


def test_real_mnist_files_are_read_and_train(data, any_checksum):
    (data / "mnist").mkdir()
    kinds = (images.IMAGES, images.LABELS)
    names = [images.IDX["test"].format(kind) for kind in kinds]
    for name in names:
        (data / "mnist" / name).symlink_to(real(f"mnist/{name}"))
    pictures, labels = (images.read_idx("mnist", name) for name in names)
    assert (pictures.shape, np.bincount(labels).tolist()) == (
        (10_000, 28, 28),
        [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
    )
    put_idx(data, "mnist", "train", pictures[:6_000], labels[:6_000])
    loaded = load_task("mnist", "quick", 0)
    assert loaded.train.inputs.shape == (4_000, 196, 1)
    assert (float(loaded.test.batch(slice(50))[0].min()), loaded.n_classes) == (-1, 10)
    trains("mnist")


# the images of S2's sets (§IV.C.1), and what is done to them


def trains_as_s2s_model(task):
    """Assert that S2's Transformer with AutoNorm trains, is tested on corrupted images, and is
    planned from the task's stated Shape.
    """
    trains(task)
    config = base_config(task, "smoke", arm="AutoNorm")
    result = train(config)
    save_run(result, folder := files.data_folder("runs"))
    table = robustness.robustness_table([find_run(config, folder)])
    assert set(table.kind) == {"noise", "rotation"}
    assert table[table.severity == 0].accuracy.unique().tolist() == [result.test_accuracy]
    assert table.accuracy.between(0, 1).all()
    assert plan(config, measured=False)["parameters"] == result.parameters


def test_real_mnist_images_are_those_of_the_sequences(data, any_checksum):
    (data / "mnist").mkdir()
    names = [images.IDX["test"].format(kind) for kind in (images.IMAGES, images.LABELS)]
    for name in names:
        (data / "mnist" / name).symlink_to(real(f"mnist/{name}"))
    pictures, labels = (images.read_idx("mnist", name) for name in names)
    put_idx(data, "mnist", "train", pictures[:6_000], labels[:6_000])
    as_images, as_pixels = load_task("mnist_images", "quick", 0), load_task("mnist", "quick", 0)
    x, _, y = as_images.test.batch(slice(20))
    assert (x.shape, as_images.patch, as_images.positions) == ((20, 28, 28, 1), 4, (7, 7))
    assert torch.equal(y, as_pixels.test.batch(slice(20))[2])
    means = torch.nn.functional.avg_pool2d(x[..., 0][:, None], 2).flatten(1)
    sequence = as_pixels.test.batch(slice(20))[0][..., 0]
    torch.testing.assert_close(means, sequence, atol=1 / 255 + 1e-6, rtol=0)  # stored as bytes
    trains_as_s2s_model("mnist_images")


def test_real_fashion_mnist_images_are_read_and_train(data, any_checksum):
    folder = data / "fashion_mnist"
    folder.mkdir()
    for part in ("train", "test"):  # the 900 images of the sprite are both parts
        for kind in (images.IMAGES, images.LABELS):
            link = folder / images.IDX[part].format(kind)
            link.symlink_to(real(f"fashion_mnist/sprite900-{kind}-ubyte.gz"))
    loaded = load_task("fashion_mnist_images", "smoke", 0)
    assert loaded.train.batch([0])[0].shape == (1, 28, 28, 1)
    assert (loaded.patch, loaded.positions) == (7, (4, 4))
    pictures = images.read_idx("fashion_mnist", images.IDX["test"].format(images.IMAGES))
    row = torch.randperm(900, generator=torch.Generator().manual_seed(0))[0]
    found = loaded.test.batch([0])[0][0, ..., 0]
    np.testing.assert_allclose(found, pictures[row] / 127.5 - 1, atol=1e-6)
    trains_as_s2s_model("fashion_mnist_images")


def test_svhn_images_have_the_colours_of_their_files(data):
    test_file = put_parquet(data, "svhn", "test", 60)
    put_parquet(data, "svhn", "train", 100)
    loaded = load_task("svhn_images", "smoke", 0)
    assert (loaded.in_channels, loaded.n_classes, loaded.patch) == (3, 10, 8)
    row = torch.randperm(60, generator=torch.Generator().manual_seed(0))[0]
    stored = pq.read_table(test_file).to_pylist()[row]
    picture = np.asarray(Image.open(io.BytesIO(stored["image"]["bytes"])))
    x, _, labels = loaded.test.batch([0])
    np.testing.assert_allclose(x[0], picture / 127.5 - 1, atol=1e-6)
    assert labels.item() == stored["label"]
    trains_as_s2s_model("svhn_images")


def put_parquet(data, name, split, n, seed=0, file=None):
    """Write a split's Parquet file and return its path."""
    one = images.SETS[name]
    content = encoded_rows(np.random.default_rng(seed), n, *one.columns, 32, "RGB", one.n_classes)
    path = data / name / (file or f"{split}.parquet")
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", [name for name in images.SETS if images.SETS[name].columns])
def test_parquet_files_of_a_repository_are_read_without_a_network(data, name, monkeypatch):
    monkeypatch.setattr(files, "download_url_to_file", None)
    put_parquet(data, name, "train", 100)
    put_parquet(data, name, "test", 40, seed=1)
    one = images.SETS[name]
    loaded = load_task(name, "smoke", 0)
    assert [len(split) for split in (loaded.train, loaded.val, loaded.test)] == [64, 32, 32]
    assert loaded.train.inputs.shape == (64, 64, 1)
    assert (loaded.n_classes, loaded.in_features) == (one.n_classes, 1)
    assert not torch.equal(load_task(name, "smoke", 1).train.labels, loaded.train.labels)
    if name == "svhn":
        trains(name)


def whole_set(monkeypatch, data, name, n):
    """Write a set that is complete with n rows of train and of test."""
    monkeypatch.setitem(images.SETS, name, replace(images.SETS[name], rows=(n, n)))
    return [put_parquet(data, name, split, n, seed) for seed, split in enumerate(("train", "test"))]


def test_cifar_at_paper_is_s4s_grey_sequence_and_split(data, monkeypatch):
    train_file, _ = whole_set(monkeypatch, data, "cifar10", 30)
    loaded = load_task("cifar10", "paper", 5)
    assert [len(split) for split in (loaded.train, loaded.val, loaded.test)] == [27, 3, 30]
    order = torch.randperm(30, generator=torch.Generator().manual_seed(42))
    rows = pq.read_table(train_file).to_pylist()
    for place, row in ((0, order[0]), (26, order[26])):
        grey = (
            np.asarray(Image.open(io.BytesIO(rows[row]["img"]["bytes"])).convert("L"), np.float64)
            / 255
        )
        expected = ((grey - 122.6 / 255) / (61 / 255)).reshape(1024, 1)
        x, _, label = loaded.train.batch([place])
        assert np.allclose(x[0], expected, atol=1e-5)
        assert label.item() == rows[row]["label"]
    assert loaded.val.labels.tolist() == [rows[row]["label"] for row in order[27:]]


def test_cifar_as_images_is_colour_in_minus_one_to_one(data, monkeypatch):
    _, test_file = whole_set(monkeypatch, data, "cifar100", 100)
    loaded = load_task("cifar100_images", "paper", 0)
    x, lengths, labels = loaded.test.batch([4, 2])
    row = torch.randperm(100, generator=torch.Generator().manual_seed(42))[4]
    one = pq.read_table(test_file).to_pylist()[row]
    assert np.allclose(
        x[0], np.asarray(Image.open(io.BytesIO(one["img"]["bytes"]))) / 127.5 - 1, atol=1e-6
    )
    assert (x.shape, x.dtype, lengths, labels[0].item()) == (
        (2, 32, 32, 3),
        torch.float32,
        None,
        one["fine_label"],
    )
    assert (loaded.in_channels, loaded.n_classes) == (3, 100)
    trains("cifar100_images")


def test_a_published_file_that_was_altered_is_refused_with_both_checksums(data):
    path = put_parquet(data, "cifar10", "train", 3, file=images.TRAIN)
    put_parquet(data, "cifar10", "test", 3)
    found, expected = (
        hashlib.sha256(path.read_bytes()).hexdigest(),
        images.SETS["cifar10"].files[images.TRAIN][7:],
    )
    with pytest.raises(
        ValueError, match=f"{path.name}.*truncated or altered.*{expected} and is {found}; delete"
    ):
        load_task("cifar10", "smoke", 0)


def test_what_is_no_whole_split_is_refused_by_its_name(data):
    put_parquet(data, "svhn", "test", 3)
    path = put_parquet(data, "svhn", "train", 3)
    path.write_bytes(path.read_bytes()[:-9])
    refused("svhn", r"svhn's train in .*train\.parquet.*replace the file")
    pq.write_table(pa.table({"picture": [1]}), path)
    refused("svhn", r"(?s)svhn's train in .*image.*complete one with the columns image, label")
    for labels, message in (
        (pa.array([9, 10]), ", row 2: label 10, allowed are 0 to 9"),
        (pa.array([9, None]), ", row 2: label nan, allowed"),
        (pa.array([1.0, 0.7]), ", row 2: label 0.7, allowed"),
    ):
        pq.write_table(pa.table({"image": [b"", b""], "label": labels}), path)
        refused("svhn", f"svhn's train{message}")
    path.unlink()
    put_parquet(data, "svhn", "train", 3, file="train-00000-of-00002.parquet")
    table = pa.table({"image": pa.array([b"x"], pa.binary()), "label": [1]})
    pq.write_table(table, data / "svhn" / "train-00001-of-00002.parquet")
    refused("svhn", "svhn's train in .*struct")  # the columns of the two files differ in type
    put_parquet(data, "cifar10", "train", 90)
    put_parquet(data, "cifar10", "test", 0)
    refused("cifar10", r"train part has 90 rows, needed are 64 \+ 32: .*smaller scale")
    refused("cifar10", r"90 \+ 0 rows, scale paper needs 50,000 \+ 10,000", "paper")
    put_parquet(data, "cifar10", "train", 100)
    refused("cifar10", "cifar10's test part has 0 rows, needed are 32")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda rng: png(rng, 31), "an image of 31×31 pixels, needed are 32×32"),
        (lambda rng: png(rng, 32)[:200], "is not a readable image"),
    ],
)
def test_a_picture_that_is_wrong_is_refused_with_its_row(content, message):
    rng = np.random.default_rng(0)
    encoded = [{"bytes": png(rng, 32)}, {"bytes": png(rng, 32)}, {"bytes": content(rng)}]
    rows = pa.chunked_array([pa.array(encoded, pa.struct({"bytes": pa.binary()}))])
    with pytest.raises(ValueError, match=f"svhn's train, row 3:? ?.*{message}"):
        decode(rows, [1, 0, 2], 32, "L", "svhn's train")


# --------------------------------------------------------------------------------------------- imdb


def put_imdb(data, train_rows, test_rows):
    (data / "imdb").mkdir(exist_ok=True)
    for split, rows in (("train", train_rows), ("test", test_rows)):
        texts, labels = zip(*rows, strict=True)
        pq.write_table(
            pa.table({"text": texts, "label": labels}), data / "imdb" / f"{split}.parquet"
        )


def sentences():
    """Return (text, label) of the real sentences."""
    lines = real("imdb_uci_sentences/imdb_labelled.txt").read_text().removesuffix("\n").split("\n")
    return [(text, int(label)) for text, label in (line.rsplit("\t", 1) for line in lines)]


def test_real_sentences_are_read_character_by_character_and_train(data):
    rows = sentences()
    assert len(rows) == 1_000
    put_imdb(data, rows[:700], rows[700:])
    loaded = load_task("imdb", "smoke", 0)
    ids = imdb.build_vocabulary(text[:63] for text, _ in rows[:700])
    names = {i: token for token, i in ids.items()}
    rows_read = zip(loaded.test.inputs.tolist(), loaded.test.lengths.tolist(), strict=True)
    decoded = {"".join(names[i] for i in row[: length - 1]) for row, length in rows_read}
    expected = {
        "".join(char if char in ids else "<unk>" for char in text[:63]) for text, _ in rows[700:]
    }
    assert len(decoded) >= 30
    assert decoded <= expected
    trains("imdb")


def test_imdb_at_paper_follows_s4(data, monkeypatch):
    monkeypatch.setattr(imdb, "ROWS", (3, 2))
    # 15 times "b" is in, 14 times "Z" is not; what stands past 4,095 characters counts for nothing
    train_rows = [("a" * 20 + "b" * 15 + "Z" * 14, 0), ("c" * 5_000 + "Z" * 9, 1), ("é" * 16, 1)]
    put_imdb(data, train_rows, [("aZé", 1), ("b", 0)])
    loaded = load_task("imdb", "paper", 3)
    ids = {"c": 3, "a": 4, "é": 5, "b": 6}
    assert loaded.vocab_size == 7
    assert sorted(loaded.train.lengths.tolist()) == [17, 50, 4096]
    row = loaded.test.inputs[loaded.test.labels.tolist().index(1)]
    assert row.tolist() == [ids["a"], imdb.UNK, ids["é"], imdb.EOS]
    longest = loaded.train.inputs[loaded.train.lengths.argmax()]
    assert longest.tolist() == [ids["c"]] * 4_095 + [imdb.EOS]
    assert loaded.val is loaded.test


def test_a_review_without_a_label_is_refused_with_its_row(data):
    put_imdb(data, [("fine", 1), ("odd", -1)] * 60, [("fine", 1)] * 40)  # -1: not labelled
    refused("imdb", "imdb's train, row 2: label -1, allowed are 0 to 1")


# ---------------------------------------------------------------------------------------- breakfast


def put_breakfast(data, lengths, train, test):
    """Write random features in MS-TCN's layout; `lengths`: video -> number of frames."""
    folder, rng = data / "breakfast", np.random.default_rng(0)
    for name in ("features", "splits"):
        (folder / name).mkdir(parents=True)
    for video, length in lengths.items():
        np.save(
            folder / "features" / f"{video}.npy", rng.standard_normal((2048, length), np.float32)
        )
    for split in (1, 2, 3, 4):
        for part, videos in (("train", train), ("test", test)):
            (folder / "splits" / f"{part}.split{split}.bundle").write_text(
                "".join(f"{v}.txt\n" for v in videos)
            )
    return folder


def made_videos(people, kinds=("cereals", "coffee", "tea", "salat")):
    return [f"{p}_cam01_{p}_{kind}" for p in people for kind in kinds]


@pytest.fixture
def few(data):
    """Write two dozen random videos of a few frames."""
    train_videos, test_videos = (
        made_videos(["P16", "P17", "P18", "P19"]),
        made_videos(["P03", "P04"]),
    )
    lengths = {video: 5 + i for i, video in enumerate(train_videos + test_videos)}
    return put_breakfast(data, lengths, train_videos, test_videos)


def test_real_bundles_are_the_four_published_splits():
    sizes, everyone = [], set()
    for split in (1, 2, 3, 4):
        train_videos, test_videos = (
            breakfast.read_bundle(real(f"breakfast/splits/{part}.split{split}.bundle"))
            for part in ("train", "test")
        )
        sizes.append((len(train_videos), len(test_videos)))
        assert not {breakfast.person(v) for v in train_videos} & {
            breakfast.person(v) for v in test_videos
        }
        everyone |= {*train_videos, *test_videos}
    assert sizes == [(1460, 252), (1261, 451), (1279, 433), (1136, 576)]
    assert len(everyone) == 1712


def test_activities_are_numbered_as_vis4mer_numbers_them():
    for part in ("train", "test"):
        for line in real(f"breakfast/vis4mer_{part}.csv").read_text().splitlines()[1:]:
            name, _, _, number = line.split(",")
            assert breakfast.activity_class(name.removesuffix("_ch0")) == int(
                number
            )  # the camera's channel


def test_breakfast_trains_and_its_frames_once_taken_are_read_from_their_file(few, monkeypatch):
    trains("breakfast_split4")
    made = load_task("breakfast", "quick", 0).test.batch([1])[0]
    assert len(list(few.glob("frames64/*.npy"))) == 24
    forget()
    with monkeypatch.context() as without:
        without.setattr(breakfast, "read_frames", None)
        assert torch.equal(load_task("breakfast", "quick", 0).test.batch([1])[0], made)
    refused(
        "breakfast",
        r"split 1 in .* holds 16 \+ 8 rows, scale lab needs 1,460 \+ 252: provide all",
        "lab",
    )


def test_frames_are_taken_from_the_first_to_the_last_equally_far_apart(few):
    video = "P19_cam01_P19_salat"
    features = np.load(few / "features" / f"{video}.npy")  # 20 frames
    kept = breakfast.read_frames(few / "features" / f"{video}.npy", 7)
    assert np.array_equal(kept, features[:, [0, 3, 6, 10, 13, 16, 19]].T)
    assert breakfast.read_frames(few / "features" / f"{video}.npy", 40).shape == (40, 2048)


def test_nobody_is_both_in_train_and_in_validation_and_the_rows_are_the_videos_own(few):
    loaded = load_task("breakfast_split2", "quick", 1)
    sizes = [len(split) for split in (loaded.train, loaded.val, loaded.test)]
    assert sizes == [12, 4, 8]
    out = breakfast.held_out_people(made_videos(["P16", "P17", "P18", "P19"]), 1)
    video = made_videos(sorted(out))[2]
    assert torch.equal(
        loaded.val.batch([2])[0][0],
        torch.from_numpy(breakfast.read_frames(few / "features" / f"{video}.npy", 64)),
    )
    assert loaded.val.labels.tolist() == [0, 1, 2, 9]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            np.zeros((23, 2048), np.float32),
            r"its shape is \(23, 2048\), needed is \(2048, frames\)",
        ),
        (np.full((2048, 23), np.nan, np.float32), "not finite"),
        (lambda whole: whole[:5_000], "cannot be used"),
        (lambda whole: whole[:12] + b"(" + whole[13:], "cannot be used"),
    ],
)
def test_features_that_are_wrong_or_not_there_are_refused_by_name(few, content, message):
    path = few / "features" / "P03_cam01_P03_tea.npy"
    if isinstance(content, np.ndarray):
        np.save(path, content)
    else:
        path.write_bytes(content(path.read_bytes()))
    refused("breakfast", rf"P03_tea\.npy .*{message}", "quick")
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"P03_tea\.npy"):
        load_task("breakfast", "quick", 0)
    assert not list(few.glob("frames*/P03_cam01_P03_tea.npy"))


# ----------------------------------------------------------------------------------------- imagenet


WNIDS = ("n01440764", "n02123045", "n02123394")


def put_imagenet(data, name="imagenet1k", n=40, classes=WNIDS):
    """Write images in class folders: one colour a class, several sizes."""
    for split in ("train", "val"):
        for label, wnid in enumerate(classes):
            (data / name / split / wnid).mkdir(parents=True)
            for i in range(n):
                picture = np.zeros((40 + i, 60, 3), np.uint8)
                picture[..., label % 3] = 200
                (data / name / split / wnid / f"{wnid}_{i}.JPEG").write_bytes(
                    encoded(picture, "JPEG")
                )
    return data / name


def test_imagenet_is_read_from_class_folders_when_a_batch_asks(data, monkeypatch):
    put_imagenet(data)
    opened = []
    read_photograph = imagenet.read_photograph
    monkeypatch.setattr(
        imagenet,
        "read_photograph",
        lambda path, edge: opened.append(path) or read_photograph(path, edge),
    )
    loaded = load_task("imagenet1k", "smoke", 0)
    assert [len(split) for split in (loaded.train, loaded.val, loaded.test)] == [64, 32, 32]
    assert (loaded.n_classes, loaded.in_channels, opened) == (3, 3, [])
    x, lengths, labels = loaded.train.batch([5, 9, 11])
    assert len(opened) == 3
    assert (x.shape, x.dtype, lengths) == ((3, 32, 32, 3), torch.float32, None)
    assert x.mean((1, 2)).argmax(-1).tolist() == labels.tolist()
    trains("imagenet1k")


def test_a_picture_is_resized_and_cut_from_its_centre(tmp_path):
    picture = np.zeros((100, 300, 3), np.uint8)
    picture[:, 100:200] = 255  # the middle third is white
    path = tmp_path / "wide.png"
    Image.fromarray(picture).save(path)
    assert imagenet.read_photograph(path, 64).min() == 255
    Image.fromarray(picture.transpose(1, 0, 2)).convert("L").save(path)
    assert imagenet.read_photograph(path, 64).shape == (64, 64, 3)
    assert imagenet.read_photograph(path, 64).min() == 255


def test_imagenet_100_takes_the_classes_of_its_list_from_the_large_set(data, monkeypatch):
    put_imagenet(data, n=50)
    with pytest.raises(
        ValueError, match="no .*imagenet100.txt. Run `mambanorm tasks --prepare imagenet100`"
    ):
        load_task("imagenet100", "smoke", 0)
    monkeypatch.setitem(imagenet.LIST_FILE, "imagenet100.txt", "")
    (data / "imagenet100").mkdir()
    (data / "imagenet100" / "imagenet100.txt").write_text(f"{WNIDS[2]}\n{WNIDS[0]}\n")
    assert load_task("imagenet100", "smoke", 0).n_classes == 2
    trains("imagenet100")


def test_imagenet_100_is_the_published_hundred(data):
    put_imagenet(data, n=2)
    (data / "imagenet100").mkdir()
    path = data / "imagenet100" / "imagenet100.txt"
    path.write_text("\n".join(WNIDS))
    with pytest.raises(
        ValueError, match=r"imagenet100\.txt .* is truncated or altered: its sha256 should be 79f3"
    ):
        load_task("imagenet100", "lab", 0)
    files.verify(
        published := real("imagenet100/imagenet100_CMC.txt"), imagenet.LIST_FILE["imagenet100.txt"]
    )
    path.write_bytes(published.read_bytes())
    put_imagenet(data, "imagenet100", n=1, classes=published.read_text().split())
    with pytest.raises(ValueError, match="imagenet100/val holds 100 rows, scale lab needs 5,000"):
        load_task("imagenet100", "lab", 0)


def test_a_class_without_pictures_and_a_picture_that_is_none_are_refused_by_name(data):
    folder = put_imagenet(data, n=40)
    refused(
        "imagenet1k",
        r"imagenet1k holds \d+ \+ \d+ rows, scale paper needs 1,281,167 \+ 50,000",
        "paper",
    )
    for path in (folder / "train" / WNIDS[1]).iterdir():
        path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(
        ValueError,
        match=r"n02123045_\d+\.JPEG is not a readable image .*replace this file",
    ):
        load_task("imagenet1k", "smoke", 0).train.batch(slice(None))
    for path in (folder / "val" / WNIDS[1]).iterdir():
        path.rename(path.with_suffix(".webp"))
    refused("imagenet1k", f"no image in .*val/{WNIDS[1]}")
