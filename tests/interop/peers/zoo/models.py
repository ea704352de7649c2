"""Random models and optimizers for the makers, and the truth about them, taken while they are in memory.

A truth is a dict:
  format    what the input is: torch, model, trainer, accelerate, dcp or deepspeed
  input     the path of the input below the folder of the case
  about     what was drawn, in words
  weights   {name: tensor} under the names that a model file of the result must have
  masters   {name: tensor}, the fp32 masters of 16-bit weights
  aliases   {second name: first name} of tied parameters
  states    {name: {state: tensor or number}} of the optimizer
  order     the names of the parameters that the optimizer numbers 0, 1, ...
  groups    [{setting: value, "params": [name]}]
  step      the optimizer's count of steps, or None if it has none
  optimizer the optimizer's name in OPTIMIZERS, if it is one of them
  others    names of tensors beside the model that a model file may hold too
"""

import random

import torch

ODD_NAMES = ("layers", "model", "module", "optimizer", "state", "h", "ema", "encoder", "step", "default", "a_b", "weights", "blocks_0")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}


class Block(torch.nn.Module):
    def __init__(self, width, rng):
        super().__init__()
        self.norm = rng.choice((torch.nn.LayerNorm, torch.nn.RMSNorm))(width)
        self.up = torch.nn.Linear(width, width * rng.choice((1, 1, 2)), bias=rng.random() < 0.7)
        self.down = torch.nn.Linear(self.up.out_features, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(torch.nn.Module):
    """An embedding, blocks and a head, with the features that were drawn."""

    def __init__(self, rng, features):
        super().__init__()
        self.width, self.vocabulary = rng.choice((4, 6, 8)), rng.choice((5, 9, 12))
        self.blocks = rng.choice(ODD_NAMES)
        self.embed = torch.nn.Embedding(self.vocabulary, self.width)
        self.add_module(
            self.blocks,
            torch.nn.ModuleList(Block(self.width, rng) for _ in range(rng.choice((1, 2, 11) if "deep" in features else (1, 2)))),
        )
        if "twice" in features:  # one module under two names of its parent
            getattr(self, self.blocks).append(getattr(self, self.blocks)[0])
        if "conv" in features:
            self.mix = torch.nn.Conv1d(self.width, self.width, 1)
        if "batchnorm" in features:
            self.bn = torch.nn.BatchNorm1d(self.width)
        if "scalar" in features:
            self.scale = torch.nn.Parameter(torch.tensor(0.5))
        if "dead" in features:  # has a gradient of zero for ever, and a frozen twin of the same bits
            self.dead = torch.nn.Parameter(torch.zeros(self.width))
            self.twin = torch.nn.Parameter(torch.zeros(self.width), requires_grad=False)
        if "unused" in features:
            self.unused = torch.nn.Linear(3, 2)
        if "buffer" in features:
            self.register_buffer("mask", torch.ones(3, 3).tril().bool())
            self.register_buffer("freq", torch.arange(self.width) / 7)
        if "empty" in features:
            self.empty = torch.nn.Parameter(torch.zeros(0, self.width))
        self.head = torch.nn.Linear(self.width, self.vocabulary, bias=False)
        if "tied" in features:
            self.head.weight = self.embed.weight
        if "frozen" in features:
            for parameter in rng.choice((self.embed, getattr(self, self.blocks)[0])).parameters():
                parameter.requires_grad_(False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in getattr(self, self.blocks):
            x = block(x)
        if hasattr(self, "mix"):
            x = self.mix(x.transpose(1, 2)).transpose(1, 2)
        if hasattr(self, "bn"):
            x = self.bn(x.transpose(1, 2)).transpose(1, 2)
        if hasattr(self, "scale"):
            x = x * self.scale
        if hasattr(self, "dead"):
            x = x + 0 * (self.dead + self.twin)
        return self.head(x).float().square().mean()


def draw(rng, allowed=("tied", "frozen", "batchnorm", "buffer", "scalar", "dead", "unused", "deep", "conv", "empty", "twice"), chance=0.3):
    """The features of a model."""
    return [feature for feature in allowed if rng.random() < chance]


def make_net(rng, features, dtype="fp32"):
    torch.manual_seed(rng.randrange(1 << 30))
    net = Net(random.Random(rng.random()), features).to(DTYPES[dtype])
    if "mixed" in features:
        net.embed.to(torch.bfloat16 if dtype == "fp32" else torch.float32)
    return net


def batch(net, rank=0, step=0):
    return torch.randint(0, net.vocabulary, (3, 4), generator=torch.Generator().manual_seed(100 * rank + step))


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adamw amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "adamw tensor lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-2), foreach=False),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, betas=(0.8, 0.9)),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2),
    "sgd momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, centered=True, momentum=0.5),
    "nadam": lambda p: torch.optim.NAdam(p, lr=1e-2),
    "radam": lambda p: torch.optim.RAdam(p, lr=1e-2),
    "adamax": lambda p: torch.optim.Adamax(p, lr=1e-2),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "asgd": lambda p: torch.optim.ASGD(p, lr=1e-2),
    "rprop": lambda p: torch.optim.Rprop(p, lr=1e-2),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
    "lbfgs": lambda p: torch.optim.LBFGS(
        [x for group in p for x in group["params"]] if p and isinstance(p[0], dict) else p, lr=1e-2, max_iter=2
    ),
}
COMMON = ("adamw", "adamw", "adamw amsgrad", "adam", "sgd momentum")


def arrange(net, rng, ways=("one", "decay", "layers", "reversed", "shuffled", "head first", "frozen too")):
    """Parameters for an optimizer in an order and in groups that people use; and the word for it."""
    way = rng.choice(ways)
    named = [(name, p) for name, p in net.named_parameters() if p.requires_grad or way == "frozen too"]
    if way == "reversed":
        named.reverse()
    elif way == "shuffled":
        rng.shuffle(named)
    elif way == "head first":
        named.sort(key=lambda item: not item[0].startswith("head"))
    parameters = [p for _, p in named]
    if way == "decay":
        groups = [
            {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
        ]
        return [group for group in groups if group["params"]], way
    if way == "layers":
        return [{"params": [p], "lr": 1e-2 / (i + 1)} for i, p in enumerate(parameters)], way
    return parameters, way


def train(net, optimizer, steps, rank=0):
    for step in range(steps):

        def closure():
            optimizer.zero_grad()
            loss = net(batch(net, rank, step))
            loss.backward()
            return loss

        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()


def copied(value):
    """The value without autograd and without a storage that it shares."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone() if type(value) in (torch.Tensor, torch.nn.Parameter) else value  # some subclasses cannot be cloned
    if isinstance(value, dict):
        return {key: copied(child) for key, child in value.items()}
    return [copied(child) for child in value] if isinstance(value, (list, tuple)) else value


def aliases_of(net):
    """{second name: first name} of tensors that a state dict has twice."""
    first, aliases = {}, {}
    for name, tensor in list(net.named_parameters(remove_duplicate=False)) + list(net.named_buffers(remove_duplicate=False)):
        if id(tensor) in first:
            aliases[name] = first[id(tensor)]
        first.setdefault(id(tensor), name)
    return aliases


def steps_of(states):
    found = [int(state["step"]) for state in states.values() if isinstance(state, dict) and "step" in state]
    return max(found) if found else None


def truth_of(net, optimizer=None, /, **more):
    """The truth about a model and its optimizer in one process, under the names of the model."""
    truth = {
        "weights": copied(dict(net.state_dict())),
        "masters": {},
        "aliases": aliases_of(net),
        "states": {},
        "order": [],
        "groups": [],
        "step": None,
        "others": [],
    }
    if optimizer is not None:
        names = {id(p): name for name, p in net.named_parameters()}
        saved = optimizer.state_dict()
        truth["order"] = [names[id(p)] for group in optimizer.param_groups for p in group["params"]]
        truth["states"] = {truth["order"][number]: copied(state) for number, state in saved["state"].items()}
        truth["groups"] = [
            {**copied(group), "params": [truth["order"][number] for number in group["params"]]} for group in saved["param_groups"]
        ]
        truth["step"] = steps_of(truth["states"])
    return {**truth, **more}
