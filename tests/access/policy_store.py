"""The S3 API server of the benchmarks with identities, policies and a log that keeps running.

`python -m tests.access.policy_store PORT` serves. An identity is an access key; its policy has the
form of AWS's identity policies. An identity without a policy may do everything. A refused request
is answered with 403 AccessDenied, as S3 does it: also GET and HEAD of a missing object unless
ListBucket is allowed with the object's key as s3:prefix. Beside the server's own control paths:

    PUT  /_policies/NAME   set the policy of the access key NAME; an empty content removes it
    GET  /_refused         [[access key, action, resource, s3:prefix], ...], the refused requests
                           since the last such request
    GET  /_allowed         the same of all requests that were allowed, each once
    POST /_age?seconds=1   make all objects older
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import translate
from functools import lru_cache
from pathlib import Path
from re import Pattern
from re import compile as compiled
from typing import Any, NamedTuple
from urllib.request import Request as Call
from urllib.request import urlopen
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from benchmarks.s3_buckets import S3Error
from benchmarks.s3_server import Connection, Request, Response, S3Api, run
from benchmarks.s3_store import Store, running_server

Policy = Mapping[str, Any]
"""An identity policy: Version, and Statement, a list of Effect, Action, Resource, Condition."""


_METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE")

ECHO: Policy = {"Statement": [], "Echo": _METHODS, "Of": "*"}
"""A policy that refuses everything as S3 refuses a wrong signature: it quotes the request."""

ECHO_OF_FILES: Policy = {**ECHO, "Echo": ("GET", "PUT", "POST"), "Of": "*/log/_inbox/*"}
"""The same for the contents of batch files alone, which tasks read and write.

A response to HEAD would quote nothing.
"""


class Asked(NamedTuple):
    """An action that an access key has requested; `prefix` is the value of s3:prefix."""

    sender: str
    action: str
    resource: str
    prefix: str | None


_ACTIONS = {
    "GET": "s3:GetObject",
    "HEAD": "s3:GetObject",
    "PUT": "s3:PutObject",
    "POST": "s3:PutObject",
    "DELETE": "s3:DeleteObject",
}


def allows(policy: Policy, action: str, resource: str, prefix: str | None = None) -> bool:
    """Return whether a policy allows an action: a statement allows it, and no statement denies it.

    Parameters: `resource`, without `arn:aws:s3:::`; `prefix`, the value of s3:prefix.
    """
    effects = {
        one["Effect"]
        for one in policy["Statement"]
        if _matches(_listed(one["Action"]), action)
        and _matches(_listed(one["Resource"]), f"arn:aws:s3:::{resource}")
        and _is_met(one.get("Condition", {}), prefix)
    }
    return effects == {"Allow"}


def _quoting(request: Request) -> Response:
    """Return S3's response to a wrong signature; one to HEAD has no content."""
    headers = "\n".join(f"{name}:{value}" for name, value in request.headers.items())
    text = (
        "<Error><Code>SignatureDoesNotMatch</Code><Message>The request signature we calculated "
        "does not match the signature you provided.</Message>"
        f"<CanonicalRequest>{escape(headers)}</CanonicalRequest></Error>"
    )
    content = b"" if request.method == "HEAD" else text.encode()
    return Response(403, {"Content-Type": "application/xml"}, content)


def _is_met(condition: Mapping[str, Mapping[str, Any]], prefix: str | None) -> bool:
    for operator, values in condition.items():
        if operator != "StringLike" or set(values) != {"s3:prefix"}:
            raise S3Error(400, "MalformedPolicy", f"{operator} {sorted(values)} is not offered")
        if prefix is None or not _matches(_listed(values["s3:prefix"]), prefix):
            return False
    return True


