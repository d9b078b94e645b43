# A node that simulates BEHAVIOR-1K: rlrun in its own Python, OmniGibson 3.9 with Isaac Sim 5.1 in another.
#   docker build -f docker/simulator.Dockerfile --build-arg ACCEPT_NVIDIA_EULA=YES -t rlrun:omnigibson .
# Building accepts nothing for you: the argument says that you have read and accept NVIDIA's Isaac Sim licence
# agreement (https://www.nvidia.com/en-us/agreements/enterprise-software/nvidia-software-license-agreement). The image
# holds Isaac Sim, so do not redistribute it. The data set is not in it: mount it, see docs/omnigibson.md.
# This file could not be built where rlrun is developed: neither Isaac Sim's packages nor an RTX GPU can be had there.
FROM nvidia/cuda:12.8.1-base-ubuntu22.04

ARG ACCEPT_NVIDIA_EULA
ARG BEHAVIOR_VERSION=v3.9.3
RUN test "$ACCEPT_NVIDIA_EULA" = YES || { echo 'Read the licence, then --build-arg ACCEPT_NVIDIA_EULA=YES'; exit 1; }

# What Kit loads (Vulkan, X11, GLU), and what rlrun and the installer need.
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
       ca-certificates curl git build-essential cmake iproute2 procps \
       libvulkan1 vulkan-tools libegl1 libopengl0 libgl1 libglu1-mesa libx11-6 libxext6 libxt6 libsm6 libice6 libxrandr2 \
       python3.11 python3.11-venv python3.11-dev \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home rlrun
# The Vulkan loader finds NVIDIA's driver by this file; the driver itself comes from the host.
RUN mkdir -p /etc/vulkan/icd.d \
    && echo '{"file_format_version": "1.0.0", "ICD": {"library_path": "libGLX_nvidia.so.0", "api_version": "1.3.194"}}' \
       > /etc/vulkan/icd.d/nvidia_icd.json
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=graphics,compute,utility PIP_NO_CACHE_DIR=1

# --- the simulator's interpreter ----------------------------------------------------------------------------
RUN python3.11 -m venv /opt/omnigibson
ENV OMNI_KIT_ACCEPT_EULA=YES
RUN git clone --depth 1 --branch "$BEHAVIOR_VERSION" https://github.com/StanfordVL/BEHAVIOR-1K.git /opt/BEHAVIOR-1K \
    && cd /opt/BEHAVIOR-1K \
    && . /opt/omnigibson/bin/activate \
    && ./setup.sh --omnigibson --bddl --confirm-no-conda --accept-nvidia-eula \
    && pip install "msgpack>=1.0.5" "numpy<2"

# --- rlrun's own ----------------------------------------------------------------------------------------------
WORKDIR /opt/rlrun
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY configs configs
COPY rlrun rlrun
RUN python3.11 -m venv /opt/rlrun/.venv \
    && .venv/bin/pip install "$(grep '^torch==' constraints.txt)" \
    && .venv/bin/pip install -c constraints.txt -e .
ENV PATH=/opt/rlrun/.venv/bin:$PATH OMNIGIBSON_DATA_PATH=/data/behavior
USER rlrun
WORKDIR /srv/rlrun
# docker run --gpus all --network host --shm-size 16g -v /data/behavior:/data/behavior:ro … python -m rlrun.node start …
# with `python: /opt/omnigibson/bin/python` in the simulation group of the placement.
