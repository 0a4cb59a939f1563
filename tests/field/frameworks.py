"""Programs as the frameworks' own guides have them."""

import torch
from models import call, ids, llama, results
from programs import program
from torch import nn


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        row = ids(1, 12)[0] + i % 3
        return {"input_ids": row, "labels": row}


def trained(run, **options):
    from transformers import Trainer, TrainingArguments

    losses = []
    arguments = TrainingArguments(
        str(run.folder), per_device_train_batch_size=2, max_steps=3, report_to=[], save_strategy="no",
        logging_steps=1, use_cpu=True, disable_tqdm=True, dataloader_pin_memory=False, **options,
    )  # fmt: skip
    model = llama()
    trainer = Trainer(model, arguments, train_dataset=Rows())
    trainer.train()
    losses += [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return [losses, model.state_dict()]


@program(needs="transformers accelerate", quick=False)
def trainer(run):
    return trained(run)


@program("aot_eager", "(eager)", "(inductor)", needs="transformers accelerate")
def trainer_compiled(run):
    return trained(run, torch_compile=True, torch_compile_backend=run.backend)


@program("eager", "aot_eager", needs="transformers accelerate", quick=False)
def compiled_regions(run):
    from accelerate.utils import compile_regions

    model = compile_regions(llama(), backend=run.backend)
    return call(model)


@program(needs="accelerate", quick=False)
def accelerated(run):
    from accelerate import Accelerator

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    for i in range(3):
        with accelerator.accumulate(model):
            loss = model(torch.full((2, 8), i / 4)).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    return [loss, accelerator.unwrap_model(model).state_dict()]


@program(needs="lightning")
def lightning_fit(run):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, number):
            return self(batch[0]).square().mean()

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 1e-2)

    data = torch.utils.data.TensorDataset(torch.linspace(-1, 1, 64).reshape(8, 8))
    options = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    module = Module()
    fit = lightning.Trainer(
        max_epochs=2, accelerator="cpu", default_root_dir=str(run.folder), **options
    )
    fit.fit(module, torch.utils.data.DataLoader(data, batch_size=2))
    return module.state_dict()


@program("", "aot_eager", needs="transformers peft", quick=False)
def lora(run):
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(
        llama(), LoraConfig(target_modules=["q_proj", "v_proj"], r=4, init_lora_weights=False)
    )
    fast = run.compile(model) if run.backend else model
    out = fast(input_ids=ids(), labels=ids())
    out.loss.backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return [out.logits, grads, model.merge_and_unload()(input_ids=ids()).logits]


@program("", "aot_eager", "inductor", needs="diffusers", quick=False)
def unet(run):
    from diffusers import UNet2DConditionModel

    torch.manual_seed(0)
    model = UNet2DConditionModel(
        sample_size=16, block_out_channels=(16, 32), layers_per_block=1, cross_attention_dim=16, norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        attention_head_dim=4,
    )  # fmt: skip
    fast = run.compile(model) if run.backend else model
    out = fast(torch.linspace(-1, 1, 4 * 256).reshape(1, 4, 16, 16), 7, torch.ones(1, 3, 16)).sample
    out.square().mean().backward()
    return [out, [p.grad for p in model.parameters()]]


@program("", "aot_eager", needs="diffusers", quick=False)
def dit(run):
    from diffusers import DiTTransformer2DModel

    torch.manual_seed(0)
    size = {
        "num_attention_heads": 2,
        "attention_head_dim": 8,
        "in_channels": 4,
        "out_channels": 4,
        "num_layers": 2,
    }
    model = DiTTransformer2DModel(
        sample_size=8, norm_num_groups=4, num_embeds_ada_norm=10, **size
    ).eval()
    for block in model.transformer_blocks if run.backend else ():
        block.compile(backend=run.backend)
    out = model(torch.ones(1, 4, 8, 8), torch.tensor([3]), torch.tensor([1])).sample
    out.square().mean().backward()
    return [out, [p.grad for p in model.parameters()]]


@program("aot_eager", needs="transformers accelerate", quick=False)
def forward_hooks_of_accelerate(run):
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module

    model = llama()
    for layer in model.model.layers:
        add_hook_to_module(layer, AlignDevicesHook(execution_device="cpu", io_same_device=True))
    return results(model, run.compile(model)(input_ids=ids()))
