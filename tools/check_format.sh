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
mapfile -t files < <(git ls-files --cached --others --exclude-standard -- '*.h' '*.cc' |
  while read -r file; do if [[ -e $file ]]; then echo "$file"; fi; done)
if ((${#files[@]} == 0)); then exit 0; fi

if [[ ${1:-} == --fix ]]; then
  clang-format -i "${files[@]}"
else
  clang-format --dry-run --Werror "${files[@]}"
fi
