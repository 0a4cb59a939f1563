"""How every op of a capture, or of an eager run, becomes a row of an op log. What users call is in
`cgdebug/op_log.py`.

Begin with `scopes`, then read on in this order:

    scopes            who wants op logs; gives each capture and each eager run a recorder and a log
    recorder          the dispatch mode that sees every op, and the rows of what an op writes
    written           what an op reads and writes
    names             what rows are called, and where their ops are called
    compiled_names    the module and the line of an op in code that a compiler made
    regions           annotate(), record_function and NVTX
    details           what a row says beside its statistics
    extras            hooks, statistics and values of the user's
    triton_kernels    tells a recorder which Triton kernels run, because they are no ops
    outputs           the recorder of level "graph", which finds what leaves a capture
    rows              the log: keeps the rows and hands them to the native module; gaps, coverage
    capture_cost      what a log costs while its graph is captured
    torch_debug_mode  rows as a log of torch's DebugMode, and back
"""
