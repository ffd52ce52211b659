#!/usr/bin/env bash
#
# Exchanges weights with Python in both directions, for every model here, and
# demands the same bits (tools/weights_python_check.py says what exactly).
#
#   tools/weights_python_check.sh
#   CONVERT=bazel-bin/tools/convert_weights tools/weights_python_check.sh
#   PYTHON=/some/venv/bin/python tools/weights_python_check.sh
#   TORCH=2.12.1 tools/weights_python_check.sh
#
# Not a target of //...: Python's torch, torchvision and safetensors are no
# dependencies of the build. Without PYTHON they are installed into a folder
# that is deleted afterwards, which takes a few GB. TORCH is the version, by default
# the one that the build downloads (third_party/libtorch/libtorch.bzl). Without
# CONVERT, Bazel builds it.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

if [[ -z ${PYTHON:-} ]]; then
  python3 -m venv "$folder/venv"
  PYTHON=$folder/venv/bin/python
  TORCH=${TORCH:-$(sed -n 's/.*version = "\([0-9.]*\)".*/\1/p' \
    "$root/third_party/libtorch/libtorch.bzl" | head -n 1)}
  "$PYTHON" -m pip install --quiet "torch==$TORCH" torchvision safetensors numpy
fi
if [[ -z ${CONVERT:-} ]]; then
  (cd "$root" && ./bazelw build //tools:convert_weights)
  CONVERT=$root/bazel-bin/tools/convert_weights
fi
mkdir "$folder/files"
"$PYTHON" "$root/tools/weights_python_check.py" "$CONVERT" "$folder/files"
