"""More real models that are right, by name: requests that are decoded, and trainings of the Trainer
(serve_programs.py). What `why` may say of them is consistent at most, and names no constant."""

import torch
import transformers
from correct_programs import BATCH, TINY, llama
from serve_programs import serve

NEW = {"max_new_tokens": 7, "min_new_tokens": 7, "do_sample": False, "pad_token_id": 0}
SIZES = {name: size for name, size in TINY.items() if name != "num_key_value_heads"}
CODER = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "vocab_size": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
TOWER = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
}  # fmt: skip


def tokens(length=10):
    return torch.randint(3, 64, (BATCH, length))


def generate(model, **given):
    given = given or {"input_ids": tokens()}
    model.eval().generate(**given, **NEW)


def trainer(model, data, **options):
    arguments = transformers.TrainingArguments(
        "out", per_device_train_batch_size=BATCH, per_device_eval_batch_size=BATCH, use_cpu=True,
        report_to=[], save_strategy="no", disable_tqdm=True, **options,
    )  # fmt: skip
    return transformers.Trainer(model, arguments, train_dataset=data, eval_dataset=data)


def sentences(count=6 * BATCH):
    return [{"input_ids": one, "labels": one} for one in torch.randint(3, 64, (count, 12))]


def bert():
    return transformers.BertForMaskedLM(transformers.BertConfig(**SIZES))


def gpt2():
    config = transformers.GPT2Config(
        n_embd=16,
        n_layer=2,
        n_head=2,
        vocab_size=64,
        n_positions=32,
        bos_token_id=1,
        eos_token_id=2,
    )
    return transformers.GPT2LMHeadModel(config)


def run_bert_trained():
    trainer(bert(), sentences(), max_steps=6).train()


def run_bert_evaluated():
    trainer(bert(), sentences()).evaluate()


def run_gpt2_trained():
    trainer(gpt2(), sentences(), max_steps=6).train()


def run_gpt2_evaluated():
    trainer(gpt2(), sentences()).evaluate()


def t5():
    config = transformers.T5Config(
        d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, vocab_size=64,
        decoder_start_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def run_t5_request():
    generate(t5())


def run_bart_request():
    generate(transformers.BartForConditionalGeneration(transformers.BartConfig(**CODER)))


def run_beams():
    model = llama().eval()
    model.generate(input_ids=tokens(), num_beams=3, **NEW)


def run_beams_of_t5():
    t5().eval().generate(input_ids=tokens(), num_beams=3, **NEW)


def run_gpt2_request():
    generate(gpt2())


def run_static_cache_request():
    generate(llama(), input_ids=tokens(), cache_implementation="static")


def run_mamba_request():
    config = transformers.MambaConfig(
        hidden_size=16, num_hidden_layers=2, vocab_size=64, state_size=4
    )
    generate(transformers.MambaForCausalLM(config))


def train(model, make, steps=6):
    """make: what the model is given in a step"""
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        model(**make()).loss.backward()
        optimizer.step()


def run_whisper_trained():
    config = transformers.WhisperConfig(
        **CODER, num_mel_bins=8, max_source_positions=16, max_target_positions=20
    )
    train(
        transformers.WhisperForConditionalGeneration(config),
        lambda: {"input_features": torch.randn(BATCH, 8, 32), "labels": tokens(6)},
    )


def clip():
    text = {**TOWER, "vocab_size": 64, "max_position_embeddings": 16}
    config = transformers.CLIPConfig(
        text_config={**text, "bos_token_id": 1, "eos_token_id": 2},
        vision_config={**TOWER, "image_size": 16, "patch_size": 4},
        projection_dim=8,
    )
    return transformers.CLIPModel(config)


def images():
    return torch.randn(BATCH, 3, 16, 16)


def run_clip_trained():
    train(clip(), lambda: {"input_ids": tokens(8), "pixel_values": images(), "return_loss": True})


def run_clip_classifies():
    """The texts of the classes are the same for all images."""
    model, classes = clip().eval(), tokens(8)
    with torch.no_grad():
        for _ in range(6):
            model(input_ids=classes, pixel_values=images())


class ZeroShot(torch.nn.Module):
    """Reads the texts of the classes once."""

    def __init__(self):
        super().__init__()
        self.clip, self.classes = clip(), None

    def forward(self, pixels, texts):
        if self.classes is None:
            self.classes = self.clip.get_text_features(input_ids=texts).pooler_output
        features = self.clip.get_image_features(pixel_values=pixels).pooler_output
        return (features @ self.classes.T).softmax(-1)


def run_clip_keeps_its_classes():
    model, texts = ZeroShot().eval(), tokens(8)
    with torch.no_grad():
        for _ in range(6):
            model(images(), texts)


class LowRank(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.down = torch.nn.Linear(layer.in_features, 2, bias=False)
        self.up = torch.nn.Linear(2, layer.out_features, bias=False)
        torch.nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


def run_low_rank_llama():
    model = llama().requires_grad_(False)
    for layer in model.model.layers:
        layer.self_attn.q_proj = LowRank(layer.self_attn.q_proj)
        layer.self_attn.v_proj = LowRank(layer.self_attn.v_proj)

    def batch():
        ids = tokens()
        return {"input_ids": ids, "labels": ids}

    train(model, batch)


if __name__ == "__main__":
    serve(globals())
