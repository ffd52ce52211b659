"""Makes a repository from a folder of this tree.

local_repository would work in this tree. But its path is relative to the main
workspace, so it fails if gpipe is an external repository. A label works in both
cases.
"""

def _system_repository_impl(ctx):
    # Starts from the root package. A label of the folder itself is not
    # possible: the folder is in .bazelignore and so is not a package.
    folder = ctx.path(Label("//:deps.bzl")).dirname
    for part in ctx.attr.folder.split("/"):
        folder = folder.get_child(part)
    for entry in folder.readdir():
        ctx.symlink(entry, entry.basename)
    if not folder.get_child("WORKSPACE").exists:
        ctx.file("WORKSPACE", "workspace(name = \"{}\")\n".format(ctx.name))

system_repository = repository_rule(
    implementation = _system_repository_impl,
    attrs = {"folder": attr.string(mandatory = True)},
    # Runs again when the Bazel server starts, so that new files in the folder
    # are found. This costs only a few symlinks.
    local = True,
    doc = "Symlinks the entries of `folder` (relative to gpipe's root) into a repository.",
)
