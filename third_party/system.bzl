"""A repository out of a folder of this tree.

local_repository would do in this tree, but its path is relative to the main
workspace, so it breaks where gpipe itself is an external repository. A label
resolves in both.
"""

def _system_repository_impl(ctx):
    # Through the root package and not by a label of the folder itself: the
    # folder is in .bazelignore, hence it is no package.
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
    # Looked at again when the server starts, so that an edit of the folder (a
    # new file) is seen. It costs a handful of symlinks.
    local = True,
    doc = "Symlinks the entries of `folder` (relative to gpipe's root) into a repository.",
)
