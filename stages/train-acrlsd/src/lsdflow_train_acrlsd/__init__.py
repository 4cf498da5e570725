"""train-acrlsd: learn affinities, from raw and LSDs (acrlsd) or from raw alone (mtlsd, affinities)."""
