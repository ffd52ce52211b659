#!/usr/bin/env bash
#
# Makes HTML pages of the comments in the public headers, with Doxygen:
#
#   tools/api_docs.sh
#
# The pages are in api_docs/html, which git ignores. Fails if a public name has no
# comment. Fields, constructors, operators and LibTorch's virtual functions need none,
# since the comment of their class describes them. Public headers are those of targets
# with public visibility, and the headers that these include, except from models/.
# Installs Doxygen if that is possible (root and apt-get).
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
if ! type -P doxygen >/dev/null; then
  if ((EUID != 0)) || ! type -P apt-get >/dev/null; then
    echo "api_docs: no doxygen; install with: sudo apt-get install -y --no-install-recommends doxygen" >&2
    exit 1
  fi
  {
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends doxygen
  } >&2 </dev/null
fi

public='attr(visibility, "//visibility:public", kind(cc_library, //... except //tools/...))'
# Private, but compiled with //balancing.
private='//balancing/profile:*'
mapfile -t headers < <(./bazelw query --noshow_progress "labels(hdrs, $public) except $private" 2>/dev/null |
  sed 's|^//||; s|:|/|')
((${#headers[@]})) || { echo "api_docs: Bazel listed no public header" >&2; exit 1; }
mapfile -t included < <(sed -n 's|^#include "\(.*\)"|\1|p' "${headers[@]}" | grep -v '^models/')
mapfile -t headers < <(printf '%s\n' "${headers[@]}" "${included[@]}" | sort -u)

rm -rf api_docs
mkdir api_docs
{
  cat tools/api_docs.doxyfile
  echo "OUTPUT_DIRECTORY = api_docs"
  echo "WARN_LOGFILE = api_docs/warnings"
  echo "INPUT = ${headers[*]}"
} | doxygen -

fields='Member \w+ \((variable|friend)\) of '
constructors='Member (\w+)\(.*\)( noexcept)? \(function\) of \w+ .*\b\1 is not documented'
virtuals='Member (forward|reset|clone|pretty_print)\('
operators='Member operator|scope for class std::hash'
if grep -vE -e "$fields" -e "$constructors" -e "$virtuals" -e "$operators" api_docs/warnings >&2; then
  exit 1
fi
echo "api_docs: ${#headers[@]} headers; see api_docs/html/index.html"
