# Functions for scripts that build with another LibTorch than that of the checkout. Such
# scripts source this file in the root of the checkout.

gpipe_cache=${GPIPE_CACHE:-$HOME/.cache/gpipe}

# fetch_libtorch VERSION: prints the folder of LibTorch, for --repo_env=LIBTORCH. Downloads
# the wheel of torch from PyPI into the cache that the build uses, unless it is there.
fetch_libtorch() {
  local arch folder
  arch=$(uname -m)
  folder=$gpipe_cache/torch-$1-$arch
  python3 third_party/libtorch/fetch_wheel.py "torch==$1" "$arch" unknown "$folder" \
    torch/include/ torch/lib/ torch/version.py || return
  echo "$folder/torch"
}

# other_bazel ARGUMENTS...: runs Bazel with a separate folder for its outputs, so that
# those of the checkout do not change.
other_bazel() {
  ./bazelw --output_base="$gpipe_cache/matrix" --max_idle_secs=60 "$@"
}

# all_packages: prints the patterns of all packages below the root. With the folder of
# other_bazel, `//...` also means the packages behind the links bazel-* of the checkout.
all_packages() {
  find . -mindepth 2 -name BUILD | cut -d/ -f2 | sort -u | sed 's|.*|//&/...|'
}
