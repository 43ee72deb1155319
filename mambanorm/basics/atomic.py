"""Files that exist whole or not at all: each is written under another name in the same folder, and renamed last.

A reader, or a second writer, never meets half a file, and a full disk leaves nothing behind. A name appears when the
content has reached the disk, so that a power cut leaves the old file or the new one.

    replacing, write_bytes, write_text    one file
    make_folder                           creates a folder that a power cut does not take away again
    to_disk, folder_to_disk               wait until a file, the names in a folder, or a folder of files are on the disk
    save_tensors                          a safetensors file, with the permissions of any other
    writable_folder                       can a folder be written to? Asked before the work, not after it
    is_full                               does an error say that the disk is full?
    free_name                             where to set a damaged folder aside
    sha256                                the checksum of a file
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from mambanorm.basics.later import Later

if TYPE_CHECKING:
    from torch import Tensor

safetensors_torch = Later("safetensors.torch")

PROBE = ".writable-"
NO_WAIT = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EACCES)  # answers for a folder that cannot be waited for


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary name beside `path` to write to: renamed to `path` if the block succeeds, else deleted.

    A device or a pipe is never replaced, but written to as it is.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    make_folder(path.parent)
    temporary = path.with_name(f".{path.stem}-{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        to_disk(temporary)
        os.replace(temporary, path)
        to_disk(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Creates a folder, and those above it, where they are missing; returns when their names have reached the disk."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        to_disk(folder.parent)


def folder_to_disk(folder: Path) -> None:
    """Waits until a folder and the files in it have reached the disk. OSError if they cannot."""
    for path in (*folder.iterdir(), folder):
        to_disk(path)


def to_disk(path: Path) -> None:
    """Waits until the content of a file, or the names in a folder, have reached the disk. OSError if they cannot.

    Where there is no such wait for a folder, as on some shared disks, or where this user may not open it, none is made.
    """
    folder = path.is_dir()
    if os.name == "nt" and folder:  # Windows opens no folder, and waits only for a file that it may write to
        return
    try:
        handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if not folder or error.errno not in NO_WAIT:
            raise


def write_bytes(path: Path, content: bytes) -> None:
    """A link stays a link, to the file that is written."""
    with replacing(path.resolve() if path.is_symlink() else path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """As UTF-8."""
    write_bytes(path, text.encode())


def save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """A safetensors file that follows the umask; safetensors' own are readable by their owner alone.

    OSError where it cannot be written.
    """
    path.touch()
    mode = path.stat().st_mode
    try:
        safetensors_torch.save_file(tensors, path)
    except SafetensorError as error:  # what it raises for a full disk
        text, number = f"{path} cannot be written: {error}", re.search(r"\(os error (\d+)\)", str(error))
        raise (OSError(int(number[1]), text) if number else OSError(text)) from error
    path.chmod(mode)


def is_full(error: OSError) -> bool:
    """Whether an error says that the disk is full, or the user's share of it (quota)."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def writable_folder(path: str | Path, what: str) -> Path:
    """Tests that a folder can be written to, and returns its absolute path; it is left as it was, there or not.

    OSError where it cannot: one sentence that names `what` it should hold and says what to do.
    """
    path = Path(path).resolve()
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    probe = path / f"{PROBE}{uuid.uuid4().hex}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink(missing_ok=True)  # another process may tidy up what killed processes left
        for folder in made:
            with suppress(OSError):  # another process has begun to use it
                folder.rmdir()
    except OSError as error:
        reason = "it is a file" if path.is_file() else error.strerror or str(error)
        hint = "Nothing was started; give a folder that you can write to"
        raise type(error)(error.errno, f"{path} cannot hold {what}: {reason}. {hint}") from error
    return path


def free_name(path: Path) -> Path:
    """`<name>.damaged-1`, or the next one that is free."""
    n = 1
    while (aside := path.with_name(f"{path.name}.damaged-{n}")).exists():
        n += 1
    return aside


def sha256(path: Path) -> str:
    """The checksum of a file's content, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
