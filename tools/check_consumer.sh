#!/usr/bin/env bash
#
# Builds and runs examples/consumer, a separate Bazel project that depends on this
# one, and checks its output. Accepts Bazel's options:
#
#   tools/check_consumer.sh --jobs=2
#
# --compile_only analyses the whole project and compiles only its main.cc. That checks
# labels, visibility and included files in half a minute. //examples:examples_test
# links and runs the same main.cc.
#
# This is not a target of //... because a Bazel inside of a Bazel test would start
# without a cache each time, and would compete for cores with other tests. Here it has
# its own server and output folder, since its workspace is another one.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root/examples/consumer"

compile_only=0
options=()
for option; do
  case $option in
    --compile_only) compile_only=1 ;;
    *) options+=("$option") ;;
  esac
done
# Creates no bazel-* links in the checkout.
options+=(--symlink_prefix=/ --repo_env=CC=clang --copt=-O0 --noshow_progress
  --ui_event_filters=-info)

if ((compile_only)); then
  exec "$root/bazelw" --max_idle_secs=60 build "${options[@]}" \
    --output_groups=compilation_outputs //:main
fi

# Precompiled headers save most of the time. A project that uses gpipe does not need them.
output=$("$root/bazelw" --max_idle_secs=60 run "${options[@]}" \
  --@gpipe//tools/precompiled:compiler=clang --linkopt=-fuse-ld=lld //:main)
echo "$output"
if [[ $output != *"output [8, 10]"* ]]; then
  echo "check_consumer: expected the line 'output [8, 10]'" >&2
  exit 1
fi
