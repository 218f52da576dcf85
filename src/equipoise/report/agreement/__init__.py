"""The page of `equipoise agree`: what differs by layer, and by which margin."""
