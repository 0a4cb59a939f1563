class DecodeCudaGraphRunner:
    def capture_one_shape(self, size, forward, stream_idx=None):
        return forward(size)
