#!/usr/bin/env bash
#
# Runs what needs a GPU, on a machine with one or more, and prints a table:
#
#   ./gpu_check.sh [--list] [--only=ROW[,ROW...]] [--limit=SECONDS] [--output=FOLDER]
#
# A row has passed, has FAILED, or is not possible here. Logs and the table go to FOLDER
# and into FOLDER.tar.gz, the file to send back. The default FOLDER is
# gpu_check-DATE in the current folder. A row that takes more than --limit seconds, 1800
# unless given, is stopped and has FAILED. The exit status is 1 if a row has FAILED, and
# 2 if an option is wrong. docs/first_gpu.md explains the rows.
#
# The script belongs into the folder that tools/pack.sh makes. In a checkout it first
# calls tools/pack.sh, which needs Bazel.
set -euo pipefail

self=$(readlink -f "${BASH_SOURCE[0]}")
here=$(dirname "$self")
export TMPDIR=${TMPDIR:-/tmp}

rows=(devices tests_one tests_all eager near_full ranks_host ranks_direct killed contexts
  memory lstm order nsys)

# Exit status of a check that these devices do not allow. The last line of its output is
# the reason.
not_possible=77

about() {
  case $1 in
    devices) echo "programs start, LibTorch finds GPUs" ;;
    tests_one) echo "all tests, all partitions on one GPU" ;;
    tests_all) echo "all tests, partitions over all GPUs" ;;
    eager) echo "all tests, CUDA_MODULE_LOADING=EAGER" ;;
    near_full) echo "steps of growing shapes in nearly full memory" ;;
    ranks_host) echo "two ranks through host memory: 10 steps, then a new shape" ;;
    ranks_direct) echo "two ranks with NCCL: 10 steps, then a new shape" ;;
    killed) echo "a rank is killed while the pipeline is being set up" ;;
    contexts) echo "each process has a CUDA context on its own GPU only" ;;
    memory) echo "1F1B with 8 and with 64 micro-batches: bytes" ;;
    lstm) echo "LSTM with dropout: checkpointing always and never" ;;
    order) echo "equal bits under random delays on the devices" ;;
    nsys) echo "a profile of a run with Nsight Systems" ;;
  esac
}

# cannot REASON: ends a row that is not possible.
cannot() {
  echo "$*"
  exit $not_possible
}

need_gpus() {
  ((gpus >= $1)) || cannot "needs $1 GPUs, there are $gpus"
}

probe() { "$packed/run" gpu_probe "$@"; }

# ranks [FLAGS...]: starts two ranks of the probe. The grace is longer than the timeout
# of a rank, so that the launcher does not end a rank that is about to report.
ranks() {
  "$packed/run" launch --nproc=2 --grace=90 -- "$packed/run" gpu_probe --check=ranks "$@"
}

# tests NAME: runs all packed tests.
tests() {
  "$packed/run_tests" --logs="$folder/$1" --timeout="$((limit / 3 + 1))"
}

# killed_at PLACE TRANSFERS: succeeds if rank 0 is told that rank 1 has died.
killed_at() {
  local log=$folder/killed_$1.log status=0
  ranks --transfers="$2" --die_at="$1" >"$log" 2>&1 || status=$?
  cat "$log"
  if ((status != 137)) || ! grep -q 'told of the end of rank 1: rank 1 has ' "$log"; then
    echo "a rank killed at '$1' with --transfers=$2: status $status, or rank 0 was not told"
    return 1
  fi
}

# twice_used FILE BEFORE: prints the processes that use several GPUs in FILE, without
# the lines of BEFORE. Lines are "PID, GPU". If BEFORE is empty, all lines count.
twice_used() {
  { grep -vxFf "$2" "$1" || true; } | sort -u | cut -d, -f1 | uniq -d
}

contexts() {
  local query="nvidia-smi --query-compute-apps=pid,gpu_uuid --format=csv,noheader"
  local before=$folder/contexts_before.txt after=$folder/contexts.txt twice
  type -P nvidia-smi >/dev/null || cannot "nvidia-smi is missing"
  $query >"$before"
  ranks --at_end="$query > '$after'"
  if [[ ! -s $after ]]; then cannot "nvidia-smi lists no processes (in a container)"; fi
  twice=$(twice_used "$after" "$before" | paste -sd' ')
  cat "$after"
  if [[ -n $twice ]]; then
    echo "processes with contexts on several GPUs: $twice"
    return 1
  fi
  echo "no process has contexts on several GPUs"
}

# row NAME: runs a row in this process. Its output is the log, its last line the reason.
row() {
  case $1 in
    devices)
      probe --check=devices >"$folder/gpus"
      cat "$folder/gpus"
      gpus=$(sed -n 's/^accelerators: \([0-9]*\)$/\1/p' "$folder/gpus")
      echo "${gpus:-0}" >"$folder/gpus"
      ((${gpus:-0} > 0)) || return 1
      ;;
    tests_one) GPIPE_TEST_DEVICES=1 tests tests_one ;;
    tests_all)
      need_gpus 2
      tests tests_all
      ;;
    eager) CUDA_MODULE_LOADING=EAGER tests eager ;;
    near_full) probe --check=near-full ;;
    ranks_host) ranks --transfers=host ;;
    ranks_direct)
      need_gpus 2
      ranks --transfers=direct
      ;;
    killed)
      local place transfers=(host)
      if ((gpus > 1)); then transfers+=(direct); fi
      for place in connected built forward; do
        for each in "${transfers[@]}"; do killed_at "$place" "$each"; done
      done
      echo "rank 0 was told each time: ${transfers[*]}"
      ;;
    contexts)
      need_gpus 2
      contexts
      ;;
    memory) probe --check=memory ;;
    lstm) probe --check=lstm ;;
    order) probe --check=order ;;
    nsys)
      type -P nsys >/dev/null || cannot "nsys is missing"
      nsys profile --trace=cuda,nvtx --output="$folder/order" \
        "$packed/run" gpu_probe --check=order --rounds=1
      compgen -G "$folder/order.*" >/dev/null || {
        echo "nsys has written no profile"
        return 1
      }
      ;;
  esac
}

