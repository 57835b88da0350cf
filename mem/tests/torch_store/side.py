"""PyTorch's side of the tests beside this file.

client PORT          uses the server at PORT, then says so in its keys
servers BACKEND      serves a fresh store for each line of its input; prints the ports
rank RANK WORLD      meets the other ranks at the store that torchrun's variables name
"""

import os
import sys
import threading
from datetime import timedelta

from torch.distributed import DistNetworkError, DistStoreError, PrefixStore, QueueEmptyError, TCPStore


def connect(port, world=None):
    return TCPStore("127.0.0.1", port, world, False, timeout=timedelta(seconds=60))


def fails(error, call, *arguments):
    try:
        call(*arguments)
    except error:
        return
    raise AssertionError(f"{call} did not fail")


def in_threads(count, run):
    failed = []

    def guarded(i):
        try:
            run(i)
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed


def values(store):
    store.set("text", "from python")
    assert store.get("text") == b"from python"
    assert store.get("from-rust") == b"\x00\xff rust"
    large = bytes(range(256)) * (1 << 15)
    assert len(large) == 8 << 20
    store.set("large", large)
    assert store.get("large") == large
    for _ in range(3):
        store.append("larger", large)
    assert store.get("larger") == large * 3
    assert store.add("count", 5) == 5
    assert store.add("count", -7) == -2
    assert store.compare_set("swap", "x", "y") == b"x"
    assert not store.check(["swap"])
    assert store.compare_set("swap", "", "one") == b"one"
    assert store.compare_set("swap", "two", "three") == b"one"
    assert store.compare_set("swap", "one", "two") == b"two"
    assert store.check(["swap", "count"]) and not store.check(["swap", "never"])
    assert store.multi_get(["text", "swap"]) == [b"from python", b"two"]
    store.append("grown", "one")
    store.append("grown", " two")
    assert store.get("grown") == b"one two"
    store.multi_set([], [])
    store.multi_set(["m/1", "m/2"], ["1", "22"])
    assert store.multi_get(["m/2", "m/1"]) == [b"22", b"1"]
    assert store.has_extended_api()


def keys(port):
    store = PrefixStore("keys", connect(port))
    before = store.num_keys()
    assert not store.delete_key("k")
    store.set("k", "1")
    store.set("l", "1")
    assert store.num_keys() == before + 2
    assert sorted(store.list_keys()) == ["k", "l"]
    assert store.delete_key("k") and not store.delete_key("k")
    assert store.list_keys() == ["l"] and not store.check(["k"])

    # A key that came and went counts for who waited.
    def waits(i):
        if i == 0:
            store = PrefixStore("keys", connect(port))
            store.wait(["a", "b"])
        else:
            other = PrefixStore("keys", connect(port))
            threading.Event().wait(0.3)
            other.set("b", "")
            assert other.delete_key("b")
            other.set("a", "")
            assert not other.check(["b"])

    in_threads(2, waits)


def waits(store):
    for _ in range(3):
        fails(DistStoreError, store.wait, ["text", "never"], timedelta(milliseconds=30))
        # The connection is in step after the time-out.
        assert store.get("text") == b"from python"


def queues(port):
    store = PrefixStore("queues", connect(port))
    assert store.queue_len("q") == 0
    fails(QueueEmptyError, store.queue_pop, "q", False)
    for value in ["one", "", "three"]:
        store.queue_push("q", value)
    assert store.queue_len("q") == 3 and store.check(["q"])
    assert [store.queue_pop("q") for _ in range(3)] == [b"one", b"", b"three"]
    assert store.queue_len("q") == 0 and not store.check(["q"])
    brief = PrefixStore("queues", connect(port))
    brief.set_timeout(timedelta(milliseconds=30))
    fails(DistStoreError, brief.queue_pop, "q")
    assert brief.queue_len("q") == 0
    # Beside a value.
    store.queue_push("both", "queued")
    store.set("both", "value")
    assert store.get("both") == b"value" and store.delete_key("both")
    assert store.queue_pop("both") == b"queued"

    # Each value is for one.
    taken = []

    def takes(i):
        if i == 0:
            for n in range(60):
                store.queue_push("shared", str(n))
            return
        own, mine = PrefixStore("queues", connect(port)), []
        while len(mine) < 20:
            # Between its wait and its taking somebody may come who need not wait.
            try:
                mine.append(own.queue_pop("shared"))
            except QueueEmptyError:
                pass
        taken.extend(mine)

    in_threads(4, takes)
    assert sorted(map(int, taken)) == list(range(60))


def barriers(port):
    # As a process group's ranks: the constructor counts the workers.
    def rank(i):
        rank = connect(port, 4)
        rank.set(f"rank/{i}", str(i))
        rank.wait([f"rank/{j}" for j in range(4)])
        for round in range(3):
            rank.barrier(f"round/{round}", 4, timedelta(seconds=60))
        assert rank.get("round/2") == b"4"
        rank.barrier("with-rust", 5, timedelta(seconds=60))

    in_threads(4, rank)
    store = connect(port)
    fails(DistStoreError, store.barrier, "few", 2, timedelta(milliseconds=30))
    assert store.add("few", 0) == 1
    store.barrier("few", 2, timedelta(seconds=60))


def client(port):
    store = connect(port)
    values(store)
    waits(store)
    prefixed = PrefixStore("a", PrefixStore("b", store))
    prefixed.set("k", "prefixed")
    keys(port)
    queues(port)
    # Woken by the other side.
    store.set("ready", "1")
    assert store.get("answer") == b"42"
    assert store.queue_pop("queue-from-rust") == b"pushed"
    barriers(port)
    # A value that the protocol's servers refuse ends the connection, and that connection only.
    def too_large():
        refused = connect(port)
        refused.set("too-large", b"x" * ((8 << 20) + 1))
        refused.get("too-large")

    fails(DistNetworkError, too_large)
    store.set("done", "1")


def servers(backend):
    libuv = backend == "libuv"
    kept = []
    for _ in sys.stdin:
        store = TCPStore("127.0.0.1", 0, None, True, use_libuv=libuv, wait_for_workers=False)
        assert store.libuvBackend == libuv
        kept.append(store)
        print(store.port, flush=True)


def rank(rank, world):
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    whole = TCPStore(host, port, None, False, timeout=timedelta(seconds=60))
    store = PrefixStore("mixed", whole)
    store.set(f"rank/{rank}", f"python {rank}")
    found = store.multi_get([f"rank/{i}" for i in range(world)])
    assert [value.split()[1] for value in found] == [str(i).encode() for i in range(world)]
    assert {value.split()[0] for value in found} == {b"python", b"rust"}
    store.add("sum", rank)
    # A PrefixStore of PyTorch makes a barrier of other keys.
    whole.barrier("mixed/barrier", world, timedelta(seconds=60))
    assert store.add("sum", 0) == world * (world - 1) // 2
    print(f"python rank {rank} of {world} met", flush=True)


command, *arguments = sys.argv[1:]
if command == "client":
    client(int(arguments[0]))
elif command == "servers":
    servers(arguments[0])
else:
    rank(int(arguments[0]), int(arguments[1]))
