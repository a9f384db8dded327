"""One web store of PDBs: which addresses are asked, and what is made of the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kdleak.nt.fetching import cabinet
from kdleak.nt.fetching.http import Body, TransferError, WebClient, redirected
from kdleak.nt.fetching.names import below, host_of, masked, printable, without_addresses
from kdleak.nt.fetching.store import PartialFile
from kdleak.nt.pe import PdbIdentity

_MSF = b"Microsoft C/C++ MSF 7.00\r\n\x1aDS\0\0\0"
_FAILURES = 2  # in a row, after which a server is left alone

Land = Callable[[Callable[[PartialFile], None]], Path]
"""Opens a file in a store, has it written, checks and keeps it; its path. Raises TransferError."""


@dataclass(frozen=True)
class Wanted:
    """A PDB that is looked for.

    Attributes:
        identity: from the image.
        name: its file name, checked to be a safe one.
    """

    identity: PdbIdentity
    name: str

    @property
    def packed(self) -> str:
        """The name of its compressed form."""
        return self.name[:-1] + "_"


class WebStore:
    """A server that has PDBs.

    Args:
        base: its address; it may hold credentials, which are never shown.
        client: gets files.
        narrate: takes a sentence before each download.
        remark: takes a sentence for everything that failed.
    """

    def __init__(
        self,
        base: str,
        client: WebClient,
        *,
        narrate: Callable[[str], None],
        remark: Callable[[str], None],
    ) -> None:
        self._base = base
        self._host = host_of(base)
        self._client = client
        self._narrate = narrate
        self._remark = remark
        self._tiers: bool | None = None
        self._left_alone = False
        self._failures = 0

    def fetch(self, wanted: Wanted, land: Land) -> Path | None:
        """Get a PDB into a store; None when this server gives none, which remarks explain."""
        if self._left_alone:
            return None
        try:
            for folder in self._folders(wanted):
                found = self._from_folder(folder, wanted, land)
                if found is not None:
                    self._failures = 0
                    return found
        except TransferError as error:
            self._failed(wanted, error)
            return None
        except ValueError:
            self._left_alone = True
            self._remark(f"{masked(self._base)} is no address of a server: check the symbol path")
            return None
        self._failures = 0
        self._remark(
            f"{self._host} does not have {wanted.name} {wanted.identity.key}: only who built the "
            "driver may have it; name their server or folder in the symbol path"
        )
        return None

    def _failed(self, wanted: Wanted, error: TransferError) -> None:
        self._failures += error.again
        self._left_alone = error.down or self._failures >= _FAILURES
        text = f"{wanted.name} was not fetched from {self._host}: {error}"
        if error.advice:
            text += f"; {error.advice}"
        if self._left_alone:
            text += " (this server is not asked again)"
        self._remark(text)

    def _folders(self, wanted: Wanted) -> Iterator[tuple[str, ...]]:
        """Where the files may be: a store with index2.txt has one more level of folders."""
        flat = (wanted.name, wanted.identity.key)
        if not self._tiers:
            yield flat
        if self._tiers is None:
            text = self._client.small(below(self._base, "index2.txt"))
            # A page in place of an error is no index.
            self._tiers = text is not None and "<" not in text
        if self._tiers:
            yield (wanted.name[:2], *flat)

    def _from_folder(self, folder: tuple[str, ...], wanted: Wanted, land: Land) -> Path | None:
        found = self._get(below(self._base, *folder, wanted.name), wanted, land, self._save)
        if found is None:
            address = below(self._base, *folder, wanted.packed)
            found = self._get(address, wanted, land, self._unpack)
        if found is None:
            pointer = self._client.small(below(self._base, *folder, "file.ptr"))
            if pointer is not None:
                found = self._follow(pointer.strip(), wanted, land)
        return found

    def _get(
        self,
        address: str,
        wanted: Wanted,
        land: Land,
        save: Callable[[Body, PartialFile], None],
    ) -> Path | None:
        path: Path | None = None

        def take(body: Body) -> None:
            nonlocal path
            size = "" if body.size is None else f" ({_short(body.size)})"
            self._narrate(f"fetching {wanted.name}{size} from {host_of(address)} ...")
            path = land(lambda partial: save(body, partial))

        self._client.fetch(address, take)
        return path

    def _save(self, body: Body, partial: PartialFile) -> None:
        start = b""
        for chunk in body.chunks:
            if len(start) < len(_MSF):
                start += chunk[: len(_MSF)]
                if start[: len(_MSF)] != _MSF[: len(start)]:
                    raise TransferError(_NO_PDB, _NO_PDB_ADVICE)
            partial.stream.write(chunk)
        if len(start) < len(_MSF):
            raise TransferError(_NO_PDB, _NO_PDB_ADVICE)

    def _unpack(self, body: Body, partial: PartialFile) -> None:
        packed = partial.path.with_name(partial.path.name + ".cab")
        try:
            with packed.open("xb") as stream:
                for chunk in body.chunks:
                    stream.write(chunk)
            expand_packed(packed, partial, self._client.limits.size)
        finally:
            packed.unlink(missing_ok=True)

    def _follow(self, text: str, wanted: Wanted, land: Land) -> Path | None:
        """What file.ptr says. A server does not get to name files of this machine or network."""
        kind, _, value = text.partition(":")
        value = value.strip()
        if kind.upper() == "PATH" and value.lower().startswith(("http:", "https:")):
            address = redirected(below(self._base), value)
            return self._get(address, wanted, land, self._save)
        if kind.upper() == "PATH":
            raise TransferError(
                f"it says that the file is at {printable(value)}, which is not opened on a "
                "server's word",
                "name that folder in the symbol path if you trust it",
            )
        if kind.upper() == "MSG":
            raise TransferError(f"it says: {without_addresses(value)}")
        return None


_NO_PDB = "what it sent is no PDB (a page to log in?)"
_NO_PDB_ADVICE = "open the address of the server in a browser to see"


def expand_packed(packed: Path, partial: PartialFile, limit: int) -> None:
    """Write a compressed PDB expanded.

    Raises:
        TransferError: it is no cabinet, or cannot be expanded here.
    """
    with packed.open("rb") as stream:
        if stream.read(len(cabinet.MAGIC)) != cabinet.MAGIC:
            raise TransferError("its compressed form is no cabinet", "tell who runs the server")
    try:
        cabinet.expand(packed, partial.path, partial.stream, limit)
    except cabinet.CabinetError as error:
        raise TransferError(
            f"{error}", "install cabextract, or fetch and expand it by hand"
        ) from None


def _short(size: int) -> str:
    """Bytes as people say them."""
    for unit in ("bytes", "KB", "MB"):
        if size < 1000:
            return f"{size} {unit}"
        size = (size + 512) // 1024
    return f"{size} GB"
