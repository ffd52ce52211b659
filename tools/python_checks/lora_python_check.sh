#!/usr/bin/env bash
#
# Trains adapters beside Python's PEFT, with the same data and the same initial
# adapters, and compares losses, adapters, outputs and merged weights (details:
# tools/python_checks/lora_python_check.py).
#
#   PYTHON=/some/venv/bin/python tools/python_checks/lora_python_check.sh
#   PYTHON=/some/venv/bin/python tools/python_checks/lora_python_check.sh llama gpt2
#
# This is not a target of //... because Python's torch, transformers, peft and
# safetensors are not dependencies of the build. Without PYTHON they are installed into a
# temporary folder, which takes a few GB.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

if [[ -z ${PYTHON:-} ]]; then
  python3 -m venv "$folder/venv"
  PYTHON=$folder/venv/bin/python
  TORCH=$(sed -n 's/.*version = "\([0-9.]*\)".*/\1/p' \
    "$root/third_party/libtorch/libtorch.bzl" | head -n 1)
  "$PYTHON" -m pip install --quiet "torch==$TORCH" transformers peft safetensors numpy
fi
if [[ -z ${BIN:-} ]]; then
  (cd "$root" && ./bazelw build //tools:lora_steps //tools:convert_weights \
    //tools:exported //tools:launch)
  BIN=$root/bazel-bin/tools
fi
mkdir "$folder/files"
"$PYTHON" "$root/tools/python_checks/lora_python_check.py" "$BIN" "$folder/files" "$@"
