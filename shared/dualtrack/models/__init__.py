"""Models: the gateway over LiteLLM, tracks, prices, actions, the local model."""
