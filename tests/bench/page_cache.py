"""The page cache, for benches that read from the disk."""
import os


def drop():
    """Writes everything back and, where that is allowed (root), forgets it; returns whether it was."""
    os.sync()
    try:
        with open("/proc/sys/vm/drop_caches", "w") as file:
            file.write("3")
    except OSError:
        return False
    return True
