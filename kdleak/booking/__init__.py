"""What a hunt keeps of its hits: tallies, series over time, how sure they are, and scaling."""
