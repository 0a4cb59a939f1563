class DecodeCudaGraphRunner:
    def capture_one_shape(self, size, forward, stream_idx=None, variant_label=None):
        return forward(size)
