import types

import numpy as np
import torch


class GPUModelRunner:
    def __init__(self):
        self.input_buffers = types.SimpleNamespace(positions=torch.zeros(16, dtype=torch.int64))

    def load_model(self, load_dummy_weights=False, *, model=None):
        self.model = model

    def get_model(self):
        return self.model

    def initialize_kv_cache(self, kv_caches, num_blocks):
        pass

    def _dummy_run(self, x):
        return self.model(x)

    def prepare_inputs(self, scheduler_output, batch_desc):
        tokens = scheduler_output.num_scheduled_tokens
        return types.SimpleNamespace(
            req_ids=list(tokens),
            num_scheduled_tokens=np.array(list(tokens.values())),
            num_tokens=scheduler_output.total_num_scheduled_tokens,
            input_ids=scheduler_output.input_ids,
            positions=scheduler_output.positions,
        )

    def execute_model(self, scheduler_output, intermediate_tensors=None, dummy_run=False):
        mode = types.SimpleNamespace(name=getattr(scheduler_output, "mode", "NONE"))
        batch = self.prepare_inputs(scheduler_output, types.SimpleNamespace(cg_mode=mode))
        ids = batch.input_ids
        is_replay = mode.name == "FULL"  # of a graph that returns what it is given
        self._state = ids if is_replay else self.model(ids), scheduler_output

    def sample_tokens(self, grammar_output=None):
        hidden, output = self._state
        if hasattr(self.model, "compute_logits"):
            self.model.compute_logits(hidden[output.logits_indices])

    def _dummy_sampler_run(self, hidden_states):
        return self.model.compute_logits(hidden_states)
