"""Files and artifacts over HTTP."""

from __future__ import annotations

import hashlib
from typing import Any

import httpx
import openai
import pytest

from dualtrack.db import steps
from dualtrack.domain.ids import new_id
from dualtrack.domain.lifecycle import CallStatus
from dualtrack.domain.tool import Effect
from dualtrack.domain.usage import Usage
from dualtrack.objects.blobs import BlobStore
from dualtrack.testing.objects import MemoryStore

from .conftest import Api, MakeApi


def upload(
    client: httpx.Client, name: str = "orders.csv", data: bytes = b"a,b\n1,2\n", headers: dict[str, str] | None = None
) -> httpx.Response:
    return client.post("/v1/files", files={"file": (name, data)}, data={"purpose": "user_data"}, headers=headers)


def test_a_file_is_kept_shown_listed_and_given_back(client: httpx.Client) -> None:
    made = upload(client)
    assert made.status_code == 201
    file = made.json()
    assert (file["object"], file["bytes"], file["filename"], file["purpose"]) == ("file", 8, "orders.csv", "user_data")
    assert file["sha256"] == hashlib.sha256(b"a,b\n1,2\n").hexdigest()
    assert client.get(f"/v1/files/{file['id']}").json() == file
    other = upload(client, "b.txt", b"").json()
    assert [found["id"] for found in client.get("/v1/files").json()["data"]] == [other["id"], file["id"]]
    content = client.get(f"/v1/files/{file['id']}/content")
    assert content.content == b"a,b\n1,2\n"
    assert content.headers["content-disposition"].startswith('attachment; filename="orders.csv"')
    assert content.headers["x-content-type-options"] == "nosniff"
    assert content.headers["x-content-sha256"] == file["sha256"]
    assert client.get(f"/v1/files/{other['id']}/content").content == b""


def test_the_openai_package_uploads(api: Api, key: str) -> None:
    with openai.OpenAI(base_url=api.url + "/v1", api_key=key, max_retries=0) as package:
        file = package.files.create(file=("räport.txt", b"x" * 3_000_000), purpose="user_data")
        assert (file.bytes, file.filename) == (3_000_000, "räport.txt")
        assert [found.id for found in package.files.list()] == [file.id]
        assert package.files.content(file.id).read() == b"x" * 3_000_000


def test_an_upload_becomes_an_input(client: httpx.Client) -> None:
    file = upload(client).json()
    made = client.post("/v1/jobs", json={"instructions": "x", "inputs": [{"file_id": file["id"]}]})
    assert made.status_code == 201
    event = client.get(f"/v1/jobs/{made.json()['id']}/events").json()["data"][0]
    assert event["data"]["inputs"] == [{"path": "orders.csv", "size": 8, "sha256": file["sha256"]}]


@pytest.mark.parametrize(
    "name", ["../../x", "/etc/passwd", "a/b", "..", ".", "a\\b", "C:\\x", "\\\\host\\x", "x" * 256, "a\x01b", "a\u202eb"]
)
def test_a_name_that_is_no_plain_name_is_refused(client: httpx.Client, name: str) -> None:
    raw = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="' + name.replace("\\", "\\\\").encode() + b'"\r\n\r\nx\r\n--b--\r\n'
    )
    answer = client.post("/v1/files", content=raw, headers={"content-type": "multipart/form-data; boundary=b"})
    assert (answer.status_code, answer.json()["error"]["code"], answer.json()["error"]["param"]) == (400, "invalid_path", "file")
    assert client.get("/v1/files").json()["data"] == []


