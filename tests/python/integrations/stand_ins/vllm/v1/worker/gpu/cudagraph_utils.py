class CudaGraphManager:
    def capture(self, create_forward_fn, progress_bar_desc="Capturing CUDA graphs"):
        self.results = []
        for desc in self.descs:
            create_forward_fn(desc, warmup=True)("NONE")
            forward = create_forward_fn(desc, warmup=False)
            self.results.append(forward("NONE"))


class ModelCudaGraphManager(CudaGraphManager):
    def capture(self, model, progress_bar_desc="Capturing CUDA graphs"):
        def create_forward_fn(desc, warmup):
            return lambda mode: model(desc)

        super().capture(create_forward_fn, progress_bar_desc)
