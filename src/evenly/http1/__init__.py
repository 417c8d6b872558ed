"""HTTP/1.1 connections of a client: one request at a time on each, a pool of them per address.

This layer knows nothing of backends, balancing or overload: it says exactly what became of a
request, and others decide what follows.
"""