def test_idempotent_uploads(client: httpx.Client) -> None:
    headers = {"Idempotency-Key": "k"}
    first, again = upload(client, headers=headers), upload(client, headers=headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert upload(client, data=b"other", headers=headers).json()["error"]["code"] == "idempotency_key_reused"
    job = client.post("/v1/jobs", json={"instructions": "x"}, headers=headers)
    assert (job.status_code, job.json()["error"]["code"]) == (409, "idempotency_key_reused")


@pytest.mark.parametrize("size", [1001, 200_000, 2_000_000])
def test_a_file_that_is_too_large_is_refused_however_it_comes(make_api: MakeApi, size: int) -> None:
    store = MemoryStore()
    with make_api(store=store, upload_bytes=1000) as api, api.client(api.new_key()[1]) as client:
        whole = upload(client, data=b"x" * size)
        assert (whole.status_code, whole.json()["error"]["code"]) == (413, "request_too_large")
        request = client.build_request("POST", "/v1/files", files={"file": ("a", b"x" * size)})
        body = request.read()
        pieces = (body[n : n + 10_000] for n in range(0, len(body), 10_000))
        streamed = client.post("/v1/files", content=pieces, headers={"content-type": request.headers["content-type"]})
        assert (streamed.status_code, streamed.json()["error"]["code"]) == (413, "request_too_large")
        assert "1000 bytes" in streamed.json()["error"]["message"]
        assert upload(client, data=b"x" * 1000).status_code == 201
    assert store.calls["put"] == 1


@pytest.mark.parametrize(
    ("content", "content_type", "status"),
    [
        (b"{}", "application/json", 415),
        (b"file=x", "application/x-www-form-urlencoded", 415),
        (b"nonsense", "multipart/form-data; boundary=b", 400),
        (b"nonsense", "multipart/form-data", 400),
        (b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\nx\r\n--b--\r\n', "multipart/form-data; boundary=b", 400),
        (b"", "multipart/form-data; boundary=b", 400),
        (b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\nx\r\n' * 20 + b"--b--\r\n", "multipart/form-data; boundary=b", 400),
    ],
)
def test_what_is_no_upload_is_refused(client: httpx.Client, content: bytes, content_type: str, status: int) -> None:
    answer = client.post("/v1/files", content=content, headers={"content-type": content_type})
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


def test_a_file_sent_as_text_is_told_in_plain_words(client: httpx.Client) -> None:
    answer = client.post("/v1/files", files={"file": (None, b"x")})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "file")
    assert answer.json()["error"]["message"] == "file: must be sent as a file, with a file name, not as a text field."


def test_fields_that_the_form_does_not_have_are_refused_by_name(client: httpx.Client) -> None:
    """A file that was to expire must not be kept without a word."""
    file = {"file": ("a", b"x")}
    answer = client.post("/v1/files", files=file, data={"purpose": "user_data", "expires_after[seconds]": "3600"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "expires_after[seconds]")
    assert client.post("/v1/files", files=file, data={"purpose": "user_data"}).status_code == 201


def _parts(*heads: str) -> bytes:
    return ("".join(f"--b\r\nContent-Disposition: form-data{head}\r\n\r\nx\r\n" for head in heads) + "--b--\r\n").encode()


@pytest.mark.parametrize(
    ("content", "header", "param", "advice"),
    [
        (_parts('; name="file"; filename="a"', '; name="file"; filename="b"'), "; boundary=b", "file", "each in a request of its own"),
        (_parts('; name="file"; filename="a"', '; name="other"; filename="b"'), "; boundary=b", "file", "each in a request of its own"),
        (_parts('; name="file"; filename="a"', '; name="file"'), "; boundary=b", "file", "send it once"),
        (_parts('; name="file"', '; name="file"; filename="a"'), "; boundary=b", "file", "send it once"),
        (_parts('; name="file"; filename="a"', '; name="purpose"', '; name="purpose"'), "; boundary=b", "purpose", "send it once"),
        (_parts('; name="file"; filename="a"'), "", "Content-Type", "boundary"),
        (b"", "", "Content-Type", "boundary"),
        (b"nonsense", "; boundary=b", "file", "curl -F file=@"),
        (_parts('; filename="a"'), "; boundary=b", "file", "has no name"),
        (_parts(*['; name="x"'] * 20), "; boundary=b", "file", "8 fields"),
        (_parts('; name="file"').replace(b"\r\nx", b"\r\n" + b"x" * 5000), "; boundary=b", "file", "with a file name"),
        (b"--b--\r\n", "; boundary=b", "file", "required"),
    ],
)
def test_a_form_that_is_none_is_told_which_field_and_what_to_do(
    client: httpx.Client, content: bytes, header: str, param: str, advice: str
) -> None:
    answer = client.post("/v1/files", content=content, headers={"content-type": f"multipart/form-data{header}"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_request", param)
    assert error["message"].startswith(f"{param}: ")
    assert advice in error["message"]


@pytest.mark.parametrize("name", ["C:\\x", "\\\\host\\x", "a\\b"])
def test_backslashes_as_browsers_send_them_are_refused(client: httpx.Client, name: str) -> None:
    raw = b'--b\r\nContent-Disposition: form-data; name="file"; filename="' + name.encode() + b'"\r\n\r\nx\r\n--b--\r\n'
    answer = client.post("/v1/files", content=raw, headers={"content-type": "multipart/form-data; boundary=b"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_path")


def test_inputs_in_each_others_way_are_told_apart(client: httpx.Client) -> None:
    file_id = upload(client).json()["id"]

    def refused(*paths: str) -> str:
        answer = client.post("/v1/jobs", json={"instructions": "x", "inputs": [{"file_id": file_id, "path": path} for path in paths]})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "inputs.1.path")
        return str(answer.json()["error"]["message"])

    assert "share the path 'a'" in refused("a", "a")
    assert refused("a", "a/b") == refused("a/b", "a")
    assert "at 'a/b' while another one is the file 'a'" in refused("a", "a/b")


def test_a_store_that_is_down(make_api: MakeApi) -> None:
    store = MemoryStore()
    with make_api(store=store) as api, api.client(api.new_key()[1]) as client:
        store.unavailable = True
        answer = upload(client)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage_unavailable")
        assert answer.headers["retry-after"]
        assert client.get("/v1/files").json()["data"] == []


def finished_call(api: Api, tenant: str, job_id: str, **fields: Any) -> str:
    call_id = new_id("call")
    with api.database.transaction() as tx:
        steps.add(tx, job_id=job_id, number=1, thought="t", reflection="", note="", model="m", usage=Usage(3, 4), latency_s=0.5)
        row = {"id": call_id, "job_id": job_id, "tenant_id": tenant, "step": 1, "position": 0, "tool": "shell", "effect": Effect.PURE.value}
        steps.add_calls(tx, [row | {"arguments": {"command": "ls"}, "status": CallStatus.PENDING.value} | fields])
    return call_id


def artifact(api: Api, tenant: str, job_id: str, call_id: str, name: str, data: bytes, content_type: str) -> str:
    blob = BlobStore(api.store, tenant).put(data)
    artifact_id = new_id("art")
    with api.database.transaction() as tx:
        steps.add_artifact(
            tx,
            {
                "id": artifact_id, "job_id": job_id, "tenant_id": tenant, "call_id": call_id, "name": name, "path": name,
                "size": blob.size, "sha256": blob.sha256, "blob_key": blob.key, "content_type": content_type,
            },
        )  # fmt: skip
    return artifact_id


def test_steps_observations_and_artifacts(api: Api) -> None:
    tenant, key = api.new_key()
    with api.client(key) as client, api.client(api.new_key()[1]) as stranger:
        job_id = client.post("/v1/jobs", json={"instructions": "x"}).json()["id"]
        call_id = finished_call(api, tenant, job_id)
        observation = f"/v1/jobs/{job_id}/calls/{call_id}/observation"
        assert client.get(observation).json()["error"]["code"] == "call_not_ended"
        api.store.put("observations/x", "alles: größer\n".encode())
        with api.database.transaction() as tx:
            from sqlalchemy import func, update

            from dualtrack.db.tables import calls

            done = {"status": "succeeded", "ok": True, "preview": "al…", "observation_key": "observations/x", "finished_at": func.now()}
            tx.connection.execute(update(calls).where(calls.c.id == call_id).values(done))
        page = client.get(f"/v1/jobs/{job_id}/steps").json()
        (step,) = page["data"]
        assert (step["number"], step["usage"]["total_tokens"], page["has_more"], page["next_after"]) == (1, 7, False, 1)
        (call,) = step["calls"]
        assert (call["id"], call["ok"], call["observation"], call["truncated"]) == (call_id, True, "al…", True)
        text = client.get(observation)
        assert (text.text, text.headers["content-type"]) == ("alles: größer\n", "text/plain; charset=utf-8")
        assert client.get(f"/v1/jobs/{job_id}/steps", params={"after": 2**62}).json()["data"] == []

        html = artifact(api, tenant, job_id, call_id, 'Bericht "é".html', b"<script>", "text/html")
        odd = artifact(api, tenant, job_id, call_id, "odd", b"x", "text/html\r\nX-Evil: 1")
        listed = client.get(f"/v1/jobs/{job_id}/artifacts").json()
        assert [row["id"] for row in listed["data"]] == [html, odd]
        assert client.get(f"/v1/artifacts/{html}").json() == listed["data"][0]
        assert client.get(f"/v1/jobs/{job_id}/artifacts", params={"after": html}).json()["data"] == [listed["data"][1]]
        for path in (f"/v1/artifacts/{html}/content", f"/v1/jobs/{job_id}/artifacts/{html}/content"):
            content = client.get(path)
            assert (content.content, content.headers["content-type"]) == (b"<script>", "text/html")
            assert content.headers["content-disposition"].startswith("attachment;")
            assert "filename*=UTF-8''Bericht%20%22%C3%A9%22.html" in content.headers["content-disposition"]
            assert content.headers["x-content-type-options"] == "nosniff"
            assert "sandbox" in content.headers["content-security-policy"]
        assert client.get(f"/v1/artifacts/{odd}/content").headers["content-type"] == "application/octet-stream"

        other_job = client.post("/v1/jobs", json={"instructions": "x"}).json()["id"]
        assert client.get(f"/v1/jobs/{other_job}/artifacts/{html}/content").status_code == 404
        assert client.get(f"/v1/jobs/{other_job}/calls/{call_id}/observation").status_code == 404
        for path in (f"/v1/artifacts/{html}", f"/v1/artifacts/{html}/content", observation, f"/v1/jobs/{job_id}/artifacts/{html}/content"):
            answer = stranger.get(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
        api.store.delete(f"blobs/{tenant}/{listed['data'][0]['sha256'][:2]}/{listed['data'][0]['sha256']}")
        lost = client.get(f"/v1/artifacts/{html}/content")
        assert (lost.status_code, lost.json()["error"]["code"]) == (404, "object_not_found")


def test_a_store_with_addresses_of_its_own_hands_out_downloads_itself(make_api: MakeApi) -> None:
    class Presigning(MemoryStore):
        def presign(self, key: str, *, filename: str, content_type: str, expires_s: int) -> str | None:
            return f"https://objects.example/{key}?name={filename}&type={content_type}&life={expires_s}"

    with make_api(store=Presigning(), presign_s=60) as api, api.client(api.new_key()[1]) as client:
        file = upload(client).json()
        answer = client.get(f"/v1/files/{file['id']}/content")
        assert answer.status_code == 302
        assert answer.headers["location"].endswith("&life=60")
        assert "name=orders.csv" in answer.headers["location"]


@pytest.mark.parametrize("path", ["/v1/files/nonsense", "/v1/files/file_%00/content", "/v1/artifacts/art_%00", "/v1/artifacts/x/content"])
def test_wrong_ids_are_not_found(client: httpx.Client, path: str) -> None:
    assert client.get(path).json()["error"]["code"] == "not_found"
