#!/usr/bin/env bash
#
# Runs fuzz targets by libFuzzer, with ASan and UBSan:
#
#   tools/fuzz.sh                                   # all, 60 s each
#   tools/fuzz.sh //weights:pickle_fuzz             # one
#   tools/fuzz.sh //weights:pickle_fuzz 1000        # 1000 s
#   tools/fuzz.sh //weights:pickle_fuzz 1000000runs # as many inputs
#   tools/fuzz.sh all 10 --jobs=1                   # then options of Bazel's
#
# Begins with the corpus in the tree and what earlier runs have found in
# ${TMPDIR:-/tmp}/gpipe-fuzz, where it also leaves the inputs of failures. Such an
# input belongs into the target's corpus, with the mend of the bug. Exits with 1
# if there was one.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
targets=${1:-all}
for_how_long=${2:-60}
shift $(($# < 2 ? $# : 2))
case $for_how_long in
  *runs) limit=-runs=${for_how_long%runs} ;;
  *) limit=-max_total_time=$for_how_long ;;
esac

quiet=(--noshow_progress --ui_event_filters=-info)
if [[ $targets == all ]]; then
  targets=$(./bazelw query "${quiet[@]}" 'attr(name, "_fuzz_libfuzzer$", //...)')
else
  targets=${targets}_libfuzzer
fi
# shellcheck disable=SC2086  # several targets
./bazelw build --config=fuzz "${quiet[@]}" --show_result=0 $targets "$@"
bin=$(./bazelw info --config=fuzz "${quiet[@]}" "$@" bazel-bin)

status=0
for target in $targets; do
  path=${target#//}
  path=${path/://}
  source=${path%_libfuzzer}
  folder=${TMPDIR:-/tmp}/gpipe-fuzz/${source//\//_}
  mkdir -p "$folder/corpus" "$folder/failures"
  options=("$limit" -artifact_prefix="$folder/failures/" -print_final_stats=1
    -timeout=20 -rss_limit_mb=4096)
  if [[ -e $source.dict ]]; then options+=(-dict="$source.dict"); fi

  echo "== //$(dirname "$source"):$(basename "$source")"
  if ! "$bin/$path" "${options[@]}" "$folder/corpus" "${source}_corpus" >"$folder/log" 2>&1; then
    status=1
    echo "FAILED, see $folder/log; the input is in $folder/failures" >&2
  fi
  # From the corpus to the end: coverage and how fast.
  grep -E 'INITED|DONE|ERROR|SUMMARY|^stat::(number|average)' "$folder/log" || true
done
exit $status
