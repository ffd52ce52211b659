#!/usr/bin/env bash
#
# Builds and runs examples/consumer, a Bazel project of its own that depends on
# this one, and checks what it prints. Options are Bazel's:
#
#   tools/check_consumer.sh --jobs=2
#
# Not a target of //...: a Bazel inside a test of Bazel would start from nothing
# each time, and fight for the cores with the tests beside it. Here it has its
# own server and output folder, since its workspace is another one.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root/examples/consumer"

# Without bazel-* links in the checkout. Precompiled headers and -O0 save most of the
# time; a project on gpipe needs neither.
output=$("$root/bazelw" --max_idle_secs=60 run "$@" --symlink_prefix=/ \
  --repo_env=CC=clang --@gpipe//tools/precompiled:compiler=clang --linkopt=-fuse-ld=lld \
  --copt=-O0 --noshow_progress --ui_event_filters=-info //:main)
echo "$output"
if [[ $output != *"output [8, 10]"* ]]; then
  echo "check_consumer: expected the line 'output [8, 10]'" >&2
  exit 1
fi
