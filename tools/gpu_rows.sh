#!/usr/bin/env bash
#
# Runs one row of gpu_check.sh, which sets the variables below and writes the output to
# $folder/ROW.log; without a name, prints a line for each row: name, part, seconds that it
# gets, and what it shows. The last line of a row's output is the reason of its outcome.
# docs/first_gpu.md explains the rows.
#
#   folder     the folder of the logs
#   packed     the folder that tools/pack.sh has packed
#   gpus       the number of GPUs; 0 in a rehearsal
#   rehearsal  not empty for small sizes on the CPU
#   nccl       a libnccl.so.2 that allows several ranks on one GPU, or empty
#   jobs       the number of tests at a time
#   limit      the seconds that the row gets
set -euo pipefail

# `eager` and `nsys` run only if --only names them.
table="\
devices            both         90 programs start, LibTorch finds GPUs
libraries          correctness  30 every program finds its libraries
tests_one          correctness 200 all tests, all partitions on one GPU
lstm               correctness  30 LSTM with dropout: checkpointing always and never
attention          correctness  30 attention with dropout: the same, in float32 and bfloat16
order              correctness  40 equal bits under random delays on the devices
ranks_host         correctness  40 two ranks through host memory: 10 steps, then a new shape
ranks_direct       correctness  40 two ranks with NCCL: 10 steps, then a new shape
ranks_tested       correctness  60 two ranks that test direct transfers first
contexts           correctness  90 each process has a CUDA context on its own GPU only
replicas           correctness  60 two replicas add up gradients, through the hosts and with NCCL
refused            correctness  40 two ranks with NCCL on one GPU are refused
memory             correctness  40 1F1B with 8 and with 64 micro-batches: bytes
near_full          correctness  60 steps of growing shapes in nearly full memory
killed             correctness 120 a rank is killed while the pipeline is being set up
tests_all          correctness 200 all tests, partitions over all GPUs
eager              named       200 all tests, CUDA_MODULE_LOADING=EAGER
nsys               named        60 a profile of a run with Nsight Systems
peers_resnet101    speed       150 ResNet-101 by PyTorch, torchgpipe and gpipe
peers_resnet101_2  speed        60 the same in two partitions
resnet101          speed       110 ResNet-101, 224 pixels: plain, 1 and 2 partitions
unet_memory        speed        60 peak memory of U-Nets, beside the published
transformer_memory speed        60 peak memory of a Transformer, beside the published
offload_none       speed        40 a Transformer without offload, traced
offload_2          speed        40 the same with offload: copies beside kernels
plan               speed        60 planned steps beside measured ones
amp                speed        40 the Transformer in mixed precision
peers_transformer  speed       120 a Transformer by threads, and by processes with NCCL
peers_hosts        speed        40 the same by processes through host memory
unet_memory_2      speed       100 peak memory of a U-Net of 5 billion parameters in 2 partitions"

