"""Files that lie on the server itself, in one folder or bucket that whoever started it has named."""

import os
from dataclasses import dataclass
from pathlib import Path

from pyarrow import fs

FOLDER_VARIABLE = "PLANNER_FOLDER"
"""Environment variable with the folder, or the address of a bucket (s3://…, gs://…); not set = uploads only."""
MAX_FILES = 1_000
"""More are not listed."""
MAX_REMOTE_BYTES = 2 << 30
"""A larger file of a bucket is not fetched; one of a folder is not copied at all."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """One folder or bucket."""

    system: fs.FileSystem
    """Where it lies."""
    root: str
    """Its path there."""

    def names(self) -> tuple[str, ...]:
        """Paths of the files below it, sorted; hidden ones and links that lead out of it are left out."""
        listed = self.system.get_file_info(fs.FileSelector(self.root, recursive=True))
        names = sorted(
            one.path[len(self.root) :].lstrip("/")
            for one in listed
            if one.type is fs.FileType.File and self._is_inside(one.path)
        )
        return tuple(name for name in names if not any(part.startswith(".") for part in name.split("/")))[:MAX_FILES]

    def open(self, name: str) -> bytes | Path:
        """A file of `names`; a path where it lies in a folder.

        Raises
        ------
        FileNotFoundError
            Not one of them, or too large to be fetched.
        """
        if name not in self.names():
            raise FileNotFoundError(name)
        path = f"{self.root}/{name}"
        if isinstance(self.system, fs.LocalFileSystem):
            return Path(path)
        if self.system.get_file_info(path).size > MAX_REMOTE_BYTES:
            raise FileNotFoundError(f"{name} is larger than {MAX_REMOTE_BYTES >> 30} GiB")
        with self.system.open_input_file(path) as file:
            return bytes(file.read())

    def _is_inside(self, path: str) -> bool:
        if not isinstance(self.system, fs.LocalFileSystem):
            return True
        return Path(path).resolve().is_relative_to(Path(self.root).resolve())


def shelf() -> Shelf | None:
    """The one that the environment names; None when it names none."""
    named = os.environ.get(FOLDER_VARIABLE, "")
    if not named:
        return None
    system, root = fs.FileSystem.from_uri(named if "://" in named else Path(named).resolve().as_uri())
    return Shelf(system, root.rstrip("/"))
