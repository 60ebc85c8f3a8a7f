"""All settings, typed and closed. Environment variables `DUALTRACK_<SECTION>__<FIELD>` win over the YAML file that
`DUALTRACK_CONFIG` names; `docs/settings.md` lists them.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, YamlConfigSettingsSource

from dualtrack.domain.hosts import HostPattern, rules
from dualtrack.domain.limits import GIB, PlatformLimits
from dualtrack.domain.network import MAX_RULES as MAX_EGRESS_RULES
from dualtrack.domain.network import EgressCeiling, SecretDefinition, SecretName
from dualtrack.domain.policy import MAX_RULES, PolicyRule
from dualtrack.domain.templates import STANDARD
from dualtrack.net.addresses import AllowList
from dualtrack.webhooks.sealing import Sealer, require_key

ENV_PREFIX = "DUALTRACK_"
OTHER_VARIABLES = frozenset(
    {f"{ENV_PREFIX}{name}" for name in ("CONFIG", "BASE_URL", "API_KEY", "IMAGES", "VERSION", "LOCAL_MODEL_KEY", "FAULTS")}
)
"""Variables with the prefix that are no settings: the command's, the compose file's, and the tests' (`dualtrack.faults`)."""

TemplateName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")]
ModuleName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]{0,199}$")]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DatabaseSettings(_Section):
    """PostgreSQL."""

    url: SecretStr = Field(
        SecretStr("postgresql+psycopg://dualtrack:dualtrack@127.0.0.1:5432/dualtrack"),
        description="SQLAlchemy address, driver psycopg: postgresql+psycopg://user:password@host:port/name",
    )

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, value: SecretStr) -> SecretStr:
        if not value.get_secret_value().startswith("postgresql+psycopg://"):
            raise ValueError("must be an address like postgresql+psycopg://user:password@host:port/name")
        return value

    pool_size: int = Field(20, ge=1, le=500, description="Connections a process keeps open.")
    pool_overflow: int = Field(10, ge=0, le=500, description="Further connections under load.")
    statement_timeout_s: float = Field(30, gt=0, description="A statement longer than this is cancelled.")


class BrokerSettings(_Section):
    """RabbitMQ."""

    url: SecretStr = Field(SecretStr("amqp://guest:guest@127.0.0.1:5672//"), description="AMQP address of RabbitMQ.")
    management_url: str | None = Field(
        None,
        pattern=r"^https?://",
        description="Address of RabbitMQ's management API, such as http://rabbitmq:15672: workers then look for their own consumers on the "
        "broker, with the user of `url` (it needs the tag `monitoring` or `management`); empty: they only look for any consumer.",
    )
    prefix: str = Field(
        "dualtrack",
        pattern=r"^[a-z0-9._-]{1,40}$",
        description="Prefix of every exchange and queue, so that two stacks can share a broker.",
    )


class S3Settings(_Section):
    """Any S3 server: AWS, MinIO, SeaweedFS, Ceph."""

    driver: Literal["s3"] = Field("s3", description="Set it to `s3` for this driver.")
    endpoint_url: str | None = Field(None, description="Address of the S3 server; empty for AWS.")
    public_endpoint_url: str | None = Field(None, description="Address that clients reach it by, for presigned downloads; empty: the same.")
    region: str = Field("us-east-1", description="Region name.")
    bucket: str = Field("dualtrack", min_length=3, max_length=63, description="Bucket, created if missing.")
    access_key_id: SecretStr | None = Field(None, description="Access key; empty: boto3's own chain (role, profile, environment).")
    secret_access_key: SecretStr | None = Field(None, description="Secret key.")


class FolderSettings(_Section):
    """A folder on this machine."""

    driver: Literal["folder"] = Field("folder", description="The default driver.")
    path: Path = Field(Path(".dualtrack/objects"), description="Where objects lie.")


