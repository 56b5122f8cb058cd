#!/usr/bin/env bash
# Installs a wheel into an empty environment and uses it as the README says: scripts/check_wheel.sh dist/*.whl
# PYTHON chooses the interpreter. First with the required packages only, then with those of the demo.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
wheel=$(realpath "$1")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
unset PYTHONPATH
"${PYTHON:-python3}" -m venv "$scratch/venv"
bin=$scratch/venv/bin
[[ -d $bin ]] || bin=$scratch/venv/Scripts # Windows
cd "$scratch"

install() { "$bin/python" -m pip install --quiet --disable-pip-version-check --constraint "$root/constraints.txt" "$@"; }

install "$wheel"
"$bin/python" -m pip check
"$bin/python" "$root/scripts/versions.py"
"$bin/python" -c 'import dmbp; print("import dmbp:", dmbp.__version__)'
"$bin/dmbp" --version
"$bin/python" "$root/scripts/readme.py" "$root/README.md"
"$bin/dmbp" explain photo.jpg --target cat
if "$bin/dmbp" demo; then exit 1; fi # which says what to install

install "${wheel}[demo]"
"$bin/dmbp" demo
ls dmbp-demo
