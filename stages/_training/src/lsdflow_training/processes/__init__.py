"""Several processes that train one network: their ranks, their rendezvous, and the values they exchange."""