class TemplateSettings(_Section):
    """What sandboxes of one kind hold beside the system's programs: built once, then shown read-only to all of them."""

    packages: list[str] = Field(
        default_factory=list,
        max_length=200,
        description="Python packages, each with its version (`numpy==2.4.0`), and their dependencies as they are when it is built.",
    )
    requirements: Path | None = Field(
        None, description="Requirements file in which every package has its version and hashes (`uv pip compile --generate-hashes`)."
    )
    files: Path | None = Field(None, description="Directory whose content is copied in, and shown at `/opt/dualtrack/template/files`.")
    environment: dict[VariableName, str] = Field(
        default_factory=dict, max_length=100, description="Environment of everything that runs inside; no place for secrets."
    )
    preload: list[ModuleName] = Field(
        default_factory=list, max_length=50, description="Python modules imported before a sandbox is given to a job."
    )


class TolerationSettings(_Section):
    """A taint of nodes that sandboxes' pods may be put on in spite of it."""

    key: str = Field(min_length=1, max_length=316, description="The taint's key.")
    operator: Literal["Equal", "Exists"] = Field("Equal", description="Whether its value matters.")
    value: str | None = Field(None, max_length=63, description="The taint's value, with operator Equal.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(None, description="Its effect; empty: every one.")


class KubernetesSettings(_Section):
    """The kubernetes driver: a pod for each sandbox."""

    namespace: str | None = Field(
        None,
        pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
        description="Namespace of the pods, which should hold nothing else. Empty: the driver touches no cluster.",
    )
    kubeconfig: Path | None = Field(None, description="How to reach the cluster; empty: the service account of the executor's own pod.")
    context: str | None = Field(None, description="Context in `kubeconfig`; empty: its current one.")
    image: str = Field("python:3.13-slim-bookworm", description="Image of the pods: `python3` (3.9 or later), `env` and a shell.")
    images: dict[TemplateName, str] = Field(
        default_factory=dict,
        max_length=100,
        description="Images of templates, as JSON; those with packages or files need one.",
    )
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = Field("IfNotPresent", description="When nodes fetch the image.")
    image_pull_secrets: list[str] = Field(
        default_factory=list, max_length=10, description="Secrets of the namespace with credentials of the image's registry, as JSON."
    )
    runtime_class: str | None = Field(
        None,
        pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$",
        description="RuntimeClass of the pods (`gvisor`, `kata`), for a kernel of their own; empty: the cluster's default runtime.",
    )
    user_namespaces: bool | None = Field(
        None,
        description="Whether users inside are nobody outside (`hostUsers: false`); needs a runtime that can. Empty: yes from Kubernetes "
        "1.33 on, unless `runtime_class` is set.",
    )
    uid: int | None = Field(
        None, ge=1, le=2**31 - 1, description="User and group of all pods; empty: one by chance for each, of 10000 to 59999."
    )
    seccomp_profile: str | None = Field(
        None, min_length=1, max_length=1000, description="System call filter on the nodes (`Localhost`); empty: the runtime's default."
    )
    cpus: float = Field(1.0, gt=0, le=1024, description="Processor time of a pod, in cores.")
    cpu_request: float = Field(0.1, gt=0, le=1024, description="What the scheduler reserves of it; memory is reserved in full.")
    pod_lifetime_s: int = Field(6 * 3600, ge=60, le=7 * 24 * 3600, description="The cluster ends a pod after this long, whoever forgot it.")
    node_selector: dict[str, str] = Field(default_factory=dict, max_length=20, description="Labels of the nodes to use, as JSON.")
    tolerations: list[TolerationSettings] = Field(default_factory=list, max_length=20, description="Their taints to put up with, as JSON.")
    annotations: dict[str, str] = Field(default_factory=dict, max_length=50, description="Annotations of the pods, as JSON.")


class SandboxSettings(_Section):
    """Where model-written code runs."""

    driver: Literal["auto", "landlock", "bubblewrap", "docker", "gvisor", "kubernetes"] = Field(
        "auto", description="auto: bubblewrap on Linux, docker elsewhere. Never falls back to a weaker one by itself."
    )
    pool_min: int = Field(2, ge=0, le=1000, description="Sandboxes kept started for the next claim, of each template of `pool_templates`.")
    pool_max: int = Field(
        8,
        ge=0,
        le=1000,
        description="Most sandboxes kept started of each template, where that many were claimed within seconds; 0: no pool.",
    )
    pool_templates: list[str] = Field(
        default_factory=list,
        max_length=100,
        description="Templates that are built and have sandboxes started before anybody asks for one, as JSON; empty: `template`. Others "
        "have some once they were asked for.",
    )
    pool_starters: int = Field(2, ge=1, le=64, description="Sandboxes started at once in one executor.")
    start_timeout_s: float = Field(60, gt=0, le=600, description="A sandbox that is not ready after this long has failed.")
    template: str = Field(
        "default", description="What the sandboxes of jobs are made of: default, shell, python-data, or a template of your own."
    )
    templates: dict[TemplateName, TemplateSettings] = Field(
        default_factory=dict,
        description="Templates of your own by name (lower-case letters, digits, `-`), as JSON. Router, scheduler and executor must have "
        "the same: a job that asks for another one is refused. Empty: it is accepted, and fails at the executor.",
    )
    template_store: Path | None = Field(
        None, description="Directory of built templates, on a local disk; empty: `.templates` in `workspaces`."
    )
    package_index: str | None = Field(
        None, description="Package index that templates are built from; empty: that of the machine (pip's and uv's own settings)."
    )
    wheels: Path | None = Field(None, description="Directory of wheels that templates are built from, and from nothing else.")
    docker_image: str = Field("python:3.13-slim-bookworm", description="Image for the docker driver.")
    docker_runtime: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9._-]{1,100}$",
        description="Runtime of the docker driver's containers (`runsc`); empty: the engine's.",
    )
    gvisor_platform: Literal["systrap", "kvm"] = Field(
        "systrap", description="How the gvisor driver's kernel catches system calls; kvm needs /dev/kvm, and is of use on bare metal only."
    )
    kubernetes: KubernetesSettings = KubernetesSettings()
    workspaces: Path = Field(
        Path("/var/tmp/dualtrack-workspaces"),  # noqa: S108 - survives a reboot, on a real disk; each directory in it is made private
        description="Scratch directory for workspaces, on a local disk.",
    )
    hot_workspaces: int = Field(64, ge=0, le=10_000, description="Jobs whose directories an executor keeps while no call uses them.")
    hot_bytes: int = Field(
        20 * GIB, ge=0, description="All files in the directories that an executor keeps; those that no call uses are removed beyond it."
    )
    uid: int = Field(65534, ge=1, description="Unprivileged user that sandboxes run as when the executor runs as root.")

    @property
    def known_templates(self) -> frozenset[str] | None:
        """Names of all templates; None where none of them is the operator's own: executors may then have settings that are not here."""
        return STANDARD | self.templates.keys() if self.templates else None

    @field_validator("workspaces", "template_store", "wheels")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        return None if path is None else path.absolute()  # drivers start their programs elsewhere

    @model_validator(mode="after")
    def _pool_in_order(self) -> Self:
        if "pool_min" in self.model_fields_set and 0 < self.pool_max < self.pool_min:
            raise ValueError(f"pool_min ({self.pool_min}) is more than pool_max ({self.pool_max})")
        return self


