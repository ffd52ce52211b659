#!/usr/bin/env bash
#
# Runs fuzz targets for longer than their tests, all with coverage, ASan and UBSan:
#
#   tools/fuzz.sh                                          # all targets, 60 s each
#   tools/fuzz.sh //models/testing:pickle_fuzz             # one target
#   tools/fuzz.sh //models/testing:pickle_fuzz 1000        # for 1000 s
#   tools/fuzz.sh //models/testing:pickle_fuzz 1000000runs # with 1000000 inputs
#   tools/fuzz.sh all 10 --jobs=1                          # Bazel's options come last
#
# Starts from the corpus in the tree and from inputs that earlier runs have found,
# which are in ${TMPDIR:-/tmp}/gpipe-fuzz. Inputs that fail are stored there, too. Add
# such an input to the target's corpus together with the fix. Exits with 1 if an input
# failed.
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
# shellcheck disable=SC2086  # $targets can be several words
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
  if ! "$bin/$path" "${options[@]}" "$folder/corpus" "${source%/*}/fuzz_corpus" \
    >"$folder/log" 2>&1; then
    status=1
    echo "FAILED, see $folder/log; the input is in $folder/failures" >&2
  fi
  # Prints coverage at the start and at the end, and the speed.
  grep -E 'INITED|DONE|ERROR|SUMMARY|^stat::(number|average)' "$folder/log" || true
done
exit $status
