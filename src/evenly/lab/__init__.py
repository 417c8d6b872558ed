"""The laboratory: what looks at the library, and is never imported by it.

`sim` plays fleets in simulated time, `demo` runs one of real processes on this machine,
`dashboard` is its page, and `top` is a table of running processes.
"""
