"""`dmbp serve`: a page on which one drops a photo and sees what the network saw.

    ray_serve       the app as replicas on a Ray cluster
    server          binds a port and runs the app (`dmbp serve`)
    app             the routes: the page and its files, asks, events and answers
    guard           who may ask: hosts, origins, a token, and how large a request may be
    asks            what a request asks, checked value by value
    store           photos and answers that are kept in memory, within limits
    waiting_line    who has a place, and who is told to return, in the order of coming
    work_queue      a queue in front of one process, with time limits and cancelling
    worker_process  the first code of such a process
    decoding        the process that decodes photos, within limits of its own
    answers         the process that owns the model: predictions, explanations, other methods
    templates       the page: one HTML file, one style, one script

A photo's way: `app` counts the bytes of a request, `decoding` turns them into pixels, `answers`
keeps what the model sees of them, and everything after that is asked about this view. Nothing is
written to disk.
"""
