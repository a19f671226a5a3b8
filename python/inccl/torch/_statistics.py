# SPDX-License-Identifier: Apache-2.0
"""What the hooks have sent."""
import dataclasses
import threading

from inccl import CompressionStats


@dataclasses.dataclass
class Statistics:
    """Sums over compressed calls of this rank; `error_bound` is that of the last call."""
    calls: int = 0
    elements: int = 0
    uncompressed_elements: int = 0  # reduced beside them, as they are
    payload_bytes: int = 0
    wire_bytes: int = 0
    ratio: float = 1.0  # of compressed calls: bytes without compression over bytes with it
    error_bound: float = 0.0
    dropped_superblocks: int = 0  # of 256 elements, for which the codec's bits were too few: they became 0
    poisoned_blocks: int = 0  # of 32 elements, that became NaN because some rank had one, or an infinity

    def __post_init__(self):
        self._changing = threading.Lock()
        self._pending = []  # (stats, what the call uses) of calls that may not have completed
        self._done = []  # those that were counted last
        self._plain_bytes = self._compressed_bytes = 0.0

    def add(self, call: CompressionStats, *used) -> None:
        """Counts a call when it has completed, and keeps until then what it uses."""
        with self._changing:
            self._pending.append((call, used))
        self.settle()

    def add_uncompressed(self, elements: int) -> None:
        """Counts elements that were reduced as they are. Hooks and the threads of calls count at the same time."""
        with self._changing:
            self.uncompressed_elements += elements

    def settle(self) -> "Statistics":
        """Counts the calls that have completed."""
        with self._changing:
            done, pending = [], []
            for entry in self._pending:
                (done if entry[0].completed else pending).append(entry)
            for call, _ in done:
                self._count(call)
            # They go later: the library may still be about to write stats.size, its last store.
            self._done, self._pending = done or self._done, pending
        return self

    def _count(self, call: CompressionStats) -> None:
        self.calls += 1
        if call.compressed:
            self.elements += call.elements
            self._compressed_bytes += call.payload_bytes
            self._plain_bytes += call.ratio * call.payload_bytes
            if self._compressed_bytes > 0:
                self.ratio = self._plain_bytes / self._compressed_bytes
            self.error_bound = call.error_bound
            self.dropped_superblocks += call.dropped_superblocks
            self.poisoned_blocks += call.poisoned_blocks
        else:
            self.uncompressed_elements += call.elements
        self.payload_bytes += call.payload_bytes
        self.wire_bytes += call.wire_bytes