class ModelSettings(_Section):
    """One model: where it is and how to speak to it."""

    litellm_model: str = Field(
        description="LiteLLM's name, provider first: openai/gpt-5, anthropic/claude-…, ollama_chat/qwen3, openai/NAME with api_base."
    )
    api_base: str | None = Field(None, description="Address for self-hosted servers (vLLM, Ollama, llama.cpp): http://host:port/v1")
    api_key_env: str | None = Field(
        None, description="Name of the environment variable that holds the key. The key itself is never in a file."
    )
    action_format: Literal["native", "json"] = Field(
        "native", description="native tool calling, or a JSON-schema-constrained action for models without it."
    )
    context_tokens: int = Field(128_000, ge=1024, description="The model's context window; at 0.7 of it older steps are summarised.")
    max_output_tokens: int = Field(4096, ge=16, description="Most tokens of one answer.")
    temperature: float | None = Field(None, ge=0, le=2, description="Sampling temperature for decisions; empty: the provider's default.")
    timeout_s: float = Field(300, gt=0, description="Seconds for one answer.")
    retries: int = Field(2, ge=0, le=10, description="Further tries of the same model after a passing failure.")
    input_usd_per_million: Decimal | None = Field(
        None, ge=0, description="Price of a million input tokens; empty: LiteLLM's price list, 0 where it has none."
    )
    output_usd_per_million: Decimal | None = Field(None, ge=0, description="Price of a million output tokens.")


