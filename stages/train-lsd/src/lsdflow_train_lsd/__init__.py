"""train-lsd: learn local shape descriptors from labelled volumes."""
