#!/usr/bin/env python3
"""Serve a language model over HTTP from kept weights. Newer versions and adapters come in without a lost request.

    gpufd keeper &
    python3 serve.py llama                  # llama was put by gpufd.transformers.put
    curl -N 127.0.0.1:8000/generate -d '{"prompt": [1, 7, 300], "max_tokens": 8}'

One thread computes: each request under way gets one step in turn, so all streams go on evenly. A request finishes on the
version of the weights that it began with, and later ones get the newest. docs/howto-serve.md has the answers, the metrics, and
what happens when something dies. It needs transformers.
"""

import argparse
import collections
import contextlib
import copy
import functools
import gc
import json
import os
import pathlib
import queue
import signal
import sys
import threading
import time
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from transformers import AutoTokenizer

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "python"))  # not installed

import gpufd.torch  # noqa: E402
import gpufd.transformers  # noqa: E402

ACTIVE = 8  # requests that take turns
CHUNK = 512  # tokens of a prompt in one step
BODY = 8 << 20  # bytes of a request at most
PAUSE = 0.05  # seconds between the parts of a swap, so that they slow different steps
STEPS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # buckets of the histogram, in seconds
FIELDS = ("prompt", "max_tokens", "adapter")
TEXTS = ("config.json", "generation_config.json", "transformers")  # texts that gpufd.transformers.put keeps beside weights


def say(**line):
    print(json.dumps(line) + "\n", end="", flush=True)  # in one piece, because several threads say things


class Refused(Exception):
    """Refuses a request, with an HTTP status and a text."""


class Request:
    """A prompt, and what is generated from it."""

    def __init__(self, prompt, max_tokens, adapter):
        self.todo, self.left, self.adapter = prompt, max_tokens, adapter  # todo: what the model has not seen
        self.version = self.cache = self.end = None  # end: an HTTP status, and a reason
        self.events = queue.SimpleQueue()  # tokens, then end
        self.gone = False  # the client

    def begin(self, version):
        self.version, self.served = version, {"version": version.number, "adapter_version": self.adapter and self.adapter.number}
        version.users += 1

    def check(self):
        """Raise Refused if the request does not fit its version."""
        module, known = self.version.module, self.version.module.get_input_embeddings().num_embeddings
        room = getattr(module.config, "max_position_embeddings", None)
        if max(self.todo) >= known:
            raise Refused(400, f"prompt has token {max(self.todo)}, and the model knows {known}")
        if room and len(self.todo) + self.left > room:
            raise Refused(400, f"prompt has {len(self.todo)} tokens and max_tokens is {self.left}, and the model has room for {room}")
        if self.adapter and self.adapter.base not in (None, str(self.version.number)):
            raise Refused(409, f"the adapter is for version {self.adapter.base}, and version {self.version.number} is served")

    def finish(self, status, reason):
        self.end = status, reason
        self.events.put(self.end)


# Weights.


class Version:
    """A version of the weights, the module that has them, and the number of requests that use it."""

    def __init__(self, kept):
        self.kept, self.number, self.users = kept, kept.version, 0
        self.texts = [kept.metadata.get(name) for name in TEXTS]

    def remap(self):
        """Map the weights again after a sleep. Return False if the keeper has this version no more."""
        try:
            self.kept.attachment.reattach()
            return True
        except (gpufd.RefusedError, gpufd.NotFoundError) as e:
            if e.reason not in ("other-memory", "not-found"):
                raise
            return False


def take_weights(module):
    """Leave a module without memory for what is kept (device meta). Tied weights stay tied, and buffers that are in no file stay."""
    empty = {}  # by the identity of the kept tensor, which lives as long as the module's other places have it
    kept = module.state_dict(keep_vars=True).values()
    for t in kept:
        new = torch.empty_like(t, device="meta")
        empty.setdefault(id(t), torch.nn.Parameter(new, requires_grad=False) if isinstance(t, torch.nn.Parameter) else new)
    for m in module.modules():
        for name, t in (*m._parameters.items(), *m._buffers.items()):
            if id(t) in empty:
                setattr(m, name, empty[id(t)])


