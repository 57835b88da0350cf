"""One rank of a peer: joins its process group, then measures a call for each line of its input.

A line is JSON: the call, bytes of the larger of a rank's input and output, or what moe.py needs to know,
dtype, and the protocol, which is that of `symmem bench --graph`:
isolated: a barrier, untimed; then one call, as a graph, to its completion;
periods: a graph of `calls` calls, launched `launches` times without a pause, to its completion, over
their number; three times.
What waits for the host in the middle of it is called, instead.
Times are the host's, in microseconds, of this rank alone.
"""

import argparse
import json
import mmap
import os
import sys
import time

import moe

BATCHES = 3


class SpinBarrier:
    """Ranks of one host meet, within a microsecond or two, in a file that all map."""

    def __init__(self, path, rank, size):
        with open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 64 * size)
        self.words = memoryview(self.memory).cast("q")
        self.rank, self.size, self.round = rank, size, 0

    def wait(self, seconds=60):
        self.round += 1
        self.words[8 * self.rank] = self.round
        until = time.monotonic() + seconds
        for rank in range(self.size):
            while self.words[8 * rank] < self.round:
                os.sched_yield()
                if time.monotonic() > until:
                    raise TimeoutError(f"rank {rank} has not come to the barrier for {seconds} s")


class Gloo:
    """torch.distributed on the CPU."""

    def __init__(self, rank, size, largest):
        import torch
        import torch.distributed as dist

        # Ranks share the cores.
        torch.set_num_threads(max(1, os.cpu_count() // size))
        dist.init_process_group("gloo")
        self.torch, self.dist = torch, dist

    def describe(self):
        return {"torch": self.torch.__version__, "device": "cpu"}

    def call(self, name, count, dtype):
        tensors = lambda n: self.torch.randn(n).to(dtype)
        return collective(self.dist, name, count, self.dist.get_world_size(), tensors)

    def moe(self, request, dtype):
        rank, size = self.dist.get_rank(), self.dist.get_world_size()
        return moe.HostSplits(self.torch, self.dist, request, rank, size, "cpu", dtype, known=False)

    def capture(self, call, times):
        return repeated(call, times)

    def finish(self):
        pass


class Cuda:
    """What peers on GPUs have in common."""

    def __init__(self, rank, size, largest):
        import torch
        import torch.distributed as dist
        import torch.distributed._symmetric_memory as symm_mem

        self.torch, self.dist, self.symm_mem = torch, dist, symm_mem
        self.rank, self.size, self.largest = rank, size, largest
        self.device = torch.device("cuda", rank)
        torch.cuda.set_device(self.device)
        dist.init_process_group("nccl", device_id=self.device)
        self.group = dist.group.WORLD.group_name
        self.stream = torch.cuda.Stream(self.device)
        self.buffers = {}

    def describe(self):
        torch = self.torch
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
        name = torch.cuda.get_device_name(self.device)
        return {"torch": torch.__version__, "cuda": torch.version.cuda, "nccl": nccl, "device": name}

    def symmetric(self, key, dtype):
        """Symmetric memory for the largest size, made once, and its handle."""
        if (key, dtype) not in self.buffers:
            count = self.largest // dtype.itemsize
            tensor = self.symm_mem.empty(count, dtype=dtype, device=self.device)
            handle = self.symm_mem.rendezvous(tensor, self.group)
            tensor.normal_()
            self.buffers[key, dtype] = tensor, handle
        return self.buffers[key, dtype]

    def capture(self, call, times):
        torch = self.torch
        with torch.cuda.stream(self.stream):
            for _ in range(3):
                call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            for _ in range(times):
                call()

        def run():
            with torch.cuda.stream(self.stream):
                graph.replay()

        return run

    def finish(self):
        self.stream.synchronize()


class TorchSymmetricMemory(Cuda):
    """The operators of torch.distributed._symmetric_memory, without multicast."""

    def call(self, name, count, dtype):
        ops = self.torch.ops.symm_mem
        input, handle = self.symmetric("input", dtype)
        input = input[:count]
        if name == "one-shot":
            output = self.torch.empty_like(input)
            return lambda: ops.one_shot_all_reduce_out(input, "sum", self.group, output)
        if name == "two-shot":
            return lambda: ops.two_shot_all_reduce_(input, "sum", self.group)
        if name == "barrier":
            return lambda: handle.barrier(channel=0)
        raise ValueError(f"no call {name}")


class TorchVdev(Cuda):
    """The operators of torch.distributed._symmetric_memory that NVSHMEM does."""

    def __init__(self, rank, size, largest):
        super().__init__(rank, size, largest)
        # Of the whole process, which is why these ranks are others than those of the default.
        self.symm_mem.set_backend("NVSHMEM")

    def moe(self, request, dtype):
        place = self.rank, self.size, self.device
        return moe.Vdev(self.torch, self.symm_mem, self.group, request, *place, dtype)


class Nccl(Cuda):
    """NCCL's collectives on ordinary memory."""

    def call(self, name, count, dtype):
        tensors = lambda n: self.torch.randn(n, device=self.device).to(dtype)
        return collective(self.dist, name, count, self.size, tensors)

    def moe(self, request, dtype):
        place = self.rank, self.size, self.device
        known = request["call"] == "moe-known"
        return moe.HostSplits(self.torch, self.dist, request, *place, dtype, known)

    def capture(self, call, times):
        return repeated(call, times) if getattr(call, "waits", False) else super().capture(call, times)


class NcclWindows(Cuda):
    """NCCL's collectives on memory that is registered as symmetric windows."""

    def __init__(self, rank, size, largest):
        super().__init__(rank, size, largest)
        # Of the whole process, which is why these ranks are others than NCCL's.
        self.symm_mem.set_backend("NCCL")

    def call(self, name, count, dtype):
        keys = iter(("input", "output"))
        tensors = lambda n: self.symmetric(next(keys), dtype)[0][:n]
        return collective(self.dist, name, count, self.size, tensors)


def repeated(call, times):
    def run():
        for _ in range(times):
            call()

    return run


def collective(dist, name, count, size, tensors):
    """A collective of torch.distributed on tensors that `tensors` makes, the input first."""
    if name == "all-reduce":
        both = tensors(count)
        return lambda: dist.all_reduce(both)
    if name == "all-gather":
        input, output = tensors(count // size), tensors(count)
        return lambda: dist.all_gather_into_tensor(output, input)
    if name == "reduce-scatter":
        input, output = tensors(count), tensors(count // size)
        return lambda: dist.reduce_scatter_tensor(output, input)
    if name == "all-to-all":
        input, output = tensors(count), tensors(count)
        return lambda: dist.all_to_all_single(output, input)
    if name == "broadcast":
        both = tensors(count)
        return lambda: dist.broadcast(both, 0)
    if name == "barrier":
        return lambda: dist.barrier()
    raise ValueError(f"no call {name}")


KINDS = {
    "torch": TorchSymmetricMemory,
    "torch-vdev": TorchVdev,
    "nccl": Nccl,
    "nccl-windows": NcclWindows,
    "gloo": Gloo,
}


def dtype_of(torch, name):
    names = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}
    return getattr(torch, names[name])


def prepared(peer, request):
    """What is called."""
    dtype = dtype_of(peer.torch, request["dtype"])
    if not request["call"].startswith("moe"):
        return peer.call(request["call"], request["bytes"] // dtype.itemsize, dtype)
    calls = peer.moe(request, dtype)
    run = moe.part(calls, request["part"])

    def call():
        run()

    # Splits that the host has to read are in no graph.
    call.waits = request["call"] == "moe" and isinstance(calls, moe.HostSplits)
    return call


def measure(peer, barrier, one, many, request):
    calls, launches = request["calls"], request["launches"]

    def timed(run, times):
        peer.finish()
        barrier.wait()
        start = time.perf_counter()
        for _ in range(times):
            run()
        peer.finish()
        return (time.perf_counter() - start) * 1e6

    timed(one, 3)
    isolated = [timed(one, 1) for _ in range(request["iterations"])]
    timed(many, 2)
    periods = [timed(many, launches) / (calls * launches) for _ in range(BATCHES)]
    return {"isolated": isolated, "periods": periods}


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("kind", choices=KINDS)
    arguments.add_argument("--largest", type=int, required=True, help="bytes of the largest size")
    arguments.add_argument("--barrier", required=True, help="a file of 64 zero bytes for each rank")
    arguments = arguments.parse_args()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # Libraries print to standard output; answers go where it went.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def say(what):
        answers.write(json.dumps(what) + "\n")

    peer = KINDS[arguments.kind](rank, size, arguments.largest)
    barrier = SpinBarrier(arguments.barrier, rank, size)
    say(peer.describe())
    graphs, last = {}, None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if line not in graphs:
                size = {key: value for key, value in request.items() if key != "call"}
                if size != last:
                    # Those of other sizes are of no more use, and hold memory.
                    graphs, last = {}, size
                call = prepared(peer, request)
                # The call, too: it owns the memory whose addresses the graphs hold.
                graphs[line] = peer.capture(call, 1), peer.capture(call, request["calls"]), call
            one, many, _ = graphs[line]
            say(measure(peer, barrier, one, many, request))
        except Exception as error:  # Whatever it is, it is the answer.
            reason = str(error).strip().splitlines()
            say({"because": f"{type(error).__name__}: {reason[0] if reason else ''}"})
    # A process group's destructor can wait for ranks that have ended.
    os._exit(0)


if __name__ == "__main__":
    main()
