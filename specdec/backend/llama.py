"""llama.cpp as a process-wide library: its log, its devices, its threads."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import llama_cpp
from llama_cpp import _ggml

from ..room import Device

Result = TypeVar("Result")

LOG = logging.getLogger("specdec.llama")
STDERR = 2
GPU_TYPES = (1, 2)  # GGML_BACKEND_DEVICE_TYPE_GPU and _IGPU
LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.INFO, 4: logging.WARNING}

_errors: deque[str] = deque(maxlen=8)
_level = logging.DEBUG


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]  # a ctypes function type
def _on_log(level: int, text: bytes, _data: object) -> None:
    """Passes the log on to :mod:`logging`, and remembers errors: only here does a failed load say why."""
    global _level
    line = text.decode("utf-8", "replace").rstrip()
    if level != 5:  # GGML_LOG_LEVEL_CONT continues the line before
        _level = LEVELS.get(level, logging.DEBUG)
    if not line:
        return
    if _level >= logging.WARNING:
        _errors.append(line)
    LOG.log(_level, line)


@functools.cache
def start() -> None:
    """Initialises the backends once per process (``llama_backend_init``) and takes over the log."""
    llama_cpp.llama_log_set(_on_log, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()


def forget_errors() -> None:
    """Empties the memory of errors, before a call whose reason for failing will be asked for."""
    _errors.clear()


def last_errors() -> str:
    """What llama.cpp last complained of, as one line, without its function names and repetitions."""
    reasons: dict[str, None] = {}
    for line in _errors:
        head, _, rest = line.partition(": ")
        reasons[rest if rest and " " not in head else line] = None
    # Its last complaints only say that loading failed; the first is the reason.
    return next(iter(reasons), "no reason given")


@contextmanager
def stderr_captured() -> Iterator[Callable[[], str]]:
    """Keeps what C code prints to stderr in the block away from the user; the value tells it."""
    try:
        before = os.dup(STDERR)
    except OSError:  # there is no stderr: nothing to keep away
        yield str
        return
    with tempfile.TemporaryFile() as file:

        def said() -> str:
            file.seek(0)
            return file.read().decode("utf-8", "replace")

        os.dup2(file.fileno(), STDERR)
        try:
            yield said
        finally:
            os.dup2(before, STDERR)
            os.close(before)


def supports_gpu() -> bool:
    """Whether this build of llama.cpp can offload to a GPU (``llama_supports_gpu_offload``)."""
    return bool(llama_cpp.llama_supports_gpu_offload())


def devices() -> tuple[Device, ...]:
    """The GPUs this build can use and their memory (``ggml_backend_dev_memory``).

    Empty without one, and where the library does not say: nothing is claimed that was not measured.
    """
    if not supports_gpu():
        return ()
    start()
    return tuple(_gpus(getattr(_ggml, "libggml", None)))


def _gpus(library: Any) -> Iterator[Device]:
    """ctypes knows no types of these functions: the binding has none of them."""
    try:
        count, get, kind = (getattr(library, f"ggml_backend_dev_{name}") for name in ("count", "get", "type"))
        name, memory = library.ggml_backend_dev_name, library.ggml_backend_dev_memory
    except AttributeError:
        return
    count.restype, get.restype, kind.restype, name.restype = (
        ctypes.c_size_t,
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_char_p,
    )
    memory.restype = None
    for i in range(count()):
        device = ctypes.c_void_p(get(ctypes.c_size_t(i)))
        if kind(device) not in GPU_TYPES:
            continue
        free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
        memory(device, ctypes.byref(free), ctypes.byref(total))
        if total.value:  # some drivers do not tell
            yield Device(name(device).decode("utf-8", "replace"), free.value, total.value)


def default_threads() -> int:
    """The physical cores this process may run on (on Apple silicon, the performance cores)."""
    if sys.platform == "darwin":
        return _apple_performance_cores()
    if hasattr(os, "sched_getaffinity"):
        allowed = os.sched_getaffinity(0)
        cores = {_siblings(cpu) or frozenset({cpu}) for cpu in allowed}
        return max(1, min(len(cores), len(allowed)))
    return max(1, (os.cpu_count() or 2) // 2)


def _siblings(cpu: int) -> frozenset[int]:
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        parts = path.read_text().strip().split(",")
    except OSError:
        return frozenset()
    siblings: set[int] = set()
    for part in parts:
        first, _, last = part.partition("-")
        siblings.update(range(int(first), int(last or first) + 1))
    return frozenset(siblings)


def _apple_performance_cores() -> int:
    count, size = ctypes.c_int(0), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
    sysctl = ctypes.CDLL(None).sysctlbyname
    for name in (b"hw.perflevel0.physicalcpu", b"hw.physicalcpu"):
        if sysctl(name, ctypes.byref(count), ctypes.byref(size), None, ctypes.c_size_t(0)) == 0:
            return max(1, count.value)
    return max(1, (os.cpu_count() or 2) // 2)


class Abort:
    """A flag that stops whatever llama.cpp does for those it was given to: a load, a pass, or the next one.

    They raise AbortedError. In the middle of a pass it is noticed by CPU backends only, after it by all.
    llama.cpp asks its abort callback between graph nodes, a thousand times a token: too often for
    Python. The C library's ``strlen`` answers instead, over a string that is empty until :meth:`set`.
    """

    def __init__(self) -> None:
        self._at_work = set[int]()  # threads
        self._text = ctypes.create_string_buffer(2)
        libc = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None)
        self.callback = ctypes.cast(libc.strlen, llama_cpp.ggml_abort_callback)
        self.data = ctypes.cast(self._text, ctypes.c_void_p)

    def set(self) -> None:
        """Stops the running work, or the next. Any thread may call it."""
        self._text[0] = b"\x01"

    def clear(self) -> None:
        """Lets work begin again."""
        self._text[0] = b"\x00"

    @property
    def is_set(self) -> bool:
        """Whether work is to stop."""
        return self._text[0] != b"\x00"

    def call(self, function: Callable[..., Result], *args: object) -> Result:
        """``function(*args)``, during which the flag says busy."""
        thread = threading.get_ident()
        self._at_work.add(thread)
        try:
            return function(*args)
        finally:
            self._at_work.discard(thread)

    @property
    def busy(self) -> bool:
        """Whether llama.cpp is at work, on any thread. An exception that a signal handler raises then would
        be lost in one of its callbacks, or leave another thread at work: a handler must leave it at
        :meth:`set`."""
        return bool(self._at_work)
