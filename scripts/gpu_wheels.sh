#!/usr/bin/env bash
# Collects in a folder the wheels that a GPU machine without a package index lacks for `python -m benchmarks.gpu`:
#   scripts/gpu_wheels.sh FOLDER        # here, with an index
#   pip install --no-index --no-deps FOLDER/*.whl      # there: Python 3.12 with torch, transformers, Pillow
#   pip install --no-index --no-deps --no-build-isolation -e .      # rlrun finds its own kinds by its metadata
# Versions are those of constraints.txt. Ray and BDDL lose what these runs do not need, such as Java, dashboard pages and
# RLlib. Ends with status 1 if the wheels take more than 56 MiB, so that they and the sources stay below 64.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ $# -eq 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
FOLDER="$1"
PYTHON="${PYTHON:-python3}"
MOST_MIB=56
COMPILED=(mujoco mujoco-core ray pyzmq msgpack protobuf rpds-py charset-normalizer)
PURE=( # rich without pygments, which it needs for tracebacks only
  hydra-core omegaconf pyopengl glfw jsonschema jsonschema-specifications referencing attrs click rich requests urllib3
  certifi idna
)
SOURCES=(antlr4-python3-runtime bddl future) # of which the index may have no wheels
SYSTEMS=()
for glibc in 2_34 2_28 2_27 2_26 2_17; do SYSTEMS+=(--platform "manylinux_${glibc}_x86_64"); done
SYSTEMS+=(--platform manylinux2014_x86_64 --platform manylinux2010_x86_64 --platform manylinux1_x86_64)

mkdir -p "$FOLDER"
rm -f "$FOLDER"/*.whl
"$PYTHON" -m pip download -q --no-deps --only-binary=:all: --implementation cp --python-version 3.12 "${SYSTEMS[@]}" \
  -c constraints.txt -d "$FOLDER" "${COMPILED[@]}" "${PURE[@]}"
"$PYTHON" -m pip wheel -q --no-deps -c constraints.txt -w "$FOLDER" "${SOURCES[@]}"

"$PYTHON" - "$FOLDER" <<'STRIP'
import sys
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

UNUSED = {
    "ray": ("jars/", "dashboard/client/", "rllib/", "llm/", "serve/", "tune/", "train/", "core/libjemalloc.so"),
    "bddl": ("generated_data/", "knowledge_base/"),
    "future": ("backports/", "moves/", "tests/"),
}
for package, parts in UNUSED.items():
    prefixes = tuple(f"{package}/{part}" for part in parts)
    (wheel,) = Path(sys.argv[1]).glob(f"{package}-*.whl")
    smaller = wheel.with_suffix(".part")
    with ZipFile(wheel) as whole, ZipFile(smaller, "w", ZIP_DEFLATED, compresslevel=9) as stripped:
        for entry in whole.infolist():
            content = whole.read(entry)
            if entry.filename.endswith(".dist-info/RECORD"):  # it must not name files that the wheel lacks
                kept = [line for line in content.decode().splitlines(keepends=True) if not line.startswith(prefixes)]
                content = "".join(kept).encode()
            if not entry.filename.startswith(prefixes):
                stripped.writestr(entry, content, ZIP_DEFLATED, compresslevel=9)
    smaller.replace(wheel)
STRIP

ls -lS "$FOLDER"/*.whl | awk -v most="$MOST_MIB" '
  { printf "%7.1f MiB  %s\n", $5 / 1048576, $NF; sum += $5 / 1048576 }
  END { printf "%7.1f MiB  in all, at most %d\n", sum, most; exit sum > most }'
