"""Models of transformers with random weights, and how people compile, train and generate with them."""

import copy

import torch
from programs import program
from torch import nn

TRANSFORMERS = "transformers"


def ids(batch=2, length=12):
    return torch.arange(batch * length).reshape(batch, length) % 90 + 3


def llama(layers=2, **options):
    from transformers import LlamaConfig, LlamaForCausalLM

    size = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
    }
    config = LlamaConfig(vocab_size=100, num_key_value_heads=2, pad_token_id=0, **size, **options)
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=100, n_positions=64, n_embd=32, n_layer=2, n_head=4)
    ).eval()


def bert():
    from transformers import BertConfig, BertModel

    size = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
    torch.manual_seed(0)
    return BertModel(BertConfig(vocab_size=100, **size)).eval()


def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    size = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    torch.manual_seed(0)
    config = T5Config(vocab_size=100, decoder_start_token_id=0, **size)
    return T5ForConditionalGeneration(config).eval()


def vit():
    from transformers import ViTConfig, ViTForImageClassification

    size = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
    torch.manual_seed(0)
    return ViTForImageClassification(ViTConfig(image_size=16, patch_size=4, **size)).eval()


def mixtral():
    from transformers import MixtralConfig, MixtralForCausalLM

    size = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    torch.manual_seed(0)
    config = MixtralConfig(vocab_size=100, num_key_value_heads=2, num_local_experts=4, **size)
    return MixtralForCausalLM(config).eval()


def mamba():
    from transformers import MambaConfig, MambaForCausalLM

    torch.manual_seed(0)
    return MambaForCausalLM(MambaConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2)).eval()


def whisper():
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    size = {
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
    }
    more = {
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "max_source_positions": 16,
        "num_mel_bins": 8,
    }
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    torch.manual_seed(0)
    config = WhisperConfig(vocab_size=100, max_target_positions=32, **size, **more, **tokens)
    return WhisperForConditionalGeneration(config).eval()


def call(model):
    """The outputs of one forward call."""
    name = type(model).__name__
    if name.startswith("ViT"):
        return model(pixel_values=torch.linspace(-1, 1, 2 * 3 * 16 * 16).reshape(2, 3, 16, 16))
    if name.startswith("Whisper"):
        return model(
            input_features=torch.linspace(-1, 1, 8 * 32).reshape(1, 8, 32),
            decoder_input_ids=ids(1, 6),
        )
    if name.startswith("T5"):
        return model(input_ids=ids(), labels=ids(2, 6))
    labels = {} if name.startswith("Bert") else {"labels": ids()}
    return model(input_ids=ids(), **labels)


def results(model, output):
    """What it returned, and the gradients of a training step."""
    first = output[0] if output[0].requires_grad else output.logits
    first.square().mean().backward()
    return [output, [p.grad for p in model.parameters()]]


def for_each(*models, **options):
    """One program a model: `function` with the model in place."""

    def add(function):
        for make in models:

            def one(run, make=make):
                return function(run, make())

            one.__name__ = f"{make.__name__}_{function.__name__}"
            program(
                *options.get("backends", ()), needs=TRANSFORMERS, quick=options.get("quick", True)
            )(one)
        return function

    return add


@for_each(gpt2, bert, t5, vit, mixtral, quick=False)
@for_each(llama)
def eager(run, model):
    with torch.no_grad():
        before = call(model)
    return [before, results(model.train(), call(model))]


@for_each(mamba, whisper, quick=False)
def eagerly(run, model):
    return results(model, call(model))


@for_each(gpt2, bert, backends=("eager", "aot_eager", "inductor"), quick=False)
@for_each(llama, backends=("(eager)", "aot_eager", "(inductor)"))
def compiled(run, model):
    fast, found = run.compile(model), []
    for _ in range(run.calls):
        with torch.no_grad():
            found.append(run.keep(call_of(model, fast)))
        model.zero_grad()
        found.append(run.keep(results(model, call_of(model, fast))))
    return found


@for_each(t5, vit, mixtral, mamba, whisper, backends=("aot_eager",), quick=False)
def compile(run, model):
    return results(model, call_of(model, run.compile(model)))


def call_of(model, compiled):
    class As:
        def __call__(self, **arguments):
            return compiled(**arguments)

    As.__name__ = type(model).__name__
    return call(As())


@for_each(llama, backends=("eager", "aot_eager"), quick=False)
def fullgraph(run, model):
    return results(model, call_of(model, run.compile(model, fullgraph=True)))


@for_each(llama, backends=("eager", "aot_eager"), quick=False)
def dynamic(run, model):
    fast = run.compile(model, dynamic=True)
    with torch.no_grad():
        return [fast(input_ids=ids(batch, length)) for batch, length in ((2, 12), (3, 7), (4, 9))]


@for_each(llama, backends=("eager", "aot_eager", "inductor"), quick=False)
@for_each(gpt2, backends=("(eager)", "aot_eager", "(inductor)"))
def layers_compiled(run, model):
    layers = model.model.layers if hasattr(model, "model") else model.transformer.h
    for layer in layers:
        layer.compile(**run.how)
    found = []
    for _ in range(run.calls):
        model.zero_grad()
        found.append(run.keep(results(model, call(model))))
    return [found, run.keep(call(model))]


