"""How a tag moves over snapshots: slope, test, class, and the time until its pool is full."""
