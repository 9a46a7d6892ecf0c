"""Tests of what frames.py does apart from its libraries: frames are numbers in a list.

	python3 -m unittest discover -s bench/python
"""

import io
import json
import multiprocessing
import threading
import unittest

import frames


class Numbers:
    """Both sides share a list; wrong is added to what is filled."""

    def __init__(self, slots, wrong=0):
        self.slots, self.wrong, self.last, self.recorded, self.waited = slots, wrong, 0, 0, 0

    def make(self, size, slots, conn):
        self.slots[:] = [0] * slots

    def fill(self, slot, value):
        self.slots[slot] = value + self.wrong

    def use(self, slot, copies):
        self.last = self.slots[slot]

    def seen(self, slot, copies):
        return self.last

    def record(self, slot):
        self.recorded += 1
        return b"."

    def wait(self, slot, data):
        assert data == b"."
        self.waited += 1

    def synchronize(self):
        pass

    def free(self):
        pass


def pass_frames(count, slots=3, wrong=0):
    """What the reader says, and both sides."""
    shared = [0] * slots
    writer, reader = Numbers(shared, wrong), Numbers(shared)
    a, b = multiprocessing.Pipe()
    result = []

    def read():
        try:
            result.append(frames.read(reader, b, slots, count, False))
        except RuntimeError as e:
            result.append(e)

    thread = threading.Thread(target=read)
    thread.start()
    frames.write(writer, a, slots, count)
    thread.join(60)
    return result[0], writer, reader


class FramesTest(unittest.TestCase):
    def test_frames_pass(self):
        for count in (4, 5, 100):
            ns, writer, reader = pass_frames(count)
            self.assertGreater(ns, 0)
            self.assertEqual([count] * 4, [writer.recorded, writer.waited, reader.recorded, reader.waited])

    def test_another_frame_is_found(self):
        error, _, _ = pass_frames(8, wrong=1)
        self.assertIn("the last frame was 9, not 8", str(error))

    def test_bad_questions(self):
        out = io.StringIO()
        lines = ["frames 4096 4 0", "frames 0 4 0 64", "frames 6 4 0 64", "frames 4096 0 0 64", "frames 4096 4 2 64", "handoff 1 1", "frames -4 1 0 64"]
        self.assertEqual(0, frames.serve(Numbers([]), None, lines, out))
        answers = [json.loads(line) for line in out.getvalue().splitlines()]
        self.assertEqual(len(lines), len(answers))
        self.assertTrue(all("want" in a["error"] for a in answers))

    def test_a_reader_that_is_gone(self):
        a, b = multiprocessing.Pipe()
        b.close()
        out = io.StringIO()
        self.assertEqual(1, frames.serve(Numbers([]), a, ["frames 4096 4 0 64", "frames 4096 4 0 64"], out))
        self.assertEqual(1, len(out.getvalue().splitlines()))


if __name__ == "__main__":
    unittest.main()
