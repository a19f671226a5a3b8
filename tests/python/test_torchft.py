# SPDX-License-Identifier: Apache-2.0
"""inccl.torch.ft under torchft: its own tests of process groups for CPUs with ours in gloo's place,
and its Manager, whose quorum goes on without a replica that dies and with one that comes."""
import datetime
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
import torchft.process_group_test as theirs
from torchft import Manager
from torchft.coordination import LighthouseServer
from torchft.ddp import DistributedDataParallel
from torchft.optim import OptimizerWrapper

import inccl.torch.ft

STEPS = 12


def test_apis_of_a_process_group():
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    pg = inccl.torch.ft.ProcessGroupInccl()
    for quorum in range(3):  # configured again and again
        pg.configure(f"localhost:{store.port}/prefix{quorum}", "0", 0, 1)
        assert pg.size() == 1 and pg.getBackendName() == "torchft-inccl"
        works = theirs._test_pg(pg)
        assert len(works) == 10  # all of them
        assert pg.errored() is None
    pg.abort()
    assert pg.errored() is not None
    pg.configure(f"localhost:{store.port}/last", "0", 0, 1)
    assert pg.errored() is None
    pg.shutdown()


@pytest.mark.parametrize("collective", sorted(theirs._COLLECTIVE_TO_FUNC))
def test_collectives_while_ranks_leave(collective):
    """torchft's test of each collective: over three ranks, after one of them has left, over the other two."""
    test = theirs._COLLECTIVE_TO_FUNC[collective]
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    left, both = threading.Event(), threading.Barrier(2, timeout=60)

    def rank_main(rank):
        pg = inccl.torch.ft.ProcessGroupInccl(timeout=datetime.timedelta(seconds=30))
        pg.configure(f"localhost:{store.port}/three", "0", rank, 3)
        test(pg, rank, torch.tensor([rank + 1]))
        if rank == 2:
            pg.shutdown()
            left.set()
            return
        left.wait()
        try:
            test(pg, rank, torch.tensor([rank + 1]))
            # A root has nothing to wait for, and torchft's test of reduce_scatter does nothing on CPUs.
            assert collective in ("send/recv", "broadcast", "broadcast_one", "reduce_scatter")
        except inccl.torch.BackendError as error:
            assert "peer 2@" in str(error), error
            assert "peer 2@" in str(pg.errored())
        both.wait()
        pg.configure(f"localhost:{store.port}/two", "0", rank, 2)
        assert pg.errored() is None
        test(pg, rank, torch.tensor([rank + 1]))
        pg.shutdown()

    with ThreadPoolExecutor(3) as pool:
        errors = [future.exception() for future in [pool.submit(rank_main, rank) for rank in range(3)]]
    for error in errors[::-1]:
        if error is not None:
            raise error


def replica(number, address, codec):
    """Trains as one replica, and prints the steps that it took with the number of participants, and the parameters."""
    torch.manual_seed(number)  # who comes later gets the others' state
    model = torch.nn.Linear(4, 2)
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def load(state):
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=inccl.torch.ft.ProcessGroupInccl(timeout=datetime.timedelta(seconds=10), codec=codec or None),
        min_replica_size=1, replica_id=f"replica{number}", store_addr="localhost", store_port=store.port, rank=0,
        world_size=1, hostname="localhost", lighthouse_addr=address, use_async_quorum=False, load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    print("ready", flush=True)
    sys.stdin.readline()
    wrapped, steps = DistributedDataParallel(manager, model), OptimizerWrapper(manager, optimizer)
    taken = {}
    while manager.current_step() < STEPS:
        step = manager.current_step()
        if number == 2 and step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        steps.zero_grad()
        torch.manual_seed(100 * step + number)
        wrapped(torch.randn(3, 4)).square().sum().backward()
        steps.step()
        if manager.current_step() > step:
            taken[step] = manager.num_participants()
    print(json.dumps([taken, [p.detach().numpy().tobytes().hex() for p in model.parameters()]]), flush=True)
    os._exit(0)  # without the threads of torchft


@pytest.mark.parametrize("codec", ["", "hbi:bits=8"])
def test_a_manager_goes_on_without_a_replica_that_dies(codec, tmp_path):
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=5000, heartbeat_timeout_ms=1000)
    address = "http://127.0.0.1:" + lighthouse.address().rsplit(":", 1)[1]  # a host need not know its name
    logs = [open(tmp_path / str(number), "w+", encoding="utf-8") for number in range(3)]
    replicas = [subprocess.Popen([sys.executable, __file__, str(number), address, codec], stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, stderr=log, text=True) for number, log in enumerate(logs)]
    for process in replicas:
        assert process.stdout.readline() == "ready\n"
    for process in replicas:
        process.stdin.write("go\n")
        process.stdin.flush()
    texts = [process.communicate(timeout=100)[0] for process in replicas]
    lighthouse.shutdown()
    assert [process.returncode for process in replicas] == [0, 0, -signal.SIGKILL], \
        [(tmp_path / str(number)).read_text()[-2000:] for number in range(3)]
    first, second = json.loads(texts[0]), json.loads(texts[1])
    assert first == second
    assert [first[0][str(step)] for step in range(STEPS)] == [3] * 5 + [2] * (STEPS - 5)


if __name__ == "__main__":
    replica(int(sys.argv[1]), *sys.argv[2:])
