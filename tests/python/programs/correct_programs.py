"""Programs that are right, by name: nothing must be found in them (serve_programs.py)."""

import torch
import transformers
from serve_programs import serve

TINY = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 32,
}
CALLS, BATCH, LENGTH = 4, 3, 12


def padded():
    """Batches of one shape whose padding changes."""
    for call in range(CALLS):
        mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
        for row in range(BATCH):
            mask[row, : (2 * row + call) % 7] = 0
        yield {"input_ids": torch.randint(1, 64, (BATCH, LENGTH)), "attention_mask": mask}


def forward(model, batches=None):
    model.eval()
    with torch.no_grad():
        for batch in batches or padded():
            model(**batch)


def llama(**options):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY, **options))


def run_llama():
    forward(llama(attn_implementation="eager"))


def run_mistral():
    config = transformers.MistralConfig(**TINY, sliding_window=4, attn_implementation="eager")
    forward(transformers.MistralForCausalLM(config))


def run_mixtral():
    config = transformers.MixtralConfig(**TINY, num_local_experts=4, num_experts_per_tok=2)
    forward(transformers.MixtralForCausalLM(config))


def run_gpt2():
    config = transformers.GPT2Config(
        n_embd=16, n_layer=2, n_head=2, vocab_size=64, n_positions=32, attn_implementation="eager"
    )
    forward(transformers.GPT2LMHeadModel(config))


def run_bert():
    sizes = {name: size for name, size in TINY.items() if name != "num_key_value_heads"}
    forward(transformers.BertModel(transformers.BertConfig(**sizes, attn_implementation="eager")))


def run_t5():
    config = transformers.T5Config(
        d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, vocab_size=64
    )
    model = transformers.T5ForConditionalGeneration(config)
    forward(model, [{**batch, "decoder_input_ids": batch["input_ids"]} for batch in padded()])


def run_vit():
    config = transformers.ViTConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        image_size=16, patch_size=4,
    )  # fmt: skip
    images = torch.randn(CALLS, BATCH, 3, 16, 16)
    for call in range(CALLS):
        for row in range(BATCH):
            images[call, row, :, :, 16 - (3 * row + 4 * call) % 13 :] = 0  # padding that changes
    forward(transformers.ViTModel(config), [{"pixel_values": batch} for batch in images])


def run_decode():
    batch = next(padded())
    llama().eval().generate(
        **batch, max_new_tokens=6, do_sample=False, cache_implementation="static", pad_token_id=0
    )


def run_checkpointed():
    """Training as the Trainer does it: AdamW, clipped gradients, activation checkpointing."""
    data = [
        {"input_ids": one, "labels": one} for one in torch.randint(1, 64, (CALLS * BATCH, LENGTH))
    ]
    arguments = transformers.TrainingArguments(
        "out", max_steps=CALLS, per_device_train_batch_size=BATCH, use_cpu=True, report_to=[],
        save_strategy="no", disable_tqdm=True, gradient_checkpointing=True,
    )  # fmt: skip
    transformers.Trainer(llama(), arguments, train_dataset=data).train()


def run_adamw():
    model = llama()
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in padded():
        optimizer.zero_grad()
        model(**batch, labels=batch["input_ids"]).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = torch.nn.Linear(4, 3)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        chosen = self.gate(x).argmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            if (chosen == number).any():
                out[chosen == number] = expert(x[chosen == number])
        return out


def run_experts():
    net = torch.nn.Sequential(Experts(), Experts())
    with torch.no_grad():
        for _ in range(3 * CALLS):
            net(torch.randn(3, 4))


def run_scaler():
    """The scale begins too high, so the scaler skips the first steps."""
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    for _ in range(4 * CALLS):
        x = torch.randn(16, 32)
        with torch.autocast("cpu", torch.float16):
            loss = (net(x).float() - x[:, :1]).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() < 2.0**24


PROGRAMS = [name.removeprefix("run_") for name in list(globals()) if name.startswith("run_")]


if __name__ == "__main__":
    serve(globals())