class Adapter:
    """A LoRA adapter that is mapped: scale·B·A for the weights of some layers. examples/python/lora.py says how one is kept."""

    def __init__(self, name, socket, module):
        with gpufd.get(name, socket=socket, timeout=5) as version:
            if len(version.parts) != 1:
                raise Refused(409, f"adapter {name} has {len(version.parts)} parts: put it as one")
            (self.part,) = version.take()
        labels, tensors = self.part.data.labels, gpufd.torch.tensors(self.part)
        self.renewing = False
        self.number, self.base = self.part.data.version, labels.get("base")
        try:
            self.scale = float(labels["alpha"]) / int(labels["rank"])
            self.layers = {path: (tensors[f"{path}.A"], tensors[f"{path}.B"]) for path in (t.removesuffix(".A") for t in tensors if t.endswith(".A"))}
            for path, (a, b) in self.layers.items():
                w = module.get_submodule(path).weight
                if [b.shape[0], *a.shape] != [w.shape[0], b.shape[1], w.shape[1]] or not a.dtype == b.dtype == w.dtype:
                    raise ValueError(f"{path}: B·A is {list(b.shape)}·{list(a.shape)} of {a.dtype}, and the weight {list(w.shape)} of {w.dtype}")
        except (LookupError, ValueError, AttributeError, ZeroDivisionError) as e:
            raise Refused(409, f"adapter {name}, version {self.number}, does not fit: {type(e).__name__}: {e}") from None

    def state(self):
        """Return "held" of the current adapter, "newer" if there is another one or none, and "lost" if the keeper was lost."""
        attachment = self.part.attachment
        if attachment.superseded or not attachment.done:
            return "newer" if attachment.superseded else "held"
        return "lost" if attachment.err.reason in ("lost", "restarting") else "newer"


class Adapters:
    """The adapters that this process has mapped, by name."""

    def __init__(self, prefix, socket):
        self.prefix, self.socket, self.held = prefix, socket, {}
        self.turn = threading.Lock()  # held by the thread that maps one

    def get_all(self, module):
        """Map each adapter that is kept, before a request asks for it: it is served on when the keeper and its store are killed."""
        try:
            with gpufd.Client(self.socket) as client:
                names = [kept.name.removeprefix(self.prefix) for kept in client.list() if kept.name.startswith(self.prefix)]
        except gpufd.Error as e:
            return say(adapters=str(e))
        for name in names:
            try:
                self.get(name, module)
            except (gpufd.Error, Refused) as e:
                say(adapter=name, why=str(e))

    def get(self, name, module):
        """Return an adapter as it is kept now; or as it was, if the keeper is lost, or the newer one does not fit."""
        held = self.held.get(name)
        state = held.state() if held else "newer"
        if state == "newer":
            return self.renew(name, module, held, state)
        if state == "lost" and not held.renewing:
            held.renewing = True  # in a thread: a lost keeper takes seconds not to answer
            threading.Thread(target=self.renew, args=(name, module, held, state), daemon=True).start()
        return held

    def renew(self, name, module, held, state):
        """Map an adapter as it is kept now, and return it."""
        with self.turn:
            if (now := self.held.get(name)) and now is not held:
                return now  # another thread has mapped it meanwhile
            try:
                new = self.held[name] = Adapter(self.prefix + name, self.socket, module)
            except (gpufd.Error, Refused) as e:
                if not held or state == "newer" and isinstance(e, gpufd.NotFoundError):  # it was removed
                    self.held.pop(name, None)
                    raise
                say(adapter=name, serves_on=held.number, why=str(e))
                held.renewing, new = False, held
            return new


@contextlib.contextmanager
def adapted(module, adapter):
    """Have the layers of a module add what an adapter changes."""
    with contextlib.ExitStack() as hooks:
        for path, (a, b) in adapter.layers.items() if adapter else ():
            hooks.callback(module.get_submodule(path).register_forward_hook(functools.partial(add, a, b, adapter.scale)).remove)
        yield


def add(a, b, scale, layer, args, out):
    return out + scale * (args[0] @ a.T @ b.T)


# The engine.


