# The relay, the checker and the `outbox` command (the warehouse job needs Spark, which is not in this image).
# Dependencies come from the lock file, checked against their hashes.
FROM python:3.12-slim AS build
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

FROM python:3.12-slim
RUN useradd --system --create-home --home-dir /var/lib/outbox outbox
COPY --from=build /opt/outbox /opt/outbox
ENV PATH=/opt/outbox/bin:$PATH PYTHONUNBUFFERED=1
USER outbox
WORKDIR /var/lib/outbox
# The relay settles what is on the wire when it is asked to end this way.
STOPSIGNAL SIGTERM
ENTRYPOINT ["outbox"]
CMD ["relay", "run"]
