#!/usr/bin/env bash
#
# Exchanges weights with Python in both directions, for every model here, and
# demands the same bits (tools/weights_python_check.py says what exactly).
#
#   tools/weights_python_check.sh
#   CONVERT=bazel-bin/tools/convert_weights tools/weights_python_check.sh
#   PYTHON=/some/venv/bin/python tools/weights_python_check.sh
#
# Not a target of //...: Python's torch, torchvision and safetensors are no
# dependencies of the build. Without PYTHON they are installed into a folder
# that is deleted afterwards, which takes a few GB; without CONVERT, Bazel builds
# it.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

if [[ -z ${PYTHON:-} ]]; then
  python3 -m venv "$folder/venv"
  PYTHON=$folder/venv/bin/python
  "$PYTHON" -m pip install --quiet torch==2.11.0 torchvision==0.26.0 \
    safetensors numpy
fi
if [[ -z ${CONVERT:-} ]]; then
  (cd "$root" && ./bazelw build //tools:convert_weights)
  CONVERT=$root/bazel-bin/tools/convert_weights
fi
mkdir "$folder/files"
"$PYTHON" "$root/tools/weights_python_check.py" "$CONVERT" "$folder/files"
