"""Skip tensors for a plain nn.Sequential, with torchgpipe's interface.

The layers of models.py that stash and pop are written once, for any module with
`skippable`, `stash`, `pop` and `Namespace`: torchgpipe.skip, that of fairscale, or this
module, which keeps the tensors in a dictionary of the process.
"""

from torch import nn

# The tensors that are stashed and not yet popped, by (namespace, name).
store = {}


class Namespace:
    """Separates skip tensors of the same name."""


class stash:  # pylint: disable=invalid-name
    def __init__(self, name, tensor):
        self.name, self.tensor = name, tensor


class pop:  # pylint: disable=invalid-name
    def __init__(self, name):
        self.name = name


class Skippable(nn.Module):
    """A module that runs a layer whose forward() yields `stash` and `pop` requests."""

    def __init__(self, layer, stashes, pops):
        super().__init__()
        self.layer = layer
        self.names = {"stash": stashes, "pop": pops}
        self.namespace = None

    def isolate(self, namespace):
        self.namespace = namespace
        return self

    def keys(self, kind):
        """Returns the keys that the layer stashes (`kind` "stash") or pops ("pop")."""
        return [(self.namespace, name) for name in self.names[kind]]

    def forward(self, x):
        run = self.layer(x)
        answer = None
        while True:
            try:
                request = run.send(answer)
            except StopIteration as end:
                return end.value
            key = (self.namespace, request.name)
            if isinstance(request, stash):
                store[key] = request.tensor
                answer = None
            else:
                answer = store.pop(key)


def skippable(stash=(), pop=()):  # pylint: disable=redefined-outer-name
    def of(layer):
        return lambda *arguments: Skippable(layer(*arguments), stash, pop)

    return of
