"""Compares symmem with its peers: the same work, on the same GPUs, in turns, in one run.

All contenders' ranks are started once and stay. For each size, in each of some rounds, each contender
in turn measures its latency, isolated and back to back in a graph (peer.py says how), and hands over
to the next. A ratio is symmem's time by that of the round's best peer; the median of the rounds is
shown: below 1, symmem is faster. Multicast is off for all.

`--ops moe` is rounds of routed tokens, by routes that all have alike: moe.py says what of them each
contender does. On CPUs beside MPI_Alltoallv and Gloo, on GPUs beside all_to_all_vdev_2d and NCCL.

`--peers tcpstore` is by itself: a rendezvous of very many ranks at symmem's store and at PyTorch's
TCPStore. store.py says how.

Needs symmem's command, built for release, and for the peers a torch that is installed, or an MPI with
its compiler. A peer that is not there is left out, with the reason.
"""

import argparse
import datetime
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile

import store
from moe import Routes
from ranks import NO_MULTICAST, Failed, Ranks, Refused

HERE = os.path.dirname(os.path.abspath(__file__))
PEER = os.path.join(HERE, "peer.py")
MPI = os.path.join(HERE, "mpi")

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "barrier", "all-to-all", "broadcast")
OPEN_MPI = "mpirun.openmpi --oversubscribe --mca pml ob1 --mca btl self,vader "
# Of each MPI: its compiler, and its launcher with options. One that polls without yielding takes milliseconds for
# each call where there are more ranks than cores, or where a pair shares one: it is bound, and left out there.
MPIS = {
    "ompi-yield": ("mpicc.openmpi", OPEN_MPI + "--bind-to none --mca mpi_yield_when_idle 1"),
    "ompi-sm": ("mpicc.openmpi", OPEN_MPI + "--bind-to none --mca mpi_yield_when_idle 1 --mca coll_sm_priority 90"),
    "ompi-spin": ("mpicc.openmpi", OPEN_MPI + "--bind-to core --mca mpi_yield_when_idle 0"),
    "mpich": ("mpicc.mpich", "mpiexec.mpich -bind-to core"),
}
POLLING = ("ompi-sm", "ompi-spin", "mpich")
# Of each peer, by operation: the ranks that measure it, the call, and the name to show.
CALLS = {
    "torch": {
        "all-reduce": [("torch", "one-shot", "torch one-shot"), ("torch", "two-shot", "torch two-shot")],
        "barrier": [("torch", "barrier", "torch")],
        "moe": [("torch-vdev", "moe", "torch vdev_2d")],
    },
    "nccl": {
        **{
            op: [("nccl", op, "nccl"), ("nccl-windows", op, "nccl windows")]
            for op in ("all-reduce", "all-gather", "reduce-scatter")
        },
        # As programs have to do it; and in a graph, with splits that the host knows beforehand.
        "moe": [("nccl", "moe", "nccl"), ("nccl", "moe-known", "nccl, splits known")],
    },
    "gloo": {op: [("gloo", op, "gloo")] for op in COLLECTIVES + ("moe",)},
    "mpi": {op: [(kind, op, kind) for kind in MPIS] for op in COLLECTIVES + ("moe",)},
    # Has no ranks: store.py.
    "tcpstore": {},
}
# Those of CPUs alone, and moe, are done where they are asked for.
OPS = ("all-reduce", "all-gather", "reduce-scatter", "barrier", "all-to-all", "broadcast", "moe")
PARTS = ("dispatch", "combine", "round")
LAYOUTS = ("compact", "padded", "rank-major", "vdev")
# torch's one-shot is meant for small messages: above it would only cost time.
ONE_SHOT_MOST = 16 << 20


def size(text):
    units = {"K": 10, "M": 20, "G": 30}
    shift = units.get(text[-1:].upper(), 0)
    return int(text[:-1] if shift else text) << shift


