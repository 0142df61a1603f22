# Two images of the `manyhands` command: target `relay` without torch, target `agent` with it.
# For a GPU: --build-arg TORCH=cuda, and run it with the engine's option for GPUs.
FROM python:3.12.14-slim-bookworm@sha256:782412e85d0f0984994c290652577d4018aff08145c85b262bb63dc0c7522254 AS base
ENV PATH=/opt/venv/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1

FROM base AS packages
WORKDIR /build
COPY requirements.txt pyproject.toml ./
# What pyproject.toml asks for, in the versions of requirements.txt. A constraint may not name extras.
RUN sed 's/\[[a-z,]*\]//' requirements.txt > pins.txt \
    && python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" > agent.txt \
    && python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['train'], sep='\n')" > train.txt \
    && python -m venv /opt/venv \
    && pip install --no-cache-dir --constraint pins.txt --requirement agent.txt

FROM packages AS wheel
RUN pip install --no-cache-dir --constraint pins.txt setuptools
COPY LICENSE ./
COPY peer_agent/ peer_agent/
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheel .

FROM packages AS training
ARG TORCH=cpu
RUN if [ "$TORCH" = cpu ]; then \
        pip install --no-cache-dir --no-deps --index-url https://download.pytorch.org/whl/cpu \
            "$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' requirements.txt)"; \
    fi \
    && pip install --no-cache-dir --constraint pins.txt --requirement train.txt

FROM base AS command
RUN groupadd --gid 10001 manyhands \
    && useradd --uid 10001 --gid 10001 --home-dir /data --no-create-home --shell /usr/sbin/nologin manyhands \
    && install --directory --owner=10001 --group=10001 --mode=0700 /data
COPY --from=wheel /wheel /wheel
ENV MANYHANDS_HOME=/data
WORKDIR /data
ENTRYPOINT ["manyhands"]

# No HEALTHCHECK: a relay answers no HTTP requests, an agent opens no port. compose.yaml looks at the relay's port.
FROM command AS relay
COPY --from=packages /opt/venv /opt/venv
RUN pip install --no-cache-dir --no-deps --no-index /wheel/*.whl
USER 10001:10001
VOLUME /data
EXPOSE 9000
CMD ["relay", "--help"]

FROM command AS agent
COPY --from=training /opt/venv /opt/venv
RUN pip install --no-cache-dir --no-deps --no-index /wheel/*.whl
USER 10001:10001
VOLUME /data
CMD ["--help"]
