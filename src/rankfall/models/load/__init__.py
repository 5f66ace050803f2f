"""Open a model without trusting it: safetensors or GGUF only, no code, nothing outside its folder."""
