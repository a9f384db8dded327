"""``kdleak practice``: run the bundled practice kernel as a debug target."""
