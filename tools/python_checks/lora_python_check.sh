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

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" transformers peft safetensors
if [[ -z ${BIN:-} ]]; then
  (cd "$root" && ./bazelw build //tools:lora_steps //tools:convert_weights \
    //tools:exported //tools:launch)
  BIN=$root/bazel-bin/tools
fi
mkdir "$folder/files"
"$PYTHON" "$root/tools/python_checks/lora_python_check.py" "$BIN" "$folder/files" "$@"
