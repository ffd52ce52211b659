#!/usr/bin/env bash
#
# Runs what needs a GPU, on a machine with one or more, and prints a table:
#
#   ./gpu_check.sh [--part=correctness|speed] [OPTIONS...]
#
#   --list            prints the rows, and runs nothing
#   --only=ROW,...    runs these rows only, after `devices`
#   --budget=SECONDS  starts nothing after this time and cuts the limits of rows to what
#                     is left; default: 300 for correctness, 450 for speed
#   --limit=SECONDS   the most seconds of any row; default: see --list
#   --jobs=N          the number of tests at a time; default: one per core, at most 6
#   --nccl=FILE       a libnccl.so.2 of 2.31 or later, or the archive of tools/pack.sh
#                     --nccl: two ranks then use NCCL on one GPU; default: with one GPU,
#                     libnccl.so.2 or nccl.tar.xz beside this script or beside the packed
#                     programs
#   --rehearsal       needs no GPU: runs the rows on the CPU, with small sizes
#   --output=FILE     default: gpu_check-PART-DATE.tar.gz in the current folder
#
# A row has passed, has FAILED, is not possible here, or had no time. FILE, a .tar.gz, has
# the table and all logs. It is written after each row, and when the script is stopped. It
# is the file to send back. The exit status is 1 if a row has FAILED, and 2 if an option
# is wrong. docs/first_gpu.md explains the rows.
#
# The script belongs into the folder that tools/pack.sh packs. In a checkout it unpacks
# gpu/gpipe-cuda.tar.xz, for which it calls tools/pack.sh if the file is missing.
set -euo pipefail

self=$(readlink -f "${BASH_SOURCE[0]}")
here=$(dirname "$self")
export TMPDIR=${TMPDIR:-/tmp}
table=$("$here/gpu_rows.sh")

die() {
  echo "gpu_check: $*" >&2
  exit 2
}

# number OPTION: prints the value of --NAME=VALUE, which must be a positive number.
number() {
  [[ ${1#*=} =~ ^[1-9][0-9]{0,5}$ ]] || die "$1: must be from 1 to 999999"
  echo "${1#*=}"
}

part=correctness
only=()
budget=
most=
jobs=$(nproc)
jobs=$((jobs > 6 ? 6 : jobs))
nccl=
rehearsal=
output=
# Seconds between SIGTERM and SIGKILL.
grace=${GPU_CHECK_GRACE:-5}
for argument; do
  case $argument in
    -h | --help)
      sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$self"
      exit
      ;;
    --list)
      echo "$table"
      exit
      ;;
    --part=*) part=${argument#*=} ;;
    --only=*) IFS=, read -ra only <<<"${argument#*=}" ;;
    --budget=*) budget=$(number "$argument") ;;
    --limit=*) most=$(number "$argument") ;;
    --jobs=*) jobs=$(number "$argument") ;;
    --nccl=*) nccl=${argument#*=} ;;
    --rehearsal) rehearsal=yes ;;
    --output=*) output=${argument#*=} ;;
    *) die "unknown option '$argument': see --help" ;;
  esac
done
case $part in
  correctness) budget=${budget:-300} ;;
  speed) budget=${budget:-450} ;;
  *) die "--part=$part: use correctness or speed" ;;
esac
for name in "${only[@]}"; do
  grep -qxF -- "$name" <<<"$(cut -d' ' -f1 <<<"$table")" || die "there is no row '$name'; see --list"
done
[[ -z $nccl || -e $nccl ]] || die "--nccl=$nccl: there is no such file"
output=$(realpath -m "${output:-gpu_check-$part-$(date -u +%Y%m%dT%H%M%SZ).tar.gz}")
[[ $output == *.tar.gz ]] || die "--output=$output: must end in .tar.gz"
[[ ! -e $output ]] || die "$output exists: give another --output, or remove it"
mkdir -p "$(dirname "$output")"

scratch=$(mktemp -d)
folder=$scratch/$(basename "$output" .tar.gz)
mkdir "$folder"
results=$folder/table.txt
job= # the process group of the row that runs

# archive: writes everything so far to $output; fails if it cannot. Logs may grow
# meanwhile.
archive() {
  local status=0
  tar -C "$scratch" -czf "$output.part" --warning=no-file-changed "${folder##*/}" || status=$?
  ((status < 2)) && mv "$output.part" "$output"
}

