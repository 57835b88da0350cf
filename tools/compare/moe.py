"""Routes of tokens, as `symmem bench moe` draws them, and rounds of peers' calls over them.

A round, of any contender: counts of rows are exchanged, tokens go to the ranks of the experts that they
have chosen, and come back. By `layout`, as `symmem bench moe --layout` has it:

compact: each rank has tokens, indices and weights; it ends with the weighted sum of what came back.
    A peer counts its rows for each rank by the indices, exchanges the counts and reads them on the host,
    gathers rows in the order of ranks (a row for each choice), sends them by an all-to-all-v, sends them
    back by another, and sums. It leaves what it received in the order of ranks, and knows no counts of
    experts: where symmem brings rows into the order of experts too, and says how many each has, it does
    more. symmem sends a row once to each rank, whatever the number of its experts there: there it moves
    less. torch's all_to_all_vdev_2d receives in the order of experts.
vdev: each rank has rows in the order of experts, and how many there are of each, and ends with the rows in
    that order: without the gathering and the sum.

A dispatch is a round up to the rows' arrival, a combine the rest. Experts do nothing, on any side.
"""

import array
import math

MASK = (1 << 64) - 1
# As cli/src/bench/operation/moe/routes.rs has it.
DRAWS = 64


def mix(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def power(x, y):
    """x^-y by operations that are the same everywhere."""
    mantissa, exponent = x, 0.0
    while mantissa >= 2.0:
        mantissa *= 0.5
        exponent += 1.0
    t = (mantissa - 1.0) / (mantissa + 1.0)
    series = 0.0
    for i in reversed(range(30)):
        series = series * (t * t) + 1.0 / (2 * i + 1)
    log = -y * (exponent * math.log(2) + 2.0 * t * series)
    halvings = math.ceil(-log / math.log(2))
    rest = log + halvings * math.log(2)
    result = 1.0
    for i in reversed(range(1, 21)):
        result = 1.0 + rest * result / i
    for _ in range(halvings):
        result *= 0.5
    return result


def ends(experts, skew):
    sums, sum = [], 0.0
    for i in range(1, experts + 1):
        sum += power(float(i), skew)
        sums.append(sum)
    ends = [int(part / sum * (1 << 53)) for part in sums]
    ends[-1] = 1 << 53
    return ends


class Routes:
    """Choices of all ranks' tokens, and their weights, by rank, token and choice."""

    def __init__(self, ranks, tokens, experts, top_k, skew, seed=0):
        from bisect import bisect_right

        self.ranks, self.tokens, self.top_k = ranks, tokens, top_k
        self.experts, self.weights = array.array("i"), array.array("f")
        limits = ends(experts, skew)
        for rank in range(ranks):
            for token in range(tokens):
                chosen = []
                of_token = mix(mix(mix(seed) ^ rank) ^ token)
                for choice in range(top_k):
                    key = mix(of_token ^ choice)
                    for n in range(DRAWS):
                        expert = bisect_right(limits, mix(key ^ n) >> 11)
                        if expert not in chosen:
                            break
                    while expert in chosen:
                        expert = (expert + 1) % experts
                    chosen.append(expert)
                    self.weights.append(((mix(key ^ DRAWS) >> 56) + 1) / 256)
                self.experts.extend(chosen)

    def digest(self):
        digest = self.tokens
        bits = array.array("I", self.weights.tobytes())
        for expert, weight in zip(self.experts, bits):
            digest = mix(digest ^ (expert << 32 | weight))
        return digest

    def save(self, path):
        """All experts as i32, then all weights as f32."""
        with open(path, "wb") as file:
            self.experts.tofile(file)
            self.weights.tofile(file)


class Torch:
    """One rank's tensors and calls, of torch.distributed; the parts of a round by name."""

    def __init__(self, torch, request, rank, size, device, dtype):
        self.torch, self.size, self.device = torch, size, device
        self.tokens, self.hidden = request["tokens"], request["hidden"]
        self.experts, self.top_k = request["experts"], request["top_k"]
        self.by_choice = request["layout"] == "vdev"
        everything = size * self.tokens * self.top_k
        with open(request["routes"], "rb") as file:
            experts, weights = array.array("i"), array.array("f")
            experts.fromfile(file, everything)
            weights.fromfile(file, everything)
        shape = (size, self.tokens, self.top_k)
        self.all = torch.tensor(experts, dtype=torch.int64).view(shape)
        self.indices = self.all[rank].to(device).contiguous()
        self.weights = torch.tensor(weights, dtype=torch.float32).view(shape)[rank].to(device, dtype)
        self.owner = torch.tensor(
            [((expert + 1) * size - 1) // self.experts for expert in range(self.experts)], device=device
        )
        # The most rows that any rank receives.
        self.capacity = int(torch.bincount(self.owner.cpu()[self.all].flatten(), minlength=size).max())
        self.x = torch.randn(self.tokens, self.hidden).to(device, dtype)
        self.order = torch.argsort(self.indices.flatten(), stable=True)
        self.sums = torch.empty(self.tokens, 1, self.hidden, dtype=dtype, device=device)

    def rows(self, count):
        return self.torch.empty(count, self.hidden, dtype=self.x.dtype, device=self.device)

    def gather(self, sent):
        """Tokens' rows in the order of experts, which is that of ranks, a row for each choice."""
        torch = self.torch
        self.order = torch.argsort(self.indices.flatten(), stable=True)
        torch.index_select(self.x, 0, self.order // self.top_k, out=sent)

    def sum(self, back):
        torch = self.torch
        places = torch.empty_like(self.order)
        places[self.order] = self.steps
        rows = back[places].view(self.tokens, self.top_k, self.hidden)
        torch.bmm(self.weights[:, None], rows, out=self.sums)

    def check(self, sent, back):
        torch = self.torch
        count = self.tokens * self.top_k
        if not torch.equal(sent[:count], back[:count]):
            raise RuntimeError("what came back is not what was sent")
        if not self.by_choice:
            expected = self.x.float() * self.weights.float().sum(1, keepdim=True)
            if not torch.allclose(self.sums[:, 0].float(), expected, rtol=0.05, atol=0.05):
                raise RuntimeError("the sums are wrong")


class HostSplits(Torch):
    """all_to_all_single, whose splits the host has to know."""

    def __init__(self, torch, dist, request, rank, size, device, dtype, known):
        super().__init__(torch, request, rank, size, device, dtype)
        self.dist, self.known = dist, known
        count = self.tokens * self.top_k
        self.sent, self.received, self.back = self.rows(count), self.rows(self.capacity), self.rows(count)
        self.steps = torch.arange(count, device=device)
        self.counts = torch.zeros(2, size, dtype=torch.int64, device=device)
        torch.index_select(self.x, 0, self.order // self.top_k, out=self.sent)
        self.exchange()
        self.dispatch()
        self.combine()
        self.check(self.sent, self.back)

    def exchange(self):
        owners = self.owner[self.indices.flatten()]
        self.counts[0] = self.torch.bincount(owners, minlength=self.size)
        self.dist.all_to_all_single(self.counts[1], self.counts[0])
        self.there, self.here = self.counts.tolist()

    def dispatch(self):
        if not self.known:
            self.exchange()
        if not self.by_choice:
            self.gather(self.sent)
        received = self.received[: sum(self.here)]
        self.dist.all_to_all_single(received, self.sent, self.here, self.there)

    def combine(self):
        received = self.received[: sum(self.here)]
        self.dist.all_to_all_single(self.back, received, self.there, self.here)
        if not self.by_choice:
            self.sum(self.back)


class Vdev(Torch):
    """all_to_all_vdev_2d and all_to_all_vdev_2d_offset of torch.distributed._symmetric_memory."""

    def __init__(self, torch, symm_mem, group, request, rank, size, device, dtype):
        super().__init__(torch, request, rank, size, device, dtype)
        if self.experts % size:
            raise RuntimeError(f"{self.experts} experts are not as many for each of {size} ranks")
        self.ops, self.group = torch.ops.symm_mem, group
        count = self.tokens * self.top_k

        def symmetric(*shape, dtype=dtype):
            tensor = symm_mem.empty(*shape, dtype=dtype, device=device).zero_()
            symm_mem.rendezvous(tensor, group)
            return tensor

        # An expert without rows counts as one.
        room = self.capacity + self.experts
        self.sent, self.received = symmetric(count, self.hidden), symmetric(room, self.hidden)
        self.back = symmetric(max(room, count), self.hidden)
        self.splits = symmetric(self.experts, dtype=torch.int64)
        self.arrived, self.returned = (symmetric(2, self.experts, dtype=torch.int64) for _ in range(2))
        self.steps = torch.arange(count, device=device)
        self.ones = torch.ones(count, dtype=torch.int64, device=device)
        self.count()
        torch.index_select(self.x, 0, self.order // self.top_k, out=self.sent)
        self.dispatch()
        self.combine()
        torch.cuda.synchronize()
        self.check(self.sent, self.back)

    def count(self):
        self.splits.zero_().scatter_add_(0, self.indices.flatten(), self.ones)

    def dispatch(self):
        if not self.by_choice:
            self.count()
            self.gather(self.sent)
        self.ops.all_to_all_vdev_2d(self.sent, self.received, self.splits, self.arrived, self.group)

    def combine(self):
        self.ops.all_to_all_vdev_2d_offset(self.received, self.back, self.arrived, self.returned, self.group)
        if not self.by_choice:
            self.sum(self.back)


def part(calls, name):
    """What is timed of one contender's calls."""

    def round():
        calls.dispatch()
        calls.combine()

    return {"dispatch": calls.dispatch, "combine": calls.combine, "round": round}[name]


if __name__ == "__main__":
    # What the tests of the other program expect.
    for experts, top_k, skew in ((8, 2, 0.0), (64, 8, 1.2)):
        print(f"{Routes(2, 16, experts, top_k, skew).digest():#018x}")
