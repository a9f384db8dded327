"""The KD wire protocol, both roles, over byte streams and KDNET."""
