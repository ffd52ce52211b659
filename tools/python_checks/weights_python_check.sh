#!/usr/bin/env bash
#
# Exchanges weights with Python in both directions, for every model of models/ and for
# models of transformers, and checks that they are bitwise equal (details:
# tools/python_checks/weights_python_check.py, tools/python_checks/hugging_face_python_check.py).
#
#   tools/python_checks/weights_python_check.sh
#   PYTHON=/some/venv/bin/python tools/python_checks/weights_python_check.sh
#   TORCH=2.12.1 tools/python_checks/weights_python_check.sh
#
# This is not a target of //... because Python's torch, torchvision, safetensors and
# transformers are not dependencies of the build. Without PYTHON they are installed into
# a temporary folder, which takes a few GB. TORCH is the version of torch; the default is
# the one that the build downloads (third_party/libtorch/libtorch.bzl).
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" torchvision safetensors transformers
(cd "$root" && ./bazelw build //tools:convert_weights //tools:exported //examples:train)
bin=$root/bazel-bin
mkdir "$folder/files" "$folder/models"
"$PYTHON" "$root/tools/python_checks/weights_python_check.py" "$bin/tools/convert_weights" "$folder/files"
"$PYTHON" "$root/tools/python_checks/hugging_face_python_check.py" "$bin/tools/exported" \
  "$bin/tools/convert_weights" "$bin/examples/train" "$folder/models"
