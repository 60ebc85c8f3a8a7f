"""What a sandbox may reach over the network, and which secrets are put in for it on the way: the operator's ceiling, an agent's wish, and
what comes of both. No IO, and no secret's value: those are the executor's alone (`dualtrack.egress.secrets`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StringConstraints, field_validator, model_validator

from dualtrack.domain.errors import InvalidRequest
from dualtrack.domain.hosts import HostPattern, HostRule, permitted, rule, rules
from dualtrack.domain.limits import GIB, MIB

MAX_RULES: Final = 200
MAX_SECRETS: Final = 50
LARGEST_BYTES: Final = 1024 * GIB

SecretName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")]
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Z_][A-Z0-9_]{0,63}$")]
HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,63}$", to_lower=True)]
Bytes = Annotated[StrictInt, Field(ge=0, le=LARGEST_BYTES)]

_RESERVED: Final = re.compile(r"PATH|HOME|LANG|TMPDIR|LD_.*|PYTHON.*|DUALTRACK_.*|.*_PROXY|SSL_CERT_.*|PIP_CERT|NODE_.*|.*_CA_.*|.*_CAINFO")
"""Variables that make a sandbox what it is, or lead its requests to the proxy."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class NetworkAccess(_Frozen):
    """What an agent's sandboxes may reach; by default nothing."""

    allow: tuple[HostPattern, ...] = Field(
        (),
        max_length=MAX_RULES,
        description="Hosts and ports: `pypi.org`, `*.example.com:8443`, `*` for every name; without a port 80 and 443. Each must lie "
        "within what the operator allows. Empty: no network.",
    )
    max_bytes_up: Bytes = Field(64 * MIB, description="Bytes that one sandbox session may send; the operator may set fewer.")
    max_bytes_down: Bytes = Field(GIB, description="Bytes that one sandbox session may receive; the operator may set fewer.")


class SecretUse(_Frozen):
    """A secret of the operator that an agent's requests may carry, without its ever seeing it."""

    name: SecretName = Field(description="Its name among the operator's secrets.")
    hosts: tuple[HostPattern, ...] = Field(
        (), max_length=MAX_RULES, description="Fewer hosts than the operator binds it to; empty: all of them that `network.allow` permits."
    )
    variable: Variable | None = Field(
        None, description="Environment variable that holds its placeholder in the sandbox; empty: the one that the operator says."
    )

    @field_validator("variable")
    @classmethod
    def _is_free(cls, value: str | None) -> str | None:
        return _free(value)


class SecretDefinition(_Frozen):
    """A secret that the operator lends to agents: where its value is and where it may go. The value itself is in no setting."""

    value_env: str | None = Field(None, description="Environment variable of the executor that holds the value.")
    value_file: Path | None = Field(
        None, description="File that holds the value, readable by the executor alone (such as a mounted secret)."
    )
    hosts: tuple[HostPattern, ...] = Field(min_length=1, max_length=MAX_RULES, description="The only hosts that ever get it.")
    headers: tuple[HeaderName, ...] = Field(
        ("authorization",), min_length=1, max_length=16, description="Request headers in which its placeholder is replaced."
    )
    variable: Variable = Field(description="Environment variable that holds the placeholder in the sandbox, such as GITHUB_TOKEN.")
    tenants: tuple[str, ...] = Field((), max_length=1000, description="Ids of the tenants whose jobs may use it; empty: all.")
    plain_http: bool = Field(default=False, description="Put it into requests without TLS as well (for a service on a private network).")

    @field_validator("variable")
    @classmethod
    def _is_free(cls, value: str) -> str | None:
        return _free(value)

    @model_validator(mode="after")
    def _one_source(self) -> SecretDefinition:
        if (self.value_env is None) == (self.value_file is None):
            raise ValueError("needs exactly one of value_env and value_file")
        return self


def _free(variable: str | None) -> str | None:
    if variable is not None and _RESERVED.fullmatch(variable):
        raise ValueError(f"{variable} is the sandbox's own")
    return variable


