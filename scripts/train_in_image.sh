#!/usr/bin/env bash
# Builds the CPU image of docker/Dockerfile and trains run=debug inside, as a user of the image does: `make image`.
# Arguments: further keys of rlrun.train. Without root, or inside a container, buildah isolates by chroot alone.
set -euo pipefail

skip() {
    echo "skipped: $*"
    exit 0
}

# Make the base image of Debian's packages, which have the same Python, where Docker's registry cannot be reached.
base_of_debian() {
    command -v debootstrap >/dev/null || skip "$base cannot be pulled, and there is no debootstrap to make one"
    debootstrap --variant=minbase --include=ca-certificates,python3,python3-pip bookworm "$scratch/root" \
        >"$scratch/log" 2>&1 || skip "$base cannot be pulled, nor made: $(tail -1 "$scratch/log")"
    container="$(buildah from scratch)"
    buildah add --quiet "$container" "$scratch/root" / >/dev/null
    buildah run "$container" -- sh -c 'ln -s python3 /usr/bin/python && rm /usr/lib/python3*/EXTERNALLY-MANAGED' \
        2>"$scratch/log" || skip "buildah runs nothing here: $(tail -1 "$scratch/log")"
    buildah commit --quiet "$container" "$1" >/dev/null
    buildah rm "$container" >/dev/null
}

command -v buildah >/dev/null || skip "there is no buildah here (apt-get install buildah debootstrap)"
export BUILDAH_ISOLATION="${BUILDAH_ISOLATION:-chroot}"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

base="$(sed -n 's/^FROM \([^ ]*\) AS base$/\1/p' docker/Dockerfile)"
if ! buildah pull --quiet "docker.io/library/$base" >/dev/null 2>&1; then
    of_debian=localhost/rlrun-base:debian
    buildah inspect --type image "$of_debian" >/dev/null 2>&1 || base_of_debian "$of_debian"
    base="$of_debian"
fi

# This machine's pip collects the packages, so that its mirrors, proxies and certificates hold for the image as well.
wheels="$PWD/.cache/image"
requires="$(.venv/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"])')"
collect() {
    .venv/bin/pip wheel -qq --wheel-dir "$wheels" --find-links "$wheels" "$@"
}
index="$(.venv/bin/python -c 'from rlrun.system import torch_index; print(*torch_index.options_of_pip(torch_index.CPU))')"
# shellcheck disable=SC2086  # several options, several requirements
collect $index "$(grep '^torch==' constraints.txt)"
# shellcheck disable=SC2086
collect --constraint constraints.txt . $requires
printf '[global]\nno-index = true\nfind-links = /wheels\n' >"$wheels/pip.conf"

buildah build --quiet --file docker/Dockerfile --target cpu --tag rlrun:cpu --from "$base" \
    --volume "$wheels:/wheels:ro" --volume "$wheels/pip.conf:/etc/pip.conf:ro" . >"$scratch/log" 2>&1 || {
    cat "$scratch/log"
    exit 1
}
container="$(buildah from rlrun:cpu)"
trap 'buildah rm "$container" >/dev/null; rm -rf "$scratch"' EXIT
buildah run "$container" -- python -m rlrun.train run=debug output_dir=/tmp/run "$@"
echo "the image trains: $(buildah images --format '{{.Size}}' rlrun:cpu) on $base"
