# SPDX-License-Identifier: Apache-2.0
"""What tells who waits for whom and where the time goes: flight recorder, profiler, monitored_barrier."""
import os
import pickle
import subprocess
import sys
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.flight_recorder.components.builder import build_db
from torch.distributed.flight_recorder.components.config_manager import JobConfig
from torch.distributed.flight_recorder.components.loader import read_dir
from torch.nn.parallel import DistributedDataParallel

import inccl.torch
from inccl.torch import BackendError, flight_recorder
from torch_world import group_ranks
from world import job, run


def entries_of(name):
    return [entry for entry in flight_recorder.record()["entries"]
            if entry["profiling_name"] == f"nccl:{name}"]


def analyzed(folder):
    """PyTorch's analysis of the dumps in a folder."""
    arguments = JobConfig().parse_args([str(folder), "--prefix", "trace_rank_"])
    details, version = read_dir(arguments)
    return build_db(details, arguments, version)


@group_ranks(3)
def test_every_operation_is_recorded(rank, n):
    ones = [torch.ones(4, 2) for _ in range(n)]
    dist.all_reduce(ones[0])
    work = dist.all_reduce(ones[0].double(), async_op=True)
    work.wait()
    dist.broadcast(ones[0], 1)
    dist.reduce(ones[0], 2)
    dist.all_gather(ones, torch.ones(4, 2))
    dist.all_gather_into_tensor(torch.ones(12, 2), torch.ones(4, 2))
    dist.gather(torch.ones(4, 2), ones if rank == 1 else None, 1)
    dist.scatter(torch.ones(4, 2), ones if rank == 1 else None, 1)
    dist.reduce_scatter(torch.ones(4, 2), ones)
    dist.reduce_scatter_tensor(torch.ones(4, 2), torch.ones(12, 2))
    dist.all_to_all(ones, [torch.ones(4, 2) for _ in range(n)])
    dist.all_to_all_single(torch.ones(6), torch.ones(6))
    dist.barrier()
    if rank == 0:
        dist.send(torch.ones(5), 1)
    elif rank == 1:
        dist.recv(torch.ones(5))
    record = flight_recorder.record()
    assert record["pg_config"] == {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
    collectives = [entry for entry in record["entries"] if not entry["is_p2p"]]
    assert [entry["profiling_name"] for entry in collectives] == ["nccl:" + name for name in (
        "all_reduce", "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_single", "gather", "scatter",
        "reduce_scatter", "reduce_scatter_single", "all_to_all", "all_to_all_single", "barrier")]
    assert [entry["collective_seq_id"] for entry in collectives] == list(range(1, 14))
    gathered, scattered = collectives[4], collectives[9]
    assert gathered["input_sizes"] == [[4, 2]] and gathered["output_sizes"] == [[4, 2]] * 3
    assert scattered["input_sizes"] == [[12, 2]] and scattered["output_sizes"] == [[4, 2]]
    assert collectives[1]["input_dtypes"] == ["Float64"]
    for entry in record["entries"]:
        assert entry["state"] == "completed" and entry["error"] is None, entry
        assert entry["time_created_ns"] <= entry["time_discovered_started_ns"] <= entry["time_discovered_completed_ns"]
        assert __file__ in [frame["filename"] for frame in entry["frames"][:3]], entry["frames"]
    pairs = [entry["profiling_name"] for entry in record["entries"] if entry["is_p2p"]]
    assert pairs == [["nccl:send 0->1"], ["nccl:recv 1<-0"], []][rank]


@pytest.mark.parametrize("fault", [None, "missing", "sizes"])
def test_pytorchs_analyzer_finds_who_is_wrong(fault, tmp_path):
    @group_ranks(3, timeout=2.0)
    def ranks(rank, n):
        pair = dist.new_group([1, 2], timeout=timedelta(seconds=2))
        for _ in range(3):
            dist.all_reduce(torch.ones(10))
        if rank > 0:
            dist.broadcast(torch.ones(3), 1, group=pair)
        if fault == "missing" and rank == 1:
            time.sleep(3)  # where the others wait in the collective
        elif fault == "sizes":
            with pytest.raises(BackendError):
                dist.all_reduce(torch.ones(11 if rank == 2 else 10))
                dist.barrier()
        elif fault == "missing":
            with pytest.raises(BackendError):
                dist.all_reduce(torch.ones(10))
        assert flight_recorder.dump(f"{tmp_path}/trace_rank_") == f"{tmp_path}/trace_rank_{rank}"
        dist.distributed_c10d._get_default_group().abort()
    ranks(3)
    found = analyzed(tmp_path).collectives
    wrong = [one for one in found if not one.pass_check or one.missing_ranks]
    right = [one.collective_name for one in found if one not in wrong]
    assert right[:3] == ["nccl:all_reduce"] * 3
    if fault is None:
        assert not wrong and right[3:] == ["nccl:broadcast"]
    elif fault == "missing":
        assert wrong and wrong[0].missing_ranks == {1}
    else:
        assert wrong and set(wrong[0].mismatch_collectives) == {2}


@group_ranks(2)
def test_compressed_operations_name_their_codec(rank, n):
    model = DistributedDataParallel(torch.nn.Linear(128, 64))
    model.register_comm_hook(inccl.torch.State(codec="hbi:bits=4"), inccl.torch.compress_hook)
    model(torch.ones(2, 128)).sum().backward()
    compressed = [entry for entry in entries_of("all_reduce") if entry["codec"] is not None]
    assert [entry["input_sizes"] for entry in compressed] == [[[128 * 64 + 64]]]
    assert compressed[0]["codec"].startswith("hbi:") and "bits=4" in compressed[0]["codec"]
    scatter = inccl.torch.CompressedReduceScatter("hbi:bits=5")
    group = dist.distributed_c10d._get_default_group()
    scatter(torch.ones(2048), torch.ones(4096), group, dist.ReduceOp.SUM)
    assert "bits=5" in entries_of("reduce_scatter_single")[0]["codec"]


@group_ranks(2, timeout=1.0)
def test_a_failure_is_dumped_once(rank, n):
    prefix = f"{os.environ['TRACES']}/trace_rank_"
    os.environ["TORCH_FR_DUMP_TEMP_FILE"] = prefix
    dist.all_reduce(torch.ones(7))
    if rank == 0:
        with pytest.raises(BackendError):
            dist.all_reduce(torch.ones(8))
        with open(prefix + "0", "rb") as file:
            last = pickle.load(file)["entries"][-1]
        assert last["state"] == "started" and "waiting for peer 1" in last["error"], last
        os.remove(prefix + "0")
        with pytest.raises(BackendError):
            dist.all_reduce(torch.ones(9))
        assert os.listdir(os.environ["TRACES"]) == []
    else:
        time.sleep(2)
    dist.distributed_c10d._get_default_group().abort()


test_a_failure_is_dumped_once = pytest.mark.usefixtures("traces")(test_a_failure_is_dumped_once)


@pytest.fixture
def traces(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACES", str(tmp_path))


@pytest.mark.parametrize("size, kept", [("3", 3), ("0", 0)])
def test_the_buffer_has_a_size(size, kept):
    program = ("import torch, torch.distributed as dist, inccl.torch\n"
               "dist.init_process_group('inccl', store=dist.HashStore(), rank=0, world_size=1)\n"
               "for length in range(5): dist.all_reduce(torch.ones(length + 1))\n"
               "print([entry['input_sizes'] for entry in inccl.torch.flight_recorder.record()['entries']])\n"
               "dist.destroy_process_group()\n")
    out = subprocess.run([sys.executable, "-c", program], env={**os.environ, "TORCH_FR_BUFFER_SIZE": size},
                         capture_output=True, text=True, check=True).stdout
    assert out.strip() == str([[[length + 1]] for length in range(5 - kept, 5)])


@group_ranks(2)
def test_profiles_have_collectives(rank, n):
    codec = inccl.torch.CompressedReduceScatter("hbi:bits=5")
    group = dist.distributed_c10d._get_default_group()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        dist.all_reduce(torch.ones(6, 7))
        dist.all_reduce(torch.ones(5), async_op=True).wait()
        codec(torch.ones(2048), torch.ones(4096), group, dist.ReduceOp.SUM)
        model = DistributedDataParallel(torch.nn.Linear(3, 4))
        model(torch.ones(2, 3)).sum().backward()
    events = [event for event in profile.events() if event.name.startswith("c10d::")]
    reduced = [event for event in events if event.name == "c10d::allreduce"]
    assert [event.input_shapes for event in reduced[:2]] == [[[6, 7]], [[5]]]
    assert [16] in [event.input_shapes[0] for event in reduced[2:]]  # DDP's bucket
    scattered = [event for event in events if event.name == "c10d::reduce_scatter_single"]
    assert [event.input_shapes for event in scattered] == [[[4096]]]
    assert "bits=5" in scattered[0].kwinputs["codec"] and reduced[0].kwinputs["codec"] == "none"


@group_ranks(4)
def test_monitored_barrier_names_all_that_are_missing(rank, n):
    group = dist.distributed_c10d._get_default_group()
    for _ in range(3):
        group.monitored_barrier()
    if rank in (0, 3):
        with pytest.raises(BackendError, match=r"ranks \[1, 2\] have not called it for 0.5 s"):
            group.monitored_barrier(timeout=timedelta(seconds=0.5), wait_all_ranks=True)
    else:
        dist.distributed_c10d._get_default_store().wait(["seen"])
        with pytest.raises(BackendError, match=r"ranks \[1, 2\]"):
            group.monitored_barrier(0.5)
    if rank == 0:
        dist.distributed_c10d._get_default_store().set("seen", "")
    dist.barrier()  # the group goes on
    group.monitored_barrier()
    if rank == 2:
        with pytest.raises(BackendError, match="rank 0 has not called it"):
            group.monitored_barrier(0.1)
    dist.barrier()
