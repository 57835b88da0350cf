"""What a rendezvous of very many ranks costs at its store: symmem's, and PyTorch's TCPStore.

Both servers run for as long as this does. For each number of ranks, in each of some rounds, each
contender in turn: `symmem bench rendezvous --logical-ranks` drives all of them, so that what differs is
server and plan. PyTorch's own client, on threads of one process, does a small flat pattern besides: how
the load of `symmem bench` compares with it.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from ranks import Failed

# Name to show, whose server, plan.
CONTENDERS = [
    ("symmem gather", "symmem", "gather"),
    ("tcpstore flat", "tcpstore", "flat"),
    ("tcpstore multi_get", "tcpstore", "multi_get"),
    ("tcpstore keys", "tcpstore", "keys"),
]
# The load by PyTorch's client: ranks of one group.
SMALL = 36
# Seconds that all ranks of a run may take.
PATIENCE = 900


class Server:
    """A server's process, which writes one line once it serves, and serves until its input ends."""

    def __init__(self, name, command, address):
        self.name = name
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.errors = []
        threading.Thread(target=self._note, daemon=True).start()
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            time.sleep(0.2)  # For the last words on the error stream.
            raise Failed(f"{name}: {''.join(self.errors[-1:]).strip() or 'ended at once'}")
        self.address, self.greeting = address(line)

    def _note(self):
        for line in self.process.stderr:
            self.errors.append(line)

    def stop(self):
        self.process.stdin.close()
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def serve():
    """PyTorch's server, its default backend; run as `store.py serve`."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    import torch
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    backend = "libuv" if store.libuvBackend else "threads"
    print(json.dumps({"port": store.port, "torch": torch.__version__, "backend": backend}), flush=True)
    sys.stdin.read()


def client(port, ranks, record, run):
    """A flat pattern by PyTorch's client; run as `store.py client`. Seconds from a common start."""
    from torch.distributed import TCPStore

    stores = [
        TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, use_libuv=True)
        for _ in range(ranks)
    ]
    value = lambda rank: bytes([rank % 256]) * record
    start, wrong = threading.Barrier(ranks + 1), []

    def meet(rank):
        store = stores[rank]
        start.wait()
        store.set(f"{run}/{rank}", value(rank))
        for peer in range(ranks):
            if peer != rank and store.get(f"{run}/{peer}") != value(peer):
                wrong.append((rank, peer))

    threads = [threading.Thread(target=meet, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    start.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    print(json.dumps({"seconds": time.perf_counter() - began, "wrong": wrong}))


class Comparison:
    def __init__(self, arguments, folder):
        self.arguments, self.folder = arguments, folder
        self.servers, self.absent, self.versions = {}, {}, {}
        self.rows, self.small = [], None

    def start(self):
        arguments = self.arguments
        command = [arguments.symmem, "store", "--port", "0", "--print-address"]
        version = subprocess.run([arguments.symmem, "--version"], capture_output=True, text=True).stdout
        self.servers["symmem"] = Server("symmem", command, lambda line: (line.strip(), version.strip()))
        self.versions["symmem"] = self.servers["symmem"].greeting

        def own(line):
            greeting = json.loads(line)
            return f"127.0.0.1:{greeting['port']}", greeting

        command, names = self.without_names([arguments.python, os.path.abspath(__file__), "serve"])
        try:
            self.servers["tcpstore"] = server = Server("tcpstore", command, own)
            self.versions["tcpstore"] = dict(server.greeting, names=names)
        except (Failed, OSError) as failed:
            self.leave_out("tcpstore", failed)

    def without_names(self, command):
        """TCPStore's server asks for the name of each client that it accepts, and serves nobody meanwhile:
        seconds for each, where no name server answers. So it is given the hosts file alone, in a mount
        namespace of its own, where that may be made."""
        path = os.path.join(self.folder, "nsswitch.conf")
        try:
            with open("/etc/nsswitch.conf") as file:
                lines = [line for line in file if not line.startswith("hosts:")]
        except OSError:
            return command, "as the system has it"
        with open(path, "w") as file:
            file.writelines([*lines, "hosts: files\n"])
        unshare = ["unshare", "--mount"] + ([] if os.geteuid() == 0 else ["--map-root-user"])
        bind = 'mount --bind "$0" /etc/nsswitch.conf && exec "$@"'
        wrapped = [*unshare, "sh", "-c", bind, path]
        if shutil.which("unshare") and subprocess.run([*wrapped, "true"], capture_output=True).returncode == 0:
            return [*wrapped, *command], "of the hosts file"
        print("no mount namespace may be made: tcpstore looks its clients' names up as it does\n", file=sys.stderr)
        return command, "as the system has it"

    def leave_out(self, name, failed):
        self.absent[name] = str(failed)
        print(f"left out: {name}: {failed}\n", file=sys.stderr)

    def measure(self, ranks, server, plan):
        """One run of all ranks: a row of `symmem bench`."""
        arguments, path = self.arguments, os.path.join(self.folder, "row.json")
        server = self.servers[server]
        command = [arguments.symmem, "bench", "rendezvous", "--iterations", 1, "--json", path]
        command += ["--logical-ranks", ranks, "--plan", plan, "--deadline", PATIENCE]
        command += ["--group", arguments.group, "--per-host", arguments.per_host]
        command += ["--record", arguments.record, "--processes", arguments.processes]
        command += ["--client", arguments.client]
        command += ["--server", server.address, "--server-pid", server.process.pid]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if done.returncode:
            raise Failed(f"{ranks} ranks, {plan}: {done.stderr.strip()[-500:]}")
        if "debug build" in done.stderr and not arguments.debug:
            raise Failed(f"{arguments.symmem} is a debug build, whose figures mean nothing")
        with open(path) as file:
            return json.load(file)["rows"][0]

    def run(self):
        contenders = [one for one in CONTENDERS if one[1] in self.servers]
        for ranks in self.arguments.logical_ranks:
            found = {name: [] for name, _, _ in contenders}
            for turn in range(self.arguments.runs):
                # Nobody is always the first, or always after the same.
                first = turn % len(contenders)
                for name, server, plan in contenders[first:] + contenders[:first]:
                    found[name].append(self.measure(ranks, server, plan))
            self.rows.append(self.row(ranks, found))
            print(f"{ranks} ranks: symmem {self.rows[-1]['seconds']['symmem gather']:.4f} s", file=sys.stderr)
        if "tcpstore" in self.servers:
            self.compare_load()
        self.show()

    def row(self, ranks, found):
        own = found["symmem gather"]
        seconds = {name: [run["seconds"] for run in runs] for name, runs in found.items()}
        ratio = lambda name: statistics.median(
            peer / mine for mine, peer in zip(seconds["symmem gather"], seconds[name])
        )
        return {
            "op": "rendezvous",
            "logical_ranks": ranks,
            "group": own[0]["group"],
            "per_host": own[0]["per_host"],
            "requests_per_rank": own[0]["requests_per_rank"],
            "most_requests": own[0]["most_requests"],
            "bytes_per_rank": own[0]["bytes_per_rank"],
            "seconds": {name: statistics.median(of) for name, of in seconds.items()},
            # How many times less symmem's plan takes at its server, median of the rounds.
            "ratios": {name: ratio(name) for name in seconds if name != "symmem gather"},
            "runs": seconds,
            "rows": found,
        }

    def compare_load(self):
        """The same small flat pattern by PyTorch's client and by the load of `symmem bench`."""
        arguments, server = self.arguments, self.servers["tcpstore"]
        port = server.address.split(":")[1]
        times = {"torch's client": [], "load": [], "library": []}
        for turn in range(arguments.runs):
            command = [arguments.python, os.path.abspath(__file__), "client", port, SMALL]
            command += [arguments.record, f"small{turn}"]
            done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
            answer = json.loads(done.stdout) if done.returncode == 0 else {"wrong": done.stderr[-500:]}
            if answer["wrong"]:
                self.leave_out("torch's client", answer["wrong"])
                return
            times["torch's client"].append(answer["seconds"])
            for name, client_name in (("load", "wire"), ("library", "library")):
                command = [arguments.symmem, "bench", "rendezvous", "--iterations", "1", "--processes", "1"]
                command += ["--logical-ranks", SMALL, "--group", SMALL, "--per-host", 1, "--plan", "flat"]
                command += ["--record", arguments.record, "--client", client_name]
                command += ["--server", server.address, "--json", os.path.join(self.folder, "small.json")]
                done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
                if done.returncode:
                    raise Failed(f"{name}: {done.stderr.strip()[-500:]}")
                with open(os.path.join(self.folder, "small.json")) as file:
                    times[name].append(json.load(file)["rows"][0]["seconds"])
        medians = {name: statistics.median(of) for name, of in times.items()}
        self.small = {"ranks": SMALL, "seconds": medians, "runs": times}

    def show(self):
        names = list(self.rows[0]["seconds"])
        header = ["ranks", "requests", "most", *(f"{name} s" for name in names)]
        header += [f"{name} x" for name in names[1:]]
        lines = [header]
        for row in self.rows:
            line = [str(row["logical_ranks"]), f"{row['requests_per_rank']:.2f}", str(row["most_requests"])]
            line += [f"{row['seconds'][name]:.4f}" for name in names]
            lines.append(line + [f"{row['ratios'][name]:.1f}" for name in names[1:]])
        widths = [max(map(len, column)) for column in zip(*lines)]
        print("\nrendezvous: seconds, medians; x: how many times as long as symmem's, median of the rounds")
        for line in lines:
            print("  ".join(cell.rjust(width) for cell, width in zip(line, widths)))
        if self.small:
            times = ", ".join(f"{name} {of:.4f} s" for name, of in self.small["seconds"].items())
            print(f"\nthe flat pattern of {self.small['ranks']} ranks at tcpstore: {times}")
        for name, why in self.absent.items():
            print(f"\nabsent: {name}: {why}")
        sys.stdout.flush()

    def stop(self):
        for server in self.servers.values():
            server.stop()

    def results(self):
        arguments = self.arguments
        return {
            "runs": arguments.runs,
            "group": arguments.group,
            "per_host": arguments.per_host,
            "record": arguments.record,
            "processes": arguments.processes,
            "client": arguments.client,
            "versions": self.versions,
            "absent": self.absent,
            "load": self.small,
            "rows": self.rows,
        }


def compare(arguments):
    """Returns what was found, and whether all went well; for compare.py."""
    with tempfile.TemporaryDirectory(prefix="symmem-compare-") as folder:
        comparison, well = Comparison(arguments, folder), True
        try:
            comparison.start()
            comparison.run()
        except (Failed, OSError) as failed:
            comparison.leave_out("symmem", failed)
            well = False
        finally:
            comparison.stop()
    return comparison.results(), well


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        client(int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
