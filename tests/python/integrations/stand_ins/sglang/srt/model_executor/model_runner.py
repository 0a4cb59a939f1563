class ModelRunner:
    def __init__(self, model):
        self.forward_pass_id = 0
        self.is_draft_worker = False
        self._model = model

    def load_model(self):
        self.model = self._model

    def forward(self, forward_batch, pp_proxy_tensors=None):
        self.forward_pass_id += 1
        last = getattr(forward_batch, "logits_indices", None)
        ids = getattr(forward_batch, "input_ids", forward_batch)
        return self.model.forward(ids) if last is None else self.model.forward(ids, last)