# Ends the row that runs, if any. Writes the archive first, since whoever stops this
# script may not wait long.
finish() {
  trap '' TERM INT HUP
  if [[ -n $job ]]; then
    kill -TERM -- "-$job" 2>/dev/null || true
    print_row "stopped" "last line: $(last_line)"
    archive || true
    local until=$((SECONDS + grace))
    while kill -0 -- "-$job" 2>/dev/null && ((SECONDS < until)); do sleep 0.1; done
    kill -KILL -- "-$job" 2>/dev/null || true
  fi
  if [[ ! -e $folder/machine.txt ]]; then
    rm -rf "$scratch"
  elif archive; then
    rm -rf "$scratch"
    echo "send back: $output"
  else
    rm -f "$output.part"
    echo "gpu_check: $output cannot be written; send back the folder $folder" >&2
    exit 1
  fi
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# unpack FILE FOLDER. A machine without xz has a Python with torch.
unpack() {
  if type -P xz >/dev/null; then
    tar -C "$2" -xJf "$1"
  else
    python3 -m tarfile -e "$1" "$2"
  fi || die "$1 cannot be unpacked: pack it again"
}

packed=$here
beside=("$here")
if [[ ! -e $here/run ]]; then
  packed=$scratch/gpipe-cuda
  beside+=("$here/../gpu")
  [[ -e $here/../gpu/gpipe-cuda.tar.xz ]] || "$here/pack.sh"
  unpack "$here/../gpu/gpipe-cuda.tar.xz" "$scratch"
fi
nccl_is_given=${nccl:+yes}
if [[ -z $nccl ]]; then
  for each in "${beside[@]}"; do
    for file in "$each"/{libnccl.so.2,nccl.tar.xz}; do
      if [[ -e $file ]]; then nccl=$file; fi
    done
  done
fi
if [[ $nccl == *.tar.xz ]]; then
  unpack "$nccl" "$scratch"
  nccl=$scratch/libnccl.so.2
fi
if [[ -n $nccl ]]; then nccl=$(realpath "$nccl"); fi

# The folder of the torch that ./run uses.
torch=${LIBTORCH:-$(python3 -c "
import importlib.util as u
print(u.find_spec('torch').submodule_search_locations[0])" 2>/dev/null || true)}

facts() {
  set +e
  date -u
  uname -srm
  nproc
  free -m
  df -h "$TMPDIR" /dev/shm
  ldd --version | head -n 1
  cat "$packed/README"
  echo "NCCL for several ranks on one GPU: ${nccl:-none}"
  type -a python3 nvcc nsys ncu compute-sanitizer
  cat "$torch/version.py"
  python3 -c "import numpy; print('numpy', numpy.__version__)"
  timeout --kill-after="$grace" 60 nvidia-smi
  timeout --kill-after="$grace" 60 nvidia-smi topo -m
}
# The budget does not count the packing.
SECONDS=0
facts >"$folder/machine.txt" 2>&1 </dev/null &
# nvidia-smi may be stuck in the driver, and then not even SIGKILL ends it.
while kill -0 $! 2>/dev/null && ((SECONDS < 2 * 60 + 4 * grace)); do sleep 0.1; done

# Reads LibTorch's files once while the first rows run. From a disk that takes a minute.
if [[ -z $rehearsal ]]; then
  cat "$torch"/lib/libtorch_c*.so "$torch"/../nvidia/*/lib/lib{cublas,cublasLt,cudnn}*.so.* \
    >/dev/null 2>&1 &
fi

# last_line: prints the last line of the row's log that is not empty.
last_line() {
  grep -av '^[[:space:]]*$' "$folder/$name.log" 2>/dev/null | tail -n 1 | cut -c1-200 || true
}

# print_row OUTCOME REASON: adds a line to the table.
print_row() {
  printf '%4d s  %-18s %-12s %4d s  %s\n' "$SECONDS" "$name" "$1" "$((SECONDS - begin))" "$2" |
    tee -a "$results"
}

# run_row: runs the row `name` and sets `outcome` and `reason`. Does not wait for a
# process that even SIGKILL does not end, such as one that is stuck in the driver.
run_row() {
  local log=$folder/$name.log status=stuck left=$((budget - SECONDS)) ended=" s"
  if ((left < grace)); then
    outcome="no time" reason="the budget of $budget s is used up"
    return
  fi
  if ((limit > left)); then limit=$left ended=" s, at the end of the budget"; fi
  export folder packed gpus rehearsal nccl jobs limit
  timeout --kill-after="$grace" "$limit" "$here/gpu_rows.sh" "$name" >"$log" 2>&1 </dev/null &
  job=$!
  while kill -0 "$job" 2>/dev/null; do
    if ((SECONDS - begin >= limit + grace + 10)); then break; fi
    sleep 0.1
  done
  if ! kill -0 "$job" 2>/dev/null; then
    status=0
    wait "$job" 2>/dev/null || status=$?
  fi
  job=
  reason=$(last_line)
  outcome=FAILED
  case $status in
    0) outcome=passed ;;
    77) outcome="not possible" ;;
    124) reason="stopped after $limit$ended; last line: $reason" ;;
    137)
      if ((SECONDS - begin >= limit)); then
        reason="killed after $limit$ended; last line: $reason"
      else
        reason="killed by signal 9 (out of memory?); last line: $reason"
      fi
      ;;
    stuck) reason="still running after $limit s and SIGKILL; last line: $reason" ;;
    *) reason="exit status $status: $reason" ;;
  esac
  if [[ $reason == *"$ended;"* && $ended == *budget ]]; then outcome="no time"; fi
}

# chosen NAME PART: succeeds if the row runs.
chosen() {
  if [[ $1 == devices ]]; then return 0; fi
  if ((${#only[@]})); then [[ " ${only[*]} " == *" $1 "* ]]; else [[ $2 == "$part" ]]; fi
}

gpus=0
usable=yes
failed=0
while read -r name of limit _ <&3; do
  chosen "$name" "$of" || continue
  limit=${most:-$limit}
  begin=$SECONDS
  if [[ -n $usable ]]; then
    run_row
  else
    outcome="not possible" reason="the row 'devices' has failed"
  fi
  if [[ $outcome == FAILED ]]; then failed=1; fi
  if [[ $name == devices ]]; then
    gpus=$(cat "$folder/gpus" 2>/dev/null || echo 0)
    # Several GPUs need no other NCCL than LibTorch's, which is the one that users have.
    if ((gpus > 1)) && [[ ! $nccl_is_given ]]; then nccl=; fi
    if [[ $outcome == FAILED && -z $rehearsal ]]; then usable=; fi
  fi
  print_row "$outcome" "$reason"
  if [[ -s $folder/$name.md ]]; then
    head -n 12 "$folder/$name.md" | cut -c1-200
  elif [[ $outcome == FAILED && -s $folder/$name.log ]]; then
    tail -n 8 "$folder/$name.log" | cut -c1-200
  fi
  archive || true
done 3<<<"$table"
exit $failed
