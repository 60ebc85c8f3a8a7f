# All images of Dualtrack: router, planner, executor, scheduler and cli (which also migrates the database).
#
# Dependencies come from uv.lock, with their hashes, by a uv that is itself pinned by hash. Images share their common layers; each adds
# only what its service needs, so the executor holds no provider library. Nothing of the build (uv, caches, sources) stays in an image.
#
# Behind a proxy that brings its own certificates, build on an image of yours that trusts them: --build-arg PYTHON_IMAGE=…
# (PIP_CERT and SSL_CERT_FILE set in it are honoured). A package mirror: --build-arg PIP_INDEX_URL=… UV_DEFAULT_INDEX=…
ARG PYTHON_IMAGE=python:3.13-slim-bookworm

FROM ${PYTHON_IMAGE} AS runtime
# The uid is a number that belongs to nobody on common hosts; images run under it whatever /etc/passwd says.
RUN groupadd --gid 10001 dualtrack \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin dualtrack
ENV PATH=/opt/dualtrack/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1

FROM runtime AS uv
ARG PIP_INDEX_URL
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=bind,source=requirements/uv.txt,target=/tmp/uv.txt \
    PIP_ROOT_USER_ACTION=ignore pip install --require-hashes -r /tmp/uv.txt

FROM scratch AS manifests
COPY pyproject.toml uv.lock /
COPY shared/pyproject.toml /shared/
COPY services/cli/pyproject.toml /services/cli/
COPY services/executor/pyproject.toml /services/executor/
COPY services/planner/pyproject.toml /services/planner/
COPY services/router/pyproject.toml /services/router/
COPY services/scheduler/pyproject.toml /services/scheduler/
COPY services/standalone/pyproject.toml /services/standalone/

FROM manifests AS sources
COPY shared/dualtrack /shared/dualtrack
COPY services /services

# Third-party packages, in layers that change only with the lock. (uv's cache knows our own packages by their pyproject.toml only, hence
# --refresh-package further down: without it an image would get the code of an earlier build.)
FROM runtime AS common
ARG UV_DEFAULT_INDEX
ARG UV_SYNC="uv sync --frozen --no-dev --no-editable"
ARG UV_PROJECT_ENVIRONMENT=/opt/dualtrack
ARG UV_PYTHON=/usr/local/bin/python3
ARG UV_PYTHON_DOWNLOADS=never
ARG UV_LINK_MODE=copy
ARG UV_COMPILE_BYTECODE=1
WORKDIR /src
RUN --mount=type=cache,target=/root/.cache/uv \
    --mount=type=bind,from=uv,source=/usr/local/bin/uv,target=/usr/local/bin/uv \
    --mount=type=bind,from=manifests,target=/src \
    ${UV_SYNC} --no-install-workspace --package dualtrack-scheduler

FROM common AS common-models
RUN --mount=type=cache,target=/root/.cache/uv \
    --mount=type=bind,from=uv,source=/usr/local/bin/uv,target=/usr/local/bin/uv \
    --mount=type=bind,from=manifests,target=/src \
    ${UV_SYNC} --no-install-workspace --package dualtrack-planner

FROM common-models AS router
# Uploads wait here, on disk, until they are stored.
RUN install --directory --owner=10001 --group=10001 --mode=0700 /spool
RUN --mount=type=cache,target=/root/.cache/uv \
    --mount=type=bind,from=uv,source=/usr/local/bin/uv,target=/usr/local/bin/uv \
    --mount=type=bind,from=sources,target=/src \
    ${UV_SYNC} --package dualtrack-router --refresh-package dualtrack --refresh-package dualtrack-router
WORKDIR /
USER 10001:10001
ENV DUALTRACK_ROUTER__HOST=0.0.0.0 \
    TMPDIR=/spool
VOLUME /spool
EXPOSE 8080
CMD ["dualtrack-router"]

FROM common-models AS planner
RUN --mount=type=cache,target=/root/.cache/uv \
    --mount=type=bind,from=uv,source=/usr/local/bin/uv,target=/usr/local/bin/uv \
    --mount=type=bind,from=sources,target=/src \
    ${UV_SYNC} --package dualtrack-planner --refresh-package dualtrack --refresh-package dualtrack-planner
WORKDIR /
USER 10001:10001
CMD ["dualtrack-planner"]

FROM common AS executor
# libseccomp: the sandbox's system call filter is built with it.
RUN apt-get update \
    && apt-get install -y --no-install-recommends libseccomp2 \
    && rm -rf /var/lib/apt/lists/* \
    && install --directory --owner=10001 --group=10001 --mode=0711 /workspaces
# `kubernetes`: for sandboxes as pods of a cluster.
ARG EXECUTOR_EXTRA
RUN --mount=type=cache,target=/root/.cache/uv \
    --mount=type=bind,from=uv,source=/usr/local/bin/uv,target=/usr/local/bin/uv \
    --mount=type=bind,from=sources,target=/src \
    ${UV_SYNC} --package dualtrack-executor ${EXECUTOR_EXTRA:+--extra ${EXECUTOR_EXTRA}} \
    --refresh-package dualtrack --refresh-package dualtrack-executor
WORKDIR /
USER 10001:10001
ENV DUALTRACK_SANDBOX__WORKSPACES=/workspaces
VOLUME /workspaces
CMD ["dualtrack-executor"]

FROM common AS scheduler
RUN --mount=type=cache,target=/root/.cache/uv \
    --mount=type=bind,from=uv,source=/usr/local/bin/uv,target=/usr/local/bin/uv \
    --mount=type=bind,from=sources,target=/src \
    ${UV_SYNC} --package dualtrack-scheduler --refresh-package dualtrack --refresh-package dualtrack-scheduler
WORKDIR /
USER 10001:10001
CMD ["dualtrack-scheduler"]

FROM common AS cli
RUN --mount=type=cache,target=/root/.cache/uv \
    --mount=type=bind,from=uv,source=/usr/local/bin/uv,target=/usr/local/bin/uv \
    --mount=type=bind,from=sources,target=/src \
    ${UV_SYNC} --package dualtrack-cli --refresh-package dualtrack --refresh-package dualtrack-cli
WORKDIR /
USER 10001:10001
ENTRYPOINT ["dualtrack"]
