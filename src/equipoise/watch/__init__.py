"""`equipoise watch`: the page of runs, followed while they are written.

    feed         the runs that are watched: read once for all readers, sent as what has changed
    access       who may read: a token, and the names under which the server may be addressed
    app          the page and its events, over HTTP
    watch_runs   the public function: bind, say where, serve

The page is report/run/, the reading results/follow/. Nothing here imports torch.
"""
