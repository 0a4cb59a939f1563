class BreakableCUDAGraphWrapper:
    """Each segment, from one eager op to the next, is a graph of its own."""

    def __init__(self, runnable):
        self.runnable = runnable

    def _capture(self, entry, args, kwargs):
        return self.runnable(*args, **kwargs)