class LocalModelSettings(_Section):
    """The keyless default model."""

    source: str = Field(
        "qwen2.5-coder-1.5b",
        description="A catalogue name (qwen2.5-coder-1.5b, qwen2.5-coder-0.5b), a path to a GGUF file, or hf:owner/repo/file.gguf.",
    )
    cache: Path | None = Field(
        None, description="Folder for weights; empty: the user's cache folder (XDG_CACHE_HOME or ~/.cache)/dualtrack/models."
    )
    context_tokens: int = Field(16_384, ge=2048, description="Context window of each slot.")
    slots: int = Field(2, ge=1, le=64, description="Requests served at once.")
    threads: int | None = Field(None, ge=1, description="CPU threads; empty: one per core.")


class ModelsSettings(_Section):
    """Tracks and models. Empty: found from provider keys in the environment, else the local model."""

    models: dict[str, ModelSettings] = Field(default_factory=dict, description="Configured models by name.")
    tracks: dict[str, list[str]] = Field(
        default_factory=dict, description="Track name to models, in order of preference. `fast` and `deep` must exist."
    )
    local: LocalModelSettings = LocalModelSettings()


class TelemetrySettings(_Section):
    """OpenTelemetry."""

    otlp_endpoint: str | None = Field(
        None,
        pattern=r"^https?://",
        description="OTLP/HTTP address of a collector, such as http://collector:4318; empty: spans are not exported.",
    )
    capture_content: bool = Field(
        default=False, description="Put prompts, answers and tool arguments on spans (off: they may hold personal data)."
    )
    metrics_port: int | None = Field(
        None, ge=1, le=65535, description="An executor serves its Prometheus metrics on this port, at `/metrics`; empty: it does not."
    )
    metrics_host: str = Field("127.0.0.1", description="Address to serve them on.")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="Least severe messages that are logged.")
    log_format: Literal["json", "console"] = Field("json", description="json for machines, console for a person at a terminal.")


