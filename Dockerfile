# The relay, the checker and the `outbox` command (the warehouse job needs Spark, which is not in this image).
# Dependencies come from the lock file, checked against their hashes. Pin the base by its digest where you build for production:
#     docker build --build-arg BASE=python:3.12-slim-bookworm@sha256:… .
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE} AS build
WORKDIR /source
COPY requirements/ requirements/
RUN python -m venv /opt/outbox \
 && /opt/outbox/bin/pip install --no-cache-dir --require-hashes -r requirements/build.txt \
 && /opt/outbox/bin/pip install --no-cache-dir --require-hashes --no-build-isolation -r requirements/run.txt
COPY pyproject.toml README.md CHANGELOG.md LICENSE ./
COPY outbox/ outbox/
COPY relay/ relay/
COPY local/ local/
COPY migrations/ migrations/
COPY spark_etl/ spark_etl/
RUN /opt/outbox/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM ${BASE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="outbox-kafka" \
      org.opencontainers.image.description="A Kafka-compatible transactional outbox on PostgreSQL: relay, checker and command line" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
# A number and not a name: Kubernetes compares it with runAsNonRoot, and cannot read the image's /etc/passwd.
RUN groupadd --system --gid 10001 outbox \
 && useradd --system --uid 10001 --gid 10001 --no-log-init --create-home --home-dir /var/lib/outbox outbox
COPY --from=build /opt/outbox /opt/outbox
ENV PATH=/opt/outbox/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /var/lib/outbox
# The relay settles what is on the wire when it is asked to end this way.
STOPSIGNAL SIGTERM
ENTRYPOINT ["outbox"]
CMD ["relay", "run"]
