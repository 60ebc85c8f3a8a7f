"""What an agent may ask for of the network, under the operator's ceiling, and what comes of both."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from dualtrack.domain.errors import InvalidRequest
from dualtrack.domain.hosts import rules
from dualtrack.domain.network import EgressCeiling, NetworkAccess, SecretDefinition, SecretUse


def definition(**values: Any) -> SecretDefinition:
    return SecretDefinition.model_validate({"value_env": "X", "variable": "GITHUB_TOKEN", "hosts": ["api.github.com:443"]} | values)


CEILING = EgressCeiling(
    rules(["pypi.org", "*.github.com:443"]),
    {"github": definition(), "other": definition(variable="OTHER", tenants=["ten_other"])},
    max_bytes_up=1000,
)


def check(allow: list[str], *uses: dict[str, Any]) -> None:
    CEILING.check(NetworkAccess(allow=tuple(allow)), tuple(SecretUse.model_validate(use) for use in uses), "ten_a")


def test_within_the_ceiling() -> None:
    check([])
    check(["pypi.org:443", "api.github.com:443", "*.a.github.com:443"], {"name": "github"})
    check(["api.github.com:443"], {"name": "github", "hosts": ["api.github.com:443"], "variable": "GH_TOKEN"})


@pytest.mark.parametrize(
    ("allow", "uses", "field"),
    [
        (["pypi.org", "example.com"], [], "agent.network.allow.1"),
        (["*"], [], "agent.network.allow.0"),
        (["*.github.com"], [], "agent.network.allow.0"),  # port 80 as well
        (["pypi.org:22"], [], "agent.network.allow.0"),
        (["pypi.org"], [{"name": "nobody"}], "agent.secrets.0.name"),
        (["pypi.org"], [{"name": "other"}], "agent.secrets.0.name"),
        (["pypi.org"], [{"name": "github"}, {"name": "github"}], "agent.secrets.1.variable"),
        (["pypi.org"], [{"name": "github", "hosts": ["pypi.org"]}], "agent.secrets.0.hosts.0"),
        (["pypi.org"], [{"name": "github", "hosts": ["*.github.com:443"]}], "agent.secrets.0.hosts.0"),
        ([], [{"name": "github"}], "agent.secrets.0"),
    ],
)
def test_beyond_the_ceiling_is_refused_by_field(allow: list[str], uses: list[dict[str, Any]], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check(allow, *uses)
    assert refused.value.param == field
    assert refused.value.message.startswith(f"{field}: ")


def test_without_a_ceiling_there_is_no_network() -> None:
    with pytest.raises(InvalidRequest, match="nothing; DUALTRACK_EGRESS__ALLOW"):
        EgressCeiling().check(NetworkAccess(allow=("pypi.org",)), (), "ten_a")
    assert EgressCeiling().policy(NetworkAccess(allow=("pypi.org",)), (), "ten_a") is None
    assert CEILING.policy(NetworkAccess(), (), "ten_a") is None


def test_the_policy_is_what_both_allow_now() -> None:
    policy = CEILING.policy(NetworkAccess(allow=("pypi.org:443", "example.com"), max_bytes_up=5000, max_bytes_down=7), (), "ten_a")
    assert policy is not None
    assert policy.permits("pypi.org", 443)
    assert not policy.permits("pypi.org", 80)  # the agent asked for less
    assert not policy.permits("example.com", 443)  # the operator allows it no more
    assert not policy.permits("api.github.com", 443)
    assert (policy.max_bytes_up, policy.max_bytes_down) == (1000, 7)


def test_a_secret_goes_where_operator_and_agent_both_say() -> None:
    ceiling = EgressCeiling(rules(["*"]), {"github": definition(hosts=["*.github.com:443"])})
    access = NetworkAccess(allow=("*",))
    use = SecretUse(name="github", hosts=("api.github.com:443",))
    policy = ceiling.policy(access, (use, SecretUse(name="gone")), "ten_a")
    assert policy is not None
    assert [grant.name for grant in policy.secrets] == ["github"]
    assert [grant.name for grant in policy.bound("api.github.com", 443)] == ["github"]
    assert policy.bound("uploads.github.com", 443) == ()
    assert policy.bound("api.github.com", 80) == ()
    assert policy.bound("evil.example", 443) == ()


@pytest.mark.parametrize(
    "values",
    [
        {"value_file": "/run/secrets/x"},
        {"value_env": None},
        {"hosts": []},
        {"hosts": ["http://x"]},
        {"variable": "PATH"},
        {"variable": "HTTPS_PROXY"},
        {"variable": "SSL_CERT_FILE"},
        {"variable": "LD_PRELOAD"},
        {"variable": "lower"},
        {"headers": ["a b"]},
        {"value": "the secret itself"},
    ],
)
def test_no_definition_of_a_secret(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        definition(**values)


@pytest.mark.parametrize(
    "values", [{"name": "A"}, {"name": "a--"}, {"name": "a_b"}, {"name": "a", "variable": "PATH"}, {"name": "a", "value": "x"}]
)
def test_no_use_of_a_secret(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SecretUse.model_validate(values)


@pytest.mark.parametrize("values", [{"allow": ["*."]}, {"allow": ["127.1"]}, {"max_bytes_up": -1}, {"max_bytes_down": True}, {"deny": []}])
def test_no_access(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        NetworkAccess.model_validate(values)
