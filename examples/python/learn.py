#!/usr/bin/env python3
"""Train a small language model, and have an engine generate with the weights of every step, in a process of its own.

    python3 learn.py train &
    python3 learn.py engine

The model learns which token follows another one: 3 * token + 1, modulo 31. Both processes print a line of JSON for
each step. The loss is the trainer's, the tokens are the engine's, and both print a digest of the logits that they
compute for one prompt: the weights are the same if these are, bit by bit.
"""

import argparse
import hashlib
import json

import torch

import demo  # noqa: F401  # finds gpufd in this repository
import gpufd
import small

NAME, VOCABULARY = "learn", 31
PROMPT, GENERATED = [1, 4, 13], 8


def following(tokens):
    return (3 * tokens + 1) % VOCABULARY


def new_model(device):
    torch.manual_seed(1)
    return small.Model(VOCABULARY, width=32, blocks=2).to(device)


def learn(model, optimizer, device):
    """Take one step on new sequences, and return the loss."""
    rows = [torch.randint(VOCABULARY, (64,))]
    while len(rows) < 8:
        rows.append(following(rows[-1]))
    tokens = torch.stack(rows, 1).to(device)
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), following(tokens).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def digest(model, prompt):
    """Return a digest of all logits for a prompt."""
    with torch.no_grad():
        return hashlib.sha256(model(prompt).cpu().numpy().tobytes()).hexdigest()


def say(**fields):
    print(json.dumps(fields), flush=True)


def train(args, prompt):
    model = new_model(args.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with gpufd.weights.Publisher(args.name, model.state_dict(), bucket=1 << 20) as pub:
        pub.await_subscribers(1, timeout=60)
        for step in range(1, args.steps + 1):
            loss = learn(model, optimizer, args.device)
            with pub.update(step) as send:
                for name, tensor in model.state_dict().items():
                    send(name, tensor)
            say(step=step, loss=loss, logits=digest(model, prompt))
        pub.await_loaded(timeout=60)


def engine(args, prompt):
    model = new_model(args.device)
    with gpufd.weights.Subscriber(args.name, wait=60) as sub:
        for update in sub:
            update.load(lambda tensors: model.load_state_dict(dict(tensors)))
            say(step=update.step, tokens=small.generate(model, prompt, GENERATED), logits=digest(model, prompt))


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("role", choices=("train", "engine"))
    p.add_argument("--name", default=NAME, help="of the publisher (%(default)s)")
    p.add_argument("--steps", type=int, default=30, help="how many to train (%(default)s)")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda, or cpu with the software driver (%(default)s)")
    args = p.parse_args()
    prompt = torch.tensor([PROMPT], device=args.device)
    {"train": train, "engine": engine}[args.role](args, prompt)


if __name__ == "__main__":
    main()
