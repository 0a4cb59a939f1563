import types

import torch


class GPUModelRunner:
    def load_model(self, load_dummy_weights=False, *, model=None):
        self.model = model

    def get_model(self):
        return getattr(self.model, "runnable", self.model)

    def initialize_kv_cache(self, kv_caches, num_blocks):
        self.kv_cache_config = types.SimpleNamespace(kv_cache_groups=[None], num_blocks=num_blocks)
        self.kv_caches = kv_caches
        slots = types.SimpleNamespace(gpu=torch.zeros(8, dtype=torch.int64))
        table = types.SimpleNamespace(slot_mapping=slots, block_size=16, blocks_per_kv_block=1)
        self.input_batch = types.SimpleNamespace(block_table=[table])

    def _dummy_run(self, x):
        return self.model(x)

    @torch.inference_mode()
    def execute_model(self, scheduler_output, intermediate_tensors=None):
        input_ids = getattr(scheduler_output, "input_ids", scheduler_output)
        positions = getattr(scheduler_output, "positions", None)
        hidden = self._model_forward(input_ids, positions)
        if hasattr(self.model, "compute_logits"):
            self.model.compute_logits(hidden[scheduler_output.logits_indices])

    def sample_tokens(self, grammar_output=None):
        pass

    def _dummy_sampler_run(self, hidden_states):
        return self.model.compute_logits(hidden_states)

    def _model_forward(self, input_ids=None, positions=None, intermediate_tensors=None, **kwargs):
        return self.model(input_ids)

    def reload_weights(self, weights):
        self.model.load_state_dict(weights, assign=True)