def sizes(text):
    """`2K:256M` is every power of two between; `2K,3K` those."""
    if ":" not in text:
        return [size(one) for one in text.split(",")]
    least, most = map(size, text.split(":"))
    if not 0 < least <= most:
        raise argparse.ArgumentTypeError(f"{text} holds no size")
    return [least << shift for shift in range((most // least).bit_length())]


def shown(bytes):
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if bytes and bytes % (1 << shift) == 0:
            return f"{bytes >> shift} {unit}"
    return f"{bytes} B"


class Contender:
    """One who takes part: a name, and ranks that measure when asked."""

    def __init__(self, name, kind, ranks, request):
        self.name, self.kind, self.ranks, self.request = name, kind, ranks, request

    def measure(self, case, turn):
        """Isolated and period, in microseconds: medians of the slowest rank's times."""
        answers = self.ranks.ask(self.request(case, turn))
        for answer in answers:
            case.check(answer)
        timings = [answer.get("timing", answer) for answer in answers]
        slowest = lambda key: map(max, zip(*(timing[key] for timing in timings)))
        return statistics.median(slowest("isolated")), statistics.median(slowest("periods"))


class Message:
    """Bytes of the larger of a rank's input and output."""

    def __init__(self, arguments, op, bytes):
        self.op, self.bytes, self.shown = op, bytes, shown(bytes)
        # Isolated calls at most, and what is back to back: on a CPU some milliseconds of it.
        self.most, self.calls = arguments.iterations, (20, 15)
        if arguments.backend == "host":
            steps = ((16 << 10, 1000), (256 << 10, 200), (4 << 20, 20), (math.inf, 3))
            times = next(times for most, times in steps if bytes * arguments.ranks <= 2 * most)
            self.most, self.calls = max(5, min(arguments.iterations, times)), (times, 1)

    def words(self):
        """symmem's, beside what all operations have."""
        return [] if self.op == "barrier" else ["--min", self.bytes, "--max", self.bytes]

    def request(self):
        return {"bytes": self.bytes}

    def check(self, answer):
        pass


class Tokens:
    """Routed tokens of each rank, and a part of a round."""

    def __init__(self, arguments, tokens, part, routes, path):
        self.op, self.tokens, self.part = f"moe {part}", tokens, part
        self.shown = f"{tokens} tokens"
        self.setting = {key: getattr(arguments, key) for key in ("hidden", "experts", "top_k", "skew")}
        self.layout, self.digest, self.path = arguments.layout, f"{routes.digest():016x}", path
        self.bytes = None
        # A round on a CPU takes milliseconds.
        self.calls = (20, 15) if arguments.backend == "cuda" else (20, 1)
        self.most = arguments.iterations

    def words(self):
        words = ["--tokens", self.tokens, "--parts", self.part, "--layout", self.layout]
        for key, value in self.setting.items():
            words += ["--" + key.replace("_", "-"), value]
        return words

    def request(self):
        return dict(self.setting, tokens=self.tokens, part=self.part, layout=self.layout, routes=self.path)

    def check(self, answer):
        """symmem says which routes it has, and how many bytes they are."""
        if "routed" not in answer:
            return
        if answer["routed"]["routes"] != self.digest:
            raise Failed(f"routes are {answer['routed']['routes']} for symmem, {self.digest} for its peers")
        self.bytes = answer["bytes"]


class Comparison:
    def __init__(self, arguments, folder):
        self.arguments, self.folder = arguments, folder
        self.ranks, self.absent, self.versions = {}, {}, {}
        self.rows = []
        self.largest = max(arguments.sizes)

    def start(self):
        arguments = self.arguments
        command = [arguments.symmem, "bench-rank", "--backend", arguments.backend]
        self.ranks["symmem"] = ranks = Ranks("symmem", command, arguments.ranks)
        self.versions["symmem"] = greeting = ranks.greetings[0]
        if greeting["debug"] and not arguments.debug:
            raise Failed(f"{arguments.symmem} is a debug build, whose figures mean nothing")
        wanted = [CALLS[peer].get(op, []) for peer in arguments.peers for op in arguments.ops]
        for kind in dict.fromkeys(kind for calls in wanted for kind, _, _ in calls):
            barrier = os.path.join(self.folder, f"{kind}.barrier")
            with open(barrier, "wb") as file:
                file.write(bytes(64 * arguments.ranks))
            command = [arguments.python, PEER, kind, "--largest", str(self.largest), "--barrier", barrier]
            try:
                if kind in MPIS:
                    self.ranks[kind] = self.mpi(kind)
                else:
                    self.ranks[kind] = Ranks(kind, command, arguments.ranks)
                self.versions[kind] = self.ranks[kind].greetings[0]
            except (Failed, Refused) as failed:
                self.leave_out(kind, failed)

    def mpi(self, kind):
        """All ranks of an MPI, which their launcher answers for."""
        (compiler, launcher), ranks = MPIS[kind], self.arguments.ranks
        launcher = launcher.split()
        if kind in POLLING and ranks > os.cpu_count():
            raise Failed(f"it polls without yielding, and {ranks} ranks have {os.cpu_count()} cores")
        for what in (compiler, launcher[0]):
            if not shutil.which(what):
                raise Failed(f"no {what} here: this MPI and its compiler are not installed")
        program = os.path.join(self.folder, compiler)
        sources = [os.path.join(MPI, name) for name in ("main.c", "collectives.c", "moe.c")]
        build = [compiler, "-O3", "-march=native", "-o", program, *sources]
        built = subprocess.run(build, capture_output=True, text=True)
        if built.returncode:
            raise Failed(f"{' '.join(build)}: {built.stderr.strip()[-500:]}")
        if os.geteuid() == 0:
            os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        return Ranks(kind, [*launcher, "-n", str(ranks), program], 1)

    def leave_out(self, name, failed):
        self.absent[name] = str(failed)
        print(f"left out: {name}: {failed}\n", file=sys.stderr)

    def contenders(self, op, case):
        arguments = self.arguments
        calls, launches = case.calls
        iterations = min(arguments.iterations, case.most)
        protocol = {"iterations": iterations, "calls": calls, "launches": launches}
        # On a GPU calls are in graphs; on a CPU nobody has a cheaper form of them.
        graph = ["--graph"] if arguments.backend == "cuda" else []

        def own(case, turn):
            words = [op, "--ranks", arguments.ranks, "--iterations", protocol["iterations"]]
            words += ["--batch", "{calls}x{launches}".format(**protocol), *graph, *case.words()]
            if op != "barrier":
                words += ["--dtype", arguments.dtype, "--no-limit"]
                # What the first round has checked.
                words += ["--no-check"] if turn else []
            return " ".join(map(str, words))

        def other(call):
            request = dict(protocol, call=call, dtype=arguments.dtype)
            return lambda case, turn: json.dumps(dict(request, **case.request()))

        def words(case, turn):
            """As mpi/main.c reads them."""
            how = [protocol[key] for key in ("iterations", "calls", "launches")]
            request = dict(case.request(), op=op, dtype=arguments.dtype)
            keys = "op dtype bytes" if op != "moe" else "op layout part dtype tokens hidden experts top_k routes"
            return " ".join(map(str, how + [request[key] for key in keys.split()]))

        all = [Contender("symmem", "symmem", self.ranks["symmem"], own)]
        for peer in arguments.peers:
            for kind, call, name in CALLS[peer].get(op, []):
                if kind in self.ranks and not (call == "one-shot" and case.bytes > ONE_SHOT_MOST):
                    request = words if kind in MPIS else other(call)
                    all.append(Contender(name, kind, self.ranks[kind], request))
        return all

    def cases(self, op):
        arguments = self.arguments
        if op != "moe":
            return [Message(arguments, op, bytes) for bytes in ([0] if op == "barrier" else arguments.sizes)]
        cases = []
        for tokens in arguments.tokens:
            setting = (getattr(arguments, key) for key in ("experts", "top_k", "skew"))
            routes = Routes(arguments.ranks, tokens, *setting)
            path = os.path.join(self.folder, f"{tokens}.routes")
            routes.save(path)
            cases += [Tokens(arguments, tokens, part, routes, path) for part in arguments.parts]
        # A part after the other, as tables show them.
        return sorted(cases, key=lambda case: PARTS.index(case.part))

    def run(self):
        for op in self.arguments.ops:
            rows = []
            for case in self.cases(op):
                rows.append(self.row(op, case))
                self.rows.append(rows[-1])
            for name in dict.fromkeys(row["op"] for row in rows):
                show(name, [row for row in rows if row["op"] == name])

    def row(self, op, case):
        contenders = self.contenders(op, case)
        isolated, period, out = {}, {}, set()
        for turn in range(self.arguments.runs):
            # Nobody is always the first, or always after the same.
            first = turn % len(contenders)
            for contender in contenders[first:] + contenders[:first]:
                if contender.name in out:
                    continue
                try:
                    times = contender.measure(case, turn)
                except (Failed, Refused) as failed:
                    if contender.name == "symmem":
                        raise
                    self.leave_out(f"{contender.name}, {case.op} of {case.shown}", failed)
                    if isinstance(failed, Failed):
                        self.ranks.pop(contender.kind).kill()
                    # Ratios are of whole rounds.
                    out.add(contender.name)
                    isolated.pop(contender.name, None)
                    period.pop(contender.name, None)
                    continue
                isolated.setdefault(contender.name, []).append(times[0])
                period.setdefault(contender.name, []).append(times[1])
        print(f"{case.op} {case.shown}: symmem {statistics.median(period['symmem']):.2f} us", file=sys.stderr)
        return {
            "op": case.op,
            "bytes": case.bytes,
            "shown": case.shown,
            "isolated_us": isolated,
            "period_us": period,
            "isolated": verdict(isolated),
            "period": verdict(period),
        }

    def stop(self):
        for ranks in self.ranks.values():
            ranks.stop()

    def results(self):
        arguments = self.arguments
        return {
            **where(),
            "gpus": gpus(),
            "backend": arguments.backend,
            "ranks": arguments.ranks,
            "dtype": arguments.dtype,
            "setting": {
                key: getattr(arguments, key) for key in ("layout", "hidden", "experts", "top_k", "skew")
            },
            "runs": arguments.runs,
            "environment": NO_MULTICAST,
            "versions": self.versions,
            "absent": self.absent,
            "rows": self.rows,
        }


def verdict(times):
    """The best peer, by its median, and the median ratio to the best of each round."""
    peers = {name: of for name, of in times.items() if name != "symmem"}
    if not peers:
        return {"best": None, "ratio": None}
    rounds = list(zip(times["symmem"], zip(*peers.values())))
    ratios = [own / min(others) for own, others in rounds]
    best = min(peers, key=lambda name: statistics.median(peers[name]))
    return {"best": best, "ratio": statistics.median(ratios), "ratios": ratios}


def show(op, rows):
    names = list(dict.fromkeys(name for row in rows for name in row["period_us"]))
    header = ["size", *(f"{name} us" for name in names), "best peer", "ratio"]
    header += ["isolated us", "best peer us", "ratio"]
    median = lambda times, name: f"{statistics.median(times[name]):.2f}" if times.get(name) else "-"
    ratio = lambda verdict: f"{verdict['ratio']:.3f}" if verdict["ratio"] else "-"
    lines = [header]
    for row in rows:
        isolated = row["isolated_us"]
        lines.append(
            [
                row["shown"],
                *(median(row["period_us"], name) for name in names),
                row["period"]["best"] or "-",
                ratio(row["period"]),
                median(isolated, "symmem"),
                median(isolated, row["isolated"]["best"]),
                ratio(row["isolated"]),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*lines)]
    print(f"\n{op}: period, then isolated; ratio: symmem by the best peer, median of the rounds")
    for line in lines:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths)))
    sys.stdout.flush()


