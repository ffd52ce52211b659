# What the scripts of this folder share. They source this file, with the packages
# that they need besides torch and numpy:
#
#   source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" transformers peft
#
# Sets root, the checkout; folder, a temporary one that is removed at the end; and PYTHON,
# unless it is set, to a Python with the packages in that folder. TORCH is the version of
# torch; the default is the one that the build downloads.
root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

if [[ -z ${PYTHON:-} ]]; then
  python3 -m venv "$folder/venv"
  PYTHON=$folder/venv/bin/python
  TORCH=${TORCH:-$(sed -n 's/.*version = "\([0-9.]*\)".*/\1/p' \
    "$root/third_party/libtorch/libtorch.bzl" | head -n 1)}
  "$PYTHON" -m pip install --quiet "torch==$TORCH" numpy "$@"
fi
