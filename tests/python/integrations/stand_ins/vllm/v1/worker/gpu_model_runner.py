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
        return self._model_forward(getattr(scheduler_output, "input_ids", scheduler_output))

    def _model_forward(self, input_ids=None, positions=None, intermediate_tensors=None, **kwargs):
        return self.model(input_ids)

    def reload_weights(self, weights):
        self.model.load_state_dict(weights, assign=True)
