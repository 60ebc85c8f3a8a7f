"""Uploaded files: inputs for jobs."""

from __future__ import annotations

import mimetypes
from collections.abc import Sequence
from typing import Annotated, Final

from fastapi import APIRouter, Depends, File, Form, Path, Request, Response, UploadFile

from dualtrack.db import files, idempotency
from dualtrack.db.idempotency import RequestKey
from dualtrack.domain.errors import InvalidPath, InvalidRequest, NotFound, TooLarge
from dualtrack.domain.ids import is_id, new_id
from dualtrack.domain.paths import file_name
from dualtrack.domain.step import StoredFile
from dualtrack.objects.blobs import BlobStore, digest_of
from dualtrack.objects.disposition import safe_content_type
from router.auth import CallerDep
from router.body import require_form
from router.dependencies import ServicesDep
from router.download import DESCRIPTION, download
from router.errors import documented
from router.forms import FORM_FIELDS
from router.idempotency import IdempotencyKey, made_before, repeated
from router.pagination import DEFAULT_LIMIT, KNOWN_QUERY, AfterIdQuery, LimitQuery, cursor, cut, page_size
from router.services import RouterServices
from router.views import FileView, ListView, listed

_SHOWN_CHARS: Final = 100
"""Of an unknown one's name."""

router: Final = APIRouter(tags=["files"])

FileId = Annotated[str, Path(description="Id of a file, `file_…`.")]


async def _form_only(_: CallerDep, request: Request) -> None:
    require_form(request.headers)  # of another kind the framework reads nothing, and would only miss the field
    names = [name for name, _ in (await request.form()).multi_items()]  # parsed by the framework before, and remembered
    for n, name in enumerate(names):
        shown = name[:_SHOWN_CHARS]
        if name not in FORM_FIELDS:
            raise InvalidRequest(f"{shown}: there is no such field; the form has {' and '.join(FORM_FIELDS)}.", param=shown)
        if name in names[:n]:
            raise InvalidRequest(f"{shown}: the form has this field twice: send it once.", param=shown)


@router.post(
    "/v1/files",
    dependencies=[Depends(_form_only)],
    status_code=201,
    summary="Upload a file",
    responses={
        **documented(408, 409, 413, 415),
        **repeated(FileView),
        201: {"model": FileView, "description": "Stored.", "headers": {"Location": {"schema": {"type": "string"}}}},
    },
)
def upload(
    file: Annotated[UploadFile, File(description="The file; its name must be a plain one, without directories.")],
    caller: CallerDep,
    services: ServicesDep,
    response: Response,
    purpose: Annotated[str | None, Form(max_length=64, description="As in OpenAI's API; files here are always inputs of jobs.")] = None,
    idempotency_key: IdempotencyKey = None,
) -> FileView:
    """A multipart form with the field `file`. Name it in a job's `inputs` by its id."""
    del purpose
    stored, new = _store(services, file, caller.tenant_id, idempotency_key)
    if not new:
        response.status_code = 200
    response.headers["Location"] = f"/v1/files/{stored.id}"
    return FileView.of(stored)


def _store(services: RouterServices, file: UploadFile, tenant_id: str, idempotency_key: str | None) -> tuple[StoredFile, bool]:
    """The file, and whether it is new. Its bytes are stored before its row, so that no row is ever without them.

    With an idempotency key they are read once more before that: what was taken once is not refused, whatever is allowed today.
    """
    # The form's parser takes `x` out of `C:\x` without a word: only the header still tells.
    if "\\" in file.headers.get("content-disposition", "").replace('\\"', ""):
        raise InvalidPath("The file's name holds a backslash: leave out directories.", param="file")
    name = file_name(file.filename or "", param="file")
    if name == ".":
        raise InvalidPath("The file needs a name.", param="file")
    request = None
    if idempotency_key is not None:
        # The form's parts are told apart by a text that every client makes up anew: only name and content are the request.
        content, _ = digest_of(file.file)
        request = RequestKey.of(tenant_id, idempotency_key, "POST /v1/files", name, content)
        made = made_before(services.runtime.database, request)
        if made is not None:
            return _file(services, made, tenant_id), False
    limit = services.runtime.limits.upload_bytes
    if file.size is not None and file.size > limit:
        raise TooLarge(f"A file may have {limit} bytes (limits.upload_bytes).", param="file")
    declared = safe_content_type(file.content_type or "")
    kind = declared if file.content_type else mimetypes.guess_type(name)[0] or declared
    blob = BlobStore(services.runtime.store, tenant_id).put_file(file.file)
    with services.runtime.database.transaction() as tx:

        def add() -> str:
            file_id = new_id("file")
            files.add(
                tx,
                file_id=file_id,
                tenant_id=tenant_id,
                filename=name,
                size=blob.size,
                sha256=blob.sha256,
                blob_key=blob.key,
                content_type=kind,
            )
            return file_id

        file_id, new = idempotency.once(tx, request, add)
        return files.get(tx, file_id, tenant_id=tenant_id), new


@router.get("/v1/files", summary="List files", responses=documented(), dependencies=[KNOWN_QUERY])
def list_files(
    caller: CallerDep, services: ServicesDep, limit: LimitQuery = DEFAULT_LIMIT, after: AfterIdQuery = None
) -> ListView[FileView]:
    """Newest first."""
    size = page_size(limit, services.runtime.limits.page_size)
    before = cursor(after, "file")
    with services.runtime.database.transaction() as tx:
        found: Sequence[StoredFile] = files.page(tx, caller.tenant_id, limit=size + 1, before=before)
    rows, more = cut(found, size)
    return listed([FileView.of(row) for row in rows], [row.id for row in rows], has_more=more)


@router.get("/v1/files/{file_id}", summary="Show a file", responses=documented(404))
def show(file_id: FileId, caller: CallerDep, services: ServicesDep) -> FileView:
    """What is known of a file."""
    return FileView.of(_file(services, file_id, caller.tenant_id))


@router.get("/v1/files/{file_id}/content", summary="Download a file", response_class=Response, responses={**documented(404), **DESCRIPTION})
def content(file_id: FileId, caller: CallerDep, services: ServicesDep) -> Response:
    """The file's bytes."""
    file = _file(services, file_id, caller.tenant_id)
    return download(
        services.runtime.store,
        services.runtime.limits,
        key=file.blob_key,
        filename=file.filename,
        content_type=file.content_type,
        size=file.size,
        sha256=file.sha256,
    )


def _file(services: RouterServices, file_id: str, tenant_id: str) -> StoredFile:
    if not is_id(file_id, "file"):
        raise NotFound(f"There is no file {file_id[:64]!r}.", param="file_id")
    with services.runtime.database.transaction() as tx:
        return files.get(tx, file_id, tenant_id=tenant_id)
