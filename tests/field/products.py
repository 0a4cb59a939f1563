"""What programs make of models: exported programs, scripts, copies, quantized models, files."""

import copy
import io
import pickle

import torch
import torch.distributed as dist
from models import Block, ids, llama
from programs import program
from torch import nn
from torch.func import functional_call, grad, hessian, jvp, vmap
from torch.utils.checkpoint import checkpoint


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))


X = torch.arange(16.0).reshape(2, 8) / 8


def used(model):
    """As most are: it has run before it is exported."""
    model(X)
    return model


def nodes(graph_module):
    return [f"{node.op} {node.target}" for node in graph_module.graph.nodes]


def reopen_export(folder):
    return [torch.export.load(path).module()(X) for path in sorted(folder.glob("*.pt2"))]


@program(reopen=reopen_export)
def exported(run):
    model, found = used(net()), []
    for strict in (False, True):
        made = torch.export.export(model, (X,), strict=strict)
        torch.export.save(made, run.folder / f"{strict}.pt2")
        found += [
            nodes(made),
            nodes(made.run_decompositions()),
            made.module()(X),
            list(made.state_dict),
        ]
    return found


@program(needs="transformers", quick=False)
def llama_exported(run):
    model = llama(attn_implementation="sdpa", use_cache=False)
    model(input_ids=ids())
    made = torch.export.export(model, (), {"input_ids": ids()}, strict=False)
    return [nodes(made), made.module()(input_ids=ids())]


@program(
    quick=False, reopen=lambda folder: torch._inductor.aoti_load_package(str(folder / "net.pt2"))(X)
)
def aot_inductor_package(run):
    made = torch.export.export(used(net()), (X,))
    path = torch._inductor.aoti_compile_and_package(made, package_path=str(run.folder / "net.pt2"))
    return torch._inductor.aoti_load_package(path)(X)


def reopen_onnx(folder):
    import onnx

    return [
        sorted({n.op_type for n in onnx.load(path).graph.node})
        for path in sorted(folder.glob("*.onnx"))
    ]


@program(needs="onnx onnxscript", quick=False, reopen=reopen_onnx)
def onnx_files(run):
    model = used(net()).eval()
    for dynamo in (False, True):
        torch.onnx.export(model, (X,), run.folder / f"{dynamo}.onnx", dynamo=dynamo)
    return model(X)


@program(reopen=lambda folder: [torch.jit.load(path)(X) for path in sorted(folder.glob("*.pt"))])
def scripted_traced_and_frozen(run):
    model = used(net()).eval()
    made = [torch.jit.script(model), torch.jit.trace(model, X)]
    made += [torch.jit.freeze(made[0]), torch.jit.optimize_for_inference(torch.jit.script(model))]
    for i, one in enumerate(made[:3]):
        one.save(run.folder / f"{i}.pt")
    return [[str(one.graph) for one in made[:3]], [one(X) for one in made]]


@program()
def fx_and_make_fx(run):
    model = used(net())
    made = torch.fx.symbolic_trace(model)
    again = torch.fx.symbolic_trace(made)
    traced = torch.fx.experimental.proxy_tensor.make_fx(lambda x: model(x).sum())(X)
    return [nodes(made), nodes(again), nodes(traced), made(X), again(X), traced(X)]


@program(quick=False)
def transformed_functions(run):
    model = used(net())
    state = dict(model.named_parameters())

    def loss(state, x):
        return functional_call(model, state, (x,)).square().sum()

    return [
        grad(loss)(state, X),
        vmap(grad(loss), (None, 0))(state, X),
        vmap(model)(X),
        jvp(model, (X,), (torch.ones_like(X),)),
        hessian(lambda x: model(x).sum())(X[0]),
    ]


@program(quick=False)
def quantized(run):
    from torch.ao.quantization import (
        get_default_qconfig,
        get_default_qconfig_mapping,
        quantize_dynamic,
        quantize_fx,
    )

    found = [quantize_dynamic(used(net()), {nn.Linear})(X)]
    ready = quantize_fx.prepare_fx(used(net()).eval(), get_default_qconfig_mapping("x86"), (X,))
    ready(X)
    found.append(quantize_fx.convert_fx(ready)(X))
    model = used(
        nn.Sequential(
            torch.ao.quantization.QuantStub(), *net(), torch.ao.quantization.DeQuantStub()
        ).eval()
    )
    torch.ao.quantization.fuse_modules(model, ["1", "2"], inplace=True)
    model.qconfig = get_default_qconfig("x86")
    ready = torch.ao.quantization.prepare(model)
    ready(X)
    return [*found, torch.ao.quantization.convert(ready)(X)]


