"""What the measurements of torch jobs share."""
import os
import time

import torch.distributed as dist


def seconds(work, is_load):
    """Returns how long all ranks take for `work`, which begins with clean pages; a load begins with an empty page cache."""
    if dist.get_rank() == 0:
        os.sync()
        if is_load:
            with open("/proc/sys/vm/drop_caches", "w") as file:
                file.write("3")
    dist.barrier()
    begin = time.monotonic()
    work()
    dist.barrier()
    return time.monotonic() - begin
