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
# Runs as many targets at a time as the machine has cores. Starts from the corpus in the
# tree and from inputs that earlier runs have found, which are in
# ${TMPDIR:-/tmp}/gpipe-fuzz-$UID. Inputs that fail are stored there, too. Add such an input
# to the target's corpus together with the fix. Exits with 1 if an input failed.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
targets=${1:-all}
for_how_long=${2:-60}
shift $(($# < 2 ? $# : 2))
if [[ ! $for_how_long =~ ^[1-9][0-9]*(runs)?$ ]]; then
  echo "fuzz: $for_how_long must be seconds, or a number of inputs such as 1000runs" >&2
  exit 2
fi
case $for_how_long in
  *runs) limit=-runs=${for_how_long%runs} ;;
  *) limit=-max_total_time=$for_how_long ;;
esac

quiet=(--noshow_progress --ui_event_filters=-info)
if [[ $targets == all ]]; then
  targets=$(./bazelw query "${quiet[@]}" 'attr(name, "_fuzz_libfuzzer$", //...)')
  [[ $targets ]] || { echo "fuzz: Bazel listed no fuzz target" >&2; exit 1; }
else
  targets=${targets}_libfuzzer
fi
# shellcheck disable=SC2086  # $targets can be several words
./bazelw build --config=fuzz "${quiet[@]}" --show_result=0 $targets "$@"
bin=$(./bazelw info --config=fuzz "${quiet[@]}" "$@" bazel-bin)

# Fuzzes one target and prints its coverage at the start and at the end, and its speed.
fuzz() {
  local path=${1#//}
  path=${path/://}
  local source=${path%_libfuzzer}
  local folder=${TMPDIR:-/tmp}/gpipe-fuzz-$UID/${source//\//_}
  mkdir -p "$folder/corpus" "$folder/failures"
  local options=("$limit" -artifact_prefix="$folder/failures/" -print_final_stats=1
    -timeout=20 -rss_limit_mb=4096)
  if [[ -e $source.dict ]]; then options+=(-dict="$source.dict"); fi

  local status=0
  "$bin/$path" "${options[@]}" "$folder/corpus" "${source%/*}/fuzz_corpus" \
    >"$folder/log" 2>&1 || status=1
  # One call, so that the lines of targets that end together stay in one piece.
  printf '%s\n' "== //$(dirname "$source"):$(basename "$source")" \
    "$( ((!status)) || echo "FAILED, see $folder/log; the input is in $folder/failures")" \
    "$(grep -E 'INITED|DONE|ERROR|SUMMARY|^stat::(number|average)' "$folder/log")" |
    grep .
  return "$status"
}

export bin limit
export -f fuzz
# shellcheck disable=SC2016,SC2086  # xargs' shell expands $0; $targets can be several words
printf '%s\n' $targets | xargs -P "$(nproc)" -n 1 bash -euc 'fuzz "$0"' || exit 1
