#!/usr/bin/env bash
#
# Builds and runs examples/consumer, a separate Bazel project that depends on this
# one, and checks its output. Accepts Bazel's options:
#
#   tools/check_consumer.sh --jobs=2
#
# --registry=FOLDER copies the project into an empty folder, and takes gpipe from a registry
# that tools/registry_entry.sh has made with --system. Needs Bazel 7 or later.
#
# --compiler=gcc compiles with g++ instead of clang.
#
# --compile_only analyses the whole project and compiles only its main.cc. That checks
# labels, visibility and included files in half a minute. //examples:examples_test
# links and runs the same main.cc.
#
# This is not a target of //... because a Bazel inside of a Bazel test would start
# without a cache each time, and would compete for cores with other tests. Here it has
# its own server and output folder, since its workspace is another one.
set -euo pipefail

root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")

compile_only=0
compiler=clang
registry=
startup=(--max_idle_secs=60)
options=()
for option; do
  case $option in
    --compile_only) compile_only=1 ;;
    --compiler=*) compiler=${option#*=} ;;
    --registry=*) registry=$(realpath "${option#*=}") ;;
    *) options+=("$option") ;;
  esac
done
cd "$root/examples/consumer"

if [[ $registry ]]; then
  scratch=$(mktemp -d)
  startup+=("--output_base=$scratch/output")
  # Bazel makes folders read-only.
  trap '"$root/bazelw" "${startup[@]}" shutdown; chmod -R u+w "$scratch"; rm -rf "$scratch"' EXIT
  cp -r . "$scratch/consumer"
  cd "$scratch/consumer"
  rm WORKSPACE
  sed -i '/^local_path_override($/,/^)$/d' MODULE.bazel
  sed -i '/^common:/d; /^try-import/d' .bazelrc
  echo "common --lockfile_mode=off --registry=file://$registry" >>.bazelrc
fi

# Creates no bazel-* links in the checkout.
options+=(--symlink_prefix=/ "--repo_env=CC=$compiler" --copt=-O0 --noshow_progress
  --ui_event_filters=-info)

if ((compile_only)); then
  "$root/bazelw" "${startup[@]}" build "${options[@]}" \
    --output_groups=compilation_outputs //:main
  exit
fi

# Precompiled headers save most of the time. A project that uses gpipe does not need them.
output=$("$root/bazelw" "${startup[@]}" run "${options[@]}" \
  "--@gpipe//tools/precompiled:compiler=$compiler" --linkopt=-fuse-ld=lld //:main)
echo "$output"
if [[ $output != *"output [8, 10]"* ]]; then
  echo "check_consumer: expected the line 'output [8, 10]'" >&2
  exit 1
fi
