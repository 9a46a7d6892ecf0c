"""What the lines of broadcast.sh come to: for each way the medians of both rates, in GB/s, and
whether the broadcast has 0.9 of the bare one. Exit status 1 if not, or if a way was not measured."""

import json
import sys

import keeping

BAR = 0.9


def objects(lines):
    """The JSON objects in lines, of which one may hold several, and the words of torchrun or NCCL."""
    decoder = json.JSONDecoder()
    for line in lines:
        at = line.find("{")
        while at >= 0:
            try:
                said, end = decoder.raw_decode(line, at)
            except ValueError:
                end = at + 1
            else:
                yield said
            at = line.find("{", end)


def rates(lines):
    """The bare rates and those of the broadcast, by way: of the rank that received."""
    found, way = {}, None
    for said in objects(lines):
        if "way" in said:
            way = found.setdefault(said["way"], {"bare": [], "broadcast": []})
        elif said.get("what") == "bare":
            way["bare"].append(said["rate"])
        elif said.get("event") == "result" and said.get("received"):
            way["broadcast"].append(said["rate"])
    return found


def main():
    found, good = rates(sys.stdin), True
    for way in ("nvlink", "sockets"):
        bare, ours = found.get(way, {}).get("bare"), found.get(way, {}).get("broadcast")
        ok = bool(bare) and bool(ours) and keeping.median(ours) >= BAR * keeping.median(bare)
        if bare and ours:
            keeping.say(way=way, bare=keeping.median(bare), broadcast=keeping.median(ours), ratio=keeping.median(ours) / keeping.median(bare), rounds=len(ours), ok=ok)
        else:
            keeping.say(way=way, ok=False, error="not measured")
        good = good and ok
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