@dataclass(frozen=True, slots=True)
class SecretGrant:
    """A secret as one sandbox session may use it.

    Attributes:
        bound: lists of rules, each of which a host must fit: the operator's, then those of the agent where it names fewer.
    """

    name: str
    variable: str
    bound: tuple[tuple[HostRule, ...], ...]
    headers: frozenset[str]
    plain_http: bool = False

    def permits(self, host: str, port: int) -> bool:
        """Whether requests to this (canonical) host and port may carry it."""
        return all(permitted(one, host, port) for one in self.bound)


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """What one sandbox session may reach.

    Attributes:
        allow: lists of rules, each of which a host must fit: the operator's as they are now, then the agent's.
        max_bytes_up: sent by the sandbox, in all.
        max_bytes_down: received by it, in all.
        secrets: what its requests may carry.
    """

    allow: tuple[tuple[HostRule, ...], ...]
    max_bytes_up: int = 64 * MIB
    max_bytes_down: int = GIB
    secrets: tuple[SecretGrant, ...] = ()

    @property
    def asked(self) -> tuple[HostRule, ...]:
        """What the agent asked for."""
        return self.allow[-1]

    def permits(self, host: str, port: int) -> bool:
        """Whether this (canonical) host and port may be reached."""
        return all(permitted(one, host, port) for one in self.allow)

    def bound(self, host: str, port: int) -> tuple[SecretGrant, ...]:
        """The secrets that requests there may carry."""
        return tuple(grant for grant in self.secrets if grant.permits(host, port))


@dataclass(frozen=True, slots=True)
class EgressCeiling:
    """What the operator allows any agent: a job can ask for less, never for more.

    Attributes:
        allow: hosts that may be reached at all.
        secrets: those lent, by name.
        max_bytes_up: most that a session may send, whatever is asked for.
        max_bytes_down: most that it may receive.
    """

    allow: tuple[HostRule, ...] = ()
    secrets: Mapping[str, SecretDefinition] = field(default_factory=dict)
    max_bytes_up: int = LARGEST_BYTES
    max_bytes_down: int = LARGEST_BYTES

    def check(self, access: NetworkAccess, uses: tuple[SecretUse, ...], tenant_id: str, *, param: str = "agent") -> None:
        """Refuse what goes beyond it, before anything is written.

        Raises:
            InvalidRequest: naming the field below `param`.
        """
        for n, text in enumerate(access.allow):
            if not any(one.covers(rule(text)) for one in self.allow):
                allowed = ", ".join(str(one) for one in self.allow) or "nothing"
                raise InvalidRequest(
                    f"{param}.network.allow.{n}: {text} lies beyond what the operator allows ({allowed}; DUALTRACK_EGRESS__ALLOW).",
                    param=f"{param}.network.allow.{n}",
                )
        variables: set[str] = set()
        for n, use in enumerate(uses):
            place = f"{param}.secrets.{n}"
            definition = self._lent(use.name, tenant_id)
            if definition is None:
                raise InvalidRequest(f"{place}.name: there is no secret {use.name!r} that this tenant may use.", param=f"{place}.name")
            for k, text in enumerate(use.hosts):
                if not any(one.covers(rule(text)) for one in rules(definition.hosts)):
                    raise InvalidRequest(
                        f"{place}.hosts.{k}: {use.name} is not bound to {text}, but to {', '.join(definition.hosts)}.",
                        param=f"{place}.hosts.{k}",
                    )
            if not access.allow:
                raise InvalidRequest(f"{place}: a secret without a network is of no use: name its hosts in network.allow.", param=place)
            variable = use.variable or definition.variable
            if variable in variables:
                raise InvalidRequest(f"{place}.variable: two secrets share the variable {variable}.", param=f"{place}.variable")
            variables.add(variable)

    def policy(self, access: NetworkAccess, uses: tuple[SecretUse, ...], tenant_id: str) -> EgressPolicy | None:
        """What an agent of this profile gets now; None: no network. What the ceiling no longer allows is left out, not refused."""
        if not access.allow or not self.allow:
            return None
        found = [(use, definition) for use in uses if (definition := self._lent(use.name, tenant_id)) is not None]
        grants = tuple(
            SecretGrant(
                use.name,
                use.variable or definition.variable,
                (rules(definition.hosts), rules(use.hosts)) if use.hosts else (rules(definition.hosts),),
                frozenset(definition.headers),
                definition.plain_http,
            )
            for use, definition in found
        )
        return EgressPolicy(
            (self.allow, rules(access.allow)),
            min(self.max_bytes_up, access.max_bytes_up),
            min(self.max_bytes_down, access.max_bytes_down),
            grants,
        )

    def _lent(self, name: str, tenant_id: str) -> SecretDefinition | None:
        definition = self.secrets.get(name)
        return definition if definition is not None and (not definition.tenants or tenant_id in definition.tenants) else None
