"""The pipeline of examples/python, camera, model and sink, by torch.multiprocessing's queues instead of channels.

    python3 pipeline_mp.py [--frames 300] [--rate 100] [--device cuda] [--simple]

Three processes, as there: the same frames, the same model, the same check, and the line that sink.py prints.
Each frame is a tensor of its own, as queues have it. A frame is here when its bytes are: the sink waits for
its stream. --simple takes SimpleQueue, which has no thread.
"""

import argparse
import time

import torch
import torch.multiprocessing


def wait_for_device(device):
    if device == "cuda":
        torch.cuda.current_stream().synchronize()


def camera(args, frames, begin, over):
    def image(n):
        return torch.full((3, args.height, args.width), n % 256, dtype=torch.uint8, device=args.device)

    image(0)  # loads the kernel
    wait_for_device(args.device)
    begin.wait(120)
    start = time.monotonic()
    for n in range(args.frames):
        if args.rate:
            time.sleep(max(0.0, start + n / args.rate - time.monotonic()))
        captured = time.monotonic_ns()
        frames.put((n, captured, image(n)))
    frames.put(None)
    over.wait(120)  # the frames are this process's memory


def model(args, frames, results, begin, over):
    255 - torch.zeros((3, args.height, args.width), dtype=torch.uint8, device=args.device)  # loads the kernel
    wait_for_device(args.device)
    begin.wait(120)
    while (item := frames.get()) is not None:
        n, captured, image = item
        del item
        results.put((n, captured, 255 - image))
        del image
    results.put(None)
    over.wait(120)


def sink(args, results, begin, over):
    ages, size = [], 0
    torch.zeros(1, dtype=torch.uint8, device=args.device).aminmax()
    wait_for_device(args.device)
    begin.wait(120)
    while (item := results.get()) is not None:
        n, captured, out = item
        del item
        wait_for_device(args.device)
        ages.append(time.monotonic_ns() - captured)
        size = out.numel()
        if n % args.check == 0:
            want = 255 - n % 256
            least, most = (int(x) for x in out.aminmax())
            if (least, most) != (want, want):
                raise SystemExit(f"frame {n} is {least} to {most}, and not {want}")
        del out
    over.wait(120)
    steady = sorted(ages[len(ages) // 10 :])
    p50, p99 = (steady[int(len(steady) * q)] / 1e6 for q in (0.5, 0.99))
    print(f"{len(ages)} frames of {size} bytes: p50 {p50:.2f} ms, p99 {p99:.2f} ms, from capture to here", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--width", type=int, default=1920)
    p.add_argument("--height", type=int, default=1080)
    p.add_argument("--frames", type=int, default=300)
    p.add_argument("--rate", type=int, default=100, help="frames a second; 0 for as many as the model takes (100)")
    p.add_argument("--check", type=int, default=50, metavar="N", help="look at the bytes of one frame of N (50)")
    p.add_argument("--device", default="cuda")
    p.add_argument("--simple", action="store_true")
    args = p.parse_args()
    context = torch.multiprocessing.get_context("spawn")
    queue = context.SimpleQueue if args.simple else context.Queue
    frames, results, begin, over = queue(), queue(), context.Barrier(3), context.Barrier(3)
    processes = [
        context.Process(target=f, args=(args, *passed, begin, over), daemon=True)
        for f, passed in ((camera, (frames,)), (model, (frames, results)), (sink, (results,)))
    ]
    for process in processes:
        process.start()
    while any(process.is_alive() for process in processes) and not any(process.exitcode for process in processes):
        processes[-1].join(0.1)
    for process in processes:  # if one has failed, the others wait for it
        process.terminate()
        process.join()
    raise SystemExit(any(process.exitcode for process in processes))


if __name__ == "__main__":
    main()
