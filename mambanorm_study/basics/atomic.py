"""Writes files completely or not at all.

A file is written under another name in the same folder and renamed when its content has reached the
disk. So no reader sees half a file, a full disk leaves nothing behind, and a power cut leaves the
old file or the new one.
"""

import errno
import hashlib
import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# errors of fsync on a folder where it is not supported or not permitted
NO_FSYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EACCES)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; it replaces `path` unless the block raises.

    A device or a pipe is not replaced; its own path is yielded.
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
    """Create a folder and its parents, and wait until their names have reached the disk."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        to_disk(folder.parent)


def folder_to_disk(folder: Path) -> None:
    """Wait until a folder and its files have reached the disk. Raise OSError if they cannot."""
    for path in (*folder.iterdir(), folder):
        to_disk(path)


def to_disk(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, have reached the disk.

    Raises OSError if they cannot. Does not wait for a folder if the system cannot: some shared
    disks, Windows, or a folder that this user may not open.
    """
    try:
        handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if not path.is_dir() or error.errno not in NO_FSYNC:
            raise


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes to a file. A link stays a link, and its target is written."""
    with replacing(path.resolve()) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write a text to a file as UTF-8, as `write_bytes` does."""
    write_bytes(path, text.encode())


def writable_folder(path: str | Path, what: str) -> Path:
    """Return the absolute path of a folder after a test that it can be written to.

    A missing folder is missing afterwards, too. Raises OSError if it cannot be written, with a
    sentence that names `what` the folder should hold.
    """
    path = Path(path).resolve()
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
        for folder in missing:
            with suppress(OSError):  # another process uses it by now
                folder.rmdir()
    except OSError as error:
        hint = "Nothing was started; give a folder that you can write to"
        raise type(error)(
            error.errno, f"{path} cannot hold {what}: {error.strerror or error}. {hint}"
        ) from error
    return path


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
