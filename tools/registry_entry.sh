#!/usr/bin/env bash
#
# Makes the entry of a version of gpipe for a Bazel registry, in the form of the Bazel
# Central Registry:
#
#   tools/registry_entry.sh VERSION --output=FOLDER [OPTIONS]
#
# FOLDER is a registry: an empty folder, or a checkout of one that other modules are in.
# It gets modules/gpipe/metadata.json, and MODULE.bazel, source.json and presubmit.yml in
# modules/gpipe/VERSION. The archive is gpipe-VERSION.tar.gz beside FOLDER/modules, made
# from the tag vVERSION.
#
#   --ref=REF             another commit than the tag; its MODULE.bazel has VERSION
#   --url=URL             where users download the archive; default: the file in FOLDER.
#                         Upload that very file there, since source.json has its checksum.
#   --homepage=URL, --repository=HOST:OWNER/NAME, --maintainer="NAME <EMAIL>"
#                         for metadata.json
#   --system              adds the modules that gpipe depends on, made of Debian's packages:
#                         for machines that reach no other registry
#
# A project uses FOLDER by `common --registry=file://FOLDER` in its .bazelrc, before or
# instead of other registries. For Debian's Bazel, add `common --lockfile_mode=off`.
set -euo pipefail

die() {
  echo "registry_entry: $*" >&2
  exit 1
}

cd "$(dirname "${BASH_SOURCE[0]}")/.."
version= output= ref= url= system=
metadata=()
while (($#)); do
  case $1 in
    -h | --help)
      sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "tools/${BASH_SOURCE[0]##*/}"
      exit
      ;;
    --output=*) output=$(cd "$OLDPWD" && realpath -m "${1#*=}") ;;
    --ref=*) ref=${1#*=} ;;
    --url=*) url=${1#*=} ;;
    --homepage=* | --repository=* | --maintainer=*) metadata+=("${1#--}") ;;
    --system) system=1 ;;
    -*) die "unknown option $1 (see --help)" ;;
    *)
      [[ ! $version ]] || die "one VERSION only, not $version and $1"
      version=$1
      ;;
  esac
  shift
done
for each in "${metadata[@]}"; do
  [[ $each != maintainer=* || $each =~ ^maintainer=.+\ \<.+\>$ ]] ||
    die "--$each: must be \"NAME <EMAIL>\""
done
[[ $version && $output ]] || die "VERSION and --output=FOLDER are needed (see --help)"
ref=${ref:-v$version}
git rev-parse --quiet --verify "$ref^{commit}" >/dev/null ||
  die "there is no tag or commit $ref; make the tag, or give --ref=COMMIT"
module=$(git show "$ref:MODULE.bazel")
grep -q "^    version = \"$version\",$" <<<"$module" ||
  die "MODULE.bazel of $ref has another version than $version"

entry=$output/modules/gpipe/$version
archive=$output/gpipe-$version.tar.gz
mkdir -p "$entry"
git archive --format=tar --prefix="gpipe-$version/" "$ref" | gzip -n >"$archive"
echo "$module" >"$entry/MODULE.bazel"

cat >"$entry/presubmit.yml" <<'YAML'
# Bazel 8 was not tried yet. Bazel 9 cannot load gpipe.
matrix:
  platform: [debian12, ubuntu2404]
  bazel: [7.x]
tasks:
  verify_targets:
    name: Build the libraries
    platform: ${{ platform }}
    bazel: ${{ bazel }}
    build_flags: ["--cxxopt=-std=c++20", "--host_cxxopt=-std=c++20"]
    build_targets:
      - "@gpipe//gpipe"
      - "@gpipe//gpipe/distributed"
      - "@gpipe//balancing"
bcr_test_module:
  module_path: examples/consumer
  matrix:
    platform: [debian12, ubuntu2404]
    bazel: [7.x]
  tasks:
    run_test_module:
      name: Build the example project
      platform: ${{ platform }}
      bazel: ${{ bazel }}
      build_targets: ["//:main"]
YAML

python3 - "$entry" "$version" "${url:-file://$archive}" "$archive" ${metadata[@]+"${metadata[@]}"} <<'PYTHON'
import base64, hashlib, json, pathlib, re, sys

entry, version, url, archive, *pairs = sys.argv[1:]
entry = pathlib.Path(entry)
given = dict(pair.split("=", 1) for pair in pairs)


def write(path, value):
    path.write_text(json.dumps(value, indent=4) + "\n")


digest = hashlib.sha256(pathlib.Path(archive).read_bytes()).digest()
write(entry / "source.json", {
    "url": url,
    "integrity": "sha256-" + base64.b64encode(digest).decode(),
    "strip_prefix": f"gpipe-{version}",
})

path = entry.parent / "metadata.json"
metadata = {"homepage": "", "maintainers": [], "repository": [], "versions": [],
            "yanked_versions": {}}
if path.exists():
    metadata.update(json.loads(path.read_text()))
if "homepage" in given:
    metadata["homepage"] = given["homepage"]
if "repository" in given:
    metadata["repository"] = [given["repository"]]
if "maintainer" in given:
    name, email = re.fullmatch(r"(.*) <(.*)>", given["maintainer"]).groups()
    metadata["maintainers"] = [{"name": name, "email": email}]
if version not in metadata["versions"]:
    metadata["versions"].append(version)
    metadata["versions"].sort(key=lambda v: [int(n) for n in re.findall(r"\d+", v)])
write(path, metadata)
PYTHON

if [[ $system ]]; then
  # Each stand-in of --config=offline as a module of the registry. rules_python of Debian
  # asks for a second version of protobuf.
  echo '{"module_base_path": "system"}' >"$output/bazel_registry.json"
  for file in third_party/*/MODULE.bazel third_party/bzlmod/*/MODULE.bazel; do
    name=$(sed -n 's/^module(name = "\([^"]*\)".*/\1/p' "$file")
    versions=$(sed -n 's/^module(.*version = "\([^"]*\)".*/\1/p' "$file")
    if [[ $name == protobuf ]]; then versions+=" 21.7"; fi
    mkdir -p "$output/system"
    rm -rf "$output/system/$name"
    cp -r "$(dirname "$file")" "$output/system/$name"
    for each in $versions; do
      folder=$output/modules/$name/$each
      mkdir -p "$folder"
      sed "/^module(/s/version = \"[^\"]*\"/version = \"$each\"/" "$file" >"$folder/MODULE.bazel"
      echo "{\"type\": \"local_path\", \"path\": \"$name\"}" >"$folder/source.json"
    done
  done
elif [[ ! -e $output/bazel_registry.json ]]; then
  echo '{}' >"$output/bazel_registry.json"
fi
echo "registry_entry: $entry; $(du -h "$archive" | cut -f1) in $archive"
