"""Types, rules and limits; no IO (design: the domain does no IO)."""
