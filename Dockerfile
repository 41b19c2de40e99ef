# Adds attn-doctor to a training image without touching the image's own packages:
#   docker build --build-arg BASE=my/training-image -t my/training-image:doctor .
#   docker run --gpus all my/training-image:doctor                      # checks the image's python3
#   docker run --gpus all my/training-image:doctor check --python python3 --model /model/config.json
ARG BASE=nvcr.io/nvidia/pytorch:25.06-py3
FROM ${BASE}

# The version is that of `doctor/_version.py`; a registry shows these labels.
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="attn-doctor" \
      org.opencontainers.image.description="Finds what breaks the attention stack of LLM training before the job runs" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"

# The interpreter the doctor itself runs on; any CPython >= 3.10 with the venv module will do.
ARG DOCTOR_PYTHON=python3
COPY pyproject.toml setup.py README.md LICENSE /opt/attn-doctor-src/
COPY doctor /opt/attn-doctor-src/doctor
COPY rules /opt/attn-doctor-src/rules
COPY kernels /opt/attn-doctor-src/kernels
COPY share /opt/attn-doctor-src/share
COPY requirements /opt/attn-doctor-src/requirements

# Its own virtual environment: installing attn-doctor must not change the image's packages. PIP_CONSTRAINT and
# PYTHONPATH belong to the image's environment and must not reach it.
RUN env -u PIP_CONSTRAINT -u PYTHONPATH ${DOCTOR_PYTHON} -m venv /opt/attn-doctor \
 && cd /opt/attn-doctor-src \
 && pip="env -u PIP_CONSTRAINT -u PYTHONPATH /opt/attn-doctor/bin/pip install --no-cache-dir" \
 && $pip --require-hashes --only-binary :all: -r requirements/runtime.txt \
 && $pip --require-hashes --only-binary :all: -r requirements/build.txt \
 && $pip --no-deps --no-build-isolation . \
 && cd / \
 && rm -rf /opt/attn-doctor-src \
 && ln -s /opt/attn-doctor/bin/attn-doctor /usr/local/bin/attn-doctor

# No root: a check only reads. An image whose Python only root may read needs `--build-arg DOCTOR_USER=0`.
ARG DOCTOR_USER=65532:65532
ENV XDG_CACHE_HOME=/tmp/attn-doctor-cache
USER ${DOCTOR_USER}

ENTRYPOINT ["/usr/local/bin/attn-doctor"]
# `python3` is looked up on the image's PATH: that interpreter is the target.
CMD ["check", "--python", "python3"]
