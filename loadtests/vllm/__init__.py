"""A real vLLM on a machine without a GPU: installed once into a cache folder, with a tiny model of random weights."""
