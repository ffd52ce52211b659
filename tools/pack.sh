#!/usr/bin/env bash
#
# Packs tests, benchmarks and tools for a machine that has a GPU and LibTorch, for example
# pip's torch, but neither Bazel nor a network:
#
#   tools/pack.sh --torch=2.11.0 [--output=FILE.tar.xz] [BAZEL OPTIONS...]
#   tools/pack.sh --nccl=2.31.2 [--arch=90] [--output=FILE.tar.xz]
#
# The first form builds with --config=cuda what docs/first_gpu.md runs: every test tagged
# `cuda`, the programs that can use a GPU, and the peers of tools/compare_peers. --torch is
# the version of the other machine's torch, which is downloaded; the default is the
# LibTorch of this checkout. The archive contains no part of LibTorch or CUDA and no path
# of this machine: the script `run` finds LibTorch. The default FILE is
# gpu/gpipe-cuda.tar.xz in the checkout.
#
# The second form downloads the wheel of NCCL, and packs its library with the code for one
# architecture only (90: H100 and H200). NCCL 2.31 and later allow several ranks on one
# GPU. The default FILE is gpu/nccl.tar.xz.
set -euo pipefail

die() {
  echo "pack: $*" >&2
  exit 1
}

root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
self=$root/tools/pack.sh
output=
torch=
nccl=
arch=90
options=()
while (($#)); do
  case $1 in
    -h | --help)
      sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$self"
      exit
      ;;
    --output | --torch | --nccl | --arch)
      (($# > 1)) || die "$1 needs a value"
      set -- "$1=$2" "${@:3}"
      continue
      ;;
    --output=*) output=$(realpath -m "${1#*=}") ;;
    --torch=*) torch=${1#*=} ;;
    --nccl=*) nccl=${1#*=} ;;
    --arch=*) arch=${1#*=} ;;
    *) options+=("$1") ;;
  esac
  shift
done
cd "$root"
source tools/other_libtorch.sh

scratch=$(mktemp -d)
part=
trap 'rm -rf "$scratch" ${part:+"$part"}' EXIT

# pack FILE NAME: packs $scratch/NAME. A window of 128 MiB finds the code that programs
# have in common. Two runs may pack the same FILE, so each writes a file of its own first.
pack() {
  mkdir -p "$(dirname "$1")"
  part=$1.part.$$
  tar -C "$scratch" --sort=name --owner=root:0 --group=root:0 -cf - "$2" |
    xz --lzma2=preset=6,dict=128MiB >"$part"
  mv "$part" "$1"
  size=$(du -h --apparent-size "$1" | cut -f1)
}

if [[ -n $nccl ]]; then
  output=${output:-$root/gpu/nccl.tar.xz}
  folder=$gpipe_cache/nccl-$nccl-$(uname -m)
  python3 third_party/libtorch/fetch_wheel.py "nvidia-nccl-cu13==$nccl" "$(uname -m)" \
    unknown "$folder" nvidia/nccl/lib/
  tools/slim_nccl.py "$folder/nvidia/nccl/lib/libnccl.so.2" "$scratch/libnccl.so.2" \
    --arch="$arch"
  pack "$output" libnccl.so.2
  echo "$output: NCCL $nccl for sm_$arch, $size"
  exit
fi

output=${output:-$root/gpu/gpipe-cuda.tar.xz}
options+=(--config=cuda --define=gpipe_pack=1)
bazel=./bazelw
if [[ -n $torch ]]; then
  libtorch=$(fetch_libtorch "$torch")
  options+=("--repo_env=LIBTORCH=$libtorch" --symlink_prefix=/)
  bazel=other_bazel
fi
quiet=(--noshow_progress --ui_event_filters=-info)
folder=$scratch/gpipe-cuda
mkdir -p "$folder"/{tests,benchmarks,tools,lib}

# look EXPRESSION STARLARK: prints a line for each target. Uses cquery because, unlike
# query, it accepts the options of `build`.
look() {
  "$bazel" cquery "${options[@]}" "${quiet[@]}" --output=starlark --starlark:expr="$2" "$1"
}

output_base=$("$bazel" info "${options[@]}" "${quiet[@]}" output_base)
execution_root=$("$bazel" info "${options[@]}" "${quiet[@]}" execution_root)

