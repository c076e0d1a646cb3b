# The relay, the checker, consumers and the `outbox` command; with PART=etl the warehouse job, with Java, Spark and its jars.
# Dependencies come from a lock file, checked against their hashes. Pin the base by its digest where you build for production:
#     docker build --build-arg BASE=python:3.12-slim-bookworm@sha256:… --tag outbox-kafka .
#     docker build --build-arg PART=etl --tag outbox-kafka-etl .
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE} AS build
ARG PART=service
WORKDIR /source
COPY requirements/ requirements/
RUN python -m venv /opt/build && /opt/build/bin/pip install --no-cache-dir --require-hashes -r requirements/build.txt \
 && python -m venv /opt/outbox && /opt/outbox/bin/pip install --no-cache-dir --require-hashes -r requirements/${PART}.txt
COPY pyproject.toml README.md CHANGELOG.md LICENSE ./
COPY outbox/ outbox/
COPY relay/ relay/
COPY local/ local/
COPY migrations/ migrations/
COPY spark_etl/ spark_etl/
# What runs servers and examples on a developer's machine is left out; so are pip and what built the wheel.
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheel . \
 && /opt/outbox/bin/pip install --no-cache-dir --no-deps /wheel/*.whl \
 && rm -r /opt/outbox/lib/python*/site-packages/outbox_local \
 && /opt/outbox/bin/pip uninstall --yes --quiet pip
# The job fetches its jars once, checked against its list: here, so that it needs no network where it runs.
RUN mkdir /opt/outbox/cache && if [ "${PART}" = etl ]; then \
    OUTBOX_CACHE=/opt/outbox/cache /opt/outbox/bin/python -c \
    "from outbox_relay.warehouse.jars import etl_jars; etl_jars(lambda done, of: None)"; fi

FROM ${BASE}
ARG PART=service
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="outbox-kafka" \
      org.opencontainers.image.description="A Kafka-compatible transactional outbox on PostgreSQL: ${PART}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
RUN if [ "${PART}" = etl ]; then apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless && rm -rf /var/lib/apt/lists/*; fi
# A number and not a name: Kubernetes compares it with runAsNonRoot, and cannot read the image's /etc/passwd.
RUN groupadd --system --gid 10001 outbox \
 && useradd --system --uid 10001 --gid 10001 --no-log-init --create-home --home-dir /var/lib/outbox outbox
COPY --from=build /opt/outbox /opt/outbox
ENV PATH=/opt/outbox/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 OUTBOX_CACHE=/opt/outbox/cache
USER 10001:10001
WORKDIR /var/lib/outbox
# The relay settles what is on the wire when it is asked to end this way.
STOPSIGNAL SIGTERM
ENTRYPOINT ["outbox"]
CMD ["relay", "run"]
