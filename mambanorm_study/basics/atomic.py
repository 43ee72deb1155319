"""Writes files completely or not at all.

A file is written under a temporary name in the same folder and renamed after its content has
reached the disk. So no reader sees half a file, a full disk leaves no partial file, and after a
power cut the file has its old or its new content.
"""

import errno
import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Numbers of the errors for a folder that the system cannot sync or that this user may not open.
NO_FSYNC_ERRORS = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EACCES)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path. The file written to it replaces `path` unless the `with` block
    raises an error.

    A device or a pipe cannot be replaced, so in this case `path` itself is yielded.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    make_folder(path.parent)
    temporary = path.with_name(f".{path.stem}-{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        sync_to_disk(temporary)
        os.replace(temporary, path)
        sync_to_disk(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Create a folder and its parents, and wait until they have reached the disk."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_to_disk(folder.parent)


def sync_to_disk(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, have reached the disk.

    Raises OSError on failure. Does nothing for a folder that the system cannot sync (Windows, some
    shared disks) or that this user may not open.
    """
    try:
        handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if not path.is_dir() or error.errno not in NO_FSYNC_ERRORS:
            raise


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes to a file, completely or not at all. If the file is a link, the link stays and
    its target is written.
    """
    with replacing(path.resolve()) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write a text to a file in UTF-8 with `write_bytes`."""
    write_bytes(path, text.encode())


def writable_folder(path: str | Path, purpose: str) -> Path:
    """Return the absolute path of a folder that is writable or could be created.

    Raises OSError for any other folder. purpose: what the folder is for, such as "the report"; the
    error message names it.
    """
    path = Path(path).resolve()
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        problem = f"{existing} is read-only" if existing.is_dir() else "Not a directory"
        raise OSError(
            errno.EACCES,
            f"{path} cannot hold {purpose}: {problem}. "
            "Nothing was started; give a folder that you can write to",
        )
    return path


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