@program(needs="torchao", quick=False)
def quantized_export(run):
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
        X86InductorQuantizer,
        get_default_x86_inductor_quantization_config,
    )

    quantizer = X86InductorQuantizer().set_global(get_default_x86_inductor_quantization_config())
    ready = prepare_pt2e(torch.export.export(used(net()).eval(), (X,)).module(), quantizer)
    ready(X)
    made = convert_pt2e(ready)
    return [nodes(made), made(X)]


@program(needs="transformer_engine", quick=False)
def float8_of_transformer_engine(run):
    import transformer_engine.pytorch as te

    model = nn.Sequential(te.Linear(16, 16), nn.ReLU(), te.Linear(16, 16)).cuda()
    x = torch.ones(16, 16, device="cuda")
    with te.fp8_autocast(enabled=te.fp8.check_fp8_support()[0]):
        return model(x).cpu()


def reopen_files(folder):
    found = []
    for path in sorted(folder.glob("*.pt")):
        model = torch.load(path, weights_only=False)
        hooks = [[len(m._forward_hooks), len(m._forward_pre_hooks)] for m in model.modules()]
        found += [hooks, model(X), torch.jit.script(model)(X)]
    return found


@program(reopen=reopen_files)
def copies_and_files(run):
    model = used(net()).eval()
    torch.save(model, run.folder / "model.pt")
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    other = net()
    other.load_state_dict(torch.load(buffer))
    twins = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.copy(model), other]
    return [[one(X) for one in twins], [list(one.state_dict()) for one in twins], str(model)]


@program()
def checkpointed(run):
    found = []
    for reentrant in (False, True):
        model, x = used(net()), X.clone().requires_grad_()
        checkpoint(model, x, use_reentrant=reentrant).sum().backward()
        found += [x.grad, [p.grad for p in model.parameters()]]
    return found


@program(quick=False)
def parametrized_pruned_and_lazy(run):
    model = used(net())
    nn.utils.parametrizations.weight_norm(model[0])
    nn.utils.prune.l1_unstructured(model[2], "weight", 0.5)
    lazy = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2))
    return [model(X), lazy(X).shape, list(model.state_dict())]


@program(quick=False)
def fake_and_meta(run):
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as flops:
        used(net())
    with FakeTensorMode(allow_non_fake_inputs=True):
        shape = net()(torch.empty(3, 8)).shape
    with torch.device("meta"):
        return [flops.get_total_flops(), shape, net()(torch.empty(5, 8)).shape]


def one_rank(folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)


@program(quick=False)
def data_parallel(run):
    one_rank(run.folder)
    model = nn.parallel.DistributedDataParallel(used(net()))
    model(X).sum().backward()
    found = [p.grad for p in model.parameters()]
    dist.destroy_process_group()
    return found


@program("eager", "aot_eager", quick=False)
def fully_sharded(run):
    one_rank(run.folder)
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    mesh = dist.init_device_mesh("cpu", (1,))
    for block in model:
        dist.fsdp.fully_shard(block, mesh=mesh)
        block.compile(backend=run.backend)
    dist.fsdp.fully_shard(model, mesh=mesh)
    out = model(torch.ones(2, 16))
    out.sum().backward()
    found = [out, [p.grad.full_tensor() for p in model.parameters()]]
    dist.destroy_process_group()
    return found


@program(quick=False)
def pipelined(run):
    from torch.distributed.pipelining import SplitPoint, pipeline

    model = used(net())
    pipe = pipeline(model, (X,), split_spec={"2": SplitPoint.BEGINNING})
    stages = [pipe.get_stage_module(i) for i in range(pipe.num_stages)]
    return [[nodes(one) for one in stages], pipe(X)]


@program(
    quick=False,
    reopen=lambda folder: torch.compiler.load_compiled_function((folder / "code").open("rb"))(
        net(), X
    ),
)
def compiled_ahead_of_time(run):
    torch._dynamo.config.enable_aot_compile = True
    model = used(net())
    with torch.no_grad():
        made = torch.compile(model.forward, fullgraph=True, backend="inductor").aot_compile(
            ((X,), {})
        )
        made.save_compiled_function(run.folder / "code", external_data={"model": model})
        return made(model, X)
