#!/usr/bin/env bash
# Builds the CPU image of docker/Dockerfile and trains run=debug inside, as a user of the image does: `make image`.
# Arguments: further keys of rlrun.train. Without root, or inside a container, buildah isolates by chroot alone.
set -euo pipefail
if ! command -v buildah >/dev/null; then
    echo "skipped: there is no buildah here (apt-get install buildah)"
    exit 0
fi
export BUILDAH_ISOLATION="${BUILDAH_ISOLATION:-chroot}" STORAGE_DRIVER="${STORAGE_DRIVER:-vfs}"
base="$(sed -n 's/^FROM \([^ ]*\) AS base$/\1/p' docker/Dockerfile)"
if ! buildah inspect --type image "$base" >/dev/null 2>&1 && ! buildah pull --quiet "docker.io/library/$base" >/dev/null 2>&1; then
    echo "skipped: $base is neither here nor can it be pulled"
    exit 0
fi
buildah build --quiet --file docker/Dockerfile --target cpu --tag rlrun:cpu .
container="$(buildah from rlrun:cpu)"
trap 'buildah rm "$container" >/dev/null' EXIT
buildah run "$container" -- python -m rlrun.train run=debug output_dir=/tmp/run "$@"
echo "the image trains: $(buildah images --format '{{.Size}}' rlrun:cpu)"
