"""What the server has for clients: models and messages of parts, as files named by their digest."""

from __future__ import annotations

from collections.abc import Collection

from motley.core.codec import Content
from motley.deploy.disks import Disk
from motley.deploy.messages import Blob

FOLDER = "blobs/"


class BlobStore:
    """Contents as files. They follow from the log, so none of them needs to survive a crash."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self._sizes: dict[str, int] = {}
        for name in disk.names(FOLDER):  # of an earlier process, perhaps cut off
            disk.delete(name)

    def put(self, content: Content) -> Blob:
        """Makes a content available."""
        known = content.known
        if known is not None and known in self._sizes:
            return Blob(known, self._sizes[known])
        digest, size = self.disk.save(f"{FOLDER}new", content.tree)
        content.name(digest)
        self.disk.move(f"{FOLDER}new", FOLDER + digest)
        self._sizes[digest] = size
        return Blob(digest, size)

    def find(self, digest: str) -> str | None:
        """The file of a content that is there."""
        return FOLDER + digest if digest in self._sizes else None

    def retain(self, digests: Collection[str]) -> None:
        """Drops everything else."""
        for digest in [digest for digest in self._sizes if digest not in digests]:
            del self._sizes[digest]
            self.disk.delete(FOLDER + digest)


class Unstored(BlobStore):
    """For replays, in which nobody fetches anything: contents have names and are kept nowhere."""

    def __init__(self) -> None:
        self._sizes = {}

    def put(self, content: Content) -> Blob:
        if content.ref not in self._sizes:
            self._sizes[content.ref] = len(content.data())
        return Blob(content.ref, self._sizes[content.ref])

    def retain(self, digests: Collection[str]) -> None:
        """There is nothing to drop."""
