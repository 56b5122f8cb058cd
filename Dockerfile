# dmbp in a container, for photos in the current folder:
#     docker build --tag dmbp .
#     docker run --rm --volume "$PWD:/work" dmbp explain photo.jpg
# For an NVIDIA GPU: docker build --build-arg TORCH=cu130 --tag dmbp . && docker run --gpus all …
FROM python:3.13-slim
ARG TORCH=cpu
COPY . /source
RUN pip install --no-cache-dir uv==0.13.8 \
    && uv pip install --system --no-cache --torch-backend "$TORCH" \
        --constraint /source/constraints.txt "/source[demo,onnx,timm,transformers,web]" \
    && pip uninstall --yes uv \
    && rm -r /source \
    && useradd --create-home --uid 1000 dmbp
USER 1000
WORKDIR /work
ENTRYPOINT ["dmbp"]
CMD ["--help"]