def where():
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "host": platform.platform(),
    }


def gpus():
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return answer.stdout.split("\n")[:-1]


def parse():
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    several = lambda of: lambda text: check(text.split(","), of)
    arguments.add_argument("--symmem", required=True, metavar="PATH", help="the command")
    arguments.add_argument("--peers", type=several(CALLS), help="of torch, nccl, gloo, mpi, those of the backend; or tcpstore")
    arguments.add_argument(
        "--ops", type=several(OPS), help=f"of {', '.join(OPS)}; the first four, on a CPU all but the last"
    )
    arguments.add_argument(
        "--sizes", type=sizes, help="2K:256M, of GPUs, are powers of two; or sizes, with commas: 64,1K,16K,256K,4M,64M of CPUs"
    )
    numbers = lambda text: [int(one) for one in text.split(",")]
    arguments.add_argument(
        "--tokens", type=numbers, default="1,8,32,128,1024", help="of each rank, and the next six: of moe"
    )
    arguments.add_argument("--hidden", type=int, default=2048)
    arguments.add_argument("--experts", type=int, default=8)
    arguments.add_argument("--top-k", type=int, default=2)
    arguments.add_argument("--skew", type=float, default=0.0)
    arguments.add_argument("--layout", choices=LAYOUTS, default="compact")
    arguments.add_argument("--parts", type=several(PARTS), default=list(PARTS), help="of " + ", ".join(PARTS))
    arguments.add_argument(
        "--logical-ranks",
        type=numbers,
        default="720,2880,10080",
        help="of a rendezvous, and the next five: of tcpstore",
    )
    arguments.add_argument("--group", type=int, default=72, help="ranks that are to know each other")
    arguments.add_argument("--per-host", type=int, default=8, help="ranks of which one speaks for all")
    arguments.add_argument("--record", type=int, default=200, help="bytes that each brings")
    arguments.add_argument("--processes", type=int, default=2, help="that drive all ranks")
    arguments.add_argument(
        "--client", choices=("wire", "library"), default="wire", help="the library's has a thread for each rank"
    )
    arguments.add_argument("--runs", type=int, default=5, help="rounds for each size")
    arguments.add_argument("--iterations", type=int, default=30, help="isolated calls of a round")
    arguments.add_argument("--ranks", type=int, default=2)
    arguments.add_argument("--backend", choices=("cuda", "host"), default="cuda")
    arguments.add_argument("--dtype", choices=("f64", "f32", "f16", "bf16"), help="bf16; on the host f32, of moe bf16")
    arguments.add_argument("--python", default=sys.executable, help="the one that has torch")
    arguments.add_argument("--json", metavar="FILE", help="also write all of it")
    # For tests of this program: figures of a debug build mean nothing.
    arguments.add_argument("--debug", action="store_true", help=argparse.SUPPRESS)
    parser, arguments = arguments, arguments.parse_args()
    if "tcpstore" in (arguments.peers or []) and arguments.peers != ["tcpstore"]:
        parser.error("--peers tcpstore is by itself")
    on_host = arguments.backend == "host"
    arguments.ops = arguments.ops or list(COLLECTIVES if on_host else OPS[:4])
    arguments.sizes = arguments.sizes or sizes("64,1K,16K,256K,4M,64M" if on_host else "2K:256M")
    arguments.peers = arguments.peers or (["gloo", "mpi"] if on_host else ["torch", "nccl"])
    is_f32 = on_host and arguments.ops != ["moe"]
    arguments.dtype = arguments.dtype or ("f32" if is_f32 else "bf16")
    return arguments


def check(names, of):
    unknown = [name for name in names if name not in of]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there are {', '.join(of)}")
    return names


def write(path, results):
    if path:
        with open(path, "w") as file:
            json.dump(results, file, indent=1)
            file.write("\n")


def main():
    arguments = parse()
    if arguments.peers == ["tcpstore"]:
        results, well = store.compare(arguments)
        write(arguments.json, {**where(), **results})
        return 0 if well else 1
    with tempfile.TemporaryDirectory(prefix="symmem-compare-") as folder:
        comparison = Comparison(arguments, folder)
        try:
            comparison.start()
            comparison.run()
        except (Failed, Refused) as failed:
            comparison.leave_out("symmem", failed)
        finally:
            comparison.stop()
    write(arguments.json, comparison.results())
    return 1 if "symmem" in comparison.absent else 0


if __name__ == "__main__":
    sys.exit(main())