class Engine:
    """The requests, the thread that computes them, and the versions of the weights."""

    def __init__(self, name, socket, limit):
        self.name, self.socket, self.limit = name, socket, limit
        self.adapters = Adapters(f"{name}/adapters/", socket)
        self.turn = threading.Lock()  # held by what maps and unmaps weights
        self.late = None  # the newest Version, if it came while the engine slept
        self.changed = threading.Condition()  # guards what follows
        self.newest = None  # the Version that requests get
        self.spares = None  # modules without weights, from the first version on: two take turns with the versions
        self.waiting, self.active = collections.deque(), []
        self.streams = 0  # requests that are not answered whole
        self.asleep = self.ending = self.over = False
        self.counts = collections.Counter()

    # Requests.

    def submit(self, r):
        """Have a request wait for its turns."""
        with self.changed:
            self.check_open()
            if len(self.active) + len(self.waiting) >= ACTIVE + self.limit:
                raise Refused(429, f"{len(self.waiting)} requests wait, and no more are taken")
            self.waiting.append(r)
            self.streams += 1
            self.changed.notify_all()

    def check_open(self):
        """Raise Refused unless requests are taken now."""
        why = "the server ends" if self.ending else "the model sleeps" if self.asleep else "" if self.newest else f"no version of {self.name} is here yet"
        if why:
            raise Refused(503, why)

    def answered(self, r):
        """Note that nobody writes to a request's client any more."""
        with self.changed:
            r.gone = True
            self.streams -= 1
            self.changed.notify_all()

    def run(self):
        """Compute until the end: in a thread of its own."""
        try:
            while self.admit():
                for r in self.active:
                    began = time.monotonic()
                    self.turn_of(r)
                    self.note_step(time.monotonic() - began)
        except BaseException:
            traceback.print_exc()
            os._exit(70)  # the device is lost: whoever supervises the server starts it again

    def admit(self):
        """Let go of requests that have ended, wait for one, and give those that begin a version. Return False at the end."""
        with self.changed:
            for r in [r for r in self.active if r.end]:
                self.active.remove(r)
                self.leave(r)
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.active or self.waiting or self.over)
            while self.waiting and len(self.active) < ACTIVE:
                self.active.append(self.waiting.popleft())
                self.active[-1].begin(self.newest)
            for r in (*self.active, *self.waiting) if self.over else ():
                r.finish(503, "the server ends")
            return not self.over

    def leave(self, r):
        """Let go of what a request used."""
        version, r.version, r.cache, r.adapter = r.version, None, None, None
        self.counts[f'requests_total{{result="{ {200: "done", 499: "gone"}.get(r.end[0], "failed") }"}}'] += 1
        version.users -= 1
        self.retire(version)

    def turn_of(self, r):
        """Compute a step of a request."""
        try:
            if r.gone:
                raise Refused(499, "the client has gone")
            if r.cache is None:
                r.check()
            self.step(r)
        except Refused as e:
            r.finish(*e.args)
        except Exception as e:  # a fault of this request, unless the device is lost
            r.finish(500, f"{type(e).__name__}: {e}")
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()

    def step(self, r):
        """Compute a chunk of the prompt, or the next token."""
        module, now, r.todo = r.version.module, r.todo[:CHUNK], r.todo[CHUNK:]
        device = next(module.parameters()).device
        with torch.inference_mode(), adapted(module, r.adapter):
            out = module(input_ids=torch.tensor([now], device=device), past_key_values=r.cache, use_cache=True)
            r.cache = out.past_key_values
            if r.todo:
                return
            token = int(out.logits[0, -1].argmax())
        stops = module.generation_config.eos_token_id
        if token in (stops if isinstance(stops, list) else [stops]):
            return r.finish(200, "stop")
        r.todo, r.left = [token], r.left - 1
        r.events.put(token)
        self.count("tokens_total")
        if not r.left:
            r.finish(200, "length")

    # Versions.

    def follow(self):
        """Take each version that is committed: in a thread of its own."""
        while True:
            try:
                for kept in gpufd.transformers.follow(self.name, socket=self.socket, on_wait=lambda e: say(waits=str(e))):
                    self.arrive(Version(kept))
            except Exception as e:  # this thread goes on: without it no version would come any more
                say(error=str(e) if isinstance(e, gpufd.Error) else f"{type(e).__name__}: {e}")
                if not self.newest and not (isinstance(e, gpufd.Error) and e.retryable):
                    os._exit(1)  # there is nothing to serve, and waiting does not mend that
            time.sleep(1)

    def arrive(self, version):
        """Take a version when a module is spare. One that comes while the engine sleeps is unmapped until it wakes."""
        with self.turn:
            with self.changed:
                self.changed.wait_for(lambda: self.spares is None or self.spares)
            if self.newest and self.newest.kept.attachment.generation == version.kept.attachment.generation:
                return  # follow has begun anew
            if self.asleep:
                version.kept.attachment.detach()
                self.late = version
            else:
                self.take(version)

    def take(self, version):
        """Make a version the newest. If it does not fit, tell the keeper why, and return False."""
        try:
            version.module = self.module_for(version)
        except Exception as e:
            if isinstance(e, gpufd.Error) and e.retryable:
                raise
            self.count("versions_refused_total")
            say(refused=version.number, why=str(e))
            version.kept.refuse(e)
            return False
        if not self.newest:
            self.adapters.get_all(version.module)
        with self.changed:
            old, self.newest = self.newest, version
            self.counts["swaps_total"] += old is not None
            if old:
                self.retire(old)
        say(serving=version.number)
        return True

    def module_for(self, version):
        """Return a module with a version's weights: the spare one, or for another configuration a new one, which takes longer."""
        if self.newest and self.newest.texts == version.texts:
            time.sleep(PAUSE)
            version.kept.tensors  # noqa: B018  # are made when they are first asked for
            time.sleep(PAUSE)
            version.kept.swap(self.spares[-1])
            return self.spares.pop()
        module = version.kept.model
        take_weights(module)
        self.spares = [copy.deepcopy(module)]
        version.kept.swap(module)
        return module

    def retire(self, version):
        """Unmap a version that is used no more, in a thread: it takes longer than a step."""
        if not version.users and version is not self.newest:
            threading.Thread(target=self.unmap, args=(version,), daemon=True).start()

    def unmap(self, version):
        module, version.module, version.kept = version.module, None, None
        take_weights(module)
        with self.changed:
            if self.newest and self.newest.texts == version.texts:
                self.spares.append(module)
            self.changed.notify_all()

    # Sleep.

    def sleep(self):
        """Finish the requests that were taken, and unmap the weights. The lease is kept."""
        with self.turn:
            with self.changed:
                if self.asleep:
                    return {"asleep": self.newest.number}
                self.check_open()
                self.asleep = True
                self.changed.wait_for(lambda: self.ending or self.spares and not self.active and not self.waiting)
            try:
                if self.ending:
                    raise Refused(503, "the server ends")
                self.adapters.held.clear()
                kept = self.newest.kept.attachment.detach()
            except BaseException:
                self.asleep = False
                raise
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
            return {"asleep": self.newest.number, "lease_kept": kept}

    def wake(self):
        """Map the newest version, or the one before if that does not fit."""
        with self.turn:
            if self.asleep:
                fits = self.late and self.late.remap() and self.take(self.late)
                self.late = None
                if not fits and not self.newest.remap():
                    with self.changed:  # it was removed, or the store was killed: follow brings the next one
                        old, self.newest = self.newest, None
                        self.retire(old)
                self.asleep = False
                if self.newest:
                    self.adapters.get_all(self.newest.module)
            return self.health()

    # Health, metrics, and the end.

    def served(self):
        """Return the Version that requests get now, or raise Refused."""
        with self.changed:
            self.check_open()
            return self.newest

    def health(self):
        return {"version": self.served().number}

    def count(self, series):
        with self.changed:
            self.counts[series] += 1

    def note_step(self, took):
        with self.changed:
            for le in (*STEPS, float("inf")):
                self.counts[f'step_seconds_bucket{{le="{le:g}"}}'.replace("inf", "+Inf")] += took <= le
            self.counts["step_seconds_count"] += 1
            self.counts["step_seconds_sum"] += took

    def metrics(self):
        with self.changed:
            now = {"active": len(self.active), "waiting": len(self.waiting), "adapters": len(self.adapters.held), "asleep": int(self.asleep)}
            values = dict(self.counts) | now | {"version": self.newest.number if self.newest else 0}
        lines, families = [], set()
        for series, value in sorted(values.items(), key=lambda item: item[0].partition("{")[0]):  # buckets stay in the order of their bounds
            name = series.partition("{")[0]
            family, kind = ("step_seconds", "histogram") if name.startswith("step_") else (name, "counter" if name.endswith("_total") else "gauge")
            if family not in families:
                lines.append(f"# TYPE gpufd_serve_{family} {kind}\n")
                families.add(family)
            lines.append(f"gpufd_serve_{series} {value}\n")
        return "".join(lines)

    def end(self, limit):
        """Take no more requests, and finish those that were taken within limit seconds. Return how many were cut."""
        with self.changed:
            self.ending = True
            self.changed.notify_all()
            self.changed.wait_for(lambda: not self.streams, limit)
            self.over, cut = True, self.streams
            self.changed.notify_all()
            self.changed.wait_for(lambda: not self.streams, 5)
        return cut


