"""Claims on cells: one file per cell under work, which names the process at work on it."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path

from rankfall.store.damage import set_aside
from rankfall.store.files import storage_errors
from rankfall.store.owners import PATIENCE, TOKEN, Owner


class Claims:
    """Claim files of a store, made with O_EXCL; each names its owner, and a dead owner's claim may be taken.

    Two processes that take over the same dead claim in the same instant may both succeed. They then train the same
    cell twice and write the same numbers: wasteful, never wrong. For the same reason `take_over`, which takes claims
    of other machines' processes without waiting for their silence, can waste work and nothing else.
    """

    def __init__(
        self,
        folder: Path,
        token: str | None = None,
        patience: float = PATIENCE,
        *,
        take_over: bool = False,
        note: Callable[[str], None] = lambda text: None,
        thing: str = "cell",
        way_out: str = "; if you know that it is gone, stop this and run it with --take-over",
    ) -> None:
        """`note` is told what a person should know, with `thing` for what is claimed and `way_out` to not wait."""
        self.folder = folder
        self.owner = Owner(folder / "owners", token, patience, note)
        self.held: set[str] = set()
        self._take_over = take_over
        self._note = note
        self._thing, self._way_out = thing, way_out
        self._told: set[str] = set()

    def __enter__(self) -> Claims:
        self.owner.enter()
        return self

    def __exit__(self, *_: object) -> None:
        self.release(tuple(self.held))
        self.owner.leave()

    def take_all(self, names: Iterable[str]) -> bool:
        """Take every name or none. Always in the same order, so that of two rivals one gets everything."""
        taken: list[str] = []
        for name in sorted(names):
            if not self.take(name):
                self.release(taken)
                return False
            taken.append(name)
        return True

    def take(self, name: str) -> bool:
        """Take one name, from a dead owner if need be; False when somebody else works on it."""
        self.owner.enter()
        if name in self.held:
            return True
        if not self._create(name):
            holder = self.holder(name)
            if holder is not None and holder != self.owner.token:
                return False
            if holder != self.owner.token and not (self._clear(name) and self._create(name)):
                return False
        self.held.add(name)
        return True

    def release(self, names: Iterable[str]) -> None:
        """Give names back."""
        for name in names:
            if name in self.held:
                self.held.discard(name)
                # a claim that was taken from us, since we seemed dead, is not ours to remove
                if self._read(self.folder / name) == self.owner.token:
                    (self.folder / name).unlink(missing_ok=True)

    def holder(self, name: str) -> str | None:
        """The token of the owner of a name, or None when the name is free to be taken."""
        token = self._read(self.folder / name)
        return token if token and self._respected(token, self._take_over) else None

    def tell_holders(self, names: Iterable[str]) -> None:
        """Say once of each process that we wait for who it is, since when, and what can be done."""
        claimed: dict[str, list[str]] = {}
        for name in names:
            token = self._read(self.folder / name)
            if token and token != self.owner.token:
                claimed.setdefault(token, []).append(name)
        for token, cells in claimed.items():
            found = self.owner.standing(token)
            if token in self._told or found is None:
                continue
            self._told.add(token)
            text = f"waiting for {len(cells)} {self._thing}{'s' * (len(cells) > 1)} claimed by {found.process}"
            with contextlib.suppress(OSError):
                since = min((self.folder / name).stat().st_mtime for name in cells)
                text += f" since {datetime.fromtimestamp(since):%Y-%m-%d %H:%M}"
            if not found.here:
                text += (
                    f", last sign of life {found.silent:.0f} s ago; after {self.owner.patience:.0f} s of silence "
                    f"they are taken over{self._way_out}"
                )
            self._note(text)

    def tidy(self, older_than: float = 600.0) -> None:
        """Remove what dead processes left: claims, signs of life, and files of that age that were never renamed."""
        for path in self.folder.glob("[!.]*"):
            token = self._read(path)
            if path != self.owner.folder and not (token and self._respected(token, False)):
                self._clear(path.name, take_over=False)
        for path in self.owner.folder.glob("[!.]*"):
            if not self.owner.is_alive(path.name):
                path.unlink(missing_ok=True)
        now = time.time()
        for path in self.folder.rglob(".*"):
            with contextlib.suppress(OSError):
                if now - path.stat().st_mtime >= older_than:
                    path.unlink()

    def _respected(self, token: str, take_over: bool) -> bool:
        """Whether an owner's claims are left alone. Those of a dead one, or one that is to be replaced, are not."""
        if token == self.owner.token:
            return True
        found = self.owner.standing(token)
        if found is None:
            return False
        if found.alive and (found.here or not take_over):
            return True
        if not found.here and token not in self._told:
            self._told.add(token)
            self._note(
                f"{found.process} gave no sign of life for {found.silent:.0f} s; the {self._thing}s that it had "
                "claimed are taken over"
            )
        return False

    def _read(self, path: Path) -> str | None:
        """The token in a claim, or None when there is no claim or none that names an owner."""
        try:
            token = path.read_bytes().decode("ascii")
        except (OSError, ValueError):
            return None
        return token if TOKEN.fullmatch(token) else None

    def _create(self, name: str) -> bool:
        path = self.folder / name
        beside = path.with_name(f".{name}.{secrets.token_hex(4)}.tmp")
        with storage_errors(path):
            try:
                # a link appears with its contents, unlike a file opened with O_EXCL and then written
                beside.write_text(self.owner.token)
                os.link(beside, path)
            except FileExistsError:
                return False
            except PermissionError:
                return self._create_exclusively(path)
            finally:
                beside.unlink(missing_ok=True)
        return True

    def _create_exclusively(self, path: Path) -> bool:
        """For file systems without hard links: an empty claim is seen as damaged only until its owner is written."""
        try:
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return False
        with os.fdopen(handle, "w") as file:
            file.write(self.owner.token)
        return True

    def _clear(self, name: str, take_over: bool | None = None) -> bool:
        """Move a dead claim out of the way; put it back when it turns out that a rival was quicker."""
        path = self.folder / name
        aside = path.with_name(f".{name}.{secrets.token_hex(4)}.stale")
        with storage_errors(path):
            try:
                os.rename(path, aside)
            except FileNotFoundError:
                return True
        token = self._read(aside)
        if token is None:
            moved = set_aside(aside, self.folder.parent, f"claim-{name}")
            self._note(f"{path} is damaged: it names no process; moved to {moved}, and the cell is free")
            return True
        respected = self._respected(token, self._take_over if take_over is None else take_over)
        if respected:
            with contextlib.suppress(FileExistsError):
                os.link(aside, path)
        aside.unlink(missing_ok=True)
        return not respected
