"""Apache RocketMQ as a peer: its jars, its servers on loopback, and a Java client that drives both sides."""
