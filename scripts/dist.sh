#!/usr/bin/env bash
# Builds the wheel and the sdist into dist/, twice and in different folders, and compares them byte by byte.
# `make dist` runs it in an environment that has build, twine and check-wheel-contents.
set -euo pipefail
cd "$(dirname "$0")/.."
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
export PIP_CONSTRAINT=$PWD/constraints.txt # the build back end, too
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

rm -rf dist
python -m build --outdir dist . >"$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }

# The second build starts from the sdist, elsewhere, with other permissions and another time zone.
(
    umask 077
    export TZ=Pacific/Kiritimati
    mkdir "$scratch/again"
    tar --extract --gzip --file dist/*.tar.gz --directory "$scratch/again"
    python -m build --outdir "$scratch/dist" "$scratch"/again/* >"$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
)
for file in dist/*; do
    cmp "$file" "$scratch/dist/$(basename "$file")"
done

twine check --strict dist/*
check-wheel-contents dist/*.whl
(cd dist && sha256sum -- *)
