# The site: pages and API, hosts of runs, worker. One image; the command chooses (compose.yaml beside this file).
#
# torch is in it, since the worker's child processes train tokenizers, replay logs and measure losses. Every process
# uses the same layers, so a second image without torch would save memory to nobody and disk only where no worker runs.
# `serve` itself never loads torch.
FROM node:24.20.0-bookworm-slim@sha256:ba849c60be29959425b8734d57b8b4b7d56f98edd9504c9af091d5281095a71e AS pages
WORKDIR /app/frontend
COPY frontend/package.json frontend/package-lock.json ./
RUN npm ci --no-audit --no-fund
COPY frontend/ ./
RUN npm run build

FROM python:3.12.14-slim-bookworm@sha256:782412e85d0f0984994c290652577d4018aff08145c85b262bb63dc0c7522254 AS base
ENV PATH=/opt/venv/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1
WORKDIR /app

FROM base AS packages
COPY requirements.txt ./
# The CPU build first, and from its own index alone: a plain torch would bring several GB of CUDA libraries.
RUN python -m venv /opt/venv \
    && pip install --no-cache-dir --no-deps --index-url https://download.pytorch.org/whl/cpu \
        "$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' requirements.txt)" \
    && pip install --no-cache-dir --requirement requirements.txt

FROM packages AS app
COPY pyproject.toml LICENSE manage.py ./
COPY scripts/__init__.py scripts/build_wheel.py scripts/messages.py scripts/
COPY peer_agent/ peer_agent/
COPY platform/ platform/
COPY frontend/static/ frontend/static/
COPY frontend/src/ frontend/src/
COPY --from=pages /app/platform/web/static/built/ platform/web/static/built/
# What volunteers download goes to var/download. Compiled here, since the file system may be read-only later; readable
# by everybody, whatever rights the files have in the checkout.
RUN python -m scripts.messages --compile \
    && python scripts/build_wheel.py \
    && python -m compileall -q manage.py peer_agent platform \
    && chmod -R a+rX .

FROM base AS site
RUN groupadd --gid 10001 manyhands \
    && useradd --uid 10001 --gid 10001 --home-dir /data --no-create-home --shell /usr/sbin/nologin manyhands \
    && install --directory --owner=10001 --group=10001 --mode=0700 /data /data/tmp
COPY --from=packages /opt/venv /opt/venv
COPY --from=app /app /app
# Uploads are written to TMPDIR first: on the volume, not in the memory behind /tmp.
ENV MANYHANDS_DATA=/data TMPDIR=/data/tmp
USER 10001:10001
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["python", "-c", "from http.client import HTTPConnection as C; c = C('127.0.0.1', 8000, timeout=4); c.request('GET', '/healthz'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["python", "manage.py"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000"]
