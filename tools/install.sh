#!/usr/bin/env bash
#
# Installs gpipe for projects that are built with CMake:
#
#   tools/install.sh --prefix=/some/folder [BAZEL OPTIONS...]
#
# Then, in a project's CMakeLists.txt:
#
#   find_package(gpipe 0.2 REQUIRED)
#   target_link_libraries(main PRIVATE gpipe::gpipe)
#
# The folder gets include/gpipe, lib/libgpipe.so and lib/cmake/gpipe. The library is for the
# LibTorch of the build, which must be that of the project: the torch of python3 on the
# PATH, or LIBTORCH. It contains no path of this machine. --config=cuda installs a library
# that can use GPUs.
set -euo pipefail

die() {
  echo "install: $*" >&2
  exit 1
}

cd "$(dirname "${BASH_SOURCE[0]}")/.."
prefix=
options=()
while (($#)); do
  case $1 in
    -h | --help)
      sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "tools/${BASH_SOURCE[0]##*/}"
      exit
      ;;
    --prefix)
      (($# > 1)) || die "--prefix needs a value"
      set -- "--prefix=$2" "${@:3}"
      continue
      ;;
    --prefix=*) prefix=$(cd "$OLDPWD" && realpath -m "${1#*=}") ;;
    -*) options+=("$1") ;;
    *) die "unexpected argument $1; options are --prefix=FOLDER and those of Bazel" ;;
  esac
  shift
done
[[ $prefix ]] || die "--prefix=FOLDER is missing: the folder to install into"

options+=(--define=gpipe_pack=1)
./bazelw build --symlink_prefix=/ "${options[@]}" //tools/cmake:libgpipe.so \
  //tools/cmake:gpipeConfig //tools/cmake:gpipeConfigVersion
built=$(./bazelw info --noshow_progress --ui_event_filters=-info "${options[@]}" bazel-bin)/tools/cmake

library=$prefix/lib/libgpipe.so
mkdir -p "$prefix/lib/cmake/gpipe"
version=$(sed -n 's/^#define GPIPE_VERSION "\(.*\)"/\1/p' gpipe/version.h)
install -m 755 -s "$built/libgpipe.so" "$library.$version"
ln -sf "libgpipe.so.$version" "$library.${version%.*}"
ln -sf "libgpipe.so.${version%.*}" "$library"
install -m 644 "$built"/*.cmake "$prefix/lib/cmake/gpipe"

# The public headers, and what they include. They have a folder of their own, since other
# projects of a common prefix may have a folder named models, too.
headers=$prefix/include/gpipe
rm -rf "$headers"
python3 - "$headers" <<'PYTHON'
import pathlib, re, shutil, sys

found, left = set(), ["tools/public_headers.cc"]
while left:
    text = pathlib.Path(left.pop()).read_text()
    for header in re.findall(r'^#include "(.*)"', text, re.MULTILINE):
        if header not in found:
            found.add(header)
            left.append(header)
for header in found:
    target = pathlib.Path(sys.argv[1], header)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(header, target)
PYTHON

echo "install: gpipe $version in $prefix; for CMake pass -DCMAKE_PREFIX_PATH=$prefix and" \
  "the folder of python3 -c 'import torch; print(torch.utils.cmake_prefix_path)'"
