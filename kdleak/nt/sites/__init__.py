"""The code that asks for a pool tag: instructions, flow, and what is called."""
