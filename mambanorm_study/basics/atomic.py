"""Files that exist whole or not at all: each is written under another name in the same folder, and
renamed last.

A reader, or a second writer, never meets half a file, and a full disk leaves nothing behind. A name
appears when the content has reached the disk, so that a power cut leaves the old file or the new
one.
"""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NO_WAIT = (
    errno.EINVAL,
    errno.ENOTSUP,
    errno.ENOSYS,
    errno.EACCES,
)  # answers for a folder that cannot be waited for


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary name beside `path` to write to: renamed to `path` if the block succeeds,
    else deleted.

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
    """Creates a folder, and those above it, where they are missing; returns when their names have
    reached the disk."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        to_disk(folder.parent)


def folder_to_disk(folder: Path) -> None:
    """Waits until a folder and the files in it have reached the disk. OSError if they cannot."""
    for path in (*folder.iterdir(), folder):
        to_disk(path)


def to_disk(path: Path) -> None:
    """Waits until the content of a file, or the names in a folder, have reached the disk. OSError
    if they cannot.

    Where there is no such wait for a folder, as on some shared disks, on Windows, or where this
    user may not open it, none is made.
    """
    try:
        handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if not path.is_dir() or error.errno not in NO_WAIT:
            raise


def write_bytes(path: Path, content: bytes) -> None:
    """A link stays a link, to the file that is written."""
    with replacing(path.resolve()) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """As UTF-8."""
    write_bytes(path, text.encode())


def is_full(error: OSError) -> bool:
    """Whether an error says that the disk is full, or the user's share of it (quota)."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def writable_folder(path: str | Path, what: str) -> Path:
    """Tests that a folder can be written to, and returns its absolute path; it is left as it was,
    there or not.

    OSError where it cannot: one sentence that names `what` it should hold and says what to do.
    """
    path = Path(path).resolve()
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
        for folder in made:
            with suppress(OSError):  # another process has begun to use it
                folder.rmdir()
    except OSError as error:
        hint = "Nothing was started; give a folder that you can write to"
        raise type(error)(
            error.errno, f"{path} cannot hold {what}: {error.strerror or error}. {hint}"
        ) from error
    return path


def sha256(path: Path) -> str:
    """The checksum of a file's content, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
