"""Rank processes of one contender: started together, resident, asked together."""

import json
import os
import queue
import socket
import subprocess
import threading
import time

# On hosts whose GPUs are shared, multicast objects can put them out of service.
NO_MULTICAST = {
    "SYMMEM_MULTICAST": "0",
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}


class Failed(Exception):
    """A contender cannot go on: a rank ended, was silent for too long, or has a wrong result."""


class Refused(Exception):
    """All ranks are well, and said why they do not do what they were asked."""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Ranks:
    """`size` processes of `command`, told by torchrun's variables which rank each is.

    Each writes one line of JSON once it is ready, the greeting, and then for each line of its input
    some lines of JSON.
    """

    def __init__(self, name, command, size, start_seconds=180):
        self.name = name
        self.errors = []
        environment = dict(os.environ, **NO_MULTICAST, WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size))
        # Rank 0 serves the store: nobody else does.
        environment.pop("TORCHELASTIC_USE_AGENT_STORE", None)
        environment.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
        self.processes = []
        self.said = []
        for rank in range(size):
            process = subprocess.Popen(
                command,
                env=dict(environment, RANK=str(rank), LOCAL_RANK=str(rank)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
            lines = queue.Queue()
            threading.Thread(target=self._hear, args=(process.stdout, lines), daemon=True).start()
            threading.Thread(target=self._note, args=(rank, process.stderr), daemon=True).start()
            self.processes.append(process)
            self.said.append(lines)
        try:
            self.greetings = self.listen(start_seconds)
        except Failed:
            self.kill()
            raise

    def _hear(self, stream, lines):
        for line in stream:
            # What a library prints there is no answer.
            if line.startswith("{"):
                lines.put(json.loads(line))
            else:
                self.errors.append(line.rstrip())
        lines.put(None)

    def _note(self, rank, stream):
        for line in stream:
            self.errors.append(f"[{rank}] {line.rstrip()}")

    def listen(self, seconds):
        """One line of each rank."""
        until = time.monotonic() + seconds
        heard = []
        for rank, lines in enumerate(self.said):
            try:
                line = lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise Failed(f"{self.name}: rank {rank} has said nothing for {seconds} s") from None
            if line is None:
                self.processes[rank].wait()
                time.sleep(0.2)  # For the last words on the error stream.
                last = "\n".join(self.errors[-15:])
                raise Failed(f"{self.name}: rank {rank} has ended\n{last}")
            heard.append(line)
        for line in heard:
            if line.get("report") == "wrong":
                raise Failed(f"{self.name}: {line['what']}: {line['wrong']}")
            if line.get("report") == "failed":
                raise Failed(f"{self.name}: {line['because']}")
        for line in heard:
            if "because" in line:
                raise Refused(f"{self.name}: {line['because']}")
        return heard

    def ask(self, line, seconds=180):
        """The next line of each rank, after all were given `line`."""
        try:
            for process in self.processes:
                process.stdin.write(line + "\n")
                process.stdin.flush()
        except BrokenPipeError:
            pass  # Whose rank has ended is found when it is listened to.
        return self.listen(seconds)

    def stop(self):
        """Ends the ranks in order, and those that do not end in time, anyhow."""
        for process in self.processes:
            try:
                process.stdin.close()
            except BrokenPipeError:
                pass
        until = time.monotonic() + 20
        for process in self.processes:
            try:
                process.wait(timeout=max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()

    def kill(self):
        for process in self.processes:
            process.kill()
            process.wait()
