"""The object files of libraries, for a shared library that has all of them.

A linker takes from a static library only what is used, and nothing uses the public
functions inside of a shared library.
"""

def _objects_impl(ctx):
    objects = []
    others = []
    for input in ctx.attr.library[CcInfo].linking_context.linker_inputs.to_list():
        if input.owner.workspace_name != ctx.label.workspace_name:
            others.append(input)
            continue
        for library in input.libraries:
            objects += library.pic_objects or library.objects or []
        if input.user_link_flags:
            others.append(cc_common.create_linker_input(
                owner = input.owner,
                user_link_flags = depset(input.user_link_flags),
            ))
    return [
        DefaultInfo(files = depset(objects)),
        CcInfo(linking_context = cc_common.create_linking_context(
            linker_inputs = depset(others, order = "topological"),
        )),
    ]

objects = rule(
    implementation = _objects_impl,
    attrs = {"library": attr.label(mandatory = True, providers = [CcInfo])},
    doc = """The object files of `library` and of what it depends on in this repository.

For `srcs` of a cc_binary. In its `deps`, it stands for what other repositories bring.""",
)