version_file=$(look @libtorch//:version.bzl 'target.files.to_list()[0].path')
version_file=$output_base/$version_file
grep -q '^TORCH_HAS_CUDA = True' "$version_file" ||
  die "@libtorch has no libtorch_cuda.so; see third_party/libtorch/libtorch.bzl"
sed -n 's/^TORCH_VERSION = "\(.*\)"/\1/p' "$version_file" >"$folder/torch_version"
# The subtracted programs use CPUs only.
program='str(target.label) + " " + target.files_to_run.executable.path'
look "attr(tags, '[\[ ]cuda[,\]]', kind('.*_test rule', set($(all_packages | paste -sd' '))))" \
  "$program" >"$scratch/tests"
look 'kind("cc_binary rule", //benchmarks/...) - //benchmarks:published -
  //benchmarks:prediction' "$program" >"$scratch/benchmarks"
look '//tools:launch + //tools:plan + //examples:train' "$program" >"$scratch/tools"

mapfile -t labels < <(cut -d' ' -f1 "$scratch"/{tests,benchmarks,tools})
"$bazel" build "${options[@]}" --show_result=0 "${labels[@]}"

# Targets of several folders with one name. Their programs get the folder into their
# names: gpipe_system_tests_pipeline_tests_cuda.
repeated=$(sed 's|.*/||' "$scratch"/{tests,benchmarks,tools} | sort | uniq -d)

programs=()
for kind in tests benchmarks tools; do
  while read -r label path; do
    name=${path##*/}
    if grep -qxF -e "$name" <<<"$repeated"; then
      package=${label#*//}
      package=${package%%:*}
      name=${package//\//_}_$name
    fi
    copy=$folder/$kind/$name
    [[ ! -e $copy ]] || die "$label: another target is also packed as $name"
    cp "$execution_root/$path" "$copy"
    programs+=("$copy")
  done <"$scratch/$kind"
done
((${#programs[@]})) || die "nothing to pack"
chmod 755 "${programs[@]}"
strip "${programs[@]}"

# Copies the libraries that the programs need, directly or indirectly. ldd does not find
# LibTorch here, so the libraries that LibTorch needs are not listed.
for program in "${programs[@]}"; do
  # Without a pipe: grep -q would end readelf, and pipefail make that "not found".
  if grep -qE '\((RPATH|RUNPATH)\)' <<<"$(readelf -d "$program")"; then
    die "${program##*/} contains a folder of this machine (readelf -d: RPATH)"
  fi
  while read -r name _ file _; do
    case $name in
      # Libraries of the system.
      linux-vdso.so.* | */ld-linux* | libc.so.* | libdl.so.* | libm.so.*) ;;
      libpthread.so.* | librt.so.* | libutil.so.* | libgcc_s.so.* | libstdc++.so.*) ;;
      # Libraries of LibTorch and CUDA. libgomp is in LibTorch's folder.
      libtorch*.so* | libc10*.so* | libgomp.so.*) ;;
      libcublas*.so* | libcuda*.so* | libcudnn*.so* | libcupti.so* | libnccl.so* | libnv*.so*) ;;
      *)
        [[ $file == /* ]] || die "${program##*/} needs $name, which is not found here"
        cp -L --update "$file" "$folder/lib/$name"
        ;;
    esac
  done < <(env -u LD_LIBRARY_PATH ldd "$program")
done

# version PREFIX: prints the newest version of the symbols that a packed file needs.
version() {
  readelf -VW "${programs[@]}" "$folder"/lib/* | grep -oE "\<$1_[0-9.]+[0-9]" |
    sort -Vu | tail -n 1
}

# The peers keep the folders of the checkout, in which tools/compare_peers finds its files.
mkdir -p "$folder"/peers/{benchmarks/peers,tools}
cp benchmarks/peers/{*.py,requirements.txt} "$folder/peers/benchmarks/peers"
cp tools/compare_peers "$folder/peers/tools"
rm "$folder"/peers/benchmarks/peers/*_test.py
cp tools/packed/peers_worker "$folder/peers/worker"
PYTHONPATH=benchmarks/peers python3 -B -c "
import installation, pathlib, sys
installation.pack(pathlib.Path(sys.argv[1]), 'python3', ['torchgpipe'], print)" "$folder/peers"
find "$folder/peers" -name __pycache__ -exec rm -r {} +

# gpipe is built without NCCL if its header or the CUDA Toolkit is missing.
direct="no direct transfers: the build found no nccl.h (third_party/cuda/cuda.bzl)"
if grep -q ProcessGroupNCCL <<<"$(nm -D "$folder/tests/two_ranks_test_cuda")"; then
  direct="direct transfers are built in"
fi

cp tools/packed/{run,run_tests,README} tools/gpu_{check,rows}.sh "$folder"
{
  echo
  echo "commit    $(git describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)"
  echo "date      $(date -u +%Y-%m-%dT%H:%M:%SZ)"
  echo "machine   $(uname -m), $(version GLIBC) and $(version GLIBCXX) or later"
  echo "LibTorch  $(<"$folder/torch_version") with CUDA"
  echo "NCCL      $direct"
} >>"$folder/README"

pack "$output" gpipe-cuda
count() { find "$folder/$1" -type f | wc -l; }
echo "$output: $(count tests) tests, $(count benchmarks) benchmarks," \
  "$(count tools) tools, $(count lib) libraries, $size; $direct"
