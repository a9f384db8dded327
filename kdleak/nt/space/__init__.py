"""The kernel's address space over physical pages: page tables, and scans of what they map."""
