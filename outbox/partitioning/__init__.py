"""Which partition and which lane a message belongs to: selectors, murmur2 and the lanes of the relay."""
