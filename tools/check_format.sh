#!/usr/bin/env bash
#
# Lists C++ files that clang-format would change. With --fix, formats them.
# Debian: apt-get install clang-format.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
if ! type -P clang-format >/dev/null; then
  echo "check_format: no clang-format; install with: sudo apt-get install -y clang-format" >&2
  exit 1
fi

# Files known to git and new files, without ignored ones.
known=$(git ls-files --cached --others --exclude-standard -- '*.h' '*.cc')
files=()
while read -r file; do
  if [[ -e $file ]]; then files+=("$file"); fi
done <<<"$known"
((${#files[@]})) || { echo "check_format: there are no C++ files" >&2; exit 1; }

if [[ ${1:-} == --fix ]]; then
  clang-format -i "${files[@]}"
else
  clang-format --dry-run --Werror "${files[@]}"
fi
