#!/usr/bin/env bash
#
# Runs the checks of a release, and writes their outcomes into docs/results/release.md:
#
#   tools/release_check.sh                            # all rows: a day on two cores
#   tools/release_check.sh --only=asan --only=tsan    # these rows
#   tools/release_check.sh --list                     # the rows and their commands
#
# Each row is written when it ends, so the script can be interrupted and started again. It
# then skips rows that have passed if no file but the table has changed since; --only does
# not skip. Continues after a row that fails, and exits with 1 in the end. The output of a
# row is in ${TMPDIR:-/tmp}/gpipe-release-$UID.
#
# GPIPE_PYTHON is a Python with torch for the row consumer_cmake; the default is python3.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
export GPIPE_PYTHON=${GPIPE_PYTHON:-python3}
page=docs/results/release.md

# The rows in their order, cheap ones first, and the command of each.
rows=()
declare -A commands
row() {
  rows+=("$1")
  commands[$1]=$2
}
row format 'tools/check.sh format'
row pages './bazelw test //docs/... && tools/site.sh'
row consumer_bazel 'tools/check_consumer.sh'
row consumer_cmake 'tools/check_cmake.sh --python=$GPIPE_PYTHON'
row consumer_registry 'tools/modern_bazel.sh --registry'
row clang './bazelw test --keep_going //...'
row gcc './bazelw test --keep_going --config=gcc //...'
row layering 'tools/check.sh layering'
# The rows clang and consumer_bazel have the default version, 2.15.0.
for version in 2.11.0 2.12.1 2.13.0 2.14.1; do
  row "libtorch_${version%.*}" "tools/torch_matrix.sh $version"
done
row bazel_7_module 'tools/modern_bazel.sh --mode=bzlmod'
row bazel_7_workspace 'tools/modern_bazel.sh --mode=workspace'
row asan 'tools/check.sh asan'
row tsan 'tools/check.sh tsan'
row fuzz 'tools/check.sh fuzz'
row faults './bazelw test --keep_going --test_env=GPIPE_THOROUGH=1 //gpipe/system_tests:faults'
row thorough 'tools/check.sh thorough'

only=()
for argument; do
  case $argument in
    -h | --help)
      sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "tools/${BASH_SOURCE[0]##*/}"
      exit
      ;;
    --list)
      for name in "${rows[@]}"; do printf '%-18s %s\n' "$name" "${commands[$name]}"; done
      exit
      ;;
    --only=*)
      name=${argument#*=}
      if [[ -z $name || ! ${commands[$name]:-} ]]; then
        echo "release_check: there is no row '$name'; rows: ${rows[*]}" >&2
        exit 2
      fi
      only+=("$name")
      ;;
    *)
      echo "release_check: unknown argument $argument (see --help)" >&2
      exit 2
      ;;
  esac
done

# Prints the commit, with "+" if files other than the table differ from it.
commit() {
  local head changes
  # Without `set -e`, as in every $().
  head=$(git rev-parse --short=12 HEAD) || return
  changes=$(git status --porcelain -- . ":!$page") || return
  echo "$head${changes:++}"
}

# Returns whether the table has a pass of row $1 for the files as they are.
has_passed() {
  local of
  of=$(sed -n "s/^| $1 | \`.*\` | passed.* | \([0-9a-f]*\) | [^|]* |$/\1/p" "$page")
  [[ $of && $(commit) != *+ ]] && git diff --quiet "$of" HEAD -- . ":!$page" 2>&1
}

# record ROW OUTCOME TIME COMMIT DATE: writes the row of the table.
record() {
  local line="| $1 | \`${commands[$1]}\` | $2 | $3 | $4 | $5 |"
  awk -v row="| $1 |" -v line="$line" \
    'index($0, row) == 1 { print line; next } { print }' "$page" >"$page.new"
  mv "$page.new" "$page"
}

# Adds rows that the table lacks.
for name in "${rows[@]}"; do
  if ! grep -q "^| $name |" "$page"; then
    echo "| $name | \`${commands[$name]}\` | not run | | | |" >>"$page"
  fi
done

logs=${TMPDIR:-/tmp}/gpipe-release-$UID
mkdir -p "$logs"
failed=0
for name in "${only[@]:-${rows[@]}}"; do
  if ! ((${#only[@]})) && has_passed "$name"; then
    echo "== $name: has passed"
    continue
  fi
  echo "== $name: ${commands[$name]}"
  of=$(commit)
  begin=$SECONDS
  status=0
  bash -euo pipefail -c "${commands[$name]}" >"$logs/$name" 2>&1 || status=$?
  outcome=passed
  if ((status)); then
    outcome="failed, status $status"
    failed=1
  fi
  # The number of tests, for rows that run tests.
  tests=$(grep -aE '^[0-9]+ passed, [0-9]+ failed' "$logs/$name" | tail -n 1) ||
    tests=$(sed -nE 's/^Executed [0-9]+ out of [0-9]+ tests?: (.*)\.$/\1/p' "$logs/$name" |
      paste -sd';' | sed 's/;/; /g')
  minutes=$(((SECONDS - begin + 30) / 60))
  record "$name" "$outcome${tests:+: $tests}" "$minutes min" "$of" "$(date -u +%F)"
  echo "== $name: $outcome, $minutes min, see $logs/$name"
done
exit "$failed"
