"""PyTorch's side of torch_store.rs.

client PORT   uses the server at PORT, then says so in its keys
server LIBUV  serves until its input ends; prints the port
"""

import sys
import threading
from datetime import timedelta

from torch.distributed import DistStoreError, PrefixStore, TCPStore


def client(port):
    store = TCPStore("127.0.0.1", port, None, False, timeout=timedelta(seconds=60))
    store.set("text", "from python")
    assert store.get("text") == b"from python"
    assert store.get("from-rust") == b"\x00\xff rust"
    large = bytes(range(256)) * (1 << 14)
    store.set("large", large)
    assert store.get("large") == large
    assert store.add("count", 5) == 5
    assert store.add("count", -7) == -2
    assert store.compare_set("swap", "x", "y") == b"x"
    assert not store.check(["swap"])
    assert store.compare_set("swap", "", "one") == b"one"
    assert store.compare_set("swap", "two", "three") == b"one"
    assert store.compare_set("swap", "one", "two") == b"two"
    assert store.check(["swap", "count"]) and not store.check(["swap", "never"])
    assert store.multi_get(["text", "swap"]) == [b"from python", b"two"]
    for _ in range(3):
        try:
            store.wait(["text", "never"], timedelta(milliseconds=30))
            raise AssertionError("a wait for a missing key ended")
        except DistStoreError:
            pass
        # The connection is in step after the time-out.
        assert store.get("text") == b"from python"
    prefixed = PrefixStore("a", PrefixStore("b", store))
    prefixed.set("k", "prefixed")
    # Woken by the other side.
    store.set("ready", "1")
    assert store.get("answer") == b"42"

    # As a process group's ranks: the constructor counts the workers.
    def rank(i):
        rank = TCPStore("127.0.0.1", port, 4, False, timeout=timedelta(seconds=60))
        rank.set(f"rank/{i}", str(i))
        rank.wait([f"rank/{j}" for j in range(4)])

    ranks = [threading.Thread(target=rank, args=(i,)) for i in range(4)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join()
    store.set("done", "1")


def server(libuv):
    store = TCPStore("127.0.0.1", 0, None, True, use_libuv=libuv, wait_for_workers=False)
    assert store.libuvBackend == libuv
    store.set("from-python", b"\x00\xff python")
    print(store.port, flush=True)
    sys.stdin.read()


if sys.argv[1] == "client":
    client(int(sys.argv[2]))
else:
    server(sys.argv[2] == "libuv")
