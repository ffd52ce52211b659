#!/usr/bin/env bash
#
# Runs the checks before a release, one after the other:
#
#   format    tools/check_format.sh
#   tests     ./bazelw test //...
#   consumer  tools/check_consumer.sh
#   thorough  the tests again with all rounds of sweeps and random tests
#             (GPIPE_THOROUGH=1), and a million inputs per fuzz target
#   layering  a build without precompiled headers that checks that each include has a
#             direct dependency, and that locks are used correctly
#   gcc       a build of everything with g++, which most projects use
#   asan      all tests with ASan, LSan and UBSan
#   tsan      all tests with TSan
#   fuzz      libFuzzer, three minutes per target
#
#   tools/check.sh                              # all: hours on two cores
#   tools/check.sh --quick                      # the first three, and fuzz for 20 s
#   tools/check.sh asan tsan                    # these steps
#   tools/check.sh --targets=//gpipe/runtime/... asan tsan
#   tools/check.sh -- --jobs=1                  # Bazel's options come last
#
# fuzz and consumer take no --targets. Continues after a step that fails. At the end
# prints the outcome of each step, the file with its output, and its duration. Exits with
# 1 if a step has failed. With a --disk_cache (user.bazelrc) a second run builds only what
# has changed.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

all=(format tests consumer thorough layering gcc asan tsan fuzz)
quick=(format tests consumer fuzz)
steps=()
targets=//...
fuzz_seconds=180
while (($#)); do
  case $1 in
    -h | --help)
      sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "tools/${BASH_SOURCE[0]##*/}"
      exit
      ;;
    --quick)
      steps+=("${quick[@]}")
      fuzz_seconds=20
      ;;
    --targets=*) targets=${1#*=} ;;
    --)
      shift
      break
      ;;
    *)
      if [[ " ${all[*]} " != *" $1 "* ]]; then
        echo "check: there is no step '$1'; steps: ${all[*]}" >&2
        exit 2
      fi
      steps+=("$1")
      ;;
  esac
  shift
done
if ((${#steps[@]} == 0)); then steps=("${all[@]}"); fi
bazel_options=("$@")
options=(--keep_going "${bazel_options[@]}")

logs=${TMPDIR:-/tmp}/gpipe-check-$UID
mkdir -p "$logs"

run() {
  # shellcheck disable=SC2086  # $targets can be several words
  case $1 in
    format) tools/check_format.sh ;;
    tests) ./bazelw test "${options[@]}" $targets ;;
    consumer) tools/check_consumer.sh "${bazel_options[@]}" ;;
    thorough)
      ./bazelw test "${options[@]}" --test_env=GPIPE_THOROUGH=1 --test_tag_filters=-fuzz $targets &&
        { ./bazelw test "${options[@]}" --test_arg=-runs=1000000 --build_tests_only \
          --test_tag_filters=fuzz $targets || (($? == 4)); } # 4: there are none
      ;;
    layering) ./bazelw build "${options[@]}" --config=layering $targets ;;
    gcc) ./bazelw build "${options[@]}" --config=gcc $targets ;;
    asan) ./bazelw test "${options[@]}" --config=asan --config=ubsan $targets ;;
    tsan) ./bazelw test "${options[@]}" --config=tsan $targets ;;
    fuzz) tools/fuzz.sh all "$fuzz_seconds" "${bazel_options[@]}" ;;
  esac
}

status=0
summary=()
for step in "${steps[@]}"; do
  echo "== $step"
  begin=$SECONDS
  outcome=passed
  run "$step" 2>&1 | tee "$logs/$step" || outcome=FAILED
  if [[ $outcome == FAILED ]]; then status=1; fi
  # The number of tests, for steps that run tests.
  tests=$(grep -aE '^Executed [0-9]+ out of ' "$logs/$step" | paste -sd' ') || true
  summary+=("$(printf '%-9s %-6s %6d s  %s' "$step" "$outcome" \
    $((SECONDS - begin)) "$logs/$step${tests:+: $tests}")")
done

echo "== summary"
printf '%s\n' "${summary[@]}"
exit $status
