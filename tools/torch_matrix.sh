#!/usr/bin/env bash
#
# Builds and tests gpipe and examples/consumer with each LibTorch that gpipe accepts,
# and prints a table:
#
#   tools/torch_matrix.sh
#   tools/torch_matrix.sh 2.11.0 2.14.1
#   tools/torch_matrix.sh --targets="//gpipe/... //models/..." 2.13.0
#   tools/torch_matrix.sh --build_only --targets=//gpipe/runtime/... 2.11.0
#
# Versions are those of torch on PyPI. Downloads their wheels into the cache that the
# build uses (GPIPE_CACHE or ~/.cache/gpipe, 1.5 GB each). --build_only runs no tests and
# skips the consumer. Other options are passed to Bazel.
#
# Bazel's outputs go to a separate folder, so that those of the checkout do not change. No
# links to it are made: the next `bazel test //...` would search them for packages.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/other_libtorch.sh

# The last patch of each minor version. The first version is the oldest supported one.
versions=(2.11.0 2.12.1 2.13.0 2.14.1 2.15.0)
targets=(//...)
action=test
given=()
options=()
for argument; do
  case $argument in
    --targets=*) read -ra targets -d "" <<<"${argument#--targets=}" || true ;;
    --build_only) action=build ;;
    -*) options+=("$argument") ;;
    *) given+=("$argument") ;;
  esac
done
if ((${#given[@]})); then versions=("${given[@]}"); fi
heading="${targets[*]}"
if [[ $heading == //... ]]; then mapfile -t targets < <(all_packages); fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

rows=()
failed=0
for version in "${versions[@]}"; do
  echo "== LibTorch $version" >&2
  if ! folder=$(fetch_libtorch "$version"); then
    rows+=("| $version | not there | not run | 0 s |")
    failed=1
    continue
  fi

  # --repo_env selects the wheel, for this project and for the consumer.
  with=(${options[@]+"${options[@]}"} "--repo_env=LIBTORCH=$folder")
  SECONDS=0
  status=0
  rm -f "$scratch/events"
  other_bazel "$action" --keep_going --symlink_prefix=/ \
    --build_event_json_file="$scratch/events" "${with[@]}" "${targets[@]}" >&2 ||
    status=$?
  consumer=0
  if [[ $action == test ]]; then
    tools/check_consumer.sh "${with[@]}" >&2 || consumer=$?
    result=$(python3 .ci/count.py "$scratch/events" "$status" \
      "examples/consumer=$consumer") || failed=1
  elif ((status == 0)); then
    result="built"
  else
    result="not built"
    failed=1
  fi
  echo "$result" >&2
  outcome=passed
  ((consumer == 0)) || outcome=failed
  [[ $action == test ]] || outcome="not run"
  rows+=("| $version | $(tail -n 1 <<<"$result") | $outcome | $SECONDS s |")
done

echo "| LibTorch | $heading | examples/consumer | time |"
echo "| --- | --- | --- | ---: |"
printf '%s\n' "${rows[@]}"
exit "$failed"
