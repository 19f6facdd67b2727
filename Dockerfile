# docker build --target cpu -t gpu_envs .         then  docker run --rm gpu_envs train CartPole-v1
# docker build --target cuda -t gpu_envs:cuda .   then  docker run --rm --gpus all gpu_envs:cuda train CartPole-v1
# With -v "$PWD:/home/user" runs are kept here; the user inside has the number 1000.

FROM python:3.13-slim AS wheel
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheel .

FROM python:3.13-slim AS base
RUN useradd --uid 1000 --create-home user
WORKDIR /home/user
ENTRYPOINT ["gpu-envs"]
CMD ["info"]

# The wheels of CuPy and torch bring NVRTC and CUDA's libraries; the driver, of CUDA 13 or newer, is the host's.
FROM base AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN --mount=from=wheel,source=/wheel,target=/wheel \
    pip install --no-cache-dir "$(echo /wheel/*.whl)[cuda13,train,video]"
USER 1000

# torch without CUDA; ziglang is the compiler.
FROM base AS cpu
# hadolint ignore=DL3013  # the newest torch, as in the image for CUDA
RUN --mount=from=wheel,source=/wheel,target=/wheel \
    pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu torch \
    && pip install --no-cache-dir "$(echo /wheel/*.whl)[train,video]"
USER 1000
