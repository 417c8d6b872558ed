"""Run an ASGI application under uvicorn: sockets, bounds for strangers, drain, workers."""