if (($# == 0)); then
  echo "$table"
  exit
fi
row=$1

# Exit status of a row that these devices do not allow.
not_possible=77

# cannot REASON: ends a row that is not possible.
cannot() {
  echo "$*"
  exit $not_possible
}

need_gpus() {
  ((gpus >= $1)) || cannot "needs $1 GPUs, there are $gpus"
}

# sizes LARGE SMALL: prints the value for a GPU or that for a rehearsal.
sizes() { if [[ -n $rehearsal ]]; then echo "$2"; else echo "$1"; fi; }

# need_direct: ends a row of direct transfers if the GPUs do not allow them.
need_direct() {
  if [[ -n $nccl ]]; then need_gpus 1; else need_gpus 2; fi
}

# with_nccl COMMAND...: runs a command with the NCCL of --nccl, if any. Other rows use
# that of LibTorch, so that a broken library fails the rows of direct transfers only.
with_nccl() {
  if [[ -n $nccl ]]; then
    local -x GPIPE_NCCL=$nccl NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_NVLS_ENABLE=0
  fi
  "$@"
}

run() { "$packed/run" "$@"; }

# case_of TEST CASE: runs a case of a packed test, with the kernels that programs use. The
# last line is the reason of the outcome: what the case printed last, why it was skipped,
# or that it failed. The row is not possible if all of its cases are skipped.
ran= skipped=
case_of() {
  local status=0 log=$folder/$row.log before
  before=$(wc -c <"$log")
  GPIPE_TEST_DEFAULT_KERNELS=1 run "$1" --gtest_filter="*.$2" || status=$?
  # printed GREP-OPTIONS...: prints the last of the matching lines of this case.
  printed() { { tail -c "+$((before + 1))" "$log" | grep -a "$@" || true; } | tail -n 1; }
  if ((status)); then
    printed '^\[  FAILED  \] .* ('
    exit $status
  fi
  if [[ -z $(printed -E '^\[ +(OK|SKIPPED) \]') ]]; then
    echo "$1 has no case $2"
    exit 1
  fi
  # Without the lines of GoogleTest.
  printed -v '^\[\|^Note: \|^[[:space:]]*$'
  if [[ -n $(printed '^\[  PASSED  \] 0 tests') ]]; then skipped=yes; else ran=yes; fi
}
hardware() { case_of hardware_test_cuda "$1"; }
ranks() { case_of two_ranks_test_cuda "$1"; }

# by_each_way CASE: runs a case through the hosts and, if the GPUs allow it, with NCCL.
by_each_way() {
  ranks "$1ThroughTheHosts"
  if ((gpus > 1)) || [[ -n $nccl && $gpus == 1 ]]; then
    with_nccl ranks "$1ByDirectTransfers"
  fi
}

# tests [OPTIONS...]: runs all packed tests and shows the test cases that fail.
tests() {
  local status=0
  if [[ -n $rehearsal ]]; then set -- --gtest_list_tests; fi
  "$packed/run_tests" --logs="$folder/$row" --jobs="$jobs" --timeout="$((limit / 2 + 1))" \
    "$@" | tee "$folder/$row.txt" || status=$?
  if ((status)); then
    { grep -ar '^\[  FAILED  \] .* (' "$folder/$row" || true; } |
      sed "s|^$folder/$row/||" | sort -u
    tail -n 1 "$folder/$row.txt"
  fi
  return $status
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
  local -x GPIPE_TEST_AT_END="$query >>'$after'"
  ranks HaveTheBitsOfOneProcessThroughTheHosts
  with_nccl ranks HaveTheBitsOfOneProcessByTestedTransfers
  if [[ ! -s $after ]]; then cannot "nvidia-smi lists no processes (in a container)"; fi
  twice=$(twice_used "$after" "$before" | paste -sd' ')
  cat "$after"
  if [[ -n $twice ]]; then
    echo "processes with contexts on several GPUs: $twice"
    return 1
  fi
  echo "no process has contexts on several GPUs"
}

# figures COMMAND...: runs a command whose output is the result of the row.
# gpu_check.sh prints the beginning of the file.
figures() {
  "$@" >"$folder/$row.md" || return # set -e does not hold where a caller has "||"
  echo "see $row.md"
}

# benchmark NAME FLAGS...: runs a table of docs/benchmarks.md by training.
benchmark() {
  figures run "$1" --mode=measure --format=markdown "${@:2}"
}

# peers DEVICES FLAGS...: runs compare_peers with the torch of python3 and no network, one
# engine after the other, since not all fit into the memory.
peers() {
  figures python3 "$packed/peers/tools/compare_peers" --python=python3 \
    --venv="$packed/peers" --worker="$packed/peers/worker" ${nccl:+--nccl="$nccl"} \
    --devices="$(sizes "$1" cpu)" --one_at_a_time --seconds=4 \
    --rounds="$(sizes 12 1)" "${@:2}"
}

# resnet101 BALANCE: prints the flags of compare_peers for ResNet-101 of 370 layers.
resnet101() {
  sizes "--models=resnet101 --batch=256 --side=224 --microbatches=8 --balance=$1" \
    "--models=tiny"
}

# transformer FLAGS...: trains a Transformer in two partitions, alone on the first GPU.
# All micro-batches wait for their backward, which is what offload is for.
transformer() {
  local size
  read -ra size <<<"$(sizes "--transformer_layers=12 --transformer_width=1024
    --transformer_heads=16 --length=512 --chunks=16 --batch=64 --devices=cuda:0,cuda:0" \
    "--transformer_layers=4 --transformer_width=64 --transformer_heads=2 --length=32
    --chunks=4 --batch=8 --devices=cpu,cpu" | paste -sd' ')"
  run train --model=transformer "${size[@]}" --partitions=2 --balance=size \
    --schedule=fill-drain --checkpoint=never --eval_every=-1 --steps=8 "$@"
}

# traced FLAGS...: trains the Transformer and traces a step, for its time and memory.
traced() {
  local status=0
  figures transformer --trace="$folder/$row.json" --trace_step=6 "$@" || status=$?
  gzip -f "$folder/$row.json" 2>/dev/null || true
  return $status
}

# The devices of two partitions, and of one.
two=$(sizes "0,$((gpus > 1))" cpu)
pair=cuda:0,cuda:$((gpus > 1))
one=$(sizes 0 cpu)

# Waits for its program after SIGTERM, so that timeout also kills a program that does
# not end. Programs do not inherit a trap, unlike an ignored signal.
trap : TERM

# A rehearsal runs the cases on the CPU.
if [[ -n $rehearsal ]]; then export GPIPE_TEST_DEVICES=0; fi

case $row in
  devices)
    # 0: without a GPU, the test counts instead of failing.
    GPIPE_TEST_DEVICES=0 hardware Devices
    found=$(sed -n '/^accelerators: [0-9]*$/{s/.* //p;q}' "$folder/devices.log")
    echo "${found:-0}" >"$folder/gpus"
    if ((${found:-0} == 0)); then
      if [[ -n $rehearsal ]]; then cannot "accelerators: 0; the rehearsal uses the CPU"; fi
      exit 1
    fi
    ;;
  libraries)
    missing=0
    for program in "$packed"/{tests,benchmarks,tools}/*; do
      run --check "${program##*/}" || missing=$((missing + 1))
    done
    echo "$missing programs do not find their libraries"
    ((missing == 0))
    ;;
  tests_one) GPIPE_TEST_DEVICES=1 tests ;;
  tests_all)
    need_gpus 2
    tests
    ;;
  eager) CUDA_MODULE_LOADING=EAGER tests ;;
  lstm) hardware ADropoutLstmHasTheSameGradientsWhenItIsRecomputed ;;
  attention) hardware DropoutAttentionHasTheSameGradientsWhenItIsRecomputed ;;
  order) hardware RandomDelaysChangeNoBit ;;
  memory) hardware PeaksDoNotGrowWithTheNumberOfMicrobatches ;;
  near_full) GPIPE_TEST_FILLS_MEMORY=1 hardware NearlyFullMemoryChangesNoBit ;;
  ranks_host) ranks HaveTheBitsOfOneProcessThroughTheHosts ;;
  ranks_direct)
    need_direct
    with_nccl ranks HaveTheBitsOfOneProcessByDirectTransfers
    ;;
  ranks_tested)
    need_direct
    with_nccl ranks HaveTheBitsOfOneProcessByTestedTransfers
    ;;
  contexts)
    need_gpus 2
    contexts
    ;;
  replicas) by_each_way AsReplicasHaveTheSumsOfOneProcess ;;
  refused)
    ((gpus == 1)) && [[ -z $nccl ]] ||
      cannot "needs one GPU without --nccl, there are $gpus${nccl:+ with $nccl}"
    ranks AreRefusedDirectTransfersOnOneDevice
    ;;
  killed) by_each_way AreToldOfTheEndOfTheOther ;;
  nsys)
    type -P nsys >/dev/null || cannot "nsys is missing"
    nsys profile --trace=cuda,nvtx --output="$folder/order" \
      "$packed/run" hardware_test_cuda --gtest_filter='*.RandomDelaysChangeNoBit'
    compgen -G "$folder/order.*" >/dev/null || {
      echo "nsys has written no profile"
      exit 1
    }
    ;;
  peers_resnet101)
    read -ra size <<<"$(resnet101 370)"
    peers cuda:0 "${size[@]}" \
      --engines=sequential,accumulation,checkpoint,torchgpipe/except_last
    ;;
  peers_resnet101_2)
    read -ra size <<<"$(resnet101 135,235)"
    peers "$pair" "${size[@]}" --engines=torchgpipe/except_last
    ;;
  peers_transformer | peers_hosts)
    read -ra size <<<"$(sizes "--models=transformer --depth=12 --width=1024 --side=512
      --batch=64 --microbatches=8 --balance=12,12" "--models=tiny" | paste -sd' ')"
    engines=(sequential torchgpipe/never) transfers=direct
    if [[ -n $nccl$rehearsal ]] || ((gpus > 1)); then
      engines+=(pipelining-1f1b/never processes-1f1b/never)
    fi
    if [[ $row == peers_hosts ]]; then engines=(processes-1f1b/never) transfers=host; fi
    peers "$pair" "${size[@]}" --transfers=$transfers \
      --engines="$(IFS=, && echo "${engines[*]}")"
    ;;
  resnet101)
    read -ra size <<<"$(sizes "--batch_size=256 --chunks=8 --samples=1536" \
      "--batch_size=2 --chunks=2 --samples=2")"
    benchmark resnet101_speed --experiment=baseline,pipeline-1,pipeline-2 --devices="$two" \
      "${size[@]}" --epochs=2 --skip_epochs=1
    ;;
  unet_memory) benchmark unet_memory --experiment=baseline,pipeline-1 --devices="$one" ;;
  # Drawing its weights on the CPU takes most of a minute.
  unet_memory_2) benchmark unet_memory --experiment=pipeline-2 --devices="$two" ;;
  transformer_memory)
    benchmark transformer_memory --experiment=pipeline-1 --devices="$one"
    ;;
  offload_*) traced --offload="${row#offload_}" ;;
  plan)
    read -ra size <<<"$(sizes "--size=224 --batch=128 --limit=256 --devices=cuda:0" \
      "--size=64 --batch=4 --limit=8 --devices=cpu")"
    figures run train --model=resnet101 "${size[@]}" --partitions=1 --plan=auto \
      --steps="$(sizes 12 4)" --eval_every=-1
    ;;
  amp) traced --schedule=1f1b --precision=amp-bfloat16 ;;
  *)
    echo "there is no row '$row'"
    exit 1
    ;;
esac
if [[ -n $skipped && -z $ran ]]; then exit $not_possible; fi
