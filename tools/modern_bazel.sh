#!/usr/bin/env bash
#
# Builds and tests this tree and examples/consumer with the Bazel and the g++ of
# Debian's unstable release, with MODULE.bazel and with WORKSPACE:
#
#   tools/modern_bazel.sh [--root=FOLDER] [--mode=MODE] [--no-consumer] [COMMAND...]
#   tools/modern_bazel.sh [--root=FOLDER] --registry [OPTIONS...]
#
# COMMAND is a Bazel command; the default is `test //...`. MODE is bzlmod or workspace;
# the default is both. --registry does nothing else than to build examples/consumer by a
# registry that has the committed state of this tree (tools/registry_entry.sh). OPTIONS are
# those of tools/check_consumer.sh.
#
# debootstrap installs the release into a folder (1.7 GB) the first time: FOLDER, or
# GPIPE_SID, or ~/.cache/gpipe/sid. The command uses its own mount and process namespaces,
# so that nothing stays mounted or running. LibTorch is that of the
# host: LIBTORCH, or the pinned wheel, which is downloaded once. user.bazelrc, which is
# for the host, is hidden.
#
# Needs root and Debian. The folder may be removed at any time.
set -euo pipefail

die() {
  echo "modern_bazel: $*" >&2
  exit 1
}

tree=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
cache=${GPIPE_CACHE:-$HOME/.cache/gpipe}
root=${GPIPE_SID:-$cache/sid}
modes=(bzlmod workspace)
consumer=1
registry=
while (($#)); do
  case $1 in
    -h | --help)
      sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
      exit
      ;;
    --root=*) root=${1#*=} ;;
    --mode=bzlmod | --mode=workspace) modes=("${1#*=}") ;;
    --no-consumer) consumer= ;;
    --registry)
      registry=$cache/registry
      shift
      break
      ;;
    -*) die "unknown option $1; Bazel's options come after its command (see --help)" ;;
    *) break ;;
  esac
  shift
done
given=("$@")
(($#)) || set -- test //...
((EUID == 0)) || die "creating and entering the other Debian needs root; use sudo"
type -P apt-get >/dev/null || die "this needs Debian, but there is no apt-get"

# Prints the Debian mirror that this machine's apt uses.
mirror() {
  apt-get indextargets --format '$(LABEL) $(REPO_URI)' | sed -n '/^Debian /{s///p;q}'
}

make_root() {
  if ! type -P debootstrap >/dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debootstrap
  fi
  [[ -n $(mirror) ]] || apt-get update -qq
  [[ -n $(mirror) ]] || die "apt has no mirror of Debian; check /etc/apt/sources.list"

  # Uses another name until the folder is complete.
  local part=$root.part
  rm -rf --one-file-system "$part"
  mkdir -p "$part"
  debootstrap --variant=minbase --include=ca-certificates sid "$part" "$(mirror)"
  # Ignores dates, since a mirror may be some weeks old and a clock may be wrong.
  # Signatures are still checked.
  printf '%s "%s";\n' \
    APT::Install-Recommends false Acquire::Languages none \
    Acquire::Check-Valid-Until false Acquire::Check-Date false \
    >"$part/etc/apt/apt.conf.d/99lean"
  printf 'path-exclude=/usr/share/%s/*\n' man doc locale >"$part/etc/dpkg/dpkg.cfg.d/lean"
  echo force-unsafe-io >>"$part/etc/dpkg/dpkg.cfg.d/lean"
  # Prevents packages from starting services.
  printf '#!/bin/sh\nexit 101\n' >"$part/usr/sbin/policy-rc.d"
  chmod +x "$part/usr/sbin/policy-rc.d"
  mv "$part" "$root"
}

# enter MODE COMMAND...: runs a command inside the root, in this tree, which has the
# same path there. Uses pivot_root because chroot forbids user namespaces, which
# Bazel's sandbox needs. Each mode has its own HOME and so its own output folder.
enter() {
  local mode=$1
  shift
  mkdir -p "$root"/{.host,root/"$mode"} "$cache"
  # Uses the network of the host, with its proxies and their certificates.
  cp -L /etc/resolv.conf "$root/etc/resolv.conf"
  cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/" 2>/dev/null || true
  local environment=("HOME=/root/$mode" USER=root LANG=C.UTF-8 "GPIPE_CACHE=$cache"
    PATH=/usr/sbin:/usr/bin:/sbin:/bin)
  local variable
  for variable in LIBTORCH http_proxy https_proxy no_proxy PIP_INDEX_URL; do
    if [[ -n ${!variable:-} ]]; then environment+=("$variable=${!variable}"); fi
  done
  root=$root tree=$tree cache=$cache unshare --mount --pid --fork --kill-child \
    --propagation private bash -euc '
      mount --bind "$root" "$root"
      mount -t proc proc "$root/proc"
      mount --rbind /dev "$root/dev"
      for folder in "$tree" "$cache" ${LIBTORCH:+"$LIBTORCH"}; do
        mkdir -p "$root$folder"
        mount --bind "$folder" "$root$folder"
      done
      if [[ -e $tree/user.bazelrc ]]; then
        mount --bind /dev/null "$root$tree/user.bazelrc"
      fi
      cd "$root"
      pivot_root . .host
      umount -l /.host
      cd "$tree"
      env -i "$@"
    ' bash "${environment[@]}" "$@"
}

[[ -e $root/etc/debian_version ]] || make_root
root=$(cd "$root" && pwd)
cd "$tree"

declare -A config=([bzlmod]=offline [workspace]=workspace)
command=$1
shift
jobs=()
for option; do
  if [[ $option == --jobs=* ]]; then jobs+=("$option"); fi
done

# Compiles with g++: clang 21 writes absolute paths into precompiled headers, which Bazel
# refuses.
results=()
failed=0
# try MODE NAME COMMAND...: runs the command and stores its result.
try() {
  local mode=$1 name=$2 status=0
  shift 2
  echo "== $name ($mode)"
  enter "$mode" "$@" || status=$?
  results+=("$name ($mode): $( ((status)) && echo "failed, status $status" || echo passed)")
  if ((status)); then failed=1; fi
}

if [[ $registry ]]; then
  modes=()
  rm -rf "$registry"
  tools/registry_entry.sh "$(sed -n 's/^    version = "\(.*\)",$/\1/p' MODULE.bazel)" \
    --ref=HEAD --system "--output=$registry"
  try bzlmod "examples/consumer by a registry" tools/check_consumer.sh \
    --compiler=gcc "--registry=$registry" "${given[@]}"
fi
for mode in ${modes[@]+"${modes[@]}"}; do
  try "$mode" "bazel $command" ./bazelw "$command" --config=gcc "--config=${config[$mode]}" "$@"
  if [[ $consumer ]]; then
    try "$mode" examples/consumer tools/check_consumer.sh --compiler=gcc \
      "--config=${config[$mode]}" "${jobs[@]}"
  fi
done
printf '%s\n' "${results[@]}"
exit "$failed"