class RouterSettings(_Section):
    """The HTTP server."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0 takes any free one.")
    public_url: str | None = Field(
        None, description="Address that clients reach the API by, for links in answers; empty: as the request came in."
    )


class ToolSettings(_Section):
    """Tools that reach out of the platform."""

    http_hosts: list[str] = Field(
        default_factory=list,
        description='Hosts that agents may call by the tool `http_request`, as JSON: `["api.example.com", "*.example.com:8443"]`; '
        "empty: there is no such tool.",
    )


class NetSettings(_Section):
    """Requests to addresses that users name: webhooks, tools. Only public addresses can be reached, by http and https, without a proxy."""

    allow: list[str] = Field(
        default_factory=list,
        description='Exceptions, as JSON: `["hooks.internal:8443", "10.1.0.0/16"]` (host and port, or a network).',
    )

    @field_validator("allow")
    @classmethod
    def _are_places(cls, value: list[str]) -> list[str]:
        AllowList.parse(value)
        return value


class WebhookSettings(_Section):
    """Webhooks. The router and the scheduler must have the same."""

    secret_keys: list[SecretStr] = Field(
        default_factory=list,
        max_length=20,
        description="Keys that webhooks' signing secrets are encrypted with in the database, as JSON: each the base64 (URL alphabet) of "
        "32 random bytes; the first encrypts, all decrypt. Empty: secrets are stored in clear.",
    )

    @field_validator("secret_keys")
    @classmethod
    def _are_keys(cls, value: list[SecretStr]) -> list[SecretStr]:
        for key in value:
            require_key(key.get_secret_value())
        return value

    @property
    def sealer(self) -> Sealer:
        """What seals with these keys."""
        return Sealer([key.get_secret_value() for key in self.secret_keys])


class EgressSettings(_Section):
    """What sandboxes may reach over the network (docs/network.md): by default nothing. Router, planner and executor must have the same."""

    allow: list[HostPattern] = Field(
        default_factory=list,
        max_length=MAX_EGRESS_RULES,
        description='Hosts and ports that agents may be given, as JSON: `["pypi.org", "*.example.com:8443"]`; `*` stands for every name; '
        "without a port 80 and 443. Empty: no sandbox has any network.",
    )
    private: list[str] = Field(
        default_factory=list,
        description="What of it may be reached although it is not on the public internet, as JSON: "
        '`["mirror.internal:3141", "10.1.0.0/16"]` (host and port, or a network).',
    )
    max_bytes_up: int = Field(GIB, ge=0, description="Most bytes that one sandbox session may send, whatever its agent asks for.")
    max_bytes_down: int = Field(16 * GIB, ge=0, description="Most bytes that one sandbox session may receive.")
    secrets: dict[SecretName, SecretDefinition] = Field(
        default_factory=dict,
        description="Secrets that agents' requests may carry without their seeing them, by name; as JSON: "
        '`{"github": {"value_env": "GITHUB_TOKEN", "variable": "GITHUB_TOKEN", "hosts": ["api.github.com"]}}`.',
    )

    @field_validator("private")
    @classmethod
    def _are_places(cls, value: list[str]) -> list[str]:
        AllowList.parse(value)
        return value

    @property
    def ceiling(self) -> EgressCeiling:
        """As the domain has it."""
        return EgressCeiling(rules(self.allow), self.secrets, self.max_bytes_up, self.max_bytes_down)


class PolicySettings(_Section):
    """What agents may do, whatever their profiles say (docs/approvals.md). Planner and router must have the same."""

    rules: list[PolicyRule] = Field(
        default_factory=list,
        max_length=MAX_RULES,
        description="The first that fits a call decides, before the rules of the agent's profile; as JSON: "
        '`[{"tool": "shell", "arguments": {"command": "git +push"}, "action": "ask"}]`.',
    )


class WorkerSettings(_Section):
    """Planner and executor."""

    planner_threads: int = Field(
        16, ge=1, le=1024, description="Decisions at once in one planner process (they mostly wait for the model)."
    )
    executor_threads: int = Field(
        4, ge=1, le=1024, description="Tool calls at once in one executor process, and as many more of jobs that have their sandbox there."
    )
    scheduler_tick_s: float = Field(1.0, gt=0, le=60, description="Seconds between two looks of the scheduler.")
    health_file: Path | None = Field(
        None, description="A worker touches this file while its broker consumer and database answer; for container health checks."
    )


class Settings(BaseSettings):
    """The one settings model; build it once, in `bootstrap`."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter="__", frozen=True, extra="forbid", nested_model_default_partial_update=True
    )

    config: Path | None = Field(None, description="YAML file with the same structure as these settings.")
    database: DatabaseSettings = DatabaseSettings()
    broker: BrokerSettings = BrokerSettings()
    objects: Annotated[S3Settings | FolderSettings, Field(discriminator="driver")] = FolderSettings()
    sandbox: SandboxSettings = SandboxSettings()
    models: ModelsSettings = ModelsSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    router: RouterSettings = RouterSettings()
    net: NetSettings = NetSettings()
    webhooks: WebhookSettings = WebhookSettings()
    egress: EgressSettings = EgressSettings()
    tools: ToolSettings = ToolSettings()
    policies: PolicySettings = PolicySettings()
    workers: WorkerSettings = WorkerSettings()
    limits: PlatformLimits = PlatformLimits()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then the environment, then the YAML file."""
        del dotenv_settings, file_secret_settings
        import os

        sources: list[PydanticBaseSettingsSource] = [init_settings, env_settings]
        path = os.environ.get(f"{ENV_PREFIX}CONFIG")
        if path:
            sources.append(YamlConfigSettingsSource(settings_cls, yaml_file=path))
        return tuple(sources)
