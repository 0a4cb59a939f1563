import torch


class GPUModelRunner:
    def load_model(self, load_dummy_weights=False, *, model=None):
        self.model = model

    def get_model(self):
        return getattr(self.model, "runnable", self.model)

    def _dummy_run(self, x):
        return self.model(x)

    @torch.inference_mode()
    def execute_model(self, scheduler_output, intermediate_tensors=None):
        return self.model(scheduler_output)