@for_each(llama, backends=("eager", "aot_eager"), quick=False)
def layers_replaced(run, model):
    for i, layer in enumerate(model.model.layers):
        model.model.layers[i] = run.compile(layer)
    return results(model, call(model))


@for_each(llama, backends=("eager", "(aot_eager)"))
def with_a_second_of_its_class(run, model):
    reference = copy.deepcopy(model)
    out = [call_of(one, run.compile(one)) for one in (model, reference)]
    return [out, results(model, out[0])]


@for_each(llama, backends=("eager", "aot_eager"), quick=False)
def train_and_eval(run, model):
    fast, found = run.compile(model), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):
        model.train()
        loss = call_of(model, fast).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            found += [loss.detach(), call_of(model, fast).loss]
    return [found, model.state_dict()]


@for_each(llama, quick=False)
def gradient_checkpointing(run, model):
    model.train().gradient_checkpointing_enable()
    return results(model, call(model))


@for_each(llama, backends=("(eager)", "aot_eager"), quick=False)
def checkpointing_compiled(run, model):
    model.train().gradient_checkpointing_enable()
    return results(model, call_of(model, run.compile(model)))


@for_each(llama, t5, quick=False)
@for_each(gpt2, quick=False)
def generate(run, model):
    return [
        model.generate(ids(1, 4), max_new_tokens=6, do_sample=sample) for sample in (False, True)
    ]


@for_each(llama, backends=("eager", "(aot_eager)"))
def generate_compiled(run, model):
    model.forward = run.compile(model.forward)
    return model.generate(
        ids(1, 4), max_new_tokens=6, do_sample=False, cache_implementation="static"
    )


@for_each(llama, backends=("eager", "aot_eager"), quick=False)
def breaks_between_layers(run, model):
    for layer in model.model.layers:

        def forward(*args, own=layer.forward, **kwargs):
            torch._dynamo.graph_break()
            return own(*args, **kwargs)

        layer.forward = forward
    return results(model, call_of(model, run.compile(model)))


@for_each(llama, backends=("eager", "aot_eager"), quick=False)
def marked_dynamic(run, model):
    fast, found = run.compile(model), []
    for length in (8, 12, 10):
        x = ids(2, length)
        torch._dynamo.mark_dynamic(x, 1)
        with torch.no_grad():
            found.append(fast(input_ids=x).logits)
    return found


@for_each(llama, backends=("aot_eager",), quick=False)
def compiled_autograd(run, model):
    out = call_of(model, run.compile(model))
    with torch._dynamo.compiled_autograd._enable(run.compile):
        return results(model, out)


@for_each(llama, quick=False)
def autocast(run, model):
    with torch.autocast("cpu", torch.bfloat16):
        return results(model, call(model))


# --- torch's own layers -----------------------------------------------------------------------------------------------


def encoder():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 2)


@program(quick=False)
def encoder_fused(run):
    net, x = encoder().eval(), torch.randn(2, 5, 16)
    with torch.inference_mode():
        return [
            net(x),
            net(x, src_key_padding_mask=torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]).bool()),
        ]


@program("eager", "aot_eager", "inductor", quick=False)
def encoder_compiled(run):
    net, x = encoder(), torch.randn(2, 5, 16)
    out = run.compile(net, fullgraph=True)(x)
    out.square().mean().backward()
    return [out, [p.grad for p in net.parameters()]]


@program("eager", quick=False)
def attention_compiled(run):
    torch.manual_seed(0)
    net, x = nn.MultiheadAttention(16, 2, batch_first=True), torch.randn(2, 5, 16)
    fast = run.compile(net)
    return [fast(x, x, x, need_weights=weights) for weights in (False, True)]


@program("inductor", "aot_eager", quick=False)
def mlp_compiled(run):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
    x = torch.randn(8, 16)
    out = run.compile(net)(x)
    out.square().mean().backward()
    return [out, [p.grad for p in net.parameters()]]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))


@program("aot_eager", "eager", "inductor", quick=False)
def equal_blocks_compiled(run):
    torch.manual_seed(0)
    net, x = nn.Sequential(*[Block() for _ in range(12)]), torch.randn(4, 16)
    for block in net:
        block.compile(fullgraph=True, **run.how)
    found = []
    for _ in range(run.calls):
        net.zero_grad()
        out = net(x)
        out.square().mean().backward()
        found.append(run.keep([out, [p.grad for p in net.parameters()]]))
    return [found, run.keep(net(torch.randn(3, 16)))]


@program(quick=False)
def lstm(run):
    torch.manual_seed(0)
    net, x = nn.LSTM(8, 16, 2, batch_first=True), torch.randn(3, 5, 8)
    packed = nn.utils.rnn.pack_padded_sequence(x, [5, 4, 2], batch_first=True)
    return [net(x), net(packed)[1]]


@program(quick=False)
def convolution_and_batch_norm(run):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    out = net(torch.randn(4, 3, 8, 8))
    out.square().sum().backward()
    return [out, net.state_dict(), [p.grad for p in net.parameters()]]
