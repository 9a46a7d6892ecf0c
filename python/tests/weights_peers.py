"""Trainers and engines that the tests of weights run beside themselves, in processes of their own.

Each tensor of an update has random bits that follow from the step and from its number in the update, so that any process can tell
whether all of its bytes are those of the step.
"""

import json
import os
import sys

import common  # noqa: F401  # first: it says where the package is
import gpufd

PARTS = ("q", "k", "v", "o", "up", "down", "norm")


def lib():
    import torch

    return torch


def place():
    return "cuda" if lib().cuda.is_available() else "cpu"


def layout(layers, width):
    """Names and shapes of some layers' tensors."""
    for i in range(layers):
        yield from ((f"{i}.{part}", (width,) if part == "norm" else (width, width)) for part in PARTS)


def bits(step, number, shape):
    """Return BF16 tensors of random bits, which are the same in every process."""
    torch = lib()
    random = torch.Generator(place()).manual_seed(step * 10_000 + number)
    return torch.randint(-(1 << 15), 1 << 15, shape, dtype=torch.int16, device=place(), generator=random).view(torch.bfloat16)


def update_of(step, shapes):
    """The tensors of an update, made one by one."""
    for number, (name, shape) in enumerate(shapes):
        yield name, bits(step, number, shape)


def wrong(step, held, shapes):
    """Names of the tensors of held that have not all bytes of the step."""
    torch = lib()
    return [name for name, t in update_of(step, shapes) if not torch.equal(held[name].view(torch.int16), t.view(torch.int16))]


def storage(shapes):
    return {name: lib().zeros(shape, dtype=lib().bfloat16, device=place()) for name, shape in shapes}


def say(**fields):
    print(json.dumps(fields), flush=True)


def begin(o):
    """Take the device, and wait for a word if there shall be one. Returns the shapes."""
    if "visible" in o:
        os.environ["CUDA_VISIBLE_DEVICES"] = o["visible"]
    if place() == "cuda":
        lib().cuda.set_device(o.get("device", 0))
    shapes = list(layout(o["layers"], o["width"]))
    list(update_of(0, shapes[-2:]))  # loads the kernels
    print("ready", flush=True)
    if o.get("held"):
        sys.stdin.readline()
    return shapes


def train(o):
    """Publish updates from step o["first"] on: o["count"] of them, or until this process is killed."""
    shapes, step = begin(o), o.get("first", 1)
    with gpufd.weights.Publisher("policy", socket=o["socket"], bucket=o["bucket"], buckets=o.get("buckets", 4)) as pub:
        pub.await_subscribers(1, common.PATIENCE)
        while not o.get("count") or step < o.get("first", 1) + o["count"]:
            with pub.update(step) as send:
                for name, t in update_of(step, shapes):
                    send(name, t)
            step += 1
        pub.await_loaded(common.PATIENCE)
    say(trained=step - 1)


def work(o):
    """Load each update, and say which of its tensors are wrong, until the publisher ends. With o["quiet"] say how many were right."""
    shapes, torch = begin(o), lib()
    held, right = storage(shapes), 0

    def load(tensors):
        if o.get("slow"):
            torch.cuda._sleep(o["slow"])  # what follows on this stream reads the buckets late
        for name, t in tensors:
            held[name].copy_(t)

    with gpufd.weights.Subscriber("policy", socket=o["socket"], publisher=o.get("publisher"), wait=common.PATIENCE) as sub:
        for update in sub:
            try:
                update.load(load)
                bad = wrong(update.step, held, shapes)
                right += not bad
                if bad or not o.get("quiet"):
                    say(step=update.step, wrong=bad)
            except gpufd.WeightsError as e:
                say(torn=update.step, why=e.reason)
            if update.step in o.get("vitals", ()):
                say(vitals=vitals())
    if o.get("quiet"):
        say(right=right)


def vitals():
    """Descriptors and mappings of this process, and the bytes of PyTorch's tensors."""
    with open("/proc/self/maps") as f:
        return len(common.settled_fds()), sum(1 for _ in f), lib().cuda.memory_allocated() if place() == "cuda" else 0


def tune(o):
    """Write the bound weights in place: the step of each line of standard input."""
    shapes = begin(o)
    module = module_of(shapes)
    with gpufd.weights.Publisher("policy", module.named_parameters(), in_place=True, socket=o["socket"]) as pub:
        pub.bind(module)
        for line in sys.stdin:
            with pub.update(int(line)), lib().no_grad():
                for p, (_, t) in zip(module.parameters(), update_of(int(line), shapes)):
                    p.copy_(t)
            say(step=int(line))


def module_of(shapes):
    """A module whose parameters have these shapes. Their names have no dots."""
    module = lib().nn.Module()
    for name, t in storage(shapes).items():
        module.register_parameter(name.replace(".", "_"), lib().nn.Parameter(t, requires_grad=False))
    return module


if __name__ == "__main__":
    {"train": train, "work": work, "tune": tune}[sys.argv[1]](json.loads(sys.argv[2]))
