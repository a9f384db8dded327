"""Fetching PDBs from symbol servers into local stores."""
