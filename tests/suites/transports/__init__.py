"""Deploys, faults and overload over real connections, with real processes and real signals.

One suite for every transport: a transport says how a backend is started and how a request is sent.
"""
