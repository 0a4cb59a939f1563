"""DTensors in a captured graph: one process, a mesh of one GPU."""

import pytest

pytestmark = pytest.mark.gpu

CAPTURE = """
import tempfile
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
store = tempfile.NamedTemporaryFile()
dist.init_process_group("nccl", init_method=f"file://{store.name}", rank=0, world_size=1)
mesh = init_device_mesh("cuda", (1,), mesh_dim_names=("tp",))
x = distribute_tensor(torch.zeros(4, 3, device="cuda"), mesh, [Shard(0)])
p = CudaGraphTensorProbe("w", [TensorRecord()])
p.prepare(x)
def step():
    x.to_local().add_(1)
    assert p(x) is x
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
for _ in range(2):
    graph.replay()
for record in p.records(synchronize=True):
    print(record.replay_index, record.shard, record.tensor[3, 2].item())
dist.destroy_process_group()
"""


def test_a_dtensor_in_a_captured_graph_is_its_shard(job):
    out, _ = job(CAPTURE, CGDEBUG="0").finish(120)
    assert out.splitlines() == [
        "1 S(0) of [4,3] at (0) of tp=1, from [0,0] 2.0",
        "2 S(0) of [4,3] at (0) of tp=1, from [0,0] 3.0",
    ]
