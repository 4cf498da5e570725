"""Several processes that train one network: who they are, where they meet, what they agree on."""
