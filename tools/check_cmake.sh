#!/usr/bin/env bash
#
# Installs gpipe into an empty folder, and builds and runs examples/cmake_consumer in
# another one with pip's torch, as a new user would:
#
#   tools/check_cmake.sh [--python=PYTHON] [BAZEL OPTIONS...]
#
# PYTHON has the torch; the default is python3. Its version must be that of the LibTorch
# that Bazel uses (docs/testing.md). Builds with g++ and with clang++, also a program that
# uses no tensor. Also checks that CMake refuses another LibTorch until it is replaced, which
# components there are, and that two copies of libgpipe.so can be loaded into the Python that
# has loaded torch. Not a target of //..., since it needs pip's torch.
set -euo pipefail

die() {
  echo "check_cmake: $*" >&2
  exit 1
}

root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
python=python3
options=()
for option; do
  case $option in
    -h | --help)
      sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
      exit
      ;;
    --python=*)
      python=${option#*=}
      # The script enters other folders.
      if [[ $python == */* && $python != /* ]]; then python=$PWD/$python; fi
      ;;
    *) options+=("$option") ;;
  esac
done
type -P cmake >/dev/null || die "no cmake; install with: sudo apt-get install -y cmake"
torch=$("$python" -c 'import torch; print(torch.utils.cmake_prefix_path)') ||
  die "$python has no torch; install one, or name another Python with --python=PYTHON"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
prefix=$scratch/prefix
"$root/tools/install.sh" "--prefix=$prefix" ${options[@]+"${options[@]}"}

cp -r "$root/examples/cmake_consumer" "$scratch/consumer"
cd "$scratch/consumer"
# Debian's g++ makes a program need only the libraries that it uses: here, not LibTorch.
cat >>CMakeLists.txt <<'CMAKE'
add_executable(schedule schedule.cc)
target_link_libraries(schedule PRIVATE gpipe::gpipe)
CMAKE
cat >schedule.cc <<'CPP'
#include <iostream>

#include "gpipe/schedule.h"
#include "gpipe/simulation.h"

int main() {
  gpipe::Costs costs;
  costs.forward = {1, 1};
  costs.backward = {2, 2};
  const auto schedule = gpipe::one_forward_one_backward(2, 8);
  std::cout << gpipe::simulate(schedule, costs).makespan << "\n";
}
CPP
for compiler in g++ clang++; do
  SECONDS=0
  cmake -B "$compiler" -DCMAKE_BUILD_TYPE=Release "-DCMAKE_CXX_COMPILER=$compiler" \
    "-DCMAKE_PREFIX_PATH=$prefix;$torch"
  cmake --build "$compiler"
  output=$("$compiler/main")
  echo "$output"
  [[ $output == *"rank 0 of 1, loss of 4 micro-batches"* ]] ||
    die "expected the line 'rank 0 of 1, loss of 4 micro-batches'"
  [[ $("$compiler/schedule") == 27 ]] || die "a program without tensors failed"
  echo "check_cmake: $compiler took $SECONDS s"
done

# refused TEXT [OPTIONS...]: CMake refuses the LibTorch in the folder `other`, and says TEXT.
other=$scratch/other
refused() {
  if output=$(cmake -B refused "-DCMAKE_PREFIX_PATH=$prefix;$other/share/cmake" "${@:2}" 2>&1); then
    die "CMake accepted another LibTorch"
  fi
  output=$(tr -s '[:space:]' ' ' <<<"$output")
  [[ $output == *"$1"* ]] || die "expected another error: $output"
}

# A folder that looks like an old LibTorch, and then like a newer one.
mkdir -p "$other/share/cmake/Torch" "$other/include/torch/headeronly"
touch "$other/share/cmake/Torch/TorchConfig.cmake"
refused "$other is older than LibTorch 2.9, which gpipe does not support"
version=include/torch/headeronly/version.h
printf '#define TORCH_VERSION_%s\n' 'MAJOR 2' 'MINOR 10' 'PATCH 1' >"$other/$version"
refused "$other is LibTorch 2.10.1; install gpipe again with LIBTORCH=$other"
cmake -B refused "-DCMAKE_PREFIX_PATH=$prefix;$torch" ||
  die "CMake refused the right LibTorch in a folder that had the wrong one"

# The right version without CUDA, for a library with CUDA.
cp "$torch/../../$version" "$other/$version"
cp -r "$prefix" "$scratch/cuda"
sed -i 's/^if(OFF AND /if(ON AND /' "$scratch/cuda/lib/cmake/gpipe/gpipeConfig.cmake"
refused "was built with --config=cuda, but $other has no CUDA" \
  "-Dgpipe_DIR=$scratch/cuda/lib/cmake/gpipe"

# Components: a known one is found, an unknown one only matters if it is required.
mkdir "$scratch/components"
cat >"$scratch/components/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.18)
project(components CXX)
find_package(gpipe REQUIRED COMPONENTS balancing OPTIONAL_COMPONENTS nonsense)
if(NOT gpipe_balancing_FOUND OR NOT gpipe_training_FOUND OR gpipe_nonsense_FOUND)
  message(FATAL_ERROR "balancing and training are components, nonsense is not")
endif()
find_package(gpipe COMPONENTS balancing nonsense)
if(gpipe_FOUND)
  message(FATAL_ERROR "nonsense is not a component")
endif()
CMAKE
output=$(cmake -S "$scratch/components" -B components \
  "-DCMAKE_PREFIX_PATH=$prefix;$torch" 2>&1) || die "$output"
output=$(tr -s '[:space:]' ' ' <<<"$output")
[[ $output == *"gpipe has no component nonsense; it has gpipe, balancing, distributed,"* ]] ||
  die "expected another warning: $output"

mkdir "$scratch/copy"
cp "$prefix/lib/libgpipe.so" "$scratch/copy"
"$python" - "$prefix" "$scratch/copy" <<'PYTHON'
import ctypes, pathlib, sys
import torch

paths = {str(next(pathlib.Path(folder).rglob("libgpipe.so")).resolve()) for folder in sys.argv[1:]}
for path in paths:
    ctypes.CDLL(path)
loaded = {line.split()[-1] for line in open("/proc/self/maps") if "libgpipe" in line}
assert loaded == paths and len(paths) == 2, loaded
# Operators still run, and no kernel is registered twice.
assert torch.ones(2, requires_grad=True).sum().item() == 2
PYTHON
echo "check_cmake: passed"
