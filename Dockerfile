# The service alone: pinned dependencies, no compiler, no root, nothing written to its own file system.
FROM python:3.11-slim AS build
WORKDIR /build
COPY requirements/runtime.txt requirements/demo.txt requirements/
RUN python -m venv /opt/tarsy-scoring \
 && /opt/tarsy-scoring/bin/pip install --no-cache-dir --require-hashes -r requirements/runtime.txt \
 && python -m venv /opt/build && /opt/build/bin/pip install --no-cache-dir --require-hashes -r requirements/demo.txt
COPY pyproject.toml README.md LICENSE ./
COPY migrations migrations
COPY service service
RUN /opt/build/bin/python -m hatchling build -t wheel -d /build/dist \
 && /opt/tarsy-scoring/bin/pip install --no-cache-dir --no-deps /build/dist/*.whl

FROM python:3.11-slim
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin scoring
COPY --from=build /opt/tarsy-scoring /opt/tarsy-scoring
ENV PATH=/opt/tarsy-scoring/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001
EXPOSE 9090
ENTRYPOINT ["tarsy-scoring"]
CMD ["worker"]
