"""cgdebug in frameworks that own the training loop or the model. Each module does nothing unless
CGDEBUG_WATCH is set.

    lightning       by entry point: every Trainer gets CgdebugCallback
    transformers    Trainer(..., callbacks=[CgdebugCallback()])
    continuous_batching   that of transformers: nothing is needed but the variable
    vllm, sglang    by entry point: the model of every worker is watched

They watch the model before it is compiled and captured, name the step of each snapshot and, where
the framework captures a graph per batch size, label the graphs.
"""
