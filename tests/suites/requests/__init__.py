"""Requests and how they end, over every transport: worlds of scripted backends and one client.

A transport is one module here; the table of endings is `tests/suites/test_requests.py`.
"""
