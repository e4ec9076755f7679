"""The page at ``/`` and what it is made of: files of this package, sent as they are.

Knows files and the headers that keep the page to itself. The page gets all its data from the public API, as any client.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from mimetypes import guess_type

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

FRONT_PAGE = "index.html"
# Nothing but our own files and our own API; no frames, no forms that go elsewhere, no script or style in the page.
_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file, read at start."""

    content: bytes
    headers: dict[str, str]


def _read_files() -> dict[str, PageFile]:
    """Every file of the page by its name."""
    found = {}
    for entry in files("server").joinpath("playground").iterdir():
        content = entry.read_bytes()
        found[entry.name] = PageFile(content, _headers(entry.name, content))
    return found


def _headers(name: str, content: bytes) -> dict[str, str]:
    media_type = "text/javascript" if name.endswith(".js") else guess_type(name)[0]
    return {
        "Content-Type": f"{media_type}; charset=utf-8",
        "Content-Security-Policy": "; ".join(f"{name} {sources}" for name, sources in _POLICY.items()),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cache-Control": "no-cache",  # kept, but asked for again, so that a new version is seen at once
        "ETag": f'"{sha256(content).hexdigest()[:32]}"',
    }


_FILES = _read_files()
# What needs no key: the page says nothing that its source does not.
PATHS = frozenset({"/", *(f"/playground/{name}" for name in _FILES)})

router = APIRouter(include_in_schema=False)


@router.api_route("/", methods=["GET", "HEAD"])
@router.api_route("/playground/{name}", methods=["GET", "HEAD"])
async def show_page(request: Request, name: str = FRONT_PAGE) -> Response:
    """One file of the page."""
    file = _FILES.get(name)
    if file is None:
        raise HTTPException(404)
    if request.headers.get("if-none-match") == file.headers["ETag"]:
        return Response(status_code=304, headers=file.headers)
    return Response(file.content, headers=file.headers)
