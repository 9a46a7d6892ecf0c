"""Tests of what broadcast.sh makes of its lines."""

import json
import os
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))


def lines(way, bare, broadcast):
    said = [{"way": way, "round": 1}, {"what": "bare", "rate": bare}]
    for rank, received in enumerate((0, 5)):
        said.append({"event": "result", "ok": True, "rank": rank, "received": received, "rate": broadcast if received else 1e9})
    ranks = [json.dumps(s) for s in said]
    return ["[rank 0] NCCL says {something}", *("[default1]:" + r for r in ranks[:2]), "".join(ranks[2:]), "3"]


def ratios(*parts):
    p = subprocess.run([sys.executable, "-B", os.path.join(HERE, "ratios.py")], input="\n".join(sum(parts, [])), stdout=subprocess.PIPE, text=True)
    return p.returncode, [json.loads(line) for line in p.stdout.splitlines()]


class Ratios(unittest.TestCase):
    def test_medians_of_the_rank_that_received(self):
        code, said = ratios(*(lines("nvlink", 100, n) for n in (80, 91, 99)), lines("sockets", 10, 9))
        self.assertEqual(code, 0)
        self.assertEqual([(s["way"], s["broadcast"], s["rounds"], s["ok"]) for s in said], [("nvlink", 91, 3, True), ("sockets", 9, 1, True)])

    def test_too_slow_or_not_measured(self):
        for parts in ((lines("nvlink", 100, 91), lines("sockets", 10, 8.9)), (lines("nvlink", 100, 89), lines("sockets", 10, 9)), (lines("nvlink", 100, 91),)):
            code, said = ratios(*parts)
            self.assertEqual((code, sum(s["ok"] for s in said)), (1, 1))


if __name__ == "__main__":
    unittest.main()
