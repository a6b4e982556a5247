# The service: pinned dependencies, no compiler, no root, nothing written to its own file system.
# The target `extras` adds what `insights`, `notify` and the studies need, and `lab` to that the scripted judge of the compose demo.
# A build without a target is worker, API and bridge alone.
#
#   docker build --build-arg VERSION=1.0.0 --build-arg REVISION=$(git rev-parse HEAD) -t tarsy-scoring:1.0.0 .
#   docker run --rm --read-only --tmpfs /tmp --cap-drop ALL -e SCORING_... tarsy-scoring:1.0.0 check-config
ARG PYTHON=python:3.11.16-slim-bookworm

FROM ${PYTHON} AS build
WORKDIR /build
# Dependencies first: a changed line of the service reinstalls none of them.
COPY requirements/runtime.txt requirements/extras.txt requirements/demo.txt requirements/
RUN python -m venv --without-pip /opt/tarsy-scoring \
 && pip --python /opt/tarsy-scoring/bin/python install --no-cache-dir --require-hashes -r requirements/runtime.txt \
 && python -m venv /opt/build \
 && /opt/build/bin/pip install --no-cache-dir --require-hashes -r requirements/demo.txt
COPY pyproject.toml README.md LICENSE ./
COPY migrations migrations
COPY service service
RUN /opt/build/bin/python -m hatchling build -t wheel -d /build/dist \
 && pip --python /opt/tarsy-scoring/bin/python install --no-cache-dir --no-deps /build/dist/*.whl
WORKDIR /build/service/tarsy_scoring_lab
RUN /opt/build/bin/python -m hatchling build -t wheel -d /build/lab/dist

FROM ${PYTHON} AS service
ARG VERSION=1.0.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="tarsy-scoring" \
      org.opencontainers.image.description="Scores automated incident investigations: an event in, a defensible judgement out." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN groupadd --gid 10001 scoring \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin scoring
COPY --from=build /opt/tarsy-scoring /opt/tarsy-scoring
ENV PATH=/opt/tarsy-scoring/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    USER=scoring
# A number, so that Kubernetes can verify that it is not root.
USER 10001:10001
WORKDIR /tmp
EXPOSE 8080 9090 9091
STOPSIGNAL SIGTERM
# For a worker; `api` serves the same path on SCORING_API_PORT. Not urllib, which would use a proxy of the environment.
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s --retries=4 \
  CMD ["python", "-c", "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', int(os.environ.get('SCORING_METRICS_PORT') or 9090), timeout=3); c.request('GET', '/healthz'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["tarsy-scoring"]
CMD ["worker"]

FROM service AS extras
USER 0:0
COPY requirements/extras.txt /build/
RUN pip --python /opt/tarsy-scoring/bin/python install --no-cache-dir --require-hashes -r /build/extras.txt \
 && rm -r /build
USER 10001:10001

FROM extras AS lab
USER 0:0
COPY --from=build /build/lab/dist /build/dist
RUN pip --python /opt/tarsy-scoring/bin/python install --no-cache-dir --no-deps /build/dist/*.whl \
 && rm -r /build
USER 10001:10001

FROM service
