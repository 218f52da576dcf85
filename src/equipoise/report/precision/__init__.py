"""The page of `equipoise doctor --precision`: who changes experts, and the margins."""
