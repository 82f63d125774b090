"""What memory there is: of the machine, of the container the process runs in, of its devices."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


@dataclass(frozen=True)
class Device:
    """A GPU that llama.cpp can use; memory in bytes, as its driver reports it."""

    name: str
    free: int
    total: int


@dataclass(frozen=True)
class Room:
    """Bytes of main memory. available: what can be used without swapping. total: the most there can be, with
    all swap, of which a container may be allowed less.

    limited: whether a container's limit, and not the machine's memory, is what counts.
    """

    available: int
    total: int
    limited: bool = False


def amount(n: float) -> str:
    """Bytes for a person: 512 kB, 90.2 MB, 1.4 GB."""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if n >= 0.9995 * size:
            return f"{n / size:,.{0 if n >= 99.5 * size else 1}f} {unit}"
    return f"{n / 1e3:.0f} kB"


def room() -> Room:
    """What this process may use: the machine's memory, less where its cgroups allow less."""
    available, total, swap = _of_linux(MEMINFO) if sys.platform == "linux" else _of_system()
    limited = False
    for limit, used in _limits(CGROUPS, OWN_CGROUPS):
        if limit < total:
            total, limited = limit, True
        available = min(available, max(0, limit - used))
    return Room(available, total + swap, limited)


def _of_linux(meminfo: Path) -> tuple[int, int, int]:
    """Available, total and swap, as psutil finds them, in 0.1 ms; importing psutil takes 25 ms."""
    lines = (line.split() for line in meminfo.read_text().splitlines())
    found = {line[0]: int(line[1]) * 1024 for line in lines if len(line) > 1}
    total = found["MemTotal:"]
    available = found.get("MemAvailable:", found["MemFree:"] + found.get("Cached:", 0))
    return available, total, found.get("SwapTotal:", 0)


def _of_system() -> tuple[int, int, int]:
    import psutil  # type: ignore[import-untyped,unused-ignore]  # stubs are a package of their own

    memory = psutil.virtual_memory()
    return int(memory.available), int(memory.total), int(psutil.swap_memory().total)


def _limits(root: Path, own: Path) -> Iterator[tuple[int, int]]:
    """Limit and use of the cgroups this process is in, and of those around them; versions 1 and 2."""
    try:
        lines = own.read_text().splitlines()
    except OSError:  # no Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _walk(root, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            v1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _walk(root / "memory", path, *v1)


def _walk(base: Path, path: str, limit: str, usage: str, dropped: str) -> Iterator[tuple[int, int]]:
    """From the innermost group outwards; in a container's own namespace, that path may lead nowhere."""
    inner = base / path.lstrip("/")
    for group in [inner, *inner.parents][: 1 + len(inner.parts) - len(base.parts)]:
        try:
            most = int((group / limit).read_text())
            used = int((group / usage).read_text())
        except (OSError, ValueError):  # no such file, or "max"
            continue
        yield most, used - _cached(group / "memory.stat", dropped)


def _cached(stat: Path, key: str) -> int:
    """Bytes of files that the kernel drops before anything fails."""
    try:
        lines = (line.split() for line in stat.read_text().splitlines())
        return next((int(line[1]) for line in lines if line[0] == key), 0)
    except (OSError, ValueError, IndexError):
        return 0
