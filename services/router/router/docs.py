"""The API's documentation pages, from files that the package `fastapi-offline` brings: they work where no CDN can be reached."""

from __future__ import annotations

from importlib import resources
from typing import Final

from fastapi import FastAPI
from fastapi.openapi.docs import get_redoc_html, get_swagger_ui_html
from fastapi.responses import HTMLResponse
from starlette.staticfiles import StaticFiles

DOCS: Final = "/docs"
REDOC: Final = "/redoc"
_STATIC: Final = "/docs/static"
_ICON: Final = f"{_STATIC}/favicon.png"


def install(app: FastAPI) -> None:
    """Serve the pages of an app that was made with `docs_url=None, redoc_url=None`."""
    folder = resources.files("fastapi_offline") / "static"
    app.mount(_STATIC, StaticFiles(directory=str(folder)), name="docs-static")
    openapi = str(app.openapi_url)

    @app.get(DOCS, include_in_schema=False)
    async def swagger() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url=openapi,
            title=f"{app.title} API",
            swagger_js_url=f"{_STATIC}/swagger-ui-bundle.js",
            swagger_css_url=f"{_STATIC}/swagger-ui.css",
            swagger_favicon_url=_ICON,
        )

    @app.get(REDOC, include_in_schema=False)
    async def redoc() -> HTMLResponse:
        return get_redoc_html(
            openapi_url=openapi,
            title=f"{app.title} API",
            redoc_js_url=f"{_STATIC}/redoc.standalone.js",
            redoc_favicon_url=_ICON,
            with_google_fonts=False,
        )
