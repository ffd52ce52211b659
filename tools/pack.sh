#!/usr/bin/env bash
#
# Packs the tests and benchmarks for a machine that has a GPU and LibTorch, for
# example pip's torch, but neither Bazel nor a network:
#
#   tools/pack.sh [--output FILE.tar.gz] [BAZEL OPTIONS...]
#
# Builds every test tagged `cuda`, every benchmark, and the programs of
# tools/gpu_check.sh with --config=cuda. The archive contains them, gpu_check.sh, the
# scripts of tools/packed, and the shared libraries that the programs need, except those
# of LibTorch, CUDA and the C++ runtime. The programs contain no paths of this machine:
# the script `run` finds LibTorch. The default FILE is gpipe-cuda.tar.gz in TMPDIR or
# /tmp.
set -euo pipefail

die() {
  echo "pack: $*" >&2
  exit 1
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
output=${TMPDIR:-/tmp}/gpipe-cuda.tar.gz
options=()
while (($#)); do
  case $1 in
    -h | --help)
      sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
      exit
      ;;
    --output)
      output=${2:?pack: --output needs a file}
      shift
      ;;
    --output=*) output=${1#*=} ;;
    *) options+=("$1") ;;
  esac
  shift
done
[[ $output == /* ]] || output=$PWD/$output
[[ -d $(dirname "$output") ]] || die "the folder $(dirname "$output") does not exist"
options+=(--config=cuda --define=gpipe_pack=1)
quiet=(--noshow_progress --ui_event_filters=-info)
cd "$root"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
folder=$scratch/gpipe-cuda
mkdir -p "$folder"/{tests,benchmarks,tools,lib}

# look EXPRESSION STARLARK: prints a line for each target. Uses cquery because, unlike
# query, it accepts the options of `build`.
look() {
  ./bazelw cquery "${options[@]}" "${quiet[@]}" --output=starlark \
    --starlark:expr="$2" "$1"
}

output_base=$(./bazelw info "${options[@]}" "${quiet[@]}" output_base)
execution_root=$(./bazelw info "${options[@]}" "${quiet[@]}" execution_root)

version_file=$(look @libtorch//:version.bzl 'target.files.to_list()[0].path')
version_file=$output_base/$version_file
grep -q '^TORCH_HAS_CUDA = True' "$version_file" ||
  die "@libtorch has no libtorch_cuda.so; see third_party/libtorch/libtorch.bzl"
sed -n 's/^TORCH_VERSION = "\(.*\)"/\1/p' "$version_file" >"$folder/torch_version"

program='str(target.label) + " " + target.files_to_run.executable.path'
look 'attr(tags, "[\[ ]cuda[,\]]", kind(".*_test rule", //...))' "$program" >"$scratch/tests"
look 'kind("cc_binary rule", //benchmarks/... + //gpipe:machinery_benchmark)
  except attr(testonly, 1, //benchmarks/...)' "$program" >"$scratch/benchmarks"
look '//tools:gpu_probe + //tools:launch' "$program" >"$scratch/tools"

mapfile -t labels < <(cut -d' ' -f1 "$scratch"/{tests,benchmarks,tools})
./bazelw build "${options[@]}" --show_result=0 "${labels[@]}"

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

# Copies the libraries that the programs need, directly or indirectly. ldd does not find
# LibTorch here, so the libraries that LibTorch needs are not listed.
for program in "${programs[@]}"; do
  if readelf -d "$program" | grep -qE '\((RPATH|RUNPATH)\)'; then
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

cp tools/packed/{run,run_tests,README} tools/gpu_check.sh "$folder"
{
  echo
  echo "commit    $(git describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)"
  echo "date      $(date -u +%Y-%m-%dT%H:%M:%SZ)"
  echo "machine   $(uname -m), $(version GLIBC) and $(version GLIBCXX) or later"
  echo "LibTorch  $(<"$folder/torch_version") with CUDA"
} >>"$folder/README"

tar -C "$scratch" --sort=name --owner=root:0 --group=root:0 -czf "$output" gpipe-cuda
count() { find "$folder/$1" -type f | wc -l; }
echo "$output: $(count tests) tests, $(count benchmarks) benchmarks," \
  "$(count tools) tools, $(count lib) libraries, $(du -h --apparent-size "$output" | cut -f1)"
