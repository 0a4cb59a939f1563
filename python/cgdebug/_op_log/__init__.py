"""How every op of a capture, or of an eager run, becomes a row of an op log. What users call is in
`cgdebug/op_log.py`.

Begin with `scopes`, then read on in this order:

    scopes            who wants op logs; gives each capture and each eager run a recorder and a log
    options           what users may want of a log
    following         the dispatch mode that sees every op, and what else follows a thread:
                      triton_kernels says which Triton kernels run, because they are no ops, and
                      compiled_code when code runs whose kernels nobody sees; kernel_rows makes
                      the rows of both
    run_op            runs an op as torch does where no mode sees it
    recorder          the rows of what an op writes, and the rows that it read
    calls             one call of an op, as long as it lasts
    written           what an op reads and writes
    memory            what is known of memory, by the storage that tensors share
    steps             where the calls of an eager log begin and end
    collectives       results that are there when somebody has waited; waiting: who has not gone on
    padding           which rows of a batch are real; padding_rows: what a log says of them
    names             what rows are called, and where their ops are called
    models            where the tensors and modules of a model are, for captures that follow fast
    compiled_names    the module and the line of an op in code that a compiler made
    regions           annotate(), record_function and NVTX
    arguments         what an op was given, with the views between rows
    details           what a row says beside its statistics
    extras            hooks, statistics and values of the user's; added asks for them in the right
                      place, memory_columns is the hook "memory"
    threads           ops on threads that no log follows
    outputs           the recorder of level "graph", which finds what leaves a capture
    rows              the log: keeps the rows and hands them to the native module. row: what a row
                      is, and which nodes rows explain; writer: makes rows, and knows which one
                      shows what lies in memory; gaps: what no row shows; pending: rows that are not
                      computed yet, and guard, which has them computed in time; call_details: what
                      varies from call to call
    capture_cost      what a log costs while its graph is captured
    torch_debug_mode  rows as a log of torch's DebugMode, and back
"""
