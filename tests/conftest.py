"""Settings of all tests."""

from hypothesis import settings

# the same examples on every machine and every run; no deadline, because machines are busy
settings.register_profile("noisegate", derandomize=True, deadline=None)
settings.load_profile("noisegate")