# HTTP.


class Text:
    """Turns tokens into pieces of text. A character may take several tokens: the last one brings it."""

    def __init__(self, tokenizer):
        self.tokenizer, self.tokens, self.said = tokenizer, [], 0

    def piece(self, token):
        self.tokens.append(token)
        whole = self.tokenizer.decode(self.tokens)
        piece = "" if whole.endswith("\ufffd") else whole[self.said :]
        self.said += len(piece)
        return piece


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a token goes out when it is there
    timeout = 60  # seconds that a client may send nothing, or not read

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.answer({"/metrics": self.server.engine.metrics, "/healthz": self.server.engine.health})

    def do_POST(self):
        self.answer({"/generate": self.generate, "/sleep": self.server.engine.sleep, "/wake": self.server.engine.wake})

    def answer(self, paths):
        """Send what the function of a path returns, or the text of what it raises."""
        try:
            if self.path not in paths:
                raise Refused(404, f"{self.command} {self.path[:100]}: there are POST /generate, /sleep and /wake, GET /metrics and /healthz")
            self.fields = self.read_fields()  # also for GET: what is not read would be the next request
            result = paths[self.path]()
            if result is not None:
                self.reply(200, result)
        except Refused as e:
            self.refuse(*e.args)
        except gpufd.Error as e:
            kinds = {gpufd.NotFoundError: 404, gpufd.MismatchError: 409, gpufd.UsageError: 400}
            self.refuse(next((status for kind, status in kinds.items() if isinstance(e, kind)), 503), str(e))
        except OSError:
            self.close_connection = True  # the client has gone

    def refuse(self, status, text):
        if self.path == "/generate":
            self.server.engine.count(f'refusals_total{{status="{status}"}}')
        self.close_connection = True  # the body may not have been read
        self.reply(status, {"error": text}, {"Connection": "close"} | ({"Retry-After": "1"} if status in (429, 503) else {}))

    def reply(self, status, what, headers={}):  # noqa: B006
        text, kind = (what, "text/plain; version=0.0.4") if isinstance(what, str) else (json.dumps(what) + "\n", "application/json")
        self.send_head(status, headers | {"Content-Type": kind, "Content-Length": str(len(text))})
        self.wfile.write(text.encode())

    def send_head(self, status, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def read_fields(self):
        """Return the body, a JSON object."""
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or "Transfer-Encoding" in self.headers:
            raise Refused(411, "the length of the body is not said: send Content-Length")
        if len(length) > 18 or int(length) > BODY:
            raise Refused(413, f"the body has {length[:18]} bytes or more, and {BODY} are taken")
        try:
            fields = json.loads(self.rfile.read(int(length)) or "{}")
        except (ValueError, RecursionError) as e:
            raise Refused(400, f"the body is not JSON: {e}") from None
        if not isinstance(fields, dict):
            raise Refused(400, "the body is JSON, but no object")
        return fields

    def asked(self):
        """Return the request that the fields ask for, or raise Refused."""
        engine, tokenizer, fields = self.server.engine, self.server.tokenizer, self.fields
        prompt, most, adapter = fields.get("prompt"), fields.get("max_tokens", 16), fields.get("adapter")
        if unknown := sorted(fields.keys() - FIELDS):
            raise Refused(400, f"unknown field {unknown[0][:100]!r}: there are {', '.join(FIELDS)}")
        if isinstance(prompt, str):
            if not tokenizer:
                raise Refused(400, "prompt is text, and the server was started without --tokenizer: send a list of tokens")
            try:
                prompt = tokenizer.encode(prompt)
            except (ValueError, TypeError) as e:  # half a character of UTF-16
                raise Refused(400, f"prompt is no text: {e}") from None
        if not isinstance(prompt, list) or not prompt or any(type(t) is not int or t < 0 for t in prompt):
            raise Refused(400, "prompt is a text or a list of tokens, numbers from 0 on, and not empty")
        if type(most) is not int or most < 1:
            raise Refused(400, "max_tokens is a number from 1 on")
        if adapter is not None and (not isinstance(adapter, str) or not adapter):
            raise Refused(400, "adapter is a name")
        module = engine.served().module
        return Request(prompt, most, adapter and engine.adapters.get(adapter, module))

    def generate(self):
        """Stream tokens as server-sent events, in chunks of HTTP: so every client notices when a stream breaks off."""
        engine, text = self.server.engine, Text(self.server.tokenizer) if self.server.tokenizer else None
        r = self.asked()
        engine.submit(r)
        try:
            event = r.events.get()
            if event is r.end and event[0] != 200:
                raise Refused(*event)
            self.send_head(200, {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "Transfer-Encoding": "chunked"})
            while event is not r.end:
                self.send_event({"token": event} | ({"text": text.piece(event)} if text else {}))
                event = r.events.get()
            kind, key = ("end", "reason") if r.end[0] == 200 else ("error", "error")
            self.send_event(r.served | {key: r.end[1]}, f"event: {kind}\n")
            self.wfile.write(b"0\r\n\r\n")
        finally:
            engine.answered(r)

    def send_event(self, data, kind=""):
        event = f"{kind}data: {json.dumps(data)}\n\n"
        self.wfile.write(f"{len(event):x}\r\n{event}\r\n".encode())


class Server(ThreadingHTTPServer):
    request_queue_size = 128

    def __init__(self, address, engine, tokenizer):
        super().__init__(address, Handler)
        self.engine, self.tokenizer = engine, tokenizer

    def handle_error(self, request, address):
        if not isinstance(sys.exc_info()[1], OSError):  # the client has gone
            super().handle_error(request, address)


def address(text):
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():  # no host would be all of this machine's
        raise argparse.ArgumentTypeError(f"{text!r}: want HOST:PORT, such as 127.0.0.1:8000")
    return host, int(port)


def flags():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("name", help="name of the kept weights; adapters are kept as NAME/adapters/ADAPTER")
    p.add_argument("--socket", help="the keeper's (GPUFD_SOCKET, or the default one)")
    p.add_argument("--listen", type=address, default="127.0.0.1:8000", metavar="HOST:PORT", help="port 0 takes a free one, which is printed (%(default)s)")
    p.add_argument("--tokenizer", metavar="DIR", help="directory of the model's tokenizer; then prompts may be text")
    p.add_argument("--queue", type=int, default=64, help=f"how many requests may wait, behind the {ACTIVE} that take turns (%(default)s)")
    p.add_argument("--grace", type=float, default=30, help="seconds after SIGTERM for what is under way (%(default)s)")
    return p.parse_args()


def main():
    args, ends = flags(), {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # in every thread: this one waits for them
    gc.freeze()  # the garbage collector passes over what was imported: to look at all of it would stall streams
    engine, tokenizer = Engine(args.name, args.socket, args.queue), AutoTokenizer.from_pretrained(args.tokenizer) if args.tokenizer else None
    try:
        server = Server(args.listen, engine, tokenizer)
    except (OSError, OverflowError) as e:
        sys.exit(f"serve.py: cannot listen at {args.listen[0]}:{args.listen[1]}: {e}; choose another address by --listen")
    for work in (engine.run, engine.follow, server.serve_forever):
        threading.Thread(target=work, daemon=True).start()
    say(listening=f"{args.listen[0]}:{server.server_port}")
    signal.sigwait(ends)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ends)  # a second one ends the server at once
    cut = engine.end(args.grace)
    say(cut=cut)
    os._exit(1 if cut else 0)  # threads that wait have nothing to finish


if __name__ == "__main__":
    main()
