"""When buckets are given back: behind all work that reads them, against the stand-ins for libcuda and PyTorch."""

import gc
import os
import unittest
from unittest import mock

import common
import gpufd
import test_channelstreams as streams
from common import PATIENCE
from gpufd.memory.cuda import CudaMemory
from test_weightsstreams import SHORT, WeightsDriver, full


class StandIn(unittest.TestCase):
    @unittest.skipIf(os.environ.get(streams.INSIDE), "it is the other process")
    def test_claims_with_the_stand_in(self):
        streams.run_with_stand_in(self, "test_weightsclaims", "test_streams_that_were_current_while_a_bucket_was_read")


@unittest.skipUnless(os.environ.get(streams.INSIDE), "in the process with the stand-in")
class ByStreams(WeightsDriver):
    def sends(self, pub, step):
        with self.torch.on(self.trains), pub.update(step) as send:
            for name in "ab":
                send(name, self.torch.tensor(full(step)))

    def test_streams_that_were_current_while_a_bucket_was_read(self):
        """The engine changes its stream between two tensors."""
        for held in (self.other, self.serves):
            with self.sides(stall=SHORT) as (pub, sub):
                for step in (1, 2):
                    self.sends(pub, step)
                self.gate.hold(held)
                for _ in range(2):
                    pairs = sub.next(PATIENCE).tensors()
                    with self.torch.on(self.other):
                        next(pairs)
                    with self.torch.on(self.serves):
                        self.assertEqual(len(list(pairs)), 1)
                with common.raises(self, gpufd.ChannelError, "stalled", "keeps 2 of 2"):
                    self.sends(pub, 3)
                self.gate.open()
                self.serves.synchronize()
                self.sends(pub, 4)

    def test_copies_that_are_no_work_of_streams(self):
        """An Array's copy has only begun: its bucket comes back when the device is idle."""
        with self.sides() as (pub, sub):
            self.sends(pub, 1)
            done, real = [], CudaMemory.finish

            def finish(memory):
                done.append([m.kept for m in pub._writer.members])
                real(memory)

            lacks = mock.patch.object(gpufd.weights.views, "_torch_has", lambda dtype: None)
            with lacks, mock.patch.object(CudaMemory, "finish", finish):
                with self.torch.on(self.serves):
                    kept = list(sub.next(PATIENCE).tensors(copy=True))
                gc.collect()
                sub._pass()
            self.assertEqual([a.tobytes() for _, a in kept], [full(1)] * 2)
            self.assertIn([1], done)


if __name__ == "__main__":
    unittest.main()
