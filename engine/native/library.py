"""Compiles and loads our C++ once for this machine. Knows compilers; refuses to know what the functions compute."""

from __future__ import annotations

import hashlib
import logging
import platform
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import resources
from pathlib import Path

import torch

from engine.native.functions import NativeLibrary

logger = logging.getLogger(__name__)

_SOURCES = ("draw.cpp", "linear.cpp", "norm.cpp", "paged_attention.cpp", "recording.cpp", "rotary.cpp", "rows.cpp")
_HEADER = "vectors.h"
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-fopenmp", "-ffp-contract=off", "-Wno-psabi")
_TIMEOUT_SECONDS = 120


def load_native(cache_dir: Path) -> NativeLibrary | None:
    """The compiled library; None, with one line in the log that says why, where it cannot be had."""
    compiler = shutil.which("g++")
    if compiler is None:
        logger.warning("no g++ found: the model runs in plain torch, which is slower")
        return None
    folder = resources.files("engine.native")
    texts = b"\0".join((folder / name).read_bytes() for name in (*_SOURCES, _HEADER))
    path = cache_dir.expanduser() / "native" / f"{_fingerprint(texts, compiler)}.so"
    try:
        if not path.exists():
            with resources.as_file(folder) as sources:
                _compile(compiler, sources, path)
        return _open(path)
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stderr", None) or str(error)
        logger.warning("compiling failed, so the model runs in plain torch, which is slower: %s", reason.strip()[:500])
        return None


@cache
def _open(path: Path) -> NativeLibrary:
    """One for all models of a process: functions that they share then call the library that is recorded."""
    return NativeLibrary(path)


def _fingerprint(texts: bytes, compiler: str) -> str:
    """Changes with the source, the compiler and the processor: ``-march=native`` code must not meet another one."""
    binary = Path(compiler).resolve()
    facts = binary.stat()
    parts = (
        texts,
        f"{binary} {facts.st_size} {facts.st_mtime_ns}".encode(),
        " ".join(_FLAGS).encode(),
        _processor(),
        torch.__version__.encode(),
    )
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:20]


def _processor() -> bytes:
    try:
        lines = Path("/proc/cpuinfo").read_bytes().split(b"\n")
    except OSError:
        return f"{platform.machine()} {platform.processor()}".encode()
    return b"\n".join(sorted({line for line in lines if line.startswith((b"flags", b"model name", b"Features"))}))


def _compile(compiler: str, sources: Path, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        objects = [Path(folder) / f"{name}.o" for name in _SOURCES]
        commands = [
            [compiler, *_FLAGS, "-c", str(sources / name), "-o", str(made)]
            for name, made in zip(_SOURCES, objects, strict=True)
        ]
        with ThreadPoolExecutor() as pool:
            list(pool.map(_run, commands))
        partial = Path(folder) / path.name
        _run([compiler, "-shared", *map(str, objects), *_openmp_of_torch(), "-o", str(partial)])
        NativeLibrary(partial)  # what cannot be loaded must not be kept
        partial.rename(path)  # whole or not at all, whoever else compiles at the same time


def _openmp_of_torch() -> list[str]:
    """Link against the OpenMP that torch brings: two of them in one process would fight over the cores."""
    folder = Path(torch.__file__).parent / "lib"
    found = [*folder.glob("libgomp*.so*"), *folder.glob("libiomp5*.so*")]
    return [str(found[0])] if found else ["-fopenmp"]


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS)
