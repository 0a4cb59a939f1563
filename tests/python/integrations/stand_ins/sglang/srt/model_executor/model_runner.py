class ModelRunner:
    def __init__(self, model):
        self.forward_pass_id = 0
        self.is_draft_worker = False
        self._model = model

    def load_model(self):
        self.model = self._model

    def forward(self, forward_batch, pp_proxy_tensors=None):
        self.forward_pass_id += 1
        return self.model.forward(getattr(forward_batch, "input_ids", forward_batch))
