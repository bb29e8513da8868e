"""A Hub on this machine: enough of its interface for the real client, and what was asked.

https://huggingface.co/docs/hub/api names the routes; how errors are told apart (``X-Error-Code``)
is in huggingface_hub's ``utils/_http.py``.
"""

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MAIN = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Request:
    """One request: what was asked for, and how many bytes of content went out."""

    method: str
    path: str
    range: str | None
    sent: int = 0


@dataclass
class HubServer:
    """Repositories and what happened to them.

    Attributes:
        repos: files by name, by commit, by repository.
        gated: repositories whose terms nobody has accepted.
        cuts: names of files whose next download breaks off in the middle.
        requests: all so far.
    """

    repos: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    cuts: set[str] = field(default_factory=set)
    requests: list[Request] = field(default_factory=list)

    def __enter__(self) -> "HubServer":
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def publish(self, repo: str, folder: Path, commit: str = MAIN) -> None:
        """Make a folder's files a commit of a repository; ``main`` is the latest one published."""
        files = {
            str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()
        }
        self.repos.setdefault(repo, {})[commit] = files

    def sent(self, suffix: str) -> int:
        """Bytes of content that went out of files with this ending."""
        return sum(r.sent for r in self.requests if r.path.endswith(suffix))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.request_record = Request(self.command, path, self.headers.get("Range"))
        self.hub.requests.append(self.request_record)
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", path):
            self._listed(found[1], found[2], self._info)
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)", path):
            self._listed(found[1], found[2], self._tree)
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._listed(found[1], found[2], lambda *at: self._file(found[3], *at))
        else:
            self._json(404, {"error": f"no route {path}"})

    def do_POST(self) -> None:
        path = self.path.partition("?")[0]
        self.request_record = Request(self.command, path, None)
        self.hub.requests.append(self.request_record)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'me'}/{asked['name']}"
            self.hub.repos.setdefault(name, {MAIN: {}})
            self._json(200, {"url": f"{self.hub.address}/{name}", "name": name})
        elif path.endswith("/preupload/main"):
            files = json.loads(body)["files"]
            modes = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files
            ]
            self._json(200, {"files": modes})
        elif path == "/api/validate-yaml":
            self._json(200, {"warnings": [], "errors": []})
        else:
            repo = re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path)[1]
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    self.hub.repos[repo][MAIN][line["value"]["path"]] = content
            url = f"{self.hub.address}/{repo}/commit/{MAIN}"
            self._json(200, {"success": True, "commitOid": MAIN, "commitUrl": url})

    def _listed(self, repo: str, revision: str | None, answer: Any) -> None:
        """Answer about a commit, unless the repository or the commit is not to be had."""
        commits = self.hub.repos.get(repo)
        if commits is None:
            return self._refuse(404, "RepoNotFound")
        if repo in self.hub.gated:
            return self._refuse(403, "GatedRepo")
        commit = [*commits][-1] if revision in (None, "main") else revision
        if commit not in commits:
            return self._refuse(404, "RevisionNotFound")
        return answer(repo, commit, commits[commit])

    def _info(self, repo: str, commit: str, files: dict[str, bytes]) -> None:
        siblings = [{"rfilename": name, "size": len(data)} for name, data in files.items()]
        self._json(200, {"id": repo, "sha": commit, "siblings": siblings, "tags": []})

    def _tree(self, repo: str, commit: str, files: dict[str, bytes]) -> None:
        listed = [
            {"type": "file", "path": name, "size": len(data), "oid": _digest(data)[:40]}
            for name, data in files.items()
        ]
        self._json(200, listed)

    def _file(self, name: str, repo: str, commit: str, files: dict[str, bytes]) -> None:
        if name not in files:
            return self._refuse(404, "EntryNotFound")
        data = files[name]
        headers = {"ETag": f'"{_digest(data)}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        part = self.request_record.range
        if part and self.command == "GET":
            first, last = re.fullmatch(r"bytes=(\d+)-(\d*)", part).groups()
            last = min(int(last or len(data) - 1), len(data) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            return self._send(206, data[int(first) : last + 1], headers)
        if self.command == "GET" and name in self.hub.cuts:
            self.hub.cuts.remove(name)
            return self._send(200, data, headers, stop=len(data) // 2)
        return self._send(200, data, headers)

    def _refuse(self, status: int, code: str) -> None:
        body = json.dumps({"error": code}).encode()
        self._send(status, body, {"X-Error-Code": code, "X-Error-Message": code})

    def _json(self, status: int, value: object) -> None:
        self._send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(
        self, status: int, body: bytes, headers: dict[str, str], stop: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:stop])
            self.request_record.sent = len(body[:stop])
        if stop is not None:
            self.wfile.flush()
            self.connection.close()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