def _listed(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value


def _matches(patterns: Sequence[str], text: str) -> bool:
    return any(_pattern(one).match(text) for one in patterns)


@lru_cache(maxsize=4096)
def _pattern(text: str) -> Pattern[str]:
    """Return a policy's pattern, of which * and ? are the only special characters."""
    return compiled(translate(text.replace("[", "[[]")))


class PolicyApi(S3Api):
    """The buckets, and the policies of identities."""

    def __init__(self, latency_ms: float = 0.0) -> None:
        super().__init__(latency_ms)
        self.policies: dict[str, Policy] = {}
        self.refused: list[Asked] = []
        self.allowed: set[Asked] = set()

    def _control(self, request: Request) -> Response:
        if request.bucket == "_refused":
            content = json.dumps(self.refused).encode()
            self.refused.clear()
            return Response(200, {}, content)
        if request.bucket == "_allowed":
            return Response(200, {}, json.dumps(list(self.allowed)).encode())
        if request.bucket == "_age":
            for bucket in self._buckets.values():
                bucket.age(float(request.query["seconds"]))
            return Response(204)
        if request.bucket != "_policies":
            return super()._control(request)
        self.policies.pop(request.key, None)
        if request.content:
            self.policies[request.key] = json.loads(request.content)
        return Response(204)

    def _answered(self, request: Request) -> Response:
        policy = self.policies.get(request.sender)
        if policy is None:
            return super()._answered(request)
        if policy.get("Echo"):
            if request.method in policy["Echo"] and _matches([policy["Of"]], request.key):
                return _quoting(request)
            return super()._answered(request)
        bucket, key, query = request.bucket, request.key, request.query
        if request.method == "POST" and "delete" in query:
            return self._removed(request, policy)
        if not key:
            action = "s3:ListBucket" if request.method in ("GET", "HEAD") else "s3:CreateBucket"
            self._check(request.sender, policy, action, bucket, query.get("prefix", ""))
            return super()._answered(request)
        action = _ACTIONS[request.method]
        if request.method == "DELETE" and "uploadId" in query:
            action = "s3:AbortMultipartUpload"
        self._check(request.sender, policy, action, f"{bucket}/{key}")
        try:
            return super()._answered(request)
        except S3Error as error:
            if error.code == "NoSuchKey":
                self._check(request.sender, policy, "s3:ListBucket", bucket, key)
            raise

    def _is_allowed(self, policy: Policy, asked: Asked) -> bool:
        if not allows(policy, asked.action, asked.resource, asked.prefix):
            self.refused.append(asked)
            return False
        self.allowed.add(asked)
        return True

    def _check(
        self, sender: str, policy: Policy, action: str, resource: str, prefix: str | None = None
    ) -> None:
        """Raise `S3Error` AccessDenied unless the policy allows the action."""
        if not self._is_allowed(policy, Asked(sender, action, resource, prefix)):
            raise S3Error(403, "AccessDenied", "Access Denied")

    def _removed(self, request: Request, policy: Policy) -> Response:
        """Return the response to DeleteObjects, which refuses each object separately."""
        keys = [one.text or "" for one in ET.fromstring(request.content).findall(".//{*}Key")]
        lines = []
        for key in keys:
            resource = f"{request.bucket}/{key}"
            if self._is_allowed(policy, Asked(request.sender, "s3:DeleteObject", resource, None)):
                self._bucket(request.bucket).remove(key)
                lines.append(f"<Deleted><Key>{key}</Key></Deleted>")
            else:
                lines.append(
                    f"<Error><Key>{key}</Key><Code>AccessDenied</Code>"
                    "<Message>Access Denied</Message></Error>"
                )
        text = f"<DeleteResult>{''.join(lines)}</DeleteResult>"
        return Response(200, {"Content-Type": "application/xml"}, text.encode())


class PolicyStore(Store):
    """A client's view of the running server, and the policies of its identities."""

    def set_policy(self, sender: str, policy: Policy | None) -> None:
        """Set the policy of an access key; `None` allows everything."""
        content = b"" if policy is None else json.dumps(policy).encode()
        call = Call(f"{self.url}/_policies/{sender}", data=content, method="PUT")
        urlopen(call, timeout=60).close()

    @contextmanager
    def refusing(self, sender: str, policy: Policy) -> Iterator[None]:
        """Give an identity without a policy a policy within the block."""
        self.set_policy(sender, policy)
        try:
            yield
        finally:
            self.set_policy(sender, None)

    def refused(self, sender: str | None = None) -> list[Asked]:
        """Return the requests of one or all senders that were refused since the last call."""
        found = [Asked(*one) for one in json.loads(self._call("GET", "_refused"))]
        return [one for one in found if sender in (None, one.sender)]

    def allowed(self, sender: str) -> list[Asked]:
        """Return the requests of a sender that were allowed so far, each once."""
        found = [Asked(*one) for one in json.loads(self._call("GET", "_allowed"))]
        return [one for one in found if one.sender == sender]

    def age(self, seconds: float) -> None:
        """Make all objects older, so that they are due for clean-up."""
        self._call("POST", f"_age?seconds={seconds}")


@contextmanager
def running_policy_store(log: Path) -> Iterator[PolicyStore]:
    """Run a server in a separate process within the block."""
    with running_server(log, "tests.access.policy_store") as port:
        yield PolicyStore(port)


def main(port: str) -> None:
    """Serve until the process or its parent ends."""
    api = PolicyApi()
    run(int(port), lambda: Connection(api))


if __name__ == "__main__":
    main(*sys.argv[1:])