# Runs one row in a process of its own, which timeout can stop.
if [[ -n ${GPU_CHECK_ROW:-} ]]; then
  folder=$GPU_CHECK_FOLDER packed=$GPU_CHECK_PACKED limit=$GPU_CHECK_LIMIT
  gpus=$(cat "$folder/gpus" 2>/dev/null || echo 0)
  # Waits for its program after SIGTERM, so that timeout also kills a program that does
  # not end. Programs do not inherit a trap, unlike an ignored signal.
  trap : TERM
  row "$GPU_CHECK_ROW"
  exit
fi

die() {
  echo "gpu_check: $*" >&2
  exit 2
}

only=()
limit=1800
# Seconds between SIGTERM and SIGKILL.
grace=${GPU_CHECK_GRACE:-10}
folder=gpu_check-$(date -u +%Y%m%dT%H%M%SZ)
for argument; do
  case $argument in
    -h | --help)
      sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$self"
      exit
      ;;
    --list)
      for name in "${rows[@]}"; do printf '%-13s %s\n' "$name" "$(about "$name")"; done
      exit
      ;;
    --only=*) IFS=, read -ra only <<<"${argument#*=}" ;;
    --limit=*) limit=${argument#*=} ;;
    --output=*) folder=${argument#*=} ;;
    *) die "unknown option '$argument': see --help" ;;
  esac
done
[[ $limit =~ ^[1-9][0-9]{0,5}$ ]] || die "--limit=$limit: must be from 1 to 999999 seconds"
for name in "${only[@]}"; do
  [[ " ${rows[*]} " == *" $name "* ]] || die "there is no row '$name'; rows: ${rows[*]}"
done
[[ ! -e $folder ]] || die "$folder exists: give another --output, or remove it"
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

packed=$here
if [[ ! -e $here/run ]]; then
  echo "packing the programs with tools/pack.sh"
  "$here/pack.sh" --output "$folder/packed.tar.gz"
  tar -C "$folder" -xzf "$folder/packed.tar.gz"
  rm "$folder/packed.tar.gz"
  packed=$folder/gpipe-cuda
fi

# run_row NAME: sets `outcome` and `reason`. Does not wait for a process that even
# SIGKILL does not end, such as one that is stuck in the driver.
run_row() {
  local log=$folder/$1.log ended=$folder/$1.status status job
  (
    code=0
    GPU_CHECK_ROW=$1 GPU_CHECK_FOLDER=$folder GPU_CHECK_PACKED=$packed \
      GPU_CHECK_LIMIT=$limit timeout --kill-after="$grace" "$limit" bash "$self" \
      >"$log" 2>&1 </dev/null || code=$?
    echo "$code" >"$ended"
  ) 2>/dev/null &
  job=$!
  while kill -0 "$job" 2>/dev/null && ((SECONDS < limit + grace + 10)); do sleep 0.1; done
  status=$(cat "$ended" 2>/dev/null || echo stuck)
  rm -f "$ended"
  reason=$(grep -av '^[[:space:]]*$' "$log" | tail -n 1 | cut -c1-200) || true
  outcome=FAILED
  case $status in
    0) outcome=passed ;;
    "$not_possible") outcome="not possible" ;;
    124) reason="stopped after $limit s; last line: $reason" ;;
    137)
      if ((SECONDS >= limit)); then
        reason="killed after $limit s; last line: $reason"
      else
        reason="killed by signal 9 (out of memory?); last line: $reason"
      fi
      ;;
    stuck) reason="still running after $limit s and SIGKILL; last line: $reason" ;;
    *) reason="exit status $status: $reason" ;;
  esac
}

{
  date -u
  uname -srm
  cat "$packed/README" 2>/dev/null || true
  timeout --kill-after=10 60 nvidia-smi || true
  timeout --kill-after=10 60 nvidia-smi topo -m || true
} >"$folder/machine.txt" 2>&1 </dev/null

table=$folder/table.txt
failed=0
gpus_found=yes
for name in "${rows[@]}"; do
  if [[ $name != devices && ${#only[@]} -gt 0 && " ${only[*]} " != *" $name "* ]]; then
    continue
  fi
  SECONDS=0
  if [[ $gpus_found == yes ]]; then
    run_row "$name"
  else
    outcome="not possible" reason="the row 'devices' has failed"
  fi
  if [[ $outcome == FAILED ]]; then failed=1; fi
  if [[ $name == devices && $outcome != passed ]]; then gpus_found=; fi
  printf '%-13s %-12s %6d s  %s\n' "$name" "$outcome" "$SECONDS" "$reason" | tee -a "$table"
done

if [[ $packed == "$folder"/* ]]; then rm -rf "$packed"; fi
tar -C "$(dirname "$folder")" -czf "$folder.tar.gz" "$(basename "$folder")"
echo "send back: $folder.tar.gz"
exit $failed
