"""Skip tensors for a plain nn.Sequential, behind torchgpipe's interface.

The layers of models.py that stash and pop are written once, for whichever module
with `skippable`, `stash`, `pop` and `Namespace` they are given: torchgpipe.skip,
fairscale's, or this one, which keeps tensors in a dictionary of the process.
"""

from torch import nn

# (namespace, name) to tensor, from where it is stashed to where it is popped.
store = {}


class Namespace:
    """Tells the skip tensors of one name apart."""


class stash:  # pylint: disable=invalid-name
    def __init__(self, name, tensor):
        self.name, self.tensor = name, tensor


class pop:  # pylint: disable=invalid-name
    def __init__(self, name):
        self.name = name


class Skippable(nn.Module):
    """Runs a layer whose forward() yields `stash`es and `pop`s."""

    def __init__(self, layer, stashes, pops):
        super().__init__()
        self.layer = layer
        self.names = {"stash": stashes, "pop": pops}
        self.namespace = None

    def isolate(self, namespace):
        self.namespace = namespace
        return self

    def keys(self, kind):
        """What the layer stashes ("stash") or pops ("pop")."""
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
