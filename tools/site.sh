#!/usr/bin/env bash
#
# Makes a web site of README.md, the other pages of the root and docs/, with search, and of
# the API reference:
#
#   tools/site.sh [--output=FOLDER] [--no-api]
#
# Open FOLDER/index.html; the default is site/ in the checkout, which git ignores. Source
# files and folders that a page links become pages, too. Fails if a link leads nowhere.
# MkDocs Material is installed by pip into ~/.cache/gpipe/site (or GPIPE_CACHE), the API
# reference is made by tools/api_docs.sh.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
output=$PWD/site
api=1
for argument; do
  case $argument in
    -h | --help)
      sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "tools/${BASH_SOURCE[0]##*/}"
      exit
      ;;
    --output=*) output=$(cd "$OLDPWD" && realpath -m "${argument#*=}") ;;
    --no-api) api= ;;
    *)
      echo "site: unknown argument $argument (see --help)" >&2
      exit 2
      ;;
  esac
done

venv=${GPIPE_CACHE:-$HOME/.cache/gpipe}/site
# pip installs the program mkdocs long before its theme.
if [[ ! -e $venv/complete ]]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check 'mkdocs-material>=9.5,<10'
  touch "$venv/complete"
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch" "$output.part"' EXIT
mkdir "$scratch/pages"
if [[ $api ]]; then
  tools/api_docs.sh
  cp -r api_docs/html "$scratch/pages/api"
fi

python3 - "$scratch/pages" "$api" <<'PYTHON'
import os, pathlib, re, sys

into, api = pathlib.Path(sys.argv[1]), sys.argv[2]
LINK = re.compile(r"\]\(([^)\s#:]+)(#[^)\s]*)?\)")
CODE = {".cc": "cpp", ".h": "cpp", ".py": "python", ".sh": "bash", ".bzl": "python"}


def write(path, text):
    path = into / path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def page_of(target):
    """The page of a linked file or folder, which it makes unless there is one."""
    if target.suffix == ".md":
        return target
    if target.suffix == ".svg":
        write(target, target.read_text())
        return target
    page = target / "README.md" if target.is_dir() else target.parent / (target.name + ".md")
    if (into / page).exists():
        return page
    if target.is_dir():
        files = sorted(file for file in target.rglob("*") if file.is_file())
        lines = [f"- [{file.relative_to(target)}]({page_of(file).relative_to(target)})"
                 for file in files if file.suffix in CODE or file.suffix in ("", ".txt")]
        write(page, f"# {target}\n\n" + "\n".join(lines) + "\n")
    else:
        language = CODE.get(target.suffix, "")
        write(page, f"# {target}\n\n````{language}\n{target.read_text()}\n````\n")
    return page


for page in [*pathlib.Path(".").glob("*.md"), *pathlib.Path("docs").rglob("*.md")]:
    def link(match):
        target = pathlib.Path(os.path.normpath(page.parent / match[1]))
        if not target.exists():
            return match[0]  # MkDocs reports it.
        return f"]({os.path.relpath(page_of(target), page.parent)}{match[2] or ''})"
    text = LINK.sub(link, page.read_text())
    if api and str(page) == "docs/README.md":
        text = text.replace("\n## API reference\n", "\n## API reference\n\n"
                            "[All names](../api/index.html)\n")
    write(page, text)
PYTHON

# Anchors as on GitHub. No fonts of another host.
cat >"$scratch/mkdocs.yml" <<'YAML'
site_name: gpipe
docs_dir: pages
use_directory_urls: false
theme:
  name: material
  font: false
  features: [navigation.top, toc.follow]
plugins: [search]
markdown_extensions:
  - tables
  - pymdownx.highlight
  - pymdownx.superfences
  - toc:
      permalink: true
      slugify: !!python/object/apply:pymdownx.slugs.slugify {kwds: {case: lower}}
validation:
  links:
    not_found: warn
    anchors: warn
    unrecognized_links: warn
  nav:
    omitted_files: ignore
YAML
if [[ -e $output && ! -e $output/search/search_index.json && $(ls -A "$output") ]]; then
  echo "site: $output has other files; give another --output" >&2
  exit 2
fi
# --quiet would hide warnings from --strict.
NO_MKDOCS_2_WARNING=1 "$venv/bin/mkdocs" build --strict --config-file "$scratch/mkdocs.yml" \
  --site-dir "$output.part" 2>&1 | { grep -v '^INFO' >&2 || true; }
rm -rf "$output"
mv "$output.part" "$output"
echo "site: see $output/index.html"
